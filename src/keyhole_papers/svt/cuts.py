"""Do signals cause answers? Those into heads of the IOI circuit, one by one; those out of upstream heads, all."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Literal

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.brief import Head, head_name
from keyhole.circuits.records import SideName
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, legend
from keyhole.intervene.removal import CutMode, random_cut
from keyhole.stats import Interval
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Value, of_part, rows_of
from keyhole_papers.svt import LEAST, effects, is_gpt2, role_rule, subject
from keyhole_papers.svt.answers import Answers, answers, cloud, few, panels, whiskers
from keyhole_papers.svt.effects import MODES, ODD, SIDES, Claim, Effect, Into, into, rank_correlation
from keyhole_papers.svt.together import ADDS, Pair, Sums, sums

Sides = Sequence[SideName]
Goes = Literal["heavier", "rises", "apart", "alike"]  # what the logit difference does, beside attention
_PROPORTION = 0.5  # rank correlation
_SHADES = (BLUE, RED, GREY, FAINT)
_USUAL: dict[tuple[str, CutMode], Claim] = {
    **{("removed", mode): "falls" for mode in MODES},
    **{("boosted", mode): "rises" for mode in MODES},
}
_INVERTED: dict[tuple[str, CutMode], Claim] = {
    ("removed", "global"): "falls",
    ("removed", "local"): "rises",
    ("boosted", "local"): "falls",
}
_ABOVE = "an interval above 0"
_BOTH = "rank correlation of both"
_LOST = "rank correlation of weight and attention lost"
_WORSE = "rank correlation of weight and logit difference lost"


def _means(own: Sequence[Effect]) -> dict[str, Interval]:
    """The change of the logit difference by what was done."""
    off, on = effects.removed(own), effects.boosted(own)
    return {"removed": off.by, "boosted": on.by, "random removed": off.random, "random boosted": on.random}


def _heavier(own: Sequence[Effect]) -> Interval:
    return rank_correlation(own, lambda one: one.weight, lambda one: -one.answer)


def found_singles(record: Into, sides: Sides, heavier: bool) -> Findings:
    """Does removing a signal lower the logit difference, and boosting raise it, unlike random channels?

    With `heavier`, more so if tracing gave it more weight.
    """
    rows = [row for side in sides for mode in MODES for row in _at(record, side, mode, _USUAL, heavier)]
    return Findings(rows, record.of, remark=record.note)


def _at(
    record: Into, side: SideName, mode: CutMode, claims: Mapping[tuple[str, CutMode], Claim], heavier: bool = False
) -> list[Finding]:
    """What single signals do in one place."""
    own = record.at(side, mode)
    off, on, more = effects.removed(own), effects.boosted(own), _heavier(own)
    asked = (_ABOVE, off.prompts >= LEAST and more.low > 0) if heavier else ()
    return of_part(
        record.where(side, mode),
        off.finding("removed", claims.get(("removed", mode))),
        on.finding("boosted", claims.get(("boosted", mode))),
        Finding("random removed", off.random),
        Finding("random boosted", on.random),
        Finding("heavier", more, *asked),
        Finding("prompts", off.prompts),
    )


def _draw_singles(record: Into, sides: Sides) -> Mapping[str, Figure]:
    places = {record.where(side, mode): record.at(side, mode) for side in sides for mode in MODES}
    shown = {where: _means(own) for where, own in places.items() if own}
    if not shown:
        return {}
    title = f"Change of the logit difference, signals into {head_name(record.head)}"
    figure, axes = panels(shown, title, (max(5.0, 2.4 * len(shown) + 0.6), 3.6), y="mean change")
    for axis, means in zip(axes, shown.values(), strict=True):
        whiskers(axis, means, _SHADES, 0.75)
        axis.set_xticks([])
    handles = [Patch(color=shade, label=what) for what, shade in zip(means, _SHADES, strict=True)]
    legend(figure, handles, columns=4, beneath=True)
    return {"effects": figure}


def singles(role: str, number: int, sides: Sides = SIDES, *, heavier: bool = False) -> Experiment[Into]:
    """Signals into a role's first, second or third head, at these sides."""
    return Experiment(
        partial(into, role=role, number=number),
        partial(found_singles, sides=sides, heavier=heavier),
        partial(_draw_singles, sides=sides),
    )


def found_inverted(record: Into) -> Findings:
    """Does global removal lower the logit difference, local removal raise it, and local boosting lower it?"""
    odd = ""
    if all(effects.removed(record.at("dest", mode)).rises for mode in MODES):
        odd = "Global removal raises the logit difference too: here the two do not oppose each other. "
    rows = [row for mode in MODES for row in _at(record, "dest", mode, _INVERTED)]
    return Findings(rows, record.of, remark=f"{odd}{record.note}")


def found_falls(record: Into, side: SideName, mode: CutMode, goes: Goes) -> Findings:
    """Does attention fall when a signal is removed, and does the logit difference go with it as was published?"""
    own = record.at(side, mode)
    answer, attention = effects.removed(own), effects.over_prompts(own, lambda one: one.attention)
    both = rank_correlation(own, lambda one: one.attention, lambda one: one.answer)
    weight, worse = rank_correlation(own, lambda one: one.weight, lambda one: -one.attention), _heavier(own)
    claims: dict[Goes, dict[str, tuple[str, bool]]] = {
        "heavier": {_LOST: (_ABOVE, weight.low > 0), _WORSE: (_ABOVE, worse.low > 0)},
        "rises": {_BOTH: ("an interval below 0", both.high < 0)},
        "apart": {_BOTH: ("an interval below .5: not in proportion", both.high < _PROPORTION)},
        "alike": {_BOTH: (".5 or more, an interval above 0: in proportion", both.mean >= _PROPORTION and both.low > 0)},
    }
    first = attention.high < 0 and (answer.rises if goes == "rises" else answer.falls)
    asked = f"a {'gain' if goes == 'rises' else 'loss'} that matters, and a loss of attention"
    values: dict[str, Value] = {
        "attention": attention,
        "logit difference": answer.by,
        "logit difference, random": answer.random,
        _BOTH: both,
        _LOST: weight,
        _WORSE: worse,
        "prompts": answer.prompts,
    }
    rows = rows_of(values, {"logit difference": (asked, first), **claims[goes]})
    return Findings(rows, record.of, first=first, unless="the logit difference does", remark=f"{_SCORES} {record.note}")


_SCORES = "Attention is the weight after the softmax, where the paper shows the score before it."


def _draw_falls(record: Into, side: SideName, mode: CutMode) -> Mapping[str, Figure]:
    own, title = record.at(side, mode), f"Signals into {head_name(record.head)} removed, {mode}"
    figure, (axis,) = panels([""], title, (4.8, 3.8), x="change of attention", y="change of the logit difference")
    cloud(axis, [one.attention for one in own], [one.answer for one in own])
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axvline(0, color=INK, linewidth=0.8)
    return {"removed": figure} if own else {}


def falls(number: int, side: SideName, mode: CutMode, goes: Goes) -> Experiment[Into]:
    """Signals into the first, second or third name mover, at one token."""
    return Experiment(
        partial(into, role="name mover", number=number),
        partial(found_falls, side=side, mode=mode, goes=goes),
        partial(_draw_falls, side=side, mode=mode),
    )


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
    "svt-fig6": singles("name mover", 1, ("dest",), heavier=True),
    "svt-fig17": falls(2, "dest", "global", "heavier"),
    "svt-fig18": falls(ODD, "dest", "local", "rises"),
    "svt-fig19": falls(1, "src", "global", "apart"),
    "svt-fig20": falls(1, "src", "local", "alike"),
    "svt-fig21": replace(singles("name mover", ODD, ("dest",)), findings=found_inverted),
    "svt-fig22": singles("name mover", 0),
    "svt-fig23": singles("S-inhibition", 0),
    "svt-fig24": singles("name mover", 1),
    "svt-fig7": Experiment(measure_two, found_two, _draw_out_of),
    "svt-fig28": Experiment(measure_unknown, found_unknown, _draw_out_of),
}
