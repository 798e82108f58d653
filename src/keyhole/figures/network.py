"""Which head writes to which, and at which token? Heads are ovals, the tokens that they read are boxes.

An edge leads from the head that writes to a token of the head that reads; the token stands beside that head.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from statistics import fmean
from typing import Any, Literal

from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

from keyhole.brief import Head, head_name
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, legend

Box = tuple[Head, str]  # a token that a head reads, by its role
Places = dict[Head | Box, tuple[float, float]]

_GREEN = "#2f9e44"
_SHADES = {"dest": RED, "src": BLUE}
_COLUMN, _NARROW, _ROW = 1.7, 1.35, 0.27  # inches of a layer, of each of many layers, and of a token
_PAGE = 20.0  # inches, beyond which layers are narrow
_APART = 0.6  # between a head and its tokens
_BETWEEN = 0.5  # rows between two heads of a layer
_WIDE = 6.0  # points of the edge that carries most
_SWEEPS = 8  # of sorting heads by where their neighbours are


@dataclass(frozen=True)
class TokenEdge:
    """What one head writes for another at a token."""

    writer: Head
    reader: Head
    token: str  # the role of the token, such as IO
    side: Literal["dest", "src"]  # what the token is for the reader


@dataclass(frozen=True)
class Carried:
    """How often an edge was traced, and how much it carried."""

    share: float  # of the prompts
    total: float  # contributions, added up over the prompts


def network_figure(
    edges: Mapping[TokenEdge, Carried],
    title: str,
    *,
    starts: Collection[Head],
    fired: Mapping[Head, float],
    known: Collection[Head] = (),
    most: int = 100,
) -> Figure:
    """Draw heads that write to heads, layers from left to right, edges as wide as what they carry.

    Args:
        edges: What each edge carried, over all prompts.
        title: Of the figure.
        starts: Heads where tracing began.
        fired: The share of prompts in which each head was traced: the larger, the darker.
        known: Heads that get a green border.
        most: How many edges are drawn, at most: those on the strongest paths from the starts.
    """
    kept = _followed(edges, starts, most)
    places, (wide, high) = _laid_out(kept)
    figure = blank(max(6.6, wide + 0.5), max(3.2, high + 1.5))
    part = f"; {len(kept)} of {len(edges):,}, on the strongest paths from where tracing began"
    heading(figure, title + (part if len(kept) < len(edges) else ""))
    axis = figure.subplots()
    margin = max(0.0, figure.get_figwidth() - 0.5 - wide) / 2
    axis.set_xlim(-0.35 - margin, wide - 0.35 + margin)
    axis.set_ylim(-high / 2 - 0.15, high / 2 + 0.15)
    _frame(axis, places)
    widest = max((edges[edge].total for edge in kept), default=1.0)
    for edge in sorted(kept, key=lambda edge: -edges[edge].total):  # narrow ones above wide ones
        _line(axis, edge, places, 0.6 + _WIDE * edges[edge].total / widest)
    for place, (x, y) in places.items():
        if isinstance(place[1], str):
            head_x, head_y = places[place[0]]
            axis.plot([x, head_x], [y, head_y], color=GREY, linewidth=0.9, zorder=2)
            look: dict[str, Any] = {"boxstyle": "square,pad=0.25", "facecolor": "white", "edgecolor": INK}
            axis.text(x, y, place[1], fontsize=7, ha="center", va="center", zorder=3, bbox=look | {"linewidth": 0.7})
        else:
            _oval(axis, place, (x, y), fired.get(place, 0.0), known=place in known)
    legend(figure, _key(widest), columns=3 if figure.get_figwidth() > 9 else 2, beneath=True)
    return figure


def _followed(edges: Mapping[TokenEdge, Carried], starts: Collection[Head], most: int) -> list[TokenEdge]:
    """At most so many edges, on the strongest paths down from the starts.

    The strength of a step is the edge's frequency times its share of all that is written for the reader at its token;
    that of a path is the product of its steps. So edges near the starts come first, branches of weak edges last.
    """
    if len(edges) <= most:
        return list(edges)
    whole: dict[tuple[Head, str, str], float] = defaultdict(float)
    into: dict[Head, list[TokenEdge]] = defaultdict(list)
    for edge, carried in edges.items():
        whole[edge.reader, edge.token, edge.side] += carried.total
        into[edge.reader].append(edge)

    def ways(head: Head, strength: float) -> list[tuple[float, int, TokenEdge]]:
        steps = [(edges[e].share * edges[e].total / whole[e.reader, e.token, e.side], e) for e in into[head]]
        return [(-strength * step, numbers[edge], edge) for step, edge in steps]

    numbers = {edge: number for number, edge in enumerate(edges)}  # of equals, the first
    reached, waiting, kept = set(starts), [way for head in starts for way in ways(head, 1.0)], list[TokenEdge]()
    heapify(waiting)
    while waiting and len(kept) < most:
        strength, _, edge = heappop(waiting)
        kept.append(edge)
        if edge.writer not in reached:
            reached.add(edge.writer)
            for way in ways(edge.writer, -strength):
                heappush(waiting, way)
    return kept


def _laid_out(edges: Collection[TokenEdge]) -> tuple[Places, tuple[float, float]]:
    """Positions of heads and their tokens, in inches, and the size of the picture."""
    boxes: dict[Head, list[str]] = defaultdict(list)
    near: dict[Head, list[Head]] = defaultdict(list)
    for edge in edges:
        near[edge.writer].append(edge.reader)
        near[edge.reader].append(edge.writer)
        if edge.token not in boxes[edge.reader]:
            boxes[edge.reader].append(edge.token)
    layers = sorted({layer for layer, _ in near})
    columns = {layer: sorted(head for head in near if head[0] == layer) for layer in layers}
    rows = {head: max(1, len(boxes[head])) + _BETWEEN for head in near}
    height = max((sum(rows[head] for head in column) for column in columns.values()), default=1.0) * _ROW
    at: dict[Head, float] = {}
    for sweep in range(_SWEEPS):  # towards the neighbours, forth and back
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            column = columns[layer]
            if at:
                means = {head: fmean([at[other] for other in near[head] if other in at] or [0.0]) for head in column}
                column.sort(key=lambda head: (-means[head], head))
            top = sum(rows[head] for head in column) * _ROW / 2
            for head in column:
                at[head] = top - rows[head] * _ROW / 2
                top -= rows[head] * _ROW
    places: Places = {}
    wide = max(_NARROW, min(_COLUMN, _PAGE / max(1, len(layers))))
    for number, layer in enumerate(layers):
        for head in columns[layer]:
            x = number * wide + _APART
            places[head] = (x, at[head])
            tokens = _sorted_tokens(head, boxes[head], edges, at)
            for row, token in enumerate(tokens):
                places[head, token] = (x - _APART, at[head] + _ROW * ((len(tokens) - 1) / 2 - row))
    return places, (wide * max(0, len(layers) - 1) + _APART + 0.7, height)


def _sorted_tokens(
    head: Head, tokens: Collection[str], edges: Collection[TokenEdge], at: Mapping[Head, float]
) -> list[str]:
    """The tokens of a head from top to bottom, in the order of the heads that write there: fewer lines cross."""
    writers = {
        token: fmean(at[edge.writer] for edge in edges if (edge.reader, edge.token) == (head, token))
        for token in tokens
    }
    return sorted(tokens, key=lambda token: (-writers[token], token))


def _frame(axis: Any, places: Places) -> None:
    """Axes without anything but the layers' names below."""
    layers = {place[0]: x for place, (x, _) in places.items() if isinstance(place[1], int)}
    axis.set_xticks(list(layers.values()), [f"layer {layer}" for layer in layers], fontsize=9, color=INK)
    axis.set_yticks([])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    for x in layers.values():
        axis.axvline(x, color=FAINT, linewidth=0.6, zorder=0)


def _line(axis: Any, edge: TokenEdge, places: Places, width: float) -> None:
    """From the writer to the token, level at both ends."""
    (x0, y0), (x1, y1) = places[edge.writer], places[edge.reader, edge.token]
    lift = 0.03 if edge.side == "src" else -0.03  # a token may be both, and neither should cover the other
    bend = 0.45 * (x1 - x0)  # from the middle of the oval to that of the box, which cover the ends
    route = Path(
        [(x0, y0), (x0 + bend, y0), (x1 - bend, y1 + lift), (x1, y1 + lift)],
        [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
    )
    look: dict[str, Any] = {"edgecolor": _SHADES[edge.side], "facecolor": "none", "capstyle": "butt"}
    axis.add_patch(PathPatch(route, linewidth=width, alpha=0.5, zorder=1, **look))


def _oval(axis: Any, head: Head, at: tuple[float, float], share: float, *, known: bool) -> None:
    dark = 0.12 + 0.88 * min(1.0, share)
    fill = tuple(1 - dark * (1 - part) for part in to_rgb(INK))
    look: dict[str, Any] = {"boxstyle": "round,pad=0.35,rounding_size=0.9", "facecolor": fill}
    look |= {"edgecolor": _GREEN if known else INK, "linewidth": 2.2 if known else 0.7}
    shade = "white" if dark > 0.5 else "black"
    axis.text(*at, head_name(head), color=shade, fontsize=8, ha="center", va="center", zorder=4, bbox=look)


def _key(widest: float) -> list[Any]:
    """What lines, boxes and ovals mean."""
    lines = {RED: "read at its destination", BLUE: "read at its source"}
    handles: list[Any] = [Line2D([], [], color=c, linewidth=3, alpha=0.6, label=text) for c, text in lines.items()]
    handles.append(Line2D([], [], linestyle="none", label=f"widest: {widest:.3g}, contributions added up"))
    handles.append(Patch(facecolor="white", edgecolor=INK, linewidth=0.7, label="token of the reader, by its role"))
    handles.append(Patch(facecolor=INK, edgecolor=INK, label="head; darker: in more prompts"))
    handles.append(Patch(facecolor="white", edgecolor=_GREEN, linewidth=2.2, label="head with a known role"))
    return handles
