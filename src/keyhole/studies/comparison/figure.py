"""How do two families differ? Pictures of cosines with their floor, of removals, and of scores over thresholds."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, FAINT, GREY, INK, PALETTE, RED, blank, heading, legend, plain, tidy
from keyhole.studies.comparison.compare import Comparison
from keyhole.studies.comparison.exclusive import Exclusive, What, Which
from keyhole.studies.comparison.signals import SIDES, HeadRow, Verdict

_MOST = 30  # rows of heads
_ORANGE = PALETTE[1]
_SHADES: dict[Verdict, str] = {"different": RED, "less alike": _ORANGE}
_WHAT: dict[What, tuple[str, str]] = {
    "exclusive": ("edges of one alone", BLUE),
    "shared": ("edges of both", GREY),
    "random": ("random channels", FAINT),
}


def comparison_figure(comparison: Comparison) -> Figure:
    """The picture that shows most: signals and removals if they were measured, else scores or frequencies."""
    if comparison.published:
        return scores_figure(comparison)
    if comparison.signals is not None and comparison.signals.rows:
        return signals_figure(comparison)
    return terms_figure(comparison)


def signals_figure(comparison: Comparison) -> Figure:
    """Cosines dest and src of every head in both representatives, with the range of pairs within families as a band."""
    assert comparison.signals is not None
    places = sorted({row.place for row in comparison.signals.rows})[:_MOST]
    rows = {(row.place, row.side): row for row in comparison.signals.rows}
    wide = comparison.exclusive is not None
    figure = blank(11.5 if wide else 8.0, max(3.0, 0.27 * len(places) + 2.0))
    heading(figure, f"Same heads, same signals? a is {_short(comparison.a)}, b is {_short(comparison.b)}")
    axes = figure.subplots(1, 3 if wide else 2, squeeze=False)[0]
    for axis, side in zip(axes, SIDES, strict=False):
        _cosines(axis, [rows.get((place, side)) for place in places])
        tidy(axis, f"{side} signals", x="cosine between the representatives")
        axis.set_yticks(range(len(places)), [plain(str(place)) for place in places] if side == "dest" else [])
        axis.tick_params(axis="y", length=0)
    handles: list[Any] = [
        Patch(color=FAINT, label="within families: from the floor (5 % of pairs) up"),
        Line2D([], [], color=GREY, marker="|", linestyle="none", markersize=9, label="mean between families"),
        Line2D([], [], color=INK, marker="o", linestyle="none", markersize=5, label="the representatives"),
        Line2D([], [], color=RED, marker="o", linestyle="none", markersize=5, label="different beyond noise"),
        Line2D(
            [], [], color=_ORANGE, marker="o", linestyle="none", markersize=5, label="less alike between than within"
        ),
    ]
    if comparison.exclusive is not None:
        _removals(axes[2], comparison.exclusive)
        handles += [Patch(color=shade, label=name) for name, shade in _WHAT.values()]
    legend(figure, handles, columns=4 if wide else 2, beneath=True)  # more would not fit into the width
    return figure


def removals_figure(comparison: Comparison) -> Figure:
    """What removing each representative's exclusive edges does to both families, with controls."""
    if comparison.exclusive is None:
        raise KeyholeError("no edges were removed in this comparison: there is nothing to draw.")
    figure = blank(9.0, 3.6)
    axis = figure.subplots()
    _removals(axis, comparison.exclusive)
    legend(figure, [Patch(color=shade, label=name) for name, shade in _WHAT.values()], columns=3, beneath=True)
    return figure


def scores_figure(comparison: Comparison) -> Figure:
    """Precision, recall and F1 against a published circuit over frequencies, with the F1 of random circuits."""
    figure = blank(6.5, 3.8)
    axis = figure.subplots()
    at = [against.threshold for against in comparison.published]
    for name, shade in (("precision", BLUE), ("recall", RED), ("f1", INK)):
        axis.plot(
            at, [getattr(against.score, name) for against in comparison.published], "o-", color=shade, markersize=4
        )
    axis.plot(at, [against.random_f1 for against in comparison.published], "--", color=GREY)
    axis.set_ylim(-0.02, 1.02)
    tidy(
        axis,
        f"{_short(comparison.a)} and {_short(comparison.b)}",
        x="share of circuits that have a component",
        y="score",
    )
    names = (("precision", BLUE, "-"), ("recall", RED, "-"), ("F1", INK, "-"), ("F1 of random circuits", GREY, "--"))
    legend(figure, [Line2D([], [], color=c, linestyle=s, label=n) for n, c, s in names], columns=4, beneath=True)
    return figure


def terms_figure(comparison: Comparison) -> Figure:
    """Every term by its frequency on both sides, at each granularity."""
    figure = blank(3.4 * len(comparison.terms) + 0.6, 3.7)
    heading(figure, f"How often circuits have each term: a is {_short(comparison.a)}, b is {_short(comparison.b)}")
    for axis, terms in zip(figure.subplots(1, len(comparison.terms), squeeze=False)[0], comparison.terms, strict=True):
        axis.plot([0, 1], [0, 1], color=FAINT, linewidth=1)
        axis.scatter([row.a for row in terms.rows], [row.b for row in terms.rows], s=9, color=BLUE, alpha=0.4)
        axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        tidy(axis, terms.granularity, x="share of a's circuits", y="share of b's circuits")
    return figure


def _cosines(axis: Any, rows: Sequence[HeadRow | None]) -> None:
    axis.axvline(0, color=INK, linewidth=0.8)
    for at, row in enumerate(rows):
        if row is None:
            continue
        if not math.isnan(row.floor):
            axis.barh(at, 1 - row.floor, left=row.floor, height=0.72, color=FAINT)
        if row.between is not None:
            axis.plot([row.between[0]], [at], "|", color=GREY, markersize=11, markeredgewidth=2)
        axis.plot([row.cosine], [at], "o", color=_SHADES.get(row.verdict, INK), markersize=5)
    axis.set_xlim(-1.05, 1.05)
    axis.set_ylim(len(rows) - 0.4, -0.6)  # the lowest layer on top


def _removals(axis: Any, exclusive: Exclusive) -> None:
    """Groups of bars: whose edges, on whose prompts."""
    groups: list[tuple[Which, Which]] = [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")]
    for at, (which, prompts) in enumerate(groups):
        for place, (what, (_, shade)) in enumerate(_WHAT.items()):
            mean, low, high = exclusive.cell(which, prompts, what).spread
            if math.isnan(mean):
                continue
            y = at + 0.26 * (place - 1)
            axis.barh(y, mean, height=0.24, color=shade)
            if not math.isnan(low):
                axis.plot([low, high], [y, y], color=INK, linewidth=1.2)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.set_yticks(range(4), [f"{which}'s edges,\n{prompts}'s prompts" for which, prompts in groups])
    axis.set_ylim(3.6, -0.6)
    tidy(axis, "removed", x="change of the answer over its size (95 %)")
    axis.tick_params(axis="y", length=0)


def _short(label: str) -> str:
    """A side without its folder."""
    return plain(label.rsplit("/", 1)[-1])
