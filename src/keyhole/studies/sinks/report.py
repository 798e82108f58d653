"""How do firings on the first token read, and how are they drawn? Each side in numbers, compared with controls."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from keyhole.brief import model_label
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, heading, legend, tidy
from keyhole.report import Cell, Picture, Report, Section, Table
from keyhole.studies.directions.heard import author_name, cluster_text, draws_text, taken_text
from keyhole.studies.sinks.record import Removal, Sinks, SinkSide, middle

_CLUSTERS = 3
_MASSIVE = 5  # coordinates that are told
HEAD_COLUMNS = ("head", "side", ">firings", ">spread", ">cluster", ">channels", "written by")


def report(found: Sinks) -> Report:
    """What was studied; each side's heads and removals; the first token."""
    picture = Picture(lambda: sinks_figure(found), "Cosines of heads, signals and controls; firings that removals take")
    heads = Table(HEAD_COLUMNS, _head_rows(found))
    return Report(
        f"Which signals drive firings on the first token? {model_label(found.model)}",
        "\n\n".join([opening(found), *(f"{side.side} side: {side.found}" for side in found.sides)]),
        [
            Section("Heads by cluster, and removals", [_READ, picture], page_only=True),
            *(section for side in found.sides for section in _side_sections(side, found)),
            Section("The first token's massive coordinates", ["\n".join(massive_lines(found))]),
            Section("Heads", [heads], page_only=True),
        ],
        heads,
        picture,
    )


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
    before = f"Before: mean weight on the first token {found.before:.3f}, answer {found.answer:.2f}."
    return [
        Section(f"{side.side} side: {side.found}", ["\n".join(head_lines(side)), likeness_table(side)]),
        Section(f"{side.side} side: without what heads share", [before, removal_table(side)]),
    ]


def opening(found: Sinks) -> str:
    """What was studied, and what there is before anything is removed."""
    return (
        f"{model_label(found.model)}: {found.share:.0%} of the heads' tokens fire on the first one, in {found.prompts} "
        f"prompts; in {found.held_out} held-out ones mean weight there {found.before:.3f}, answer {found.answer:.2f}"
        f"{draws_text(found.settings['draws'])}"
    )


def head_lines(side: SinkSide) -> list[str]:
    """Which heads have one signal each, and which of them are alike?"""
    lines = [f"{len(side.controlled)} of {len(side.heads)} heads have one signal each (mean cosine distance below 0.5)"]
    if not side.likeness:
        return [*lines, "too few of them, or all in one layer: nothing to compare"]
    other = side.others[0]
    lines += [f"alike: {cluster_text(own)}" for own in side.clusters[:_CLUSTERS] if len(own) > 1]
    told = f"cosine {other.cosine:.2f}, {other.near:.1%} of pairs alike ({other.heads} heads)"
    told = "too few to compare, so that they are no bar" if math.isnan(other.near) else told
    return [*lines, f"the same heads on other tokens: {told}"]


def likeness_table(side: SinkSide) -> Table:
    """How alike heads are, with nothing taken out of their signals, then more and more."""
    other = ">other channels"
    rows = [
        (
            *(taken_text(one.taken), one.cosine[0], one.shuffled_cosine[0], one.p_cosine),
            *(one.near[0], one.shuffled_near[0], one.p, one.rank, one.shuffled_rank[0]),
        )
        for one in side.likeness
    ]
    columns = ("signals", ">cosine", other, ">p", ">pairs alike", other, ">p", ">rank", other)
    return Table(columns, rows)


def removal_table(side: SinkSide) -> Table:
    """What is left of firings, weights and answers without what heads share, beside what others take."""
    columns = (
        *("shared directions of signals", ">rank", ">of the stream", ">firings gone", ">random", ">other channels"),
        *(">weight", ">random", ">random that are higher", ">other channels", ">answer", ">random", ">other channels"),
    )
    rows = [
        (
            *(taken_text(one.taken), one.rank, one.energy, one.explained[0]),
            *(middle(one.random_explained), middle(one.shuffled_explained)),
            *(None if one.sinks is None else one.sinks[0], middle(one.random_sinks), _higher(one)),
            middle(one.shuffled_sinks),
            *(None if one.answer is None else one.answer[0], middle(one.random_answers), middle(one.shuffled_answers)),
        )
        for one in side.removals
    ]
    return Table(columns, rows)


def _higher(one: Removal) -> str | None:
    """How many random subspaces leave more weight on the first token?"""
    if one.sinks is None:
        return None
    return f"{sum(one.sinks[0] < other for other in one.random_sinks)} of {len(one.random_sinks)}"


def massive_lines(found: Sinks) -> list[str]:
    """The first token's massive coordinates."""
    if not found.massive:
        return ["the first token has no massive coordinate (a hundred times the median)"]
    lines = [
        f"coordinate {one.coordinate} of the first token: {one.times:,.0f} times the median at layer {one.peak} "
        f"({one.elsewhere:,.0f} elsewhere), {one.share:.0%} written by {author_name(one.writer)}; massive from layer "
        f"{one.first} to {one.last}, first by {author_name(one.maker)} ({one.made:.0%})"
        for one in found.massive[:_MASSIVE]
    ]
    if len(found.massive) > _MASSIVE:
        lines.append(f"and {len(found.massive) - _MASSIVE} more coordinates")
    shares = ", ".join(f"{side.along:.0%} of {side.side} signals" for side in found.sides)
    return [*lines, f"along massive coordinates lie {shares}"]


def _head_rows(found: Sinks) -> list[tuple[Cell, ...]]:
    """A row per head and side, for tables."""
    return [
        (
            *(f"{one.layer}.{one.head}", side.side, one.firings, one.spread, one.cluster, one.channels),
            ", ".join(f"{name} {share:.0%}" for name, share in one.writers),
        )
        for side in found.sides
        for one in side.heads
    ]


def sinks_record(found: Sinks) -> dict[str, Any]:
    """As plain data, with what follows from it."""
    told = asdict(found)
    for plain, side in zip(told["sides"], found.sides, strict=True):
        plain |= {name: _listed(getattr(side, name)) for name in ("cosines", "shuffled")}
        plain |= {"found": side.found, "acts": side.acts, "clusters": side.clusters}
        for made, one in zip(plain["removals"], side.removals, strict=True):
            made["acts"] = one.acts
    for plain, big in zip(told["massive"], found.massive, strict=True):
        plain |= {"maker": author_name(big.maker), "writer": author_name(big.writer)}
    return told


def _listed(table: np.ndarray) -> list[list[float]]:
    rows: list[list[float]] = np.round(table, 4).tolist()
    return rows


# Do heads that rest on the first token listen to the same signals? Cosines beside the control, and removals.

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
