"""How does a circuit look in print? Tokens from left to right, layers from below, edges as wide as what they carry."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.shown import SHOWN, shown
from keyhole.circuits.text import answer_label, ends_label
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, wrapped
from keyhole.models.tokens.prompts import token_label

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
_ROOM = 0.2  # inches of a row of nodes
_WIDE = 14.0  # points of an edge that carries all of the answer
_KEY = 8  # names that are told; the strongest edges' ones
Names = Mapping[Edge, str]
Places = dict[int, tuple[float, float]]


def circuit_figure(
    *circuits: Circuit, titles: Sequence[str] = (), least: float = SHOWN, names: Names | None = None
) -> Figure:
    """One circuit, or several side by side; of those that account for influence, nodes with `least` of the answer.

    `names` of edges, as `edge_names` gives them, have numbers in the picture and stand below it.
    """
    key = _key(circuits, names or {}, least)
    rows = max(_rows(shown(circuit, least)) for circuit in circuits)
    figure = blank(5.4 * len(circuits) + 0.4, max(4.6, _ROOM * rows + 1.4) + 0.19 * len(key))
    axes = figure.subplots(1, len(circuits), squeeze=False)[0]
    for i, (axis, circuit) in enumerate(zip(axes, circuits, strict=True)):
        part, drawn = shown(circuit, least), _drawn(circuit, names or {}, least)
        _draw(
            axis,
            part,
            {drawn[edge]: key[text] for edge, text in (names or {}).items() if edge in drawn and text in key},
        )
        told = f"{circuit.model['name']}{answer_label(circuit)}"
        told += f"\nwhere influence ends: {ends_label(circuit, 4)}" if circuit.influence else ""
        told += "; edges are as wide as contributions (equation 8)" if circuit.parameters.method == "svt" else ""
        axis.set_title(titles[i] if titles else wrapped(figure, told, 1 / len(circuits)), loc="left", fontsize=10)
    used = {edge.side for circuit in circuits for edge in shown(circuit, least).edges}
    sides = [side for side in _LINE if side in used]
    handles = [axes[0].plot([], [], color=_LINE[side], linewidth=3, label=_NAMES[side])[0] for side in sides]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    if key:
        told = "\n".join(f"{number}  {text}" for text, number in key.items())
        axes[0].set_xlabel(told, fontsize=8, loc="left", color=INK)
    return figure


def _key(circuits: Sequence[Circuit], names: Names, least: float) -> dict[str, int]:
    """Each name once, with its number: those of the strongest edges that are drawn."""
    drawn = [edge for circuit in circuits for edge in _drawn(circuit, names, least)]
    drawn.sort(key=lambda edge: -(edge.weight if edge.influence is None else edge.influence))
    return {text: i for i, text in enumerate(list(dict.fromkeys(names[edge] for edge in drawn))[:_KEY], start=1)}


def _drawn(circuit: Circuit, names: Names, least: float) -> dict[Edge, Edge]:
    """The named edges of which both ends are drawn, and what they are in the part that is drawn."""
    part = shown(circuit, least)
    ends = {_ends(part, edge): edge for edge in part.edges}
    own = set(circuit.edges)
    return {edge: ends[_ends(circuit, edge)] for edge in names if edge in own and _ends(circuit, edge) in ends}


def _ends(circuit: Circuit, edge: Edge) -> tuple[Node, Node, str, tuple[int, ...]]:
    return circuit.nodes[edge.source], circuit.nodes[edge.target], edge.side, tuple(edge.channels)


def _told(circuit: Circuit) -> list[tuple[int, Node]]:
    """The nodes that are drawn: no biases and offsets."""
    return [(i, node) for i, node in enumerate(circuit.nodes) if node.kind in _FILL]


def _rows(circuit: Circuit) -> float:
    """How tall is it, in rows of nodes?"""
    told = _told(circuit)
    places = _places(told, sorted({node.dest for _, node in told}))
    return 1 + max((y for _, y in places.values()), default=0.0)


def _draw(axis: Any, circuit: Circuit, numbers: Mapping[Edge, int]) -> None:
    told = _told(circuit)
    tokens = sorted({node.dest for _, node in told})
    places = _places(told, tokens)
    for column in range(len(tokens)):
        axis.axvline(column, color=FAINT, linewidth=0.8, zorder=0)
    whole = sum(edge.weight for edge in circuit.edges if edge.side == "target")
    # a drop is at most 1; the contributions of svt have no such bound, and the largest stands for it
    most = max([1.0, *(edge.weight for edge in circuit.edges if edge.side != "target")])
    for edge in circuit.edges:
        if edge.source in places and edge.target in places:
            share = edge.weight / (whole if edge.side == "target" else 2 * most)
            share = share if edge.influence is None else edge.influence
            axis.add_patch(_line(edge, places, share, bow=0.0 if edge in numbers else 0.06))
    for edge, number in numbers.items():
        if edge.source in places and edge.target in places:
            _mark(axis, edge, places, number)
    for i, (x, y) in places.items():
        node = circuit.nodes[i]
        axis.plot([x], [y], "o", color=_FILL[node.kind], markersize=14 if _label(node) else 8, zorder=3)
        axis.text(x, y, _label(node), color="white", fontsize=6, ha="center", va="center", zorder=4)
    axis.set_xticks(range(len(tokens)), [_name(circuit, token) for token in tokens], fontsize=9)
    axis.set_yticks([])
    axis.tick_params(length=0, colors=INK)
    axis.spines[:].set_visible(False)
    axis.set_xlim(-0.6, len(tokens) - 0.4)
    axis.margins(y=0.08)


def _mark(axis: Any, edge: Edge, places: Places, number: int) -> None:
    """A number in the middle of an edge, which is straight so that it lies on it."""
    (x, y), (to_x, to_y) = places[edge.source], places[edge.target]
    look = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": _LINE[edge.side], "linewidth": 0.8}
    axis.text((x + to_x) / 2, (y + to_y) / 2, str(number), fontsize=6, ha="center", va="center", bbox=look, zorder=5)


def _name(circuit: Circuit, token: int) -> str:
    """A token, and how much of the answer's influence ends in its word."""
    text = token_label(circuit.tokens, token)
    if not circuit.influence:
        return text
    nodes = zip(circuit.nodes, circuit.influence, strict=True)
    share = sum(share for node, share in nodes if node.kind == "embedding" and node.dest == token)
    return f"{text}\n{share:.0%}" if share else text


def _places(nodes: Sequence[tuple[int, Node]], tokens: Sequence[int]) -> Places:
    """Columns are tokens, with heads on the left and MLPs on the right, so that edges within a column are seen.

    Only levels that have nodes take room, each as much as its fullest cell needs: labels never cover each other.
    """
    cells: dict[tuple[float, int], list[tuple[int, Node]]] = {}
    for i, node in nodes:
        cells.setdefault((_level(node), tokens.index(node.dest)), []).append((i, node))
    found: Places = {}
    floor = 0.0
    for level in sorted({level for level, _ in cells}):
        row = {column: members for (own, column), members in cells.items() if own == level}
        room = max(len(members) for members in row.values())
        for column, members in row.items():
            for place, (i, node) in enumerate(members):
                found[i] = (column + _SIDE.get(node.kind, 0.0), floor + (room - len(members)) / 2 + place)
        floor += room
    return found


def _level(node: Node) -> float:
    """Words below, then heads and MLPs of each layer, the answer on top."""
    if node.layer is None:
        return float("inf")
    return {"embedding": -1.0, "mlp": node.layer + 0.5}.get(node.kind, float(node.layer))


def _line(edge: Edge, places: Places, share: float, *, bow: float) -> FancyArrowPatch:
    return FancyArrowPatch(
        places[edge.source],
        places[edge.target],
        arrowstyle="-",
        connectionstyle=f"arc3,rad={bow}",
        linewidth=max(0.5, _WIDE * share),
        color=_LINE[edge.side],
        alpha=0.55,
        zorder=2,
    )


def _label(node: Node) -> str:
    return {"head": f"{node.layer}.{node.head}", "mlp": f"m{node.layer}"}.get(node.kind, "")
