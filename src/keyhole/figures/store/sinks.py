"""Do heads that rest on the first token listen to the same signals? Cosines beside the control, and removals."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from keyhole.brief import model_label
from keyhole.figures.page import Section, page
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, heading, legend, tidy
from keyhole.sink.record import Sinks, SinkSide
from keyhole.sink.text import HEAD_COLUMNS, head_lines, head_rows, likeness_table, massive_lines, removal_table

_LABELS = 24  # heads that are named along an axis


def sinks_figure(found: Sinks) -> Figure:
    """A row per side: cosines of heads by cluster, the same heads with other channels, and removals."""
    figure = blank(12.6, 8.4)
    heading(figure, f"Firings on the first token, {model_label(found.model)}: are control signals shared?")
    grid = figure.subplots(2, 3, width_ratios=(1, 1, 1.05))
    image = None
    for row, side in zip(grid, found.sides, strict=True):
        order = _order(side)
        for axis, table, what in ((row[0], side.cosines, "signals"), (row[1], side.shuffled, "other channels")):
            image = _matrix(axis, table, side, order, title=f"{side.side} side, {what}") or image
        _removals(row[2], side, found)
    if image is not None:
        bar = figure.colorbar(image, ax=grid[:, :2], location="bottom", shrink=0.5, pad=0.02, aspect=40)
        bar.set_label("cosine of two heads' mean signals", fontsize=9)
        bar.ax.tick_params(labelsize=8)
    marks = [(BLUE, "o", "shared directions"), (RED, "o", "shared, without mean and largest directions")]
    marks += [(GREY, "x", "random subspaces"), (INK, "+", "the same writers in other channels")]
    legend(
        figure,
        [Line2D([], [], color=c, marker=m, linestyle="", label=text) for c, m, text in marks],
        columns=4,
        beneath=True,
    )
    return figure


def _order(side: SinkSide) -> list[int]:
    """Controlled heads by cluster, then by layer."""
    heads = side.controlled
    return sorted(range(len(heads)), key=lambda i: (heads[i].cluster, heads[i].layer, heads[i].head))


def _matrix(axis: Any, table: np.ndarray, side: SinkSide, order: list[int], *, title: str) -> Any:
    tidy(axis, title)
    if not order:
        axis.text(0.5, 0.5, "no head has one signal", ha="center", va="center", transform=axis.transAxes, color=GREY)
        axis.set_xticks([])
        axis.set_yticks([])
        return None
    image = axis.imshow(table[np.ix_(order, order)], cmap="RdBu_r", vmin=-1, vmax=1)
    shown = range(0, len(order), -(-len(order) // _LABELS))
    heads = [side.controlled[order[i]] for i in shown]
    names = [f"{one.layer}.{one.head}" for one in heads]
    axis.set_xticks(shown, names, rotation=90, fontsize=7)
    axis.set_yticks(shown, names, fontsize=7)
    return image


def _removals(axis: Any, side: SinkSide, found: Sinks) -> None:
    """Which share of firings goes with the shared directions, by rank, and with others."""
    tidy(axis, f"{side.side} side: firings that go without them", x="directions taken out", y="share of firings")
    ranks = sorted({one.rank for one in side.removals})
    at = {rank: i for i, rank in enumerate(ranks)}
    for one in side.removals:
        own, x = (BLUE, -0.18) if one.taken is None else (RED, 0.18)
        place = at[one.rank] + x
        axis.plot([place] * len(one.random_explained), one.random_explained, "x", color=GREY, markersize=5)
        axis.plot(
            [place + 0.09] * len(one.shuffled_explained),
            one.shuffled_explained,
            "+",
            color=INK,
            markersize=6,
            alpha=0.6,
        )
        mean, low, high = one.explained
        ends = np.maximum([[mean - max(low, 0.0)], [min(high, 1.0) - mean]], 0.0)  # rounding must not turn one round
        bars = None if np.isnan(low) else ends
        axis.errorbar([place - 0.09], [mean], bars, fmt="o", color=own, markersize=5, capsize=2)
    axis.set_xticks(range(len(ranks)), [str(rank) for rank in ranks])
    axis.set_xlim(-0.6, max(len(ranks), 1) - 0.4)
    axis.set_ylim(-0.03, 1.03)


def sinks_page(found: Sinks) -> str:
    """All of a study, with both sides, all heads and the massive coordinates."""
    summary = " ".join(f"{side.side} side: {side.found}." for side in found.sides)
    told = (
        f"{model_label(found.model)}, {found.prompts} prompts and {found.held_out} held-out ones. "
        f"{found.share:.0%} of the heads' tokens after the first fire on the first one. Control signals: {summary}"
    )
    sections = [Section("Heads by cluster, and removals", _READ, figure=sinks_figure(found), said=told)]
    sections += [section for side in found.sides for section in _side_sections(side, found)]
    sections.append(Section("The first token's massive coordinates", "\n".join(massive_lines(found))))
    sections.append(Section("Heads", columns=HEAD_COLUMNS, rows=head_rows(found)))
    return page("Which signals drive firings on the first token?", told, sections)


_READ = (
    "Each signal is the sum of what a firing's writers put into their channels, in residual space. A head is "
    "controlled if its signals are alike over firings; its control signal is their mean. Other channels: the same "
    "heads, firings and writers, with as many random channels of each head. Heads of one layer are not compared.\n\n"
    "A shared signal must survive without the streams' mean and largest variance, exceed that of other channels and of "
    "firings on other tokens, and its few directions must take away half of the held-out firings, more than any random "
    "subspace of the same rank."
)


def _side_sections(side: SinkSide, found: Sinks) -> list[Section]:
    """How alike heads are, and what happens without what they share."""
    told = f"Before: mean weight on the first token {found.before:.3f}, answer {found.answer:.2f}."
    return [
        Section(f"{side.side} side: {side.found}", "\n".join(head_lines(side)), *likeness_table(side)),
        Section(f"{side.side} side: without what heads share", told, *removal_table(side)),
    ]
