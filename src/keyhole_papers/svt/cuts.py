"""Do signals into the heads of the IOI circuit cause its answers? Each removed, and each boosted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.circuits.writer import SideName
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, legend
from keyhole.intervene.remove import CutMode
from keyhole.models.heads import head_name
from keyhole_papers.experiment import Experiment, Told
from keyhole_papers.job import Attempt
from keyhole_papers.outcome import Verdict
from keyhole_papers.svt import effects
from keyhole_papers.svt.effects import MATTERS, MODES, ODD, SIDES, Change, Effect, Into, into, rank_correlation
from keyhole_papers.svt.intervals import Interval, numbered
from keyhole_papers.svt.ioi import LEAST, judged
from keyhole_papers.svt.panels import cloud, panels, whiskers

Sides = Sequence[SideName]
Claim = Literal["heavier", "rises", "apart", "alike"]  # what the logit difference does, beside attention
_PROPORTION = 0.5  # rank correlation
_SHADES = (BLUE, RED, GREY, FAINT)


def _places(record: Into, sides: Sides) -> dict[str, list[Effect]]:
    return {record.where(side, mode): record.at(side, mode) for side in sides for mode in MODES}


def _means(own: Sequence[Effect]) -> dict[str, Interval]:
    """The change of the logit difference by what was done."""
    off, on = effects.removed(own), effects.boosted(own)
    return {"removed": off.by, "boosted": on.by, "random removed": off.random, "random boosted": on.random}


def _heavier(own: Sequence[Effect]) -> Interval:
    return rank_correlation(own, lambda one: one.weight, lambda one: -one.answer)


def judge_singles(record: Into, sides: Sides, heavier: bool) -> Verdict:
    """Does removing a signal lower the logit difference, and boosting raise it, unlike random channels?

    With `heavier`, more so if tracing gave it more weight.
    """
    holds: list[bool] = []
    for own in _places(record, sides).values():
        off, on = effects.removed(own), effects.boosted(own)
        holds += [off.falls, on.rises, *([off.prompts >= LEAST and _heavier(own).low > 0] if heavier else [])]
    return judged(record, holds)


def _tell_singles(record: Into, sides: Sides, heavier: bool) -> Told:
    lines, numbers = [], {}
    for where, own in _places(record, sides).items():
        if not own:
            lines.append(f"{where}: no signals.")
            continue
        means, more, prompts = _means(own), _heavier(own), effects.removed(own).prompts
        numbers[where] = {**means, "heavier": more, "prompts": prompts}
        lines.append(
            f"{where}, {len(own)} signals in {prompts} prompts: "
            f"{', '.join(f'{name} {value}' for name, value in means.items())}; rank correlation of weight and loss "
            f"{more}."
        )
    asked = (
        f"Asked at each token, globally and locally: a loss on removal and a gain on boosting, {MATTERS}"
        f"{'; and a rank correlation of weight and loss whose interval (over prompts) is above 0' if heavier else ''}."
    )
    return Told("\n".join(lines), numbered(numbers), f"{asked} {record.note}")


def _draw_singles(record: Into, sides: Sides) -> Mapping[str, Figure]:
    shown = {where: _means(own) for where, own in _places(record, sides).items() if own}
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
        partial(judge_singles, sides=sides, heavier=heavier),
        partial(_tell_singles, sides=sides, heavier=heavier),
        partial(_draw_singles, sides=sides),
    )


def judge_inverted(record: Into) -> Verdict:
    """Does global removal lower the logit difference, local removal raise it, and local boosting lower it?"""
    everywhere, local = record.at("dest", "global"), record.at("dest", "local")
    holds = [effects.removed(everywhere).falls, effects.removed(local).rises, effects.boosted(local).falls]
    return judged(record, holds)


def _tell_inverted(record: Into) -> Told:
    odd = ""
    if all(effects.removed(record.at("dest", mode)).rises for mode in MODES):
        odd = "Global removal raises the logit difference too: here the two do not oppose each other. "
    told = _tell_singles(record, ("dest",), heavier=False)
    return replace(told, note=f"{odd}Asked: all three, {MATTERS}. {record.note}")


@dataclass(frozen=True)
class Fall:
    """Attention and the logit difference when single signals are removed; rank correlations over signals."""

    attention: Interval
    answer: Change
    both: Interval
    weight: Interval  # of weight and attention lost
    worse: Interval  # of weight and logit difference lost


def _fall(own: Sequence[Effect]) -> Fall:
    return Fall(
        attention=effects.over_prompts(own, lambda one: one.attention),
        answer=effects.removed(own),
        both=rank_correlation(own, lambda one: one.attention, lambda one: one.answer),
        weight=rank_correlation(own, lambda one: one.weight, lambda one: -one.attention),
        worse=_heavier(own),
    )


def judge_falls(record: Into, side: SideName, mode: CutMode, claim: Claim) -> Verdict:
    """Does attention fall when a signal is removed, and does the logit difference go with it as was published?"""
    found = _fall(record.at(side, mode))
    goes = found.answer.rises if claim == "rises" else found.answer.falls
    first = found.attention.high < 0 and goes
    holds = {
        "heavier": [found.weight.low > 0, found.worse.low > 0],
        "rises": [found.both.high < 0],
        "apart": [found.both.high < _PROPORTION],
        "alike": [found.both.mean >= _PROPORTION and found.both.low > 0],
    }[claim]
    return judged(record, [first, *holds], first=first)


def _tell_falls(record: Into, side: SideName, mode: CutMode, claim: Claim) -> Told:
    own, head = record.at(side, mode), head_name(record.head)
    note = f"{_ASKED[claim]} Of the logit difference: {MATTERS}. {_SCORES} {record.note}"
    if not own:
        return Told(f"No signals into {head} at {record.token(side)}.", note=note)
    found = _fall(own)
    numbers = {
        "attention": found.attention,
        "logit difference": found.answer.by,
        "prompts": found.answer.prompts,
        "logit difference, random": found.answer.random,
        "rank correlation of both": found.both,
        "rank correlation of weight and attention lost": found.weight,
        "rank correlation of weight and logit difference lost": found.worse,
    }
    text = (
        f"{len(own)} signals into {head} in {found.answer.prompts} prompts: attention changes by {found.attention}, "
        f"the logit difference by {found.answer.by} (random channels {found.answer.random}); rank correlation of both "
        f"{found.both}, of weight and attention lost {found.weight}, of weight and logit difference lost {found.worse}."
    )
    return Told(text, numbered({"": numbers}), note)


_SCORES = "Attention is the weight after the softmax, where the paper shows the score before it."
_ASKED: dict[Claim, str] = {
    "heavier": "Asked: both fall, and both more for heavier signals (rank correlations whose intervals are above 0).",
    "rises": "Asked: attention falls, the logit difference rises, and a rank correlation of both with an interval "
    "below 0.",
    "apart": "Asked: both fall; not in proportion: a rank correlation of both with an interval below .5.",
    "alike": "Asked: both fall; in proportion: a rank correlation of both of .5 or more, with an interval above 0.",
}


def _draw_falls(record: Into, side: SideName, mode: CutMode) -> Mapping[str, Figure]:
    own, title = record.at(side, mode), f"Signals into {head_name(record.head)} removed, {mode}"
    figure, (axis,) = panels([""], title, (4.8, 3.8), x="change of attention", y="change of the logit difference")
    cloud(axis, [one.attention for one in own], [one.answer for one in own])
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axvline(0, color=INK, linewidth=0.8)
    return {"removed": figure} if own else {}


def falls(number: int, side: SideName, mode: CutMode, claim: Claim) -> Experiment[Into]:
    """Signals into the first, second or third name mover, at one token."""
    return Experiment(
        partial(into, role="name mover", number=number),
        partial(judge_falls, side=side, mode=mode, claim=claim),
        partial(_tell_falls, side=side, mode=mode, claim=claim),
        partial(_draw_falls, side=side, mode=mode),
    )


RUNS: dict[str, Attempt] = {
    "svt-fig6": singles("name mover", 1, ("dest",), heavier=True),
    "svt-fig17": falls(2, "dest", "global", "heavier"),
    "svt-fig18": falls(ODD, "dest", "local", "rises"),
    "svt-fig19": falls(1, "src", "global", "apart"),
    "svt-fig20": falls(1, "src", "local", "alike"),
    "svt-fig21": replace(singles("name mover", ODD, ("dest",)), judge=judge_inverted, tell=_tell_inverted),
    "svt-fig22": singles("name mover", 0),
    "svt-fig23": singles("S-inhibition", 0),
    "svt-fig24": singles("name mover", 1),
}
