"""Does a signal follow the cue that its name claims, and what separates two signals that attend alike?

A cue is broken in three ways. People and roles stay the same.

- order: the two names change places where they are first mentioned; who receives stays.
- extra name: a third person is put between the two, so that the second name becomes the third.
- position: a sentence is put before everything. Distances within the prompt stay, and all positions change.
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
    """A prompt of indirect objects with one of its cues broken.

    Args:
        example: The prompt.
        how: What is changed; "intact" changes nothing.
        name: The third person's name, for "extra name".
        place: The place in the sentence that is put before it, for "position".

    >>> from keyhole.tasks import ioi
    >>> example = ioi(1, names=("Mary", "John"), wordings=[0], order="ABBA")[0]
    >>> broken(example, "order", name="Anna", place="park").text == example.text.replace(
    ...     f"{example.word('IO')} and {example.word('S1')}", f"{example.word('S1')} and {example.word('IO')}"
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
    longer = _inserted(example, at, f", {name}")
    return replace(longer, roles={**longer.roles, EXTRA: (at + 2, at + 2 + len(name))})


def _swapped(example: Example) -> Example:
    """The first mentions of both people change places, and the roles with them."""
    earlier, later = sorted(("IO", "S1"), key=lambda role: example.roles[role])
    (a, b), (c, d) = example.roles[earlier], example.roles[later]
    first, second = example.text[a:b], example.text[c:d]
    text = example.text[:a] + second + example.text[b:c] + first + example.text[d:]
    roles = dict(example.roles)  # what follows both names keeps its place
    roles[later], roles[earlier] = (a, a + len(second)), (d - len(first), d)
    inside = {role: span for role, span in roles.items() if role not in (earlier, later) and b <= span[0] < c}
    roles |= {role: (x + len(second) - len(first), y + len(second) - len(first)) for role, (x, y) in inside.items()}
    if "S1+1" in roles:
        roles["S1+1"] = piece_after(text, roles["S1"])
    order = {"ABBA": "BABA", "BABA": "ABBA"}.get(example.labels.get("order", ""), "")
    return replace(example, text=text, roles=roles, labels={**example.labels, "order": order})


def _inserted(example: Example, at: int, text: str) -> Example:
    roles = {role: (a, b) if a < at else (a + len(text), b + len(text)) for role, (a, b) in example.roles.items()}
    longer = example.text[:at] + text + example.text[at:]
    if "S1+1" in roles:
        roles["S1+1"] = piece_after(longer, roles["S1"])
    return replace(example, text=longer, roles=roles)


# Does a signal follow the cue that its name claims? Prompts that break the cue, and where the signal fires in them.
#
# A name such as "src is the second name" may describe what a signal reads, or only what happens to be true wherever it
# fires. If the sentence and the firing disagree once the cue is broken, the name described the texts, not the signal.

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
    agree: int | None  # prompts where it fires and the name is true, or neither
    value: float  # means
    attention: float

    def __str__(self) -> str:
        truth = "" if self.said is None else f", name true in {self.said}, both agree in {self.agree}"
        return (
            f"{self.how:>10}, {self.dest} <- {self.src}: fires in {self.fires} of {self.prompts}{truth} (value "
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
    """Where signals fire in prompts of ioi, intact and with each cue broken.

    Prompts in which a role is not one token are left out of its counts.

    Args:
        model: The model.
        subjects: The signals.
        examples: Prompts of the task ioi.
        names: The names of the signals by their ids, to be compared with where they fire.
        dest: The role of the token that attends.
        seed: Seed of the names and places that are put in.

    >>> import keyhole
    >>> from keyhole.naming.subjects import channel_subjects
    >>> from keyhole.tasks import ioi
    >>> model = keyhole.load()
    >>> cues = break_cue(model, channel_subjects(model, (3, 1), [4]), list(ioi(2)))
    >>> all(cue.fires <= cue.prompts for cue in cues)
    True
    """
    if not examples:
        raise KeyholeError("cues are broken in some prompts: give at least one.")
    measured = _measure(model, subjects, examples, dest, seed)
    cues: list[Cue] = []
    for subject in subjects:
        intact = {src: [v for v, _, _ in measured.get((subject.id, "intact", src), [])] for src in SOURCES}
        usual = max((median(values) for values in intact.values() if values), default=0.0)
        text = (names or {}).get(subject.id)
        for how in BREAKS:
            for src in SOURCES:
                rows = measured.get((subject.id, how, src))
                if rows and usual > 0:  # a signal that never fires in intact prompts has no cue to follow
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
    readers, values, rng = readers_of(model, subjects), Values(), random.Random(seed)
    people = sorted({example.word(role) for example in examples for role in ("IO", "S1")})
    sights = sorted({example.word("PLACE") for example in examples if "PLACE" in example.roles}) or ["store"]
    for example in examples:
        others = [name for name in people if name not in (example.word("IO"), example.word("S1"))] or ["Anna"]
        put = {"name": rng.choice(others), "place": rng.choice(sights)}
        for how in BREAKS:
            changed = broken(example, how, **put)
            encoded = encode(model, changed.text, None)
            places = changed.places(encoded.tokens)
            pairs = {src: (places[dest], places[src]) for src in SOURCES if src in places and dest in places}
            for (subject, src), (value, weight) in _read(model, subjects, readers, encoded, pairs).items():
                marked = Marked(encoded.tokens, *pairs[src])
                values.setdefault((subject, how, src), []).append((value, weight, marked))
    return values


def _read(
    model: "Model",
    subjects: Sequence[Subject],
    readers: Mapping[int, Readers],
    encoded: Encoded,
    pairs: Mapping[str, tuple[int, int]],
) -> dict[tuple[str, str], tuple[float, float]]:
    """(value, attention) of every subject at some pairs of one prompt."""
    values: dict[tuple[str, str], tuple[float, float]] = {}

    def see(layer: int, stack: Seen) -> None:
        if layer not in readers:
            return
        of_layer = readers[layer]
        (ask, offer), weights = of_layer.read(stack), of_layer.weights(stack)
        for column, number in enumerate(of_layer.numbers.tolist()):
            for src, (d, s) in pairs.items():
                a, b = float(ask[0, d, column]), float(offer[0, s, column])
                weight = float(weights[0, int(of_layer.of_head[column]), d, s])
                values[subjects[number].id, src] = (a * b if a > 0 and b > 0 else 0.0, weight)

    visit(model, [encoded], see)
    return values


# What separates two signals that attend alike? What is true of the strongest places of one, and not of the other's.
#
# Each is named with the other's strongest places as its background. Both sentences are tested on places of held-out
# texts: do they separate the two signals there?


@dataclass(frozen=True)
class Apart:
    """One of two signals, and what is true of its places and not of the other's."""

    signal: str
    other: str
    name: Name
    test: Tested | None  # None: no name, or too few examples
    shared: float  # share of its strongest places that are also among the other's

    @property
    def passes(self) -> bool:
        """Does the sentence separate them? Two sentences are tested, so each at half of 5 % (Bonferroni)."""
        return self.test is not None and self.test.p <= LEVEL / 2

    def __str__(self) -> str:
        if self.test is None:
            outcome = "untested" if self.name.text is not None else "nothing to test"
        else:
            right = f"{self.test.right} of {self.test.questions} right, p {self.test.p:.2g}"
            outcome = f"{'passes' if self.passes else 'fails'}: {right}"
        shared = f"{self.shared:.0%} of its places are shared"
        return f"{self.signal}, and not {self.other}: {self.name} [{outcome}]; {shared}"


def apart(a: Examples, b: Examples, explainer: Explainer = statistics, *, seed: int = 0) -> tuple[Apart, Apart]:
    """What is true of the places of each of two signals, and not of the other's; shared places are left out.

    Args:
        a: Examples of one signal.
        b: Examples of the other.
        explainer: Makes a name from examples and background.
        seed: Seed of the split into texts for names and held-out texts for tests.
    """
    tops = a.of("top"), b.of("top")
    places = [{(shown.tokens, shown.dest, shown.src) for shown in top} for top in tops]
    both = places[0] & places[1]
    apart = [[shown for shown in top if (shown.tokens, shown.dest, shown.src) not in both] for top in tops]
    explained, held_out = split([*apart[0], *apart[1]], seed)
    ids, sides = (a.subject.id, b.subject.id), []
    for i in (0, 1):
        fires, background = ([shown for shown in apart[k] if shown in explained] for k in (i, 1 - i))
        name = explainer(fires, background) if fires and background else Name(None, "statistics")
        yes, no = ([shown for shown in apart[k] if shown in held_out] for k in (i, 1 - i))
        shared = len(both) / max(len(places[i]), 1)
        sides.append(Apart(ids[i], ids[1 - i], name, _tested(name, yes, no), shared))
    return sides[0], sides[1]


def _tested(name: Name, yes: Sequence[Shown], no: Sequence[Shown]) -> Tested | None:
    """The test with one place of each text: places of one text are not independent."""
    if name.text is None or not yes or not no:
        return None
    truths = [(shown, True) for shown in {shown.tokens: shown for shown in yes}.values()]
    truths += [(shown, False) for shown in {shown.tokens: shown for shown in no}.values()]
    posed = [Posed(Question("detection", (marked(shown),)), truth, shown.pick) for shown, truth in truths]
    return tested(posed, [rule_judge(name.text, question.question) for question in posed], "top")


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
    """What separates two signals, from their strongest places in a corpus.

    Args:
        model: The model.
        a: One signal, channel or feature.
        b: The other.
        corpus: A file, a dataset or texts (see `keyhole.naming.corpus.corpus`). Default: text that suits the model.
        tokens: How many tokens are read, at most.
        seed: Seed of the text, if no corpus is given, and of the split into halves.
        progress: Called with the number of tokens read and their total.

    >>> import keyhole
    >>> from keyhole.naming.subjects import channel_subjects
    >>> model = keyhole.load()
    >>> a, b = tell_apart(model, *channel_subjects(model, (3, 1), [4]), tokens=3000)
    >>> a.signal, a.other
    ('3.1:4', '3.1:4-')
    """
    first, second = gather(model, [a, b], corpus, tokens=tokens, seed=seed, progress=progress)
    return apart(first, second, seed=seed)
