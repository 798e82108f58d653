"""Which head writes to which? Edges between heads, drawn by layer."""

from collections.abc import Collection, Mapping

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from keyhole.figures.style import BLUE, GREY, INK, RED, blank, heading, legend, tidy

Head = tuple[int, int]
Edge = tuple[Head, Head, str]  # writer, reader, and the side it is read at


def name_of(head: Head) -> str:
    """Layer and head, as papers write it.

    >>> name_of((9, 6))
    '9.6'
    """
    return f"{head[0]}.{head[1]}"


def network_figure(
    edges: Mapping[Edge, float], known: Collection[Head], n_heads: int, title: str, *, most: int = 80
) -> Figure:
    """Layers from left to right; wider lines are in more prompts. Only the `most` frequent edges, late ones first."""
    kept = sorted(edges, key=lambda edge: (-edges[edge], -edge[1][0], -edge[0][0], edge))[:most]
    shown = sorted({head for edge in kept for head in edge[:2]})
    layers = sorted({layer for layer, _ in shown}) or [0]
    figure = blank(min(16.0, max(6.0, 1.6 * len(layers) + 2)), max(3.6, 0.34 * n_heads + 1.2))
    heading(figure, title if len(kept) == len(edges) else f"{title}; the {len(kept)} most frequent of {len(edges):,}")
    axis = figure.subplots()
    tidy(axis, x="layer", y="head")
    for a, b, side in kept:
        lift = 0.08 if side == "src" else -0.08
        shade = BLUE if side == "src" else RED
        ends = ([a[0], b[0]], [a[1] + lift, b[1] + lift])
        axis.plot(*ends, color=shade, linewidth=0.5 + 3 * edges[a, b, side], alpha=0.55, zorder=1)
    for head in shown:
        box = {"boxstyle": "round,pad=0.3", "facecolor": INK if head in known else GREY, "edgecolor": "none"}
        axis.text(*head, name_of(head), color="white", ha="center", va="center", fontsize=9, zorder=3, bbox=box)
    axis.set_xlim(layers[0] - 0.5, layers[-1] + 0.5)
    axis.set_ylim(n_heads - 0.5, -0.5)
    axis.set_xticks(layers)
    axis.set_yticks([])
    sides = ((RED, "read at the destination"), (BLUE, "read at the source"))
    lines = [Line2D([], [], color=shade, linewidth=2, label=text) for shade, text in sides]
    roles = [Patch(color=INK, label="known role"), Patch(color=GREY, label="other head")]
    legend(figure, [*lines, *roles], columns=4, beneath=True)
    return figure
