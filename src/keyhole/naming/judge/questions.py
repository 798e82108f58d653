"""What is a judge asked? Questions on held-out examples, as many of either truth.

What is a judge asked? One text with a marked pair at a time, so that questions do not answer each other.

- detection: does the signal fire between the marked tokens?
- fuzzing: is this the right pair, or another one of the same text?
- intruder: which of five does not belong? Needs no name.
- examples: is it more like known examples, or like what is none? Needs no name either.

A question has no truth, no value and no reason of being picked: what a judge must not know, it is not given.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import ceil, inf
from typing import Literal

from keyhole.errors import KeyholeError
from keyhole.naming.subjects.subject import HARD, NEGATIVES, Pick, Shown

QuestionKind = Literal["detection", "fuzzing", "intruder", "examples"]
Span = Literal["top", "all"]  # positives: top and high deciles, or all deciles alike


@dataclass(frozen=True)
class Marked:
    """A text with a dest and a src: all that a judge sees of an example."""

    tokens: tuple[str, ...]
    dest: int
    src: int


@dataclass(frozen=True)
class Question:
    """What a judge is asked."""

    kind: QuestionKind
    texts: tuple[Marked, ...]  # one; of an intruder question, five
    known: tuple[tuple[Marked, bool], ...] = ()  # `examples` alone: others, and whether the signal fires there


@dataclass(frozen=True)
class Posed:
    """A question beside its truth, which stays with whoever asks."""

    question: Question
    truth: bool | int  # does it fire? Of an intruder question: which one does not
    pick: Pick | None  # why the example in question was picked; None: a pair of the text that was marked at random


def marked(one: Shown) -> Marked:
    """An example without its value, and without why it was picked."""
    return Marked(one.tokens, one.dest, one.src)


def all_marked(several: Sequence[Shown]) -> tuple[Marked, ...]:
    """Several of them."""
    return tuple(marked(one) for one in several)


# Which examples does the explainer see, and which are kept for the judge? No text is on both sides.


def split(shown: Sequence[Shown], seed: int = 0) -> tuple[tuple[Shown, ...], tuple[Shown, ...]]:
    """(For the explainer, held out), whole texts each: chunks that are the same text count as one.

    Texts are dealt out in turn, those with a top example first, so both sides have as many of every pick as can be.
    """
    group = _groups(shown)
    order = list(dict.fromkeys(group[one.chunk] for one in shown))
    random.Random(seed).shuffle(order)
    rank = {"top": 0, "decile": 1}
    best: dict[int, int] = {}
    for one in shown:
        best[group[one.chunk]] = min(best.get(group[one.chunk], 9), rank.get(one.pick, 2))
    order.sort(key=lambda text: best[text])  # stable: within a rank, as shuffled
    held = set(order[1::2])
    return (
        tuple(one for one in shown if group[one.chunk] not in held),
        tuple(one for one in shown if group[one.chunk] in held),
    )


def _groups(shown: Sequence[Shown]) -> dict[int, int]:
    """Chunk -> the first chunk with the same text."""
    first: dict[tuple[str, ...], int] = {}
    return {one.chunk: first.setdefault(one.tokens, one.chunk) for one in shown}


# How are questions made of held-out examples? As many of either truth, at least half of the negatives hard.
#
# Only texts that the explainer did not see are asked about, and one example of each, so that the answers are
# independent.

_FIVE = 5  # texts of an intruder question
_KNOWN = 20  # examples of either kind that an `examples` question shows


@dataclass(frozen=True)
class Asking:
    """How much is asked, of what."""

    questions: int = 10  # with the truth yes, and as many with no
    hard: float = 0.5  # of the negatives, at least
    high: int = 8  # deciles from here on count as high

    def __post_init__(self) -> None:
        if self.questions < 1 or not 0 <= self.hard <= 1 or not 0 <= self.high <= 9:
            raise KeyholeError("ask at least one question, with a share of hard ones from 0 to 1, of deciles up to 9.")


@dataclass(frozen=True)
class Halves:
    """One signal's examples: what the explainer saw, and what it did not."""

    seen: tuple[Shown, ...]
    held: tuple[Shown, ...]

    def fires(self, high: int) -> tuple[Shown, ...]:
        """What an explainer is shown: top examples, and those of deciles from `high` on."""
        return tuple(
            one for one in self.seen if one.pick == "top" or (one.pick == "decile" and (one.decile or 0) >= high)
        )

    @property
    def background(self) -> tuple[Shown, ...]:
        """Where it does not fire, of what an explainer is shown."""
        return tuple(one for one in self.seen if one.pick in NEGATIVES)


def pose(kind: QuestionKind, halves: Halves, of: Span, asking: Asking, *, seed: int = 0) -> tuple[Posed, ...]:
    """The questions of one kind about one signal; none where examples are lacking."""
    rng = random.Random(f"{seed} {kind} {of}")
    if kind == "intruder":
        return _intruders(halves.held, of, asking, rng)
    fire = positives(halves.held, of, asking.high, rng)
    known = _known(halves.seen, of, asking, rng) if kind == "examples" else ()
    hard, easy = _others_in_text(halves.held, fire, rng) if kind == "fuzzing" else negatives(halves.held, rng)

    def posed(pair: Marked | Shown, truth: bool) -> Posed:
        if isinstance(pair, Shown):
            return Posed(Question(kind, (marked(pair),), known), truth, pair.pick)
        return Posed(Question(kind, (pair,), known), truth, None)

    yes = [posed(one, True) for one in fire]
    return mixed(yes, [posed(one, False) for one in hard], [posed(one, False) for one in easy], asking)


def _others_in_text(
    held: Sequence[Shown], fire: Sequence[Shown], rng: random.Random
) -> tuple[list[Shown], list[Marked]]:
    """Other pairs of the same texts: (a firing dest with a wrong src; any pair whose dest is not known to fire)."""
    texts = dict.fromkeys(one.tokens for one in fire)
    wrong = [one for one in held if one.pick == "wrong src" and one.tokens in texts]
    firing = {(one.tokens, one.dest) for one in held if one.pick in ("top", "decile")}
    free = [(tokens, [i for i in range(len(tokens)) if (tokens, i) not in firing]) for tokens in texts]
    easy = []
    for tokens, dests in free:
        if dests:
            dest = rng.choices(dests, weights=[i + 1 for i in dests])[0]  # any visible pair, each as likely
            easy.append(Marked(tokens, dest, rng.randrange(dest + 1)))
    rng.shuffle(easy)
    return _one_of_each_text(wrong, rng), easy


def _intruders(held: Sequence[Shown], of: Span, asking: Asking, rng: random.Random) -> tuple[Posed, ...]:
    """Four that fire and one that does not; no text is shown twice, or questions would answer each other."""
    fire = positives(held, of, asking.high, rng)
    hard, easy = negatives(held, rng)
    strange = [one for row in zip_longest(hard, easy) for one in row if one is not None]
    strange = _without(strange, {one.tokens for one in fire})
    found = []
    for number, intruder in enumerate(strange[: min(asking.questions, len(fire) // (_FIVE - 1))]):
        belong = fire[number * (_FIVE - 1) : (number + 1) * (_FIVE - 1)]
        at = rng.randrange(_FIVE)
        texts = all_marked([*belong[:at], intruder, *belong[at:]])
        found.append(Posed(Question("intruder", texts), at, intruder.pick))
    return tuple(found)


def _known(seen: Sequence[Shown], of: Span, asking: Asking, rng: random.Random) -> tuple[tuple[Marked, bool], ...]:
    """As many that fire as that do not, of those the explainer saw."""
    fire, (hard, easy) = positives(seen, of, asking.high, rng), negatives(seen, rng)
    others = [one for row in zip_longest(hard, easy) for one in row if one is not None]
    n = min(len(fire), len(others), _KNOWN)
    return (*((marked(one), True) for one in fire[:n]), *((marked(one), False) for one in others[:n]))


def _without(shown: Sequence[Shown], texts: set[tuple[str, ...]]) -> list[Shown]:
    found = {one.tokens: one for one in reversed(shown) if one.tokens not in texts}
    return list(reversed(found.values()))


def positives(shown: Sequence[Shown], of: Span, high: int, rng: random.Random) -> list[Shown]:
    """Examples that fire, one of each text, in any order: top and high deciles; or all deciles in turn."""
    if of == "top":
        found = [one for one in shown if one.pick == "top" or (one.decile is not None and (one.decile or 0) >= high)]
        return _one_of_each_text(found, rng)
    tenths: dict[int, list[Shown]] = {}
    for one in _one_of_each_text([one for one in shown if one.decile is not None and one.pick == "decile"], rng):
        assert one.decile is not None
        tenths.setdefault(one.decile, []).append(one)
    return [one for row in zip_longest(*(tenths[i] for i in sorted(tenths, reverse=True))) for one in row if one]


def negatives(shown: Sequence[Shown], rng: random.Random) -> tuple[list[Shown], list[Shown]]:
    """(Hard ones, each kind in turn; those at random), one of each text within a kind."""
    kinds = [_one_of_each_text([one for one in shown if one.pick == pick], rng) for pick in HARD]
    hard = [one for row in zip_longest(*kinds) for one in row if one is not None]
    least = min((one.value for one in shown if one.pick == "top"), default=inf)
    quiet = [one for one in shown if one.pick == "random" and one.value < least]  # chance may hit what fires
    return hard, _one_of_each_text(quiet, rng)


def mixed(yes: Sequence[Posed], hard: Sequence[Posed], easy: Sequence[Posed], asking: Asking) -> tuple[Posed, ...]:
    """As many of either truth, at least the given share of the negatives hard; fewer where there are fewer."""
    n = min(asking.questions, len(yes), len(hard) + len(easy))
    if asking.hard > 0:
        n = min(n, int(len(hard) / asking.hard))
    least = ceil(n * asking.hard)
    few = min(n - least, len(easy))
    return (*yes[:n], *hard[: n - few], *easy[:few])


def _one_of_each_text(shown: Sequence[Shown], rng: random.Random) -> list[Shown]:
    """Several of a text would count one thing several times."""
    order = list(shown)
    rng.shuffle(order)
    return list({one.tokens: one for one in order}.values())
