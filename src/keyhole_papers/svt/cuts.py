"""Do signals into the heads of the IOI circuit cause its answers? Each removed, and each boosted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.brief import head_name
from keyhole.circuits.records import SideName
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, legend
from keyhole.intervene.removal import CutMode
from keyhole.stats import Interval
from keyhole_papers.experiment import Attempt, Experiment
from keyhole_papers.finding import Finding, Findings, Value, of_part, rows_of
from keyhole_papers.svt import effects
from keyhole_papers.svt.answers import cloud, panels, whiskers
from keyhole_papers.svt.effects import MODES, ODD, SIDES, Claim, Effect, Into, into, rank_correlation
from keyhole_papers.svt.ioi import LEAST

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
}
