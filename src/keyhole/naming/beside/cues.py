"""Does a signal follow the cue that its name claims? Prompts that break the cue, and where the signal fires in them.

A name such as "src is the second name" may tell what a signal reads, or only what is always so where it fires. Where
the sentence and the firing part ways once the cue is broken, the name was of the texts and not of the signal.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.recording.visit import Seen, visit
from keyhole.models.tokens.prompts import Encoded, encode
from keyhole.naming.beside.broken import BREAKS, EXTRA, Break, broken
from keyhole.naming.gathering.readers import Readers, readers_of
from keyhole.naming.judging.judge import rule_judge
from keyhole.naming.judging.questions import Marked, Question
from keyhole.naming.subject import Subject
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.model import Model

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
