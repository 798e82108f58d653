"""Do heads share directions, and use the same channels in two tasks? Pictures of cosines, pairs and overlaps."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from keyhole.brief import Head, head_name, model_label
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, heading, scale, tidy
from keyhole.studies.directions.alike import Likeness
from keyhole.studies.directions.record import Shared, SharedSide

_LABELS = 24  # heads that are named along an axis
_TAKEN = {None: "nothing", 0: "mean"}


def shared_figure(shared: Shared) -> Figure:
    """A row per side: cosines of heads, near-equal pairs with their control; with two tasks, overlaps of channels."""
    columns = 3 if shared.tasks else 2
    figure = blank(4.6 * columns, 8.2)
    heading(figure, f"Signals and channels that heads share, {model_label(shared.model)}")
    for row, side in zip(figure.subplots(2, columns, squeeze=False), shared.sides, strict=True):
        tidy(row[0], f"{side.side} side: cosines of mean signals")
        image = cosine_map(row[0], side.cosines, side.heads, empty="no head fires often enough")
        if image is not None:
            scale(figure, row[0], image, "cosine")
        _pairs(row[1], side)
        if shared.tasks:
            _overlaps(row[2], shared, side)
    return figure


def cosine_map(axis: Any, cosines: Float[np.ndarray, "heads heads"], heads: Sequence[Head], *, empty: str) -> Any:
    """Cosines of heads as a map, with the names of some; without heads the text `empty`, and None."""
    if not heads:
        axis.text(0.5, 0.5, empty, ha="center", va="center", transform=axis.transAxes, color=GREY)
        axis.set_xticks([])
        axis.set_yticks([])
        return None
    image = axis.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1)
    shown = range(0, len(heads), -(-len(heads) // _LABELS))
    names = [head_name(heads[i]) for i in shown]
    axis.set_xticks(shown, names, rotation=90, fontsize=7)
    axis.set_yticks(shown, names, fontsize=7)
    return image


def bar_ends(mean: float, low: float, high: float) -> Float[np.ndarray, "2 1"]:
    """The lengths of an error bar, below and above; rounding must not make one negative."""
    return np.maximum([[mean - low], [high - mean]], 0.0)


def _pairs(axis: Any, side: SharedSide) -> None:
    """Mean cosines of pairs, and where 95 % of the control's lie; above them, how many pairs are nearly equal."""
    tidy(axis, f"{side.side} side: pairs of heads", x="taken out of the signals", y="mean cosine")
    for offset, likenesses, shade, name in (
        (-0.2, side.signals, BLUE, "signals"),
        (0.2, side.channels, RED, "channels"),
    ):
        for i, likeness in enumerate(likenesses):
            axis.bar(i + offset, likeness.cosine[0], 0.36, color=shade, alpha=0.85, label=name if i == 0 else None)
            mean, low, high = likeness.shuffled_cosine
            mark = "other channels" if i == 0 and shade == BLUE else None
            ends = bar_ends(mean, low, high)
            axis.errorbar(i + offset, mean, ends, fmt="_", color=INK, markersize=11, capsize=3, label=mark)
            top = max(likeness.cosine[0], high, 0.0)
            near = f"{round(likeness.near[0] * likeness.pairs):,}"
            axis.annotate(
                near, (i + offset, top), (0, 3), textcoords="offset points", ha="center", fontsize=8, color=INK
            )
    ticks = [_taken(likeness) for likeness in side.signals or side.channels]
    axis.set_xticks(range(len(ticks)), ticks)
    axis.axhline(0, color=INK, linewidth=0.8)
    if ticks:
        axis.margins(y=0.25)
        axis.legend(frameon=False, fontsize=8, ncols=3, loc="upper left")


def _taken(likeness: Likeness) -> str:
    return _TAKEN.get(likeness.taken, f"mean, {likeness.taken}")


def _overlaps(axis: Any, shared: Shared, side: SharedSide) -> None:
    """Overlap of two tasks against that of halves of one; chance beneath."""
    tidy(axis, f"{side.side} side: channels in both tasks", x="halves of one task", y="two tasks")
    heads = [head for head in shared.tasks if head.side == side.side]
    axis.plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=":")
    for kind, shade in (("same", BLUE), ("in part", GREY), ("others", RED)):
        of_kind = [head for head in heads if head.verdict == kind]
        halves = [sum(head.within) / 2 for head in of_kind]
        axis.scatter(
            halves,
            [head.between for head in of_kind],
            s=16,
            color=shade,
            label=f"{kind} ({len(of_kind)})",
            linewidths=0,
        )
    axis.scatter(
        [sum(head.within) / 2 for head in heads],
        [head.chance for head in heads],
        s=14,
        marker="_",
        color=INK,
        label="chance",
    )
    axis.set_xlim(-0.03, 1.03)
    axis.set_ylim(-0.03, 1.03)
    axis.legend(frameon=False, fontsize=8, loc="upper left")
