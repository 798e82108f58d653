"""What do several signals do at once? Whether their effects add up, side by side and along a path; and those of 9.6."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

from matplotlib.figure import Figure

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.writer import SideName
from keyhole.figures.style import BLUE, INK, RED
from keyhole.intervene.cuts import serial
from keyhole.intervene.remove import CutMode
from keyhole.models.heads import head_name
from keyhole_papers.experiment import Experiment, Told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.outcome import Verdict
from keyhole_papers.svt.answers import LOCAL, Answers, answers, few
from keyhole_papers.svt.effects import MATTERS, MODES, ODD, SIDES, Effect, Into, into, over_prompts, removed
from keyhole_papers.svt.intervals import Interval, numbered
from keyhole_papers.svt.ioi import LEAST, judged, measured_on
from keyhole_papers.svt.panels import cloud, panels, whiskers

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


def sums(pairs: Sequence[Pair]) -> Sums:
    """Do they add up?"""
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


def judge_parallel(record: Into) -> Verdict:
    """Do the effects of signals that reach a head side by side add up? In two of four places."""
    adds = [
        removed(record.at(*place, together=True)).matters and 0.5 <= sums(_pairs(record, *place)).share <= 1.5
        for place in _PLACES
    ]
    return judged(record, [sum(adds) >= 2])


def _tell_parallel(record: Into) -> Told:
    lines, numbers = [], {}
    for side, mode in _PLACES:
        where, pairs = record.where(side, mode), _pairs(record, side, mode)
        if not pairs:
            lines.append(f"{where}: no firing has two signals.")
            continue
        own, random = sums(pairs), removed(record.at(side, mode, together=True)).random
        numbers[where] = {"together": own.together, "sum": own.summed, "share": own.share, "random": random}
        lines.append(
            f"{where}, {len(pairs)} sets: removed together {own.together}, sum of single removals {own.summed}, random "
            f"channels {random}."
        )
    asked = f"Asked in two of the four or more: an effect together, {MATTERS}; and .5 to 1.5 of the sum."
    return Told("\n".join(lines), numbered(numbers), f"{asked} {record.note}")


def _draw_parallel(record: Into) -> Mapping[str, Figure]:
    points = {record.where(*place): pairs for place in _PLACES if (pairs := _pairs(record, *place))}
    title = f"All signals into {head_name(record.head)} at a token, removed together and one by one"
    return {"sums": _figure(points, title)} if points else {}


def _at_once(record: Into, side: SideName, mode: CutMode) -> list[Effect]:
    """Per prompt, the removal of all signals; where there is but one signal, its own."""
    every = [*record.at(side, mode), *record.at(side, mode, together=True)]
    return list({one.prompt: one for one in every}.values())


def judge_all(record: Into) -> Verdict:
    """Does the logit difference rise locally and fall globally, when all signals into the head are removed?"""
    changes = [(removed(_at_once(record, side, "local")), removed(_at_once(record, side, "global"))) for side in SIDES]
    return judged(record, [local.rises and everywhere.falls for local, everywhere in changes])


def _tell_all(record: Into) -> Told:
    lines, numbers = [], {}
    for side, mode in _LOCAL_FIRST:
        own, where = _at_once(record, side, mode), record.where(side, mode)
        if len(own) < LEAST:
            lines.append(f"{where}: prompts with signals {len(own)}, too few to judge.")
            continue
        change, attention = removed(own), over_prompts(own, lambda one: one.attention)
        numbers[where] = {"logit difference": change.by, "attention": attention, "random": change.random}
        lines.append(
            f"{where}, {len(own)} prompts: all signals removed together change the logit difference by {change.by} "
            f"and attention by {attention}; random channels the former by {change.random}."
        )
    note = (
        f"Asked at each token: a local rise and a global fall over {LEAST} prompts or more, {MATTERS}. Head "
        f"{head_name(record.head)} stands where 9.6 is, and {record.push}; its signals at END and at IO are removed in "
        f"turn, as sets. {LOCAL} {measured_on(record, roles=True)}"
    )
    return Told("\n".join(lines), numbered(numbers), note)


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
        if circuit.nodes[edge.source].kind != "offset":
            into.setdefault(edge.target, []).append(edge)

    @cache
    def longest(node: int) -> list[int]:
        chains = [(longest(edge.source), edge.weight) for edge in into.get(node, ())]
        return [*max(chains, key=lambda chain: (len(chain[0]), chain[1]))[0], node] if chains else [node]

    ends = [(longest(edge.source), edge.weight) for edge in circuit.edges if edge.side == "target"]
    return max(ends, key=lambda chain: (len(chain[0]), chain[1]))[0] if ends else []


def judge_along(record: Along) -> Verdict:
    """Do the effects of edges along one path overlap, so that together they do less than their sum?"""
    own = map(sums, record.pairs.values())
    return judged(record.answers, [one.together.beyond_doubt and one.spared.low > 0 for one in own])


def _tell_along(record: Along) -> Told:
    if not record.pairs:
        return Told(few(record.paths, "a path of two steps"), note=record.answers.note)
    lines, numbers = [], {}
    for mode, pairs in record.pairs.items():
        own = sums(pairs)
        numbers[mode] = {"together": own.together, "sum": own.summed, "overlap": own.spared}
        lines.append(
            f"{mode}, {len(pairs)} paths: removed together {own.together}, sum of single removals {own.summed}; in "
            f"size, together falls short of the sum by {own.spared}."
        )
    note = (
        "Asked globally and locally: an effect together whose interval excludes 0, in size less than the sum (an "
        "interval above 0). A path is the longest chain of signals in a prompt's circuit, with two steps or more. "
    )
    return Told("\n".join(lines), numbered({"": {"paths": record.paths}, **numbers}), f"{note}{record.answers.note}")


def _draw_along(record: Along) -> Mapping[str, Figure]:
    title = "Signals along one path, removed together and one by one"
    return {"serial": _figure(record.pairs, title)} if record.pairs else {}


RUNS: dict[str, Attempt] = {
    "svt-fig25": Experiment(partial(into, role="name mover"), judge_parallel, _tell_parallel, _draw_parallel),
    "svt-fig26": Experiment(measure_along, judge_along, _tell_along, _draw_along),
    "svt-fig27": Experiment(partial(into, role="name mover", number=ODD), judge_all, _tell_all, _draw_all),
}
