"""How does a circuit look in print? Tokens from left to right, layers from below, edges as wide as what they carry."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from keyhole.brief import model_label
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.shown import SHOWN, shown
from keyhole.circuits.text import answer_label, ends_label
from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, legend, plain, text_width, wrapped
from keyhole.models.tokens import token_label

_BROWN, _GREEN = "#a0622d", "#4e8f4a"
_FILL = {"head": BLUE, "mlp": _BROWN, "embedding": _GREEN, "target": RED}
_LINE = {"dest": RED, "src": BLUE, "value": _GREEN, "mlp": _BROWN, "target": GREY}
_NAMES = {
    "dest": "dest: what a head looks for",
    "src": "src: what it finds",
    "value": "value: what it moves",
    "mlp": "into an MLP",
    "target": "into the answer",
}
_SIDE = {"head": -0.18, "mlp": 0.18}
_ROOM = 0.19  # inches of a row of nodes: a label in its box, and a little
_LINE_HEIGHT = 1.25  # of text, in font sizes
_WIDE = 14.0  # points of an edge that carries all of the answer
_KEY = 8  # names listed below the picture: those of the strongest edges
_PAGE = 6.75  # inches: the width of a page's text in most papers; a column of two has 3.25
_TITLE, _TOKEN, _NODE, _SMALL = 9.0, 8.0, 7.0, 7.5  # points
Names = Mapping[Edge, str]
Places = dict[int, tuple[float, float]]


def circuit_figure(
    *circuits: Circuit,
    titles: Sequence[str] = (),
    least: float = SHOWN,
    names: Names | None = None,
    width: float | None = None,
) -> Figure:
    """Draw one circuit, or several side by side: tokens from left to right, layers from bottom to top.

    Args:
        *circuits: What is drawn.
        titles: One per circuit; default: its model and its answer.
        least: The share of the answer below which a node is left out, in circuits that account for influence.
        names: Names of edges, as `edge_names` returns them: numbers in the picture, with a list below it.
        width: Of the figure, in inches: 6.75, or 5.4 for each of several. Letters keep their size, so give the width
            at which it is printed.

    Returns:
        A matplotlib figure: `keyhole.figures.save` writes it.

    >>> import keyhole
    >>> circuit = keyhole.load().run("When Mary and John went to the store, John gave a drink to").trace("Mary")
    >>> circuit_figure(circuit, titles=["Mary"], width=5).axes[0].get_title(loc="left")
    'Mary'
    """
    figure = blank(_width(width, len(circuits)), 4.0)
    key = _key(circuits, names or {}, least)
    key_lines = [wrapped(figure, f"{number}  {text}", size=_SMALL) for text, number in key.items()]
    heads = [_heading(figure, circuit, len(circuits)) for circuit in circuits]
    if titles:
        heads = [(wrapped(figure, title, 1 / len(circuits), size=_TITLE), "") for title in titles]
    rows = max(_rows(shown(circuit, least)) for circuit in circuits)
    texts = sum(text.count("\n") + 1 for text in key_lines) * _SMALL * _LINE_HEIGHT / 72
    texts += max(sum(text.count("\n") + 1 for text in head if text) for head in heads) * _TITLE * _LINE_HEIGHT / 72
    axes = figure.subplots(1, len(circuits), squeeze=False)[0]
    for axis, circuit, head in zip(axes, circuits, heads, strict=True):
        part, drawn = shown(circuit, least), _drawn(circuit, names or {}, least)
        numbers = {drawn[edge]: key[text] for edge, text in (names or {}).items() if edge in drawn and text in key}
        _draw(axis, part, numbers, room=figure.get_figwidth() / len(circuits))
        _entitle(axis, *head)
    used = {edge.side for circuit in circuits for edge in shown(circuit, least).edges}
    handles = [Line2D([], [], color=_LINE[side], linewidth=3, label=_NAMES[side]) for side in _LINE if side in used]
    legend_rows = legend(figure, handles, columns=max(1, len(handles)), beneath=True, size=_SMALL)
    if key:
        axes[0].set_xlabel("\n".join(key_lines), fontsize=_SMALL, loc="left", color=INK)
    figure.set_figheight(max(3.0, _ROOM * rows + 0.4) + texts + _below(figure, legend_rows))
    return figure


def _width(width: float | None, circuits: int) -> float:
    if width is None:
        return _PAGE if circuits == 1 else 5.4 * circuits + 0.4
    if not 2.0 <= width <= 40.0:
        raise KeyholeError(f"a circuit's figure is 2 to 40 inches wide, not {width!r}: a paper's column has 3.25.")
    return width


def _heading(figure: Figure, circuit: Circuit, panels: int) -> tuple[str, str]:
    """Title (model and answer) and subtitle: where influence ends, or what the widths of edges mean."""
    title = plain(f"{model_label(str(circuit.model['name']))}{answer_label(circuit)}")
    below = f"where influence ends: {plain(ends_label(circuit, 4))}" if circuit.influence else ""
    if circuit.parameters.method == "svt":
        below = "edges are as wide as contributions (equation 8)"
    return wrapped(figure, title, 1 / panels, size=_TITLE), wrapped(figure, below, 1 / panels, size=_SMALL)


def _entitle(axis: Any, title: str, ends: str) -> None:
    """The title, with room for the smaller lines between it and the picture."""
    lines = (ends.count("\n") + 1) if ends else 0
    axis.set_title(title, loc="left", fontsize=_TITLE, pad=6 + lines * _SMALL * _LINE_HEIGHT)
    if ends:
        look: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
        axis.annotate(ends, (0, 1), (0, 3), fontsize=_SMALL, color=INK, linespacing=_LINE_HEIGHT - 0.05, **look)


def _below(figure: Figure, legend_rows: int) -> float:
    """Inches that tokens and the legend take beneath the picture."""
    labels = [label for axis in figure.axes for label in axis.get_xticklabels()]
    turned = any(label.get_rotation() for label in labels)
    high = max((text_width(label.get_text(), _TOKEN) for label in labels), default=0.0) if turned else 0.0
    return max(2 * _TOKEN * _LINE_HEIGHT / 72, high) + legend_rows * _SMALL * 1.6 / 72 + 0.2


def _key(circuits: Sequence[Circuit], names: Names, least: float) -> dict[str, int]:
    """Each name once, with its number: the names of the strongest edges in the picture."""
    drawn = [edge for circuit in circuits for edge in _drawn(circuit, names, least)]
    drawn.sort(key=lambda edge: -(edge.weight if edge.influence is None else edge.influence))
    return {text: i for i, text in enumerate(list(dict.fromkeys(names[edge] for edge in drawn))[:_KEY], start=1)}


def _drawn(circuit: Circuit, names: Names, least: float) -> dict[Edge, Edge]:
    """Named edges whose ends are both in the picture, with the matching edges of the part that is shown."""
    part = shown(circuit, least)
    ends = {_ends(part, edge): edge for edge in part.edges}
    edges = set(circuit.edges)
    return {edge: ends[_ends(circuit, edge)] for edge in names if edge in edges and _ends(circuit, edge) in ends}


def _ends(circuit: Circuit, edge: Edge) -> tuple[Node, Node, str, tuple[int, ...]]:
    return circuit.nodes[edge.sender], circuit.nodes[edge.receiver], edge.side, tuple(edge.channels)


def _drawn_nodes(circuit: Circuit) -> list[tuple[int, Node]]:
    """Nodes that the picture shows, with their indices: all but biases and offsets."""
    return [(i, node) for i, node in enumerate(circuit.nodes) if node.kind in _FILL]


def _rows(circuit: Circuit) -> float:
    """The height of the picture, in rows of nodes."""
    nodes = _drawn_nodes(circuit)
    places = _places(nodes, sorted({node.dest for _, node in nodes}))
    return 1 + max((y for _, y in places.values()), default=0.0)


def _draw(axis: Any, circuit: Circuit, numbers: Mapping[Edge, int], *, room: float) -> None:
    nodes = _drawn_nodes(circuit)
    tokens = sorted({node.dest for _, node in nodes})
    places = _places(nodes, tokens)
    for column in range(len(tokens)):
        axis.axvline(column, color=FAINT, linewidth=0.8, zorder=0)
    whole = sum(edge.weight for edge in circuit.edges if edge.side == "target")
    # a drop is at most 1; the contributions of svt have no such bound, and the largest stands for it
    most = max([1.0, *(edge.weight for edge in circuit.edges if edge.side != "target")])
    for edge in circuit.edges:
        if edge.sender in places and edge.receiver in places:
            share = edge.weight / (whole if edge.side == "target" else 2 * most)
            share = share if edge.influence is None else edge.influence
            axis.add_patch(_line(edge, places, share, bow=0.0 if edge in numbers else 0.06))
    for edge, number in numbers.items():
        if edge.sender in places and edge.receiver in places:
            _mark(axis, edge, places, number)
    for i, (x, y) in places.items():
        _node(axis, circuit.nodes[i], x, y)
    names = [_name(circuit, token) for token in tokens]
    wide = any(text_width(name, _TOKEN) > 0.92 * room / max(1, len(tokens)) for name in names)
    turned: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if wide else {}
    axis.set_xticks(range(len(tokens)), names, fontsize=_TOKEN, **turned)
    axis.set_yticks([])
    axis.tick_params(length=0, colors=INK)
    axis.spines[:].set_visible(False)
    axis.set_xlim(-0.6, len(tokens) - 0.4)
    axis.margins(y=0.08)


def _node(axis: Any, node: Node, x: float, y: float) -> None:
    """A head or an MLP as its name in a box; tokens and the answer as a dot."""
    label = {"head": f"{node.layer}.{node.head}", "mlp": f"m{node.layer}"}.get(node.kind)
    if label is None:
        axis.plot([x], [y], "o", color=_FILL[node.kind], markersize=8, zorder=3)
        return
    box = {"boxstyle": "round,pad=0.22", "facecolor": _FILL[node.kind], "edgecolor": "white", "linewidth": 0.6}
    axis.text(x, y, label, color="white", fontsize=_NODE, ha="center", va="center", bbox=box, zorder=4)


def _mark(axis: Any, edge: Edge, places: Places, number: int) -> None:
    """A number in the middle of an edge, which is drawn straight so that the number lies on it."""
    (x, y), (to_x, to_y) = places[edge.sender], places[edge.receiver]
    look = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": _LINE[edge.side], "linewidth": 0.8}
    axis.text(
        (x + to_x) / 2, (y + to_y) / 2, str(number), fontsize=_NODE - 1, ha="center", va="center", bbox=look, zorder=5
    )


def _name(circuit: Circuit, token: int) -> str:
    """A token, and the share of the answer's influence that ends in its embedding."""
    text = plain(token_label(circuit.tokens, token))
    if not circuit.influence:
        return text
    nodes = zip(circuit.nodes, circuit.influence, strict=True)
    share = sum(share for node, share in nodes if node.kind == "embedding" and node.dest == token)
    return f"{text}\n{share:.0%}" if share else text


def _places(nodes: Sequence[tuple[int, Node]], tokens: Sequence[int]) -> Places:
    """Columns are tokens, with heads on the left and MLPs on the right, so that edges within a column are visible.

    Only levels with nodes take room, each as much as its fullest cell needs, so that labels never overlap.
    """
    cells: dict[tuple[float, int], list[tuple[int, Node]]] = {}
    for i, node in nodes:
        cells.setdefault((_level(node), tokens.index(node.dest)), []).append((i, node))
    places: Places = {}
    floor = 0.0
    for level in sorted({level for level, _ in cells}):
        row = {column: members for (at_level, column), members in cells.items() if at_level == level}
        room = max(len(members) for members in row.values())
        for column, members in row.items():
            for place, (i, node) in enumerate(members):
                places[i] = (column + _SIDE.get(node.kind, 0.0), floor + (room - len(members)) / 2 + place)
        floor += room
    return places


def _level(node: Node) -> float:
    """Embeddings at the bottom, then heads and MLPs of each layer, the answer on top."""
    if node.layer is None:
        return float("inf")
    return {"embedding": -1.0, "mlp": node.layer + 0.5}.get(node.kind, float(node.layer))


def _line(edge: Edge, places: Places, share: float, *, bow: float) -> FancyArrowPatch:
    return FancyArrowPatch(
        places[edge.sender],
        places[edge.receiver],
        arrowstyle="-",
        connectionstyle=f"arc3,rad={bow}",
        linewidth=max(0.5, _WIDE * share),
        color=_LINE[edge.side],
        alpha=0.55,
        zorder=2,
    )
