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
from keyhole.studies.directions.figure import bar_ends, cosine_map
from keyhole.studies.directions.heard import author_name, cluster_text, draws_text, taken_text
from keyhole.studies.sinks.record import Removal, Sinks, SinkSide, middle

_CLUSTERS = 3
_MASSIVE = 5  # coordinates that are named
HEAD_COLUMNS = ("head", "side", ">firings", ">spread", ">cluster", ">channels", "written by")


def report(sinks: Sinks) -> Report:
    """What was studied; each side's heads and removals; the first token."""
    picture = Picture(lambda: sinks_figure(sinks), "Cosines of heads, signals and controls; firings that removals take")
    heads = Table(HEAD_COLUMNS, _head_rows(sinks))
    return Report(
        f"Which signals drive firings on the first token? {model_label(sinks.model)}",
        "\n\n".join([opening(sinks), *(f"{side.side} side: {side.verdict}" for side in sinks.sides)]),
        [
            Section("Heads by cluster, and removals", [_READ, picture], page_only=True),
            *(section for side in sinks.sides for section in _side_sections(side, sinks)),
            Section("The first token's massive coordinates", ["\n".join(massive_lines(sinks))]),
            Section("Heads", [heads], page_only=True),
        ],
        heads,
        picture,
    )


_READ = (
    "Each signal is the sum of what a firing's writers put into their channels, in residual space. A head is "
    "controlled if its signals are alike over firings; its control signal is their mean. Other channels: the same "
    "heads, firings and writers, with as many random channels of each head. Heads of one layer are not compared.\n\n"
    "A signal is shared if two things hold. Heads are more alike than with other channels and in firings on other "
    "tokens, also without the streams' mean and largest variance. And a few shared directions take away half of the "
    "held-out firings, more than any random subspace of the same rank."
)


def _side_sections(side: SinkSide, sinks: Sinks) -> list[Section]:
    """How alike heads are, and what happens without what they share."""
    before = f"Before: mean weight on the first token {sinks.before:.3f}, answer {sinks.answer:.2f}."
    return [
        Section(f"{side.side} side: {side.verdict}", ["\n".join(head_lines(side)), likeness_table(side)]),
        Section(f"{side.side} side: without what heads share", [before, removal_table(side)]),
    ]


def opening(sinks: Sinks) -> str:
    """What was studied, and what there is before anything is removed."""
    return (
        f"{model_label(sinks.model)}: {sinks.share:.0%} of the heads' tokens fire on the first one, in {sinks.prompts} "
        f"prompts; in {sinks.held_out} held-out ones mean weight there {sinks.before:.3f}, answer {sinks.answer:.2f}"
        f"{draws_text(sinks.settings['draws'])}"
    )


def head_lines(side: SinkSide) -> list[str]:
    """Which heads have one signal each, and which of them are alike?"""
    lines = [f"{len(side.controlled)} of {len(side.heads)} heads have one signal each (mean cosine distance below 0.5)"]
    if not side.likeness:
        return [*lines, "too few of them, or all in one layer: nothing to compare"]
    other = side.others[0]
    lines += [f"alike: {cluster_text(cluster)}" for cluster in side.clusters[:_CLUSTERS] if len(cluster) > 1]
    cosines = f"cosine {other.cosine:.2f}, {other.near:.1%} of pairs alike ({other.heads} heads)"
    cosines = "too few to compare" if math.isnan(other.near) else cosines
    return [*lines, f"the same heads on other tokens: {cosines}"]


def likeness_table(side: SinkSide) -> Table:
    """How alike heads are, with nothing taken out of their signals, then more and more."""
    other = ">other channels"
    rows = [
        (
            *(taken_text(likeness.taken), likeness.cosine[0], likeness.shuffled_cosine[0], likeness.p_cosine),
            *(likeness.near[0], likeness.shuffled_near[0], likeness.p, likeness.rank, likeness.shuffled_rank[0]),
        )
        for likeness in side.likeness
    ]
    columns = ("signals", ">cosine", other, ">p", ">pairs alike", other, ">p", ">rank", other)
    return Table(columns, rows)


def removal_table(side: SinkSide) -> Table:
    """What is left of firings, weights and answers without what heads share, and without other subspaces."""
    columns = (
        *("shared directions of signals", ">rank", ">of the stream", ">firings gone", ">random", ">other channels"),
        *(">weight", ">random", ">random that are higher", ">other channels", ">answer", ">random", ">other channels"),
    )
    rows = [
        (
            *(taken_text(removal.taken), removal.rank, removal.energy, removal.explained[0]),
            *(middle(removal.random_explained), middle(removal.shuffled_explained)),
            *(None if removal.sinks is None else removal.sinks[0], middle(removal.random_sinks), _higher(removal)),
            middle(removal.shuffled_sinks),
            *(
                None if removal.answer is None else removal.answer[0],
                middle(removal.random_answers),
                middle(removal.shuffled_answers),
            ),
        )
        for removal in side.removals
    ]
    return Table(columns, rows)


def _higher(removal: Removal) -> str | None:
    """How many random subspaces leave more weight on the first token?"""
    if removal.sinks is None:
        return None
    return f"{sum(removal.sinks[0] < other for other in removal.random_sinks)} of {len(removal.random_sinks)}"


def massive_lines(sinks: Sinks) -> list[str]:
    """The first token's massive coordinates."""
    if not sinks.massive:
        return ["the first token has no massive coordinate (a hundred times the median)"]
    lines = [
        f"coordinate {big.coordinate} of the first token: {big.times:,.0f} times the median at layer {big.peak} "
        f"({big.elsewhere:,.0f} elsewhere), {big.share:.0%} written by {author_name(big.writer)}; massive from layer "
        f"{big.first} to {big.last}, first by {author_name(big.maker)} ({big.maker_share:.0%})"
        for big in sinks.massive[:_MASSIVE]
    ]
    if len(sinks.massive) > _MASSIVE:
        lines.append(f"and {len(sinks.massive) - _MASSIVE} more coordinates")
    shares = ", ".join(f"{side.along:.0%} of {side.side} signals" for side in sinks.sides)
    return [*lines, f"along massive coordinates lie {shares}"]


def _head_rows(sinks: Sinks) -> list[tuple[Cell, ...]]:
    """A row per head and side, for tables."""
    return [
        (
            *(f"{row.layer}.{row.head}", side.side, row.firings, row.spread, row.cluster, row.channels),
            ", ".join(f"{name} {share:.0%}" for name, share in row.writers),
        )
        for side in sinks.sides
        for row in side.heads
    ]


def sinks_record(sinks: Sinks) -> dict[str, Any]:
    """As plain data, with what follows from it."""
    data = asdict(sinks)
    for plain, side in zip(data["sides"], sinks.sides, strict=True):
        plain |= {name: np.round(getattr(side, name), 4).tolist() for name in ("cosines", "shuffled")}
        plain |= {"found": side.verdict, "acts": side.acts, "clusters": side.clusters}
        for removal_data, removal in zip(plain["removals"], side.removals, strict=True):
            removal_data["acts"] = removal.acts
    for plain, big in zip(data["massive"], sinks.massive, strict=True):
        plain |= {"maker": author_name(big.maker), "writer": author_name(big.writer)}
    return data


# Do heads that fire on the first token receive the same signals? Pictures of cosines, of the control, and of removals.


def sinks_figure(sinks: Sinks) -> Figure:
    """A row per side: cosines of heads by cluster, the same heads with other channels, and removals."""
    figure = blank(12.6, 8.4)
    heading(figure, f"Firings on the first token, {model_label(sinks.model)}: are control signals shared?")
    grid = figure.subplots(2, 3, width_ratios=(1, 1, 1.05))
    image = None
    for row, side in zip(grid, sinks.sides, strict=True):
        order = _order(side)
        for axis, table, name in ((row[0], side.cosines, "signals"), (row[1], side.shuffled, "other channels")):
            tidy(axis, f"{side.side} side, {name}")
            heads = [(side.controlled[i].layer, side.controlled[i].head) for i in order]
            image = cosine_map(axis, table[np.ix_(order, order)], heads, empty="no head has one signal") or image
        _removals(row[2], side, sinks)
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


def _removals(axis: Any, side: SinkSide, sinks: Sinks) -> None:
    """Which share of firings goes with the shared directions, by rank, and with others."""
    tidy(axis, f"{side.side} side: firings that go without them", x="directions taken out", y="share of firings")
    ranks = sorted({removal.rank for removal in side.removals})
    at = {rank: i for i, rank in enumerate(ranks)}
    for removal in side.removals:
        colour, x = (BLUE, -0.18) if removal.taken is None else (RED, 0.18)
        place = at[removal.rank] + x
        axis.plot([place] * len(removal.random_explained), removal.random_explained, "x", color=GREY, markersize=5)
        places = [place + 0.09] * len(removal.shuffled_explained)
        axis.plot(places, removal.shuffled_explained, "+", color=INK, markersize=6, alpha=0.6)
        mean, low, high = removal.explained
        bars = None if np.isnan(low) else bar_ends(mean, max(low, 0.0), min(high, 1.0))
        axis.errorbar([place - 0.09], [mean], bars, fmt="o", color=colour, markersize=5, capsize=2)
    axis.set_xticks(range(len(ranks)), [str(rank) for rank in ranks])
    axis.set_xlim(-0.6, max(len(ranks), 1) - 0.4)
    axis.set_ylim(-0.03, 1.03)
