"""Does a signal follow the cue that its name claims, and what tells apart two that attend alike?

What would a prompt be whose cue is broken? The same people and roles; another order, one more name, another place.

- order: the two names change places where they are first named. First is then second; who receives stays.
- extra name: a third person between the two. What was the second name is now the third.
- position: a sentence before it all. Every distance within the prompt stays, and every position changes.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import TYPE_CHECKING, Literal, get_args

from keyhole.errors import KeyholeError
from keyhole.models.stacks import Seen, visit
from keyhole.models.tokens import Encoded, encode
from keyhole.naming.corpus.corpus import Source
from keyhole.naming.corpus.gather import gather
from keyhole.naming.corpus.layer import Readers, readers_of
from keyhole.naming.explain.over_represented import statistics
from keyhole.naming.explain.sentences import Explainer, Name
from keyhole.naming.judge.judge import LEVEL, Tested, rule_judge, tested
from keyhole.naming.judge.questions import Marked, Posed, Question, marked, split
from keyhole.naming.subjects.subject import Examples, Shown, Subject
from keyhole.progress import Progress, silent
from keyhole.settings.naming import ReadSettings
from keyhole.tasks.example import Example, piece_after

if TYPE_CHECKING:
    from keyhole.models.model import Model

Break = Literal["intact", "order", "extra name", "position"]
BREAKS: tuple[Break, ...] = get_args(Break)
EXTRA = "EXTRA"  # the role of the third person


def broken(example: Example, how: Break, *, name: str, place: str) -> Example:
    """A prompt of indirect objects with one of its cues broken; `name` and `place` are what is put in.

    >>> from keyhole.tasks import ioi
    >>> one = ioi(1, names=("Mary", "John"), wordings=[0], order="ABBA")[0]
    >>> broken(one, "order", name="Anna", place="park").text == one.text.replace(
    ...     f"{one.word('IO')} and {one.word('S1')}", f"{one.word('S1')} and {one.word('IO')}"
    ... )
    True
    """
    if example.task != "ioi" or not {"IO", "S1"} <= example.roles.keys():
        raise KeyholeError(f"cues are broken in prompts of ioi, and this one is of {example.task!r}.")
    if how == "intact":
        return example
    if how == "order":
        return _swapped(example)
    if how == "position":
        return _inserted(example, 0, f"The {place} was quiet. ")
    at = min(example.roles["IO"], example.roles["S1"])[1]
    made = _inserted(example, at, f", {name}")
    return replace(made, roles={**made.roles, EXTRA: (at + 2, at + 2 + len(name))})


def _swapped(example: Example) -> Example:
    """The first mentions of both people change places, and the roles with them."""
    one, two = sorted(("IO", "S1"), key=lambda role: example.roles[role])
    (a, b), (c, d) = example.roles[one], example.roles[two]
    first, second = example.text[a:b], example.text[c:d]
    text = example.text[:a] + second + example.text[b:c] + first + example.text[d:]
    roles = dict(example.roles)  # nothing behind both moves
    roles[two], roles[one] = (a, a + len(second)), (d - len(first), d)
    inside = {role: span for role, span in roles.items() if role not in (one, two) and b <= span[0] < c}
    roles |= {role: (x + len(second) - len(first), y + len(second) - len(first)) for role, (x, y) in inside.items()}
    if "S1+1" in roles:
        roles["S1+1"] = piece_after(text, roles["S1"])
    order = {"ABBA": "BABA", "BABA": "ABBA"}.get(example.labels.get("order", ""), "")
    return replace(example, text=text, roles=roles, labels={**example.labels, "order": order})


def _inserted(example: Example, at: int, text: str) -> Example:
    roles = {role: (a, b) if a < at else (a + len(text), b + len(text)) for role, (a, b) in example.roles.items()}
    made = replace(example, text=example.text[:at] + text + example.text[at:], roles=roles)
    return replace(made, roles=roles | ({"S1+1": piece_after(made.text, roles["S1"])} if "S1+1" in roles else {}))


# Does a signal follow the cue that its name claims? Prompts that break the cue, and where the signal fires in them.
#
# A name such as "src is the second name" may tell what a signal reads, or only what is always so where it fires.
# Where the sentence and the firing part ways once the cue is broken, the name was of the texts and not of the signal.

SOURCES = ("IO", "S1", "S2", EXTRA)
_HALF = 0.5  # of its usual value: less counts as not firing
Values = dict[tuple[str, Break, str], list[tuple[float, float, Marked]]]  # by subject, break and role of src


@dataclass(frozen=True)
class Cue:
    """One signal between `dest` and `src` of prompts that are broken in one way."""

    signal: str
    how: Break
    dest: str  # roles
    src: str
    prompts: int
    fires: int  # with at least half of its usual value in intact prompts, at the src where that is largest
    said: int | None  # prompts of which its name is true; None: no name that a rule can judge
    agree: int | None  # in which both or neither is so
    value: float  # means
    attention: float

    def __str__(self) -> str:
        told = "" if self.said is None else f", name true in {self.said}, both agree in {self.agree}"
        return (
            f"{self.how:>10}, {self.dest} <- {self.src}: fires in {self.fires} of {self.prompts}{told} (value "
            f"{self.value:.3g}, attention {self.attention:.2f})"
        )


def break_cue(
    model: "Model",
    subjects: Sequence[Subject],
    examples: Sequence[Example],
    *,
    names: Mapping[str, str] | None = None,
    dest: str = "END",
    seed: int = 0,
) -> tuple[Cue, ...]:
    """Where signals fire in prompts of ioi, intact and with each cue broken; `names`: by the signal's id.

    Prompts in which a role is not one token are left out of its counts.
    """
    if not examples:
        raise KeyholeError("cues are broken in some prompts: give at least one.")
    found = _measure(model, subjects, examples, dest, seed)
    cues: list[Cue] = []
    for subject in subjects:
        intact = {src: [v for v, _, _ in found.get((subject.id, "intact", src), [])] for src in SOURCES}
        usual = max((median(values) for values in intact.values() if values), default=0.0)
        text = (names or {}).get(subject.id)
        for how in BREAKS:
            for src in SOURCES:
                rows = found.get((subject.id, how, src))
                if rows and usual > 0:  # one that never fires there has no cue there
                    cues.append(_cue((subject.id, how, dest, src), rows, _HALF * usual, text))
    return tuple(cues)


def _cue(
    of: tuple[str, Break, str, str], rows: list[tuple[float, float, Marked]], least: float, text: str | None
) -> Cue:
    fires = [value >= least for value, _, _ in rows]
    said = [rule_judge(text or "", Question("detection", (pair,))).yes for _, _, pair in rows]
    known = None not in said
    return Cue(
        *of,
        prompts=len(rows),
        fires=sum(fires),
        said=sum(map(bool, said)) if known else None,
        agree=sum(a == b for a, b in zip(fires, said, strict=True)) if known else None,
        value=fmean(value for value, _, _ in rows),
        attention=fmean(weight for _, weight, _ in rows),
    )


def _measure(model: "Model", subjects: Sequence[Subject], examples: Sequence[Example], dest: str, seed: int) -> Values:
    """Value and attention of every signal at (dest, src) of every broken prompt."""
    readers, found, rng = readers_of(model, subjects), Values(), random.Random(seed)
    people = sorted({example.word(role) for example in examples for role in ("IO", "S1")})
    sights = sorted({example.word("PLACE") for example in examples if "PLACE" in example.roles}) or ["store"]
    for example in examples:
        others = [one for one in people if one not in (example.word("IO"), example.word("S1"))] or ["Anna"]
        put = {"name": rng.choice(others), "place": rng.choice(sights)}
        for how in BREAKS:
            made = broken(example, how, **put)
            encoded = encode(model, made.text, None)
            places = made.places(encoded.tokens)
            pairs = {src: (places[dest], places[src]) for src in SOURCES if src in places and dest in places}
            for (subject, src), (value, weight) in _read(model, subjects, readers, encoded, pairs).items():
                marked = Marked(encoded.tokens, *pairs[src])
                found.setdefault((subject, how, src), []).append((value, weight, marked))
    return found


def _read(
    model: "Model",
    subjects: Sequence[Subject],
    readers: Mapping[int, Readers],
    encoded: Encoded,
    pairs: Mapping[str, tuple[int, int]],
) -> dict[tuple[str, str], tuple[float, float]]:
    """(value, attention) of every subject at some pairs of one prompt."""
    found: dict[tuple[str, str], tuple[float, float]] = {}

    def see(layer: int, seen: Seen) -> None:
        if layer not in readers:
            return
        own = readers[layer]
        (ask, offer), weights = own.read(seen), own.weights(seen)
        for column, number in enumerate(own.numbers.tolist()):
            for src, (d, s) in pairs.items():
                a, b = float(ask[0, d, column]), float(offer[0, s, column])
                weight = float(weights[0, int(own.of_head[column]), d, s])
                found[subjects[number].id, src] = (a * b if a > 0 and b > 0 else 0.0, weight)

    visit(model, [encoded], see)
    return found


# What separates two signals that attend alike? What the strongest places of one have and those of the other have not.
#
# Each is named with the other's strongest places as its background, and both sentences are tested on places of texts
# that were not looked at: do they tell the one from the other?


@dataclass(frozen=True)
class Apart:
    """One of two signals, and what it has that the other has not."""

    signal: str
    other: str
    name: Name
    test: Tested | None  # None: no name, or too few examples
    shared: float  # share of its strongest places that are also among the other's

    @property
    def passes(self) -> bool:
        """Does the sentence tell them apart? p-values of both together, so each at half of 5 %."""
        return self.test is not None and self.test.p <= LEVEL / 2

    def __str__(self) -> str:
        if self.test is None:
            told = "untested" if self.name.text is not None else "nothing to test"
        else:
            right = f"{self.test.right} of {self.test.questions} right, p {self.test.p:.2g}"
            told = f"{'passes' if self.passes else 'fails'}: {right}"
        return f"{self.signal}, and not {self.other}: {self.name} [{told}]; {self.shared:.0%} of its places are shared"


def apart(a: Examples, b: Examples, explainer: Explainer = statistics, *, seed: int = 0) -> tuple[Apart, Apart]:
    """What each of two has that the other has not; places that both have are left out."""
    tops = a.of("top"), b.of("top")
    places = [{(one.tokens, one.dest, one.src) for one in top} for top in tops]
    both = places[0] & places[1]
    own = [[one for one in top if (one.tokens, one.dest, one.src) not in both] for top in tops]
    seen, held = split([*own[0], *own[1]], seed)
    ids, found = (a.subject.id, b.subject.id), []
    for i in (0, 1):
        mine, others = ([one for one in own[k] if one in seen] for k in (i, 1 - i))
        name = explainer(mine, others) if mine and others else Name(None, "statistics")
        ask = [[one for one in own[k] if one in held] for k in (i, 1 - i)]
        shared = len(both) / max(len(places[i]), 1)
        found.append(Apart(ids[i], ids[1 - i], name, _tested(name, *ask), shared))
    return found[0], found[1]


def _tested(name: Name, yes: Sequence[Shown], no: Sequence[Shown]) -> Tested | None:
    """One place of each text, as many as there are."""
    if name.text is None or not yes or not no:
        return None
    truths = [(one, True) for one in {one.tokens: one for one in yes}.values()]
    truths += [(one, False) for one in {one.tokens: one for one in no}.values()]
    posed = [Posed(Question("detection", (marked(one),)), truth, one.pick) for one, truth in truths]
    return tested(posed, [rule_judge(name.text, one.question) for one in posed], "top")


def tell_apart(
    model: "Model",
    a: Subject,
    b: Subject,
    corpus: Source | None = None,
    *,
    tokens: int = ReadSettings.tokens,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[Apart, Apart]:
    """The same from a corpus."""
    first, second = gather(model, [a, b], corpus, tokens=tokens, seed=seed, progress=progress)
    return apart(first, second, seed=seed)
