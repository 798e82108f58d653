"""What do several signals do at once, to answers and to residuals? Side by side, along a path, and those of 9.6."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import head_name
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import SideName
from keyhole.figures.style import BLUE, INK, RED
from keyhole.intervene.cuts import serial
from keyhole.intervene.removal import CutMode
from keyhole.stats import Interval
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance, of_part
from keyhole_papers.svt import LEAST, subject
from keyhole_papers.svt.answers import Answers, answers, cloud, few, panels, signals_note, whiskers
from keyhole_papers.svt.effects import (
    MATTERS,
    MODES,
    ODD,
    SIDES,
    Change,
    Effect,
    Into,
    change,
    effects,
    into,
    over_prompts,
    removed,
)

ADDS = ".5 to 1.5 of the sum"
_PLACES = [(side, mode) for side in SIDES for mode in MODES]
_LOCAL_FIRST = [(side, mode) for side in SIDES for mode in reversed(MODES)]


class Pair(NamedTuple):
    """Changes of the logit difference in one prompt, by a set of signals."""

    summed: float  # of single removals
    together: float


@dataclass(frozen=True)
class Sums:
    """The same over prompts."""

    summed: Interval
    together: Interval
    spared: Interval  # by which, in size, the change together falls short of the sum

    @property
    def share(self) -> float:
        """Of the sum, that is found together."""
        return self.together.mean / self.summed.mean if self.summed.mean else 0.0

    @property
    def adds(self) -> bool:
        """Do they add up?"""
        return 0.5 <= self.share <= 1.5


def sums(pairs: Sequence[Pair]) -> Sums:
    """The means over prompts."""
    spared = Interval.over(abs(pair.summed) - abs(pair.together) for pair in pairs)
    return Sums(Interval.over(pair.summed for pair in pairs), Interval.over(pair.together for pair in pairs), spared)


def _figure(points: Mapping[str, Sequence[Pair]], title: str) -> Figure:
    """Changes when signals are removed together against the sum of their single changes; on the line they add up."""
    size, x, y = (max(5.0, 2.8 * len(points) + 0.4), 3.4), "sum of single changes", "change together"
    figure, axes = panels(points, title, size, x=x, y=y, sharey=False)
    for axis, pairs in zip(axes, points.values(), strict=True):
        cloud(axis, [pair.summed for pair in pairs], [pair.together for pair in pairs])
        axis.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle="--")
    return figure


def _pairs(record: Into, side: SideName, mode: CutMode) -> list[Pair]:
    single: dict[int, float] = defaultdict(float)
    for one in record.at(side, mode):
        single[one.prompt] += one.answer
    return [Pair(single[one.prompt], one.answer) for one in record.at(side, mode, together=True)]


def found_parallel(record: Into) -> Findings:
    """Do the effects of signals that reach a head side by side add up? In two of four places."""
    rows, adds = list[Finding](), list[bool]()
    for side, mode in _PLACES:
        change, own = removed(record.at(side, mode, together=True)), sums(_pairs(record, side, mode))
        adds.append(change.matters and own.adds)
        rows += of_part(
            record.where(side, mode),
            Finding("sets", len(_pairs(record, side, mode))),
            Finding("together", own.together),
            Finding("sum", own.summed),
            Finding("share", own.share),
            Finding("random", change.random),
        )
    asked = f"2 or more, with an effect together that matters, and {ADDS}"
    rows.append(Finding("places where effects add up", sum(adds), asked, sum(adds) >= 2))
    return Findings(rows, record.of, remark=record.note)


def _draw_parallel(record: Into) -> Mapping[str, Figure]:
    points = {record.where(*place): pairs for place in _PLACES if (pairs := _pairs(record, *place))}
    title = f"All signals into {head_name(record.head)} at a token, removed together and one by one"
    return {"sums": _figure(points, title)} if points else {}


def _at_once(record: Into, side: SideName, mode: CutMode) -> list[Effect]:
    """Per prompt, the removal of all signals; where there is but one signal, its own."""
    every = [*record.at(side, mode), *record.at(side, mode, together=True)]
    return list({one.prompt: one for one in every}.values())


def found_all(record: Into) -> Findings:
    """Does the logit difference rise locally and fall globally, when all signals into the head are removed?"""
    rows = list[Finding]()
    for side in SIDES:
        changes = {mode: removed(_at_once(record, side, mode)) for mode in MODES}
        opposed = changes["local"].rises and changes["global"].falls
        for mode, own in changes.items():
            asked = (
                ("a gain that matters, where globally there is a loss that does", opposed) if mode == "local" else ()
            )
            rows += of_part(
                record.where(side, mode),
                Finding("logit difference", own.by, *asked),
                Finding("attention", over_prompts(_at_once(record, side, mode), lambda one: one.attention)),
                Finding("random", own.random),
                Finding("prompts", own.prompts),
            )
    which = f"Head {head_name(record.head)} stands where 9.6 is; its signals at END and at IO are removed as sets."
    return Findings(rows, record.of, remark=f"{which} {record.note}")


def _draw_all(record: Into) -> Mapping[str, Figure]:
    owns = {record.where(*place): _at_once(record, *place) for place in _LOCAL_FIRST}
    means = {where: removed(own).by for where, own in owns.items() if len(own) >= LEAST}
    if not means:
        return {}
    title = f"All signals into {head_name(record.head)} removed together"
    figure, (axis,) = panels([""], title, (5.4, 3.4), y="change of the logit difference")
    whiskers(axis, means, [BLUE if "local" in where else RED for where in means], 0.6)
    axis.set_xticks(range(len(means)), list(means))
    return {"together": figure}


@dataclass(frozen=True)
class Along:
    """Signals along one path of each prompt that has one."""

    answers: Answers
    paths: int
    pairs: Mapping[str, Sequence[Pair]]  # by mode; none where there are too few paths


def measure_along(job: Job) -> Along:
    """The longest path of each prompt removed at once, and edge by edge."""
    found = answers(job)
    paths = [(answer, path) for answer in found.traced if len(path := _path(answer.circuit)) > 2]  # two steps or more
    pairs: dict[str, list[Pair]] = {}
    for mode in MODES if len(paths) >= LEAST else ():
        pairs[mode] = []
        for answer, path in paths:
            cuts = serial(answer.circuit, path)
            *single, together = answer.changes([*([cut] for cut in cuts), cuts], mode)
            pairs[mode].append(Pair(sum(single), together))
    return Along(found, len(paths), pairs)


def _path(circuit: Circuit) -> list[int]:
    """From below: the longest chain of signals to a head behind the answer, the heaviest if there are several."""
    into: dict[int, list[Edge]] = {}
    for edge in circuit.edges:
        if circuit.nodes[edge.sender].kind != "offset":
            into.setdefault(edge.receiver, []).append(edge)

    @cache
    def longest(node: int) -> list[int]:
        chains = [(longest(edge.sender), edge.weight) for edge in into.get(node, ())]
        return [*max(chains, key=lambda chain: (len(chain[0]), chain[1]))[0], node] if chains else [node]

    ends = [(longest(edge.sender), edge.weight) for edge in circuit.edges if edge.side == "target"]
    return max(ends, key=lambda chain: (len(chain[0]), chain[1]))[0] if ends else []


def found_along(record: Along) -> Findings:
    """Do the effects of edges along one path overlap, so that together they do less than their sum?"""
    rows = [Finding("paths", record.paths) if record.pairs else few(record.paths, "a path of two steps")]
    for mode, pairs in record.pairs.items():
        own = sums(pairs)
        less = own.together.beyond_doubt and own.spared.low > 0
        rows += of_part(
            mode,
            Finding("together", own.together),
            Finding("sum", own.summed),
            Finding("overlap", own.spared, "an interval above 0, and one together that excludes 0", less),
        )
    remark = (
        "Overlap: by which, in size, the change together falls short of the sum. A path is the longest chain of "
        f"signals in a prompt's circuit, with two steps or more. {record.answers.note}"
    )
    return Findings(rows, record.answers.of, remark=remark)


def _draw_along(record: Along) -> Mapping[str, Figure]:
    title = "Signals along one path, removed together and one by one"
    return {"serial": _figure(record.pairs, title)} if record.pairs else {}


What = Literal["cosine", "norm"]
_LIMITS: dict[tuple[What, bool], tuple[float, str]] = {  # of single signals and of sets: how far from 1, and in words
    ("cosine", False): (0.001, "above .999"),
    ("norm", False): (0.01, "within 1 % of 1"),
    ("cosine", True): (0.01, "above .99"),
    ("norm", True): (0.02, "within 2 % of 1"),
}
_WIDE = "cosine", True  # for these sets, a wider distribution than for single signals is asked
_WIDER = "larger than of single signals"
_VECTOR = (
    "What is taken from the residual stream at the token is the same vector for global and local removal, so that one "
    "of them is shown."
)


@dataclass(frozen=True)
class Residuals:
    """What was removed from residuals."""

    of: Provenance
    effects: tuple[Effect, ...]

    def local(self, together: bool) -> list[Effect]:
        """Sets of signals, or single ones."""
        return [one for one in self.effects if one.mode == "local" and one.together == together]


def measure_residuals(job: Job) -> Residuals:
    """Signals into all heads of two roles, removed."""
    seen = subject(job)
    heads = [(role, i) for role in ("name mover", "S-inhibition") for i in range(len(seen.roles.get(role, ())))]
    found = [one for head in heads or [("name mover", 0)] for one in effects(seen, *head)]
    return Residuals(seen.of, tuple(found))


def _distance(own: Sequence[Effect], what: What) -> Tensor:
    """From 1, of each removal."""
    return torch.tensor([abs(getattr(one, what) - 1) for one in own])


def _within(own: Sequence[Effect], what: What, together: bool) -> float:
    """How many removals hardly change the residual?"""
    return float((_distance(own, what) < _LIMITS[what, together][0]).double().mean())


def _size(own: Sequence[Effect]) -> Change:
    return change(own, lambda one: abs(one.answer), lambda one: abs(one.random))


def found_residuals(record: Residuals, what: What, together: bool) -> Findings:
    """Do residuals hardly change, where answers do? Their cosines, or the ratio of their norms."""
    own, size = record.local(together), _size(record.local(together))
    values = torch.tensor([getattr(one, what) for one in own], dtype=torch.float64)
    middle, low, high = (float(values.quantile(at)) if own else math.nan for at in (0.5, 0.05, 0.95))
    off, alone = (float(_distance(some, what).median()) for some in (own, record.local(False)))
    within = _within(own, what, together)
    peaked = size.prompts >= LEAST and within > 0.5
    wide = (what, together) == _WIDE
    rows = [
        Finding("removals", len(own)),
        Finding("prompts", size.prompts),
        Finding("median", middle, digits=4),
        Finding("5 %", low, digits=4),
        Finding("95 %", high, digits=4),
        Finding("within", within, f"more than half {_LIMITS[what, together][1]}", peaked, percent=True),
        Finding("size of the change", size.by),
        Finding("size of the change, random", size.random),
        Finding("median distance from 1", off, _WIDER * wide, off > alone if wide else None, digits=4),
        Finding("median distance from 1, single signals", alone, digits=4),
    ]
    remark = (
        f"{MATTERS} A residual turns little whatever small part of it is removed. "
        + ("" if record.of.real else "A signal is a larger part of a residual of few dimensions. ")
        + f"{_VECTOR} {signals_note(record.of)}"
    )
    unless = "most are, and the same removals change the logit difference, in size, so that it matters"
    return Findings(rows, record.of, first=peaked and size.matters, unless=unless, remark=remark)


def _draw_residuals(record: Residuals, what: What, together: bool) -> Mapping[str, Figure]:
    own = record.local(together)
    title = f"{'Cosine' if what == 'cosine' else 'Norm ratio'} of residuals after and before removal"
    figure, (axis,) = panels([""], title, (5.2, 3.2), x=what, y="removals")
    axis.hist([getattr(one, what) for one in own], bins=40, color=BLUE)
    return {"residuals": figure} if own else {}


def small(what: What, *, together: bool) -> Experiment[Residuals]:
    """Of single signals, or of sets."""
    return Experiment(
        measure_residuals,
        partial(found_residuals, what=what, together=together),
        partial(_draw_residuals, what=what, together=together),
    )


RUNS: dict[str, Attempt] = {
    "svt-fig25": Experiment(partial(into, role="name mover"), found_parallel, _draw_parallel),
    "svt-fig26": Experiment(measure_along, found_along, _draw_along),
    "svt-fig27": Experiment(partial(into, role="name mover", number=ODD), found_all, _draw_all),
    "svt-fig10": small("cosine", together=False),
    "svt-fig11": small("norm", together=False),
    "svt-fig12": small("cosine", together=True),
    "svt-fig13": small("norm", together=True),
}
