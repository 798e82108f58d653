"""Which questions test a name? Questions about held-out examples, as many with the answer yes as with no.

Each question is about one text with a marked pair, so that questions do not answer each other.

- detection: does the signal fire between the marked tokens?
- fuzzing: is this the right pair, or another one of the same text?
- intruder: which of five texts does not belong? Needs no name.
- examples: is the text more like known examples, or like places where the signal does not fire? Needs no name either.

A question contains neither its truth nor the value of the signal nor why the example was picked.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil, inf
from typing import Literal

from keyhole.naming.subjects.subject import HARD, NEGATIVES, Pick, Shown
from keyhole.settings.naming import Asking

QuestionKind = Literal["detection", "fuzzing", "intruder", "examples"]
Span = Literal["top", "all"]  # which positives: top and high deciles, or all deciles equally


@dataclass(frozen=True)
class Marked:
    """A text with a dest and a src: the part of an example that a judge is given."""

    tokens: tuple[str, ...]
    dest: int
    src: int


@dataclass(frozen=True)
class Question:
    """One question to a judge."""

    kind: QuestionKind
    texts: tuple[Marked, ...]  # one; five of an intruder question
    known: tuple[tuple[Marked, bool], ...] = ()  # of an `examples` question: others, and whether the signal fires there


@dataclass(frozen=True)
class Posed:
    """A question with its truth, which no judge is given."""

    question: Question
    truth: bool | int  # whether the signal fires; of an intruder question, the index of the text where it does not
    pick: Pick | None  # why the example was picked; None: a pair that was marked at random


def marked(shown: Shown) -> Marked:
    """An example without its value and pick."""
    return Marked(shown.tokens, shown.dest, shown.src)


def all_marked(several: Sequence[Shown]) -> tuple[Marked, ...]:
    """Several examples without their values and picks."""
    return tuple(marked(shown) for shown in several)


# Which examples does the explainer see, and which are kept for the judge? No text is on both sides.


def split(shown: Sequence[Shown], seed: int = 0) -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
    """(For the explainer, held out): every text is on one side; equal chunks count as one text.

    Texts are dealt in turn, those with a top example first, so that both sides have about as many of every pick.
    """
    group = _groups(shown)
    order = list(dict.fromkeys(group[example.chunk] for example in shown))
    random.Random(seed).shuffle(order)
    rank = {"top": 0, "decile": 1}
    best: dict[int, int] = {}
    for example in shown:
        best[group[example.chunk]] = min(best.get(group[example.chunk], 9), rank.get(example.pick, 2))
    order.sort(key=lambda text: best[text])  # stable: within a rank, as shuffled
    held_out = set(order[1::2])
    return (
        tuple(example for example in shown if group[example.chunk] not in held_out),
        tuple(example for example in shown if group[example.chunk] in held_out),
    )


def _groups(shown: Sequence[Shown]) -> dict[int, int]:
    """Chunk -> the first chunk with the same text."""
    first: dict[tuple[str, ...], int] = {}
    return {example.chunk: first.setdefault(example.tokens, example.chunk) for example in shown}


# How are questions made from held-out examples? As many with either truth, at least half of the negatives hard.
#
# They use texts that the explainer was not given, and one example of each text, so that answers are independent.

_FIVE = 5  # texts of an intruder question
_KNOWN = 20  # examples of either kind that an `examples` question shows


@dataclass(frozen=True)
class Halves:
    """The examples of one signal: those for the explainer, and those held out for questions."""

    explained: tuple[Shown, ...]
    held_out: tuple[Shown, ...]

    def fires(self, high: int) -> tuple[Shown, ...]:
        """The firing examples for the explainer: top ones, and those of deciles from `high` on."""
        return tuple(
            example
            for example in self.explained
            if example.pick == "top" or (example.pick == "decile" and (example.decile or 0) >= high)
        )

    @property
    def background(self) -> tuple[Shown, ...]:
        """The examples for the explainer where the signal does not fire."""
        return tuple(example for example in self.explained if example.pick in NEGATIVES)


def pose(kind: QuestionKind, halves: Halves, of: Span, asking: Asking, *, seed: int = 0) -> tuple[Posed, ...]:
    """The questions of one kind about one signal; none where there are too few examples."""
    rng = random.Random(f"{seed} {kind} {of}")
    if kind == "intruder":
        return _intruders(halves.held_out, of, asking, rng)
    fire = positives(halves.held_out, of, asking.high, rng)
    known = _known(halves.explained, of, asking, rng) if kind == "examples" else ()
    hard, easy = _others_in_text(halves.held_out, fire, rng) if kind == "fuzzing" else negatives(halves.held_out, rng)

    def posed(pair: Marked | Shown, truth: bool) -> Posed:
        if isinstance(pair, Shown):
            return Posed(Question(kind, (marked(pair),), known), truth, pair.pick)
        return Posed(Question(kind, (pair,), known), truth, None)

    yes = [posed(example, True) for example in fire]
    return mixed(yes, [posed(example, False) for example in hard], [posed(example, False) for example in easy], asking)


def _others_in_text(
    held_out: Sequence[Shown], fire: Sequence[Shown], rng: random.Random
) -> tuple[list[Shown], list[Marked]]:
    """Other pairs of the same texts: (a firing dest with a wrong src; any pair whose dest is not known to fire)."""
    texts = dict.fromkeys(example.tokens for example in fire)
    wrong = [example for example in held_out if example.pick == "wrong src" and example.tokens in texts]
    firing = {(example.tokens, example.dest) for example in held_out if example.pick in ("top", "decile")}
    free = [(tokens, [i for i in range(len(tokens)) if (tokens, i) not in firing]) for tokens in texts]
    easy = []
    for tokens, dests in free:
        if dests:
            dest = rng.choices(dests, weights=[i + 1 for i in dests])[0]  # any visible pair, each as likely
            easy.append(Marked(tokens, dest, rng.randrange(dest + 1)))
    rng.shuffle(easy)
    return _one_of_each_text(wrong, rng), easy


def _intruders(held_out: Sequence[Shown], of: Span, asking: Asking, rng: random.Random) -> tuple[Posed, ...]:
    """Four that fire and one that does not; no text is shown twice, or questions would answer each other."""
    fire = positives(held_out, of, asking.high, rng)
    hard, easy = negatives(held_out, rng)
    strange = [example for row in zip_longest(hard, easy) for example in row if example is not None]
    strange = _without(strange, {example.tokens for example in fire})
    posed = []
    for number, intruder in enumerate(strange[: min(asking.questions, len(fire) // (_FIVE - 1))]):
        belong = fire[number * (_FIVE - 1) : (number + 1) * (_FIVE - 1)]
        at = rng.randrange(_FIVE)
        texts = all_marked([*belong[:at], intruder, *belong[at:]])
        posed.append(Posed(Question("intruder", texts), at, intruder.pick))
    return tuple(posed)


def _known(explained: Sequence[Shown], of: Span, asking: Asking, rng: random.Random) -> tuple[tuple[Marked, bool], ...]:
    """As many examples that fire as that do not, from those for the explainer."""
    fire, (hard, easy) = positives(explained, of, asking.high, rng), negatives(explained, rng)
    others = [example for row in zip_longest(hard, easy) for example in row if example is not None]
    n = min(len(fire), len(others), _KNOWN)
    return (*((marked(example), True) for example in fire[:n]), *((marked(example), False) for example in others[:n]))


def _without(shown: Sequence[Shown], texts: set[tuple[str, ...]]) -> list[Shown]:
    first_of_text = {example.tokens: example for example in reversed(shown) if example.tokens not in texts}
    return list(reversed(first_of_text.values()))


def positives(shown: Sequence[Shown], of: Span, high: int, rng: random.Random) -> list[Shown]:
    """Examples that fire, one of each text, shuffled: top and high deciles; or all deciles in turn."""
    if of == "top":
        firing = [
            example
            for example in shown
            if example.pick == "top" or (example.decile is not None and (example.decile or 0) >= high)
        ]
        return _one_of_each_text(firing, rng)
    tenths: dict[int, list[Shown]] = {}
    for example in _one_of_each_text(
        [example for example in shown if example.decile is not None and example.pick == "decile"], rng
    ):
        assert example.decile is not None
        tenths.setdefault(example.decile, []).append(example)
    return [
        example for row in zip_longest(*(tenths[i] for i in sorted(tenths, reverse=True))) for example in row if example
    ]


def negatives(shown: Sequence[Shown], rng: random.Random) -> tuple[list[Shown], list[Shown]]:
    """(Hard ones, each kind in turn; those at random), one of each text within a kind."""
    kinds = [_one_of_each_text([example for example in shown if example.pick == pick], rng) for pick in HARD]
    hard = [example for row in zip_longest(*kinds) for example in row if example is not None]
    least = min((example.value for example in shown if example.pick == "top"), default=inf)
    quiet = [
        example for example in shown if example.pick == "random" and example.value < least
    ]  # a random pair may fire
    return hard, _one_of_each_text(quiet, rng)


def mixed(yes: Sequence[Posed], hard: Sequence[Posed], easy: Sequence[Posed], asking: Asking) -> tuple[Posed, ...]:
    """As many questions of either truth as there can be, with at least the given share of hard negatives."""
    n = min(asking.questions, len(yes), len(hard) + len(easy))
    if asking.hard > 0:
        n = min(n, int(len(hard) / asking.hard))
    least = ceil(n * asking.hard)
    few = min(n - least, len(easy))
    return (*yes[:n], *hard[: n - few], *easy[:few])


def _one_of_each_text(shown: Sequence[Shown], rng: random.Random) -> list[Shown]:
    """One example of each text: several would not be independent."""
    order = list(shown)
    rng.shuffle(order)
    return list({example.tokens: example for example in order}.values())
