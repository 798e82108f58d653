"""What do all edges out of upstream heads do? Those of two heads add up, and a head without a known role matters."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.figures.style import BLUE, GREY
from keyhole.intervene.removal import CutMode, random_cut
from keyhole.stats import Interval
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Value, of_part, rows_of
from keyhole_papers.svt.answers import Answers, answers, few, panels, whiskers
from keyhole_papers.svt.effects import MODES
from keyhole_papers.svt.ioi import LEAST, is_gpt2, role_rule, subject
from keyhole_papers.svt.together import ADDS, Pair, Sums, sums


@dataclass(frozen=True)
class Removal:
    """What the removal of edges does to the logit difference of one prompt."""

    each: tuple[float, ...]  # the edges of one head after the other
    every: float  # those of all heads at once
    random: float  # as many random channels of all


@dataclass(frozen=True)
class OutOf:
    """All edges out of some heads removed, in prompts where each of them has edges."""

    answers: Answers
    heads: tuple[Head, ...]  # none where no edges leave such heads
    prompts: int
    rows: Mapping[CutMode, Sequence[Removal]]  # one per prompt; none where those are too few

    @property
    def names(self) -> str:
        """The heads in words."""
        return " and ".join(map(head_name, self.heads))

    def over(self, mode: CutMode, of: Callable[[Removal], float]) -> Interval:
        """The mean over prompts."""
        return Interval.over(of(row) for row in self.rows[mode])

    def means(self, mode: CutMode) -> dict[str, Interval]:
        """By what was removed."""
        last = {"random": self.over(mode, lambda row: row.random)}
        every = self.over(mode, lambda row: row.every)
        if len(self.heads) == 1:
            return {"removed": every, **last}
        each = zip(*(row.each for row in self.rows[mode]), strict=True)
        named = {head_name(head): Interval.over(own) for head, own in zip(self.heads, each, strict=True)}
        return {**named, "both": every, **last}


def _out_of(found: Answers, heads: Sequence[Head]) -> OutOf:
    having = [(one, sets) for one in found.traced if all(sets := [one.out_of(head) for head in heads])]
    rows: dict[CutMode, list[Removal]] = {}
    for mode in MODES if heads and len(having) >= LEAST else ():
        generator, rows[mode] = torch.Generator().manual_seed(0), []
        for answer, sets in having:
            every = [cut for one in sets for cut in one]
            others = [random_cut(answer.run, cut, generator) for cut in every]
            changes = answer.changes([*sets, *([every] if len(sets) > 1 else []), others], mode)
            rows[mode].append(Removal(tuple(changes[: len(sets)]), *changes[-2:]))
    return OutOf(found, tuple(heads), len(having), rows)


def _prompts(record: OutOf) -> Finding:
    """In how many were all edges removed? Nothing is judged in too few."""
    having = f"edges out of {record.names}" if record.heads else "edges out of such heads"
    return Finding("prompts", record.prompts, part=f"With {having}") if record.rows else few(record.prompts, having)


def _draw_out_of(record: OutOf) -> Mapping[str, Figure]:
    if not record.rows:
        return {}
    size, y = (max(5.0, 3.0 * len(record.rows)), 3.4), "change of the logit difference"
    figure, axes = panels(record.rows, f"All edges out of {record.names} removed", size, y=y)
    for axis, means in zip(axes, map(record.means, record.rows), strict=True):
        whiskers(axis, means, [GREY if label == "random" else BLUE for label in means], 0.7)
        axis.set_xticks(range(len(means)), list(means))
    return {"removed": figure}


def measure_two(job: Job) -> OutOf:
    """0.9 and 0.11, or two heads that most often have edges in the same prompt."""
    found = answers(job)
    if is_gpt2(job.model):
        return _out_of(found, ((0, 9), (0, 11)))
    movers = set(subject(job).roles.get("name mover", ()))
    pairs = Counter(pair for one in found.traced for pair in combinations(sorted(set(one.writers) - movers), 2))
    return _out_of(found, pairs.most_common(1)[0][0] if pairs else ())


def _sums(record: OutOf, mode: CutMode) -> Sums:
    return sums([Pair(sum(row.each), row.every) for row in record.rows[mode]])


def _less(record: OutOf) -> Interval:
    """By how much local removal leaves the logit difference higher than global removal."""
    both = zip(record.rows["local"], record.rows["global"], strict=True)
    return Interval.over(local.every - everywhere.every for local, everywhere in both)


def found_two(record: OutOf) -> Findings:
    """Do the effects of all edges out of two upstream heads add up, and does local removal do less?"""
    rows, holds = [_prompts(record)], list[bool]()
    asked = f"a loss whose interval excludes 0, more than twice that of random channels, and {ADDS}"
    for mode in record.rows:
        means, own = record.means(mode), _sums(record, mode)
        both = means["both"]
        holds.append(both.high < 0 and abs(means["random"].mean) < -both.mean / 2 and own.adds)
        values: dict[str, Value] = {**means, "sum": own.summed, "share of the sum": own.share}
        rows += of_part(mode, *rows_of(values, {"both": (asked, holds[-1])}))
    if record.rows:
        less = _less(record)
        rows.append(Finding("local above global", less, "an interval above 0", less.low > 0))
    why = "Two heads, no name movers, that most often have edges in the same prompt stand for 0.9 and 0.11. "
    remark = f"{'' if record.answers.of.real else why}{record.answers.note}"
    return Findings(rows, record.answers.of, first=any(holds[:1]), unless="the first holds globally", remark=remark)


def measure_unknown(job: Job) -> OutOf:
    """2.8, or of heads without a role that with most edges."""
    found = answers(job)
    if is_gpt2(job.model):
        return _out_of(found, ((2, 8),))
    known = {head for heads in subject(job).roles.values() for head in heads}
    counts = Counter(head for one in found.traced for head in one.writers.elements() if head not in known)
    return _out_of(found, [head for head, _ in counts.most_common(1)])


def _sizes(record: OutOf, mode: CutMode) -> tuple[Interval, Interval]:
    """In absolute terms: the changes, and those by random channels."""
    return record.over(mode, lambda row: abs(row.every)), record.over(mode, lambda row: abs(row.random))


def found_unknown(record: OutOf) -> Findings:
    """Does a head without a known role matter for the answer?"""
    rows = [_prompts(record)]
    for mode in record.rows:
        means, (size, chance) = record.means(mode), _sizes(record, mode)
        matters = means["removed"].beyond_doubt and size.low > chance.high
        claim = "a change whose interval excludes 0, in size beyond that of random channels", matters
        values: dict[str, Value] = {**means, "absolute": size, "absolute, random": chance}
        rows += of_part(mode, *rows_of(values, {"removed": claim}))
    why = f"{record.names}, of heads without a role that with most edges, stands for 2.8. "
    of = replace(record.answers.of, heads=role_rule(record.answers.of.model))
    return Findings(rows, of, remark=f"{'' if of.real else why}{record.answers.note}")


RUNS: dict[str, Attempt] = {
    "svt-fig7": Experiment(measure_two, found_two, _draw_out_of),
    "svt-fig28": Experiment(measure_unknown, found_unknown, _draw_out_of),
}
