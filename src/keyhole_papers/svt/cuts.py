"""Do signals into heads of the IOI circuit cause answers? Removed and boosted one by one, and all of a side at once."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.brief import head_name
from keyhole.circuits.records import SideName
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, legend, panels
from keyhole.intervene.removal import CutMode
from keyhole.stats import Interval
from keyhole_papers.experiment import Attempt, Experiment, whiskers
from keyhole_papers.finding import Finding, Findings, Value, of_part, rows_of
from keyhole_papers.svt import ADDS, LEAST, Pair, sums_of
from keyhole_papers.svt.answers import MODES
from keyhole_papers.svt.effects import (
    ODD,
    POINTS,
    SIDES,
    Effect,
    Into,
    Turn,
    boosted,
    into,
    over_prompts,
    rank_correlation,
    removed,
    sums_figure,
)

Sides = Sequence[SideName]
Goes = Literal["heavier", "rises", "apart", "alike"]  # what the logit difference does, beside attention
_PROPORTION = 0.5  # rank correlation
_SHADES = (BLUE, RED, GREY, FAINT)
_USUAL: dict[tuple[str, CutMode], Turn] = {
    **{("removed", mode): "falls" for mode in MODES},
    **{("boosted", mode): "rises" for mode in MODES},
}
_INVERTED: dict[tuple[str, CutMode], Turn] = {
    ("removed", "global"): "falls",
    ("removed", "local"): "rises",
    ("boosted", "local"): "falls",
}
_ABOVE = "an interval above 0"
_BOTH = "rank correlation of both"
_LOST = "rank correlation of weight and attention lost"
_WORSE = "rank correlation of weight and logit difference lost"


def _means(effects: Sequence[Effect]) -> dict[str, Interval]:
    """The change of the logit difference by what was done."""
    off, on = removed(effects), boosted(effects)
    return {"removed": off.by, "boosted": on.by, "random removed": off.random, "random boosted": on.random}


def _heavier(effects: Sequence[Effect]) -> Interval:
    return rank_correlation(effects, lambda effect: effect.weight, lambda effect: -effect.answer)


def found_singles(record: Into, sides: Sides, heavier: bool) -> Findings:
    """Does removing a signal lower the logit difference, and boosting raise it, unlike random channels?

    With `heavier`, more so if tracing gave it more weight.
    """
    rows = [row for side in sides for mode in MODES for row in _at(record, side, mode, _USUAL, heavier)]
    return Findings(rows, record.of, remark=record.note)


def _at(
    record: Into, side: SideName, mode: CutMode, claims: Mapping[tuple[str, CutMode], Turn], heavier: bool = False
) -> list[Finding]:
    """What single signals do in one place."""
    effects = record.at(side, mode)
    off, on, more = removed(effects), boosted(effects), _heavier(effects)
    claim = (_ABOVE, off.prompts >= LEAST and more.low > 0) if heavier else ()
    return of_part(
        record.where(side, mode),
        off.finding("removed", claims.get(("removed", mode))),
        on.finding("boosted", claims.get(("boosted", mode))),
        Finding("random removed", off.random),
        Finding("random boosted", on.random),
        Finding("heavier", more, *claim),
        Finding("prompts", off.prompts),
    )


def _draw_singles(record: Into, sides: Sides) -> Mapping[str, Figure]:
    places = {record.where(side, mode): record.at(side, mode) for side in sides for mode in MODES}
    shown = {where: _means(effects) for where, effects in places.items() if effects}
    if not shown:
        return {}
    title = f"Change of the logit difference, signals into {head_name(record.head)}"
    figure, axes = panels(shown, title, (max(5.0, 2.4 * len(shown) + 0.6), 3.6), y="mean change")
    for axis, means in zip(axes, shown.values(), strict=True):
        whiskers(axis, means, _SHADES, 0.75)
        axis.set_xticks([])
    handles = [Patch(color=shade, label=change) for change, shade in zip(means, _SHADES, strict=True)]
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
    same = all(removed(record.at("dest", mode)).rises for mode in MODES)
    odd = "Global removal raises the logit difference too: here the two do not oppose each other. " if same else ""
    rows = [row for mode in MODES for row in _at(record, "dest", mode, _INVERTED)]
    return Findings(rows, record.of, remark=f"{odd}{record.note}")


def found_falls(record: Into, side: SideName, mode: CutMode, goes: Goes) -> Findings:
    """Does attention fall when a signal is removed, and does the logit difference go with it as was published?"""
    effects = record.at(side, mode)
    answer, attention = removed(effects), over_prompts(effects, lambda effect: effect.attention)
    both = rank_correlation(effects, lambda effect: effect.attention, lambda effect: effect.answer)
    weight = rank_correlation(effects, lambda effect: effect.weight, lambda effect: -effect.attention)
    worse = _heavier(effects)
    claims: dict[Goes, dict[str, tuple[str, bool]]] = {
        "heavier": {_LOST: (_ABOVE, weight.low > 0), _WORSE: (_ABOVE, worse.low > 0)},
        "rises": {_BOTH: ("an interval below 0", both.high < 0)},
        "apart": {_BOTH: ("an interval below .5: not in proportion", both.high < _PROPORTION)},
        "alike": {_BOTH: (".5 or more, an interval above 0: in proportion", both.mean >= _PROPORTION and both.low > 0)},
    }
    first = attention.high < 0 and (answer.rises if goes == "rises" else answer.falls)
    claim = f"a {'gain' if goes == 'rises' else 'loss'} that matters, and a loss of attention"
    values: dict[str, Value] = {
        "attention": attention,
        "logit difference": answer.by,
        "logit difference, random": answer.random,
        _BOTH: both,
        _LOST: weight,
        _WORSE: worse,
        "prompts": answer.prompts,
    }
    rows = rows_of(values, {"logit difference": (claim, first), **claims[goes]})
    return Findings(rows, record.of, first=first, unless="the logit difference does", remark=f"{_SCORES} {record.note}")


_SCORES = "Attention is the weight after the softmax, where the paper shows the score before it."


def _draw_falls(record: Into, side: SideName, mode: CutMode) -> Mapping[str, Figure]:
    effects, title = record.at(side, mode), f"Signals into {head_name(record.head)} removed, {mode}"
    figure, (axis,) = panels([""], title, (4.8, 3.8), x="change of attention", y="change of the logit difference")
    axis.scatter([effect.attention for effect in effects], [effect.answer for effect in effects], **POINTS)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axvline(0, color=INK, linewidth=0.8)
    return {"removed": figure} if effects else {}


def falls(number: int, side: SideName, mode: CutMode, goes: Goes) -> Experiment[Into]:
    """Signals into the first, second or third name mover, at one token."""
    return Experiment(
        partial(into, role="name mover", number=number),
        partial(found_falls, side=side, mode=mode, goes=goes),
        partial(_draw_falls, side=side, mode=mode),
    )


_PLACES = [(side, mode) for side in SIDES for mode in MODES]
_LOCAL_FIRST = [(side, mode) for side in SIDES for mode in reversed(MODES)]


def _pairs(record: Into, side: SideName, mode: CutMode) -> list[Pair]:
    single: dict[int, float] = defaultdict(float)
    for effect in record.at(side, mode):
        single[effect.prompt] += effect.answer
    return [Pair(single[effect.prompt], effect.answer) for effect in record.at(side, mode, together=True)]


def found_parallel(record: Into) -> Findings:
    """Do the effects of signals that reach a head side by side add up? In two of four places."""
    rows, adds = list[Finding](), list[bool]()
    for side, mode in _PLACES:
        together, total = removed(record.at(side, mode, together=True)), sums_of(_pairs(record, side, mode))
        adds.append(together.matters and total.adds)
        rows += of_part(
            record.where(side, mode),
            Finding("sets", len(_pairs(record, side, mode))),
            Finding("together", total.together),
            Finding("sum", total.summed),
            Finding("share", total.share),
            Finding("random", together.random),
        )
    claim = f"2 or more, with an effect together that matters, and {ADDS}"
    rows.append(Finding("places where effects add up", sum(adds), claim, sum(adds) >= 2))
    return Findings(rows, record.of, remark=record.note)


def _draw_parallel(record: Into) -> Mapping[str, Figure]:
    points = {record.where(*place): pairs for place in _PLACES if (pairs := _pairs(record, *place))}
    title = f"All signals into {head_name(record.head)} at a token, removed together and one by one"
    return {"sums": sums_figure(points, title)} if points else {}


def _at_once(record: Into, side: SideName, mode: CutMode) -> list[Effect]:
    """Per prompt, the removal of all signals; where there is but one signal, its own."""
    every = [*record.at(side, mode), *record.at(side, mode, together=True)]
    return list({effect.prompt: effect for effect in every}.values())


def found_all(record: Into) -> Findings:
    """Does the logit difference rise locally and fall globally, when all signals into the head are removed?"""
    rows = list[Finding]()
    for side in SIDES:
        changes = {mode: removed(_at_once(record, side, mode)) for mode in MODES}
        opposed = changes["local"].rises and changes["global"].falls
        for mode, change in changes.items():
            asks = mode == "local"  # globally a loss is a part of the same claim
            claim = ("a gain that matters, where globally there is a loss that does", opposed) if asks else ()
            rows += of_part(
                record.where(side, mode),
                Finding("logit difference", change.by, *claim),
                Finding("attention", over_prompts(_at_once(record, side, mode), lambda effect: effect.attention)),
                Finding("random", change.random),
                Finding("prompts", change.prompts),
            )
    which = f"Head {head_name(record.head)} stands where 9.6 is; its signals at END and at IO are removed as sets."
    return Findings(rows, record.of, remark=f"{which} {record.note}")


def _draw_all(record: Into) -> Mapping[str, Figure]:
    effects = {record.where(*place): _at_once(record, *place) for place in _LOCAL_FIRST}
    means = {where: removed(changed).by for where, changed in effects.items() if len(changed) >= LEAST}
    if not means:
        return {}
    title = f"All signals into {head_name(record.head)} removed together"
    figure, (axis,) = panels([""], title, (5.4, 3.4), y="change of the logit difference")
    whiskers(axis, means, [BLUE if "local" in where else RED for where in means], 0.6)
    return {"together": figure}


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
    "svt-fig25": Experiment(partial(into, role="name mover"), found_parallel, _draw_parallel),
    "svt-fig27": Experiment(partial(into, role="name mover", number=ODD), found_all, _draw_all),
}
