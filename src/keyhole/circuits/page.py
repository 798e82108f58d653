"""How does a circuit look in a browser? One self-contained page: no network, no script from elsewhere."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from string import Template

from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.shown import SHOWN, shown
from keyhole.circuits.text import answer_label, channels_label, count, ends_label, node_label

_PAGE = Path(__file__).with_name("page.html")  # its style and script
_LEFT, _TOP, _WIDTH, _HEIGHT = 70, 40, 1400, 860
_COLOURS = {
    "head": "#3465a4",
    "mlp": "#a0622d",
    "bias": "#8a8a85",
    "embedding": "#4e8f4a",
    "offset": "#b5b5ae",
    "mlp_offset": "#b5b5ae",
    "value_offset": "#b5b5ae",
    "mixer": "#7d4fa0",
    "target": "#cc4b37",
}

Identity = tuple[Node, Node, str, tuple[int, ...]]

_FURTHER = """
<span><i style="background:#a0622d"></i> into an MLP</span>
<span><i style="background:#4e8f4a"></i> value (what a head moves)</span>"""


def to_html(circuit: Circuit, names: Mapping[Edge, str] | None = None) -> str:
    """Tokens from left to right, layers from bottom to top; click a node for what causes it.

    `names` of its edges, if there are some, have a column of the table (see `keyhole.naming.attached`).
    """
    named = {_identity(circuit, edge): name for edge, name in (names or {}).items()}
    title = f"{circuit.model['name']}: why “{_answer(circuit)}”?"
    summary, circuit = _summary(circuit), shown(circuit)
    places = _places(circuit)
    depth = max((n.layer for n in circuit.nodes if n.layer is not None), default=0) + 2
    width, height = _LEFT + _column(circuit) * len(circuit.tokens) + 20, _TOP + _row(depth) * depth + 50
    marks = "".join(_edge_marks(circuit, places)) + "".join(_node_marks(circuit, places))
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        summary=html.escape(summary),
        measure="influence" if circuit.influence else "drop",
        further=_FURTHER if circuit.influence else "",
        width=width,
        height=height,
        axes="".join(_axes(circuit, depth)),
        marks=marks,
        named="" if names is None else "<th>name</th>",
        table="".join(_rows(circuit, None if names is None else named)),
        facts=html.escape(json.dumps({**circuit.parameters.record(), **circuit.errors}, ensure_ascii=False)),
    )


def _row(depth: int) -> int:
    """Height of a layer's row: a deep model still fits a screen."""
    return max(27, min(66, _HEIGHT // depth))


def _column(circuit: Circuit) -> int:
    """Width of a token's column: the whole prompt fits a screen while it is short."""
    return max(64, min(120, (_WIDTH - _LEFT) // len(circuit.tokens)))


def _answer(circuit: Circuit) -> str:
    return ", ".join(circuit.parameters.target_text or ["this direction"])


def _summary(circuit: Circuit) -> str:
    answer = answer_label(circuit).removeprefix(": ")
    return (f"{answer}. " if answer else "") + (
        f"{count(len(circuit.nodes), 'node')}, {count(len(circuit.edges), 'signal')}, "
        f"{count(len(circuit.firings), 'firing')} explained. "
        f"Blue: attention heads, placed at the token they write to.{_through(circuit)}"
    )


def _through(circuit: Circuit) -> str:
    if not circuit.influence:
        return ""
    few = shown(circuit)
    return (
        f" Drawn: {count(len(few.nodes), 'node')} with {SHOWN:.0%} of the answer or more. Where influence ends: "
        f"{ends_label(circuit)}."
    )


def _places(circuit: Circuit) -> list[tuple[float, float]]:
    """Where each node stands: its token's column, its layer's row, side by side with its neighbours there."""
    column_width = _column(circuit)
    depth = max((n.layer for n in circuit.nodes if n.layer is not None), default=0) + 2
    cells: dict[tuple[int, int], list[int]] = {}
    for index, node in enumerate(circuit.nodes):
        row = depth - 1 if node.layer is None else node.layer
        cells.setdefault((row, node.dest), []).append(index)
    places = [(0.0, 0.0)] * len(circuit.nodes)
    for (row, column), members in cells.items():
        step = min(17.0, (column_width - 10) / len(members))
        for position, index in enumerate(members):
            x = _LEFT + (column + 0.5) * column_width + (position - (len(members) - 1) / 2) * step
            places[index] = (x, _TOP + (depth - 0.5 - row) * _row(depth))
    return places


def _axes(circuit: Circuit, depth: int) -> list[str]:
    marks = []
    bottom = _TOP + depth * _row(depth)
    for position, token in enumerate(circuit.tokens):
        x = _LEFT + (position + 0.5) * _column(circuit)
        text = html.escape(token.strip() or repr(token))
        for line in (_TOP - 14, bottom + 24):  # above and below: a deep model is tall
            marks.append(
                f'<text class="token" x="{x}" y="{line}"><tspan class="place">{position}</tspan> {text}</text>'
            )
        marks.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}"/>')
    for layer in range(depth - 1):
        y = _TOP + (depth - 0.5 - layer) * _row(depth)
        marks.append(f'<text class="layer" x="{_LEFT - 14}" y="{y + 4}">layer {layer}</text>')
    marks.append(f'<text class="layer" x="{_LEFT - 14}" y="{_TOP + _row(depth) / 2 + 4}">answer</text>')
    return marks


def _edge_marks(circuit: Circuit, places: list[tuple[float, float]]) -> list[str]:
    marks = []
    for edge in circuit.edges:
        (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
        bend = (y1 + y2) / 2
        strength = edge.weight if edge.influence is None else 4 * edge.influence
        thickness = max(0.6, min(5.0, 5 * abs(strength)))
        marks.append(
            f'<path class="edge {edge.side}" data-from="{edge.source}" data-to="{edge.target}" '
            f'style="stroke-width:{thickness:.2f}" d="M{x1:.1f} {y1:.1f} C{x1:.1f} {bend:.1f} {x2:.1f} {bend:.1f} '
            f'{x2:.1f} {y2:.1f}"/>'
        )
    return marks


def _node_marks(circuit: Circuit, places: list[tuple[float, float]]) -> list[str]:
    marks = []
    for index, node in enumerate(circuit.nodes):
        x, y = places[index]
        weight = circuit.attention[index]
        label = node_label(node, circuit.tokens) + ("" if weight is None else f", attention {weight:.3f}")
        label += f", {circuit.influence[index]:.1%} of the answer" if circuit.influence else ""
        radius = 8 if node.kind in ("head", "target") else 5.5
        marks.append(
            f'<circle class="node" tabindex="0" data-node="{index}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}" '
            f'fill="{_COLOURS[node.kind]}"><title>{html.escape(label)}</title></circle>'
        )
    return marks


def _identity(circuit: Circuit, edge: Edge) -> Identity:
    """What an edge is, in a circuit and in the part of it that is drawn."""
    return circuit.nodes[edge.source], circuit.nodes[edge.target], edge.side, edge.channels


def _rows(circuit: Circuit, named: Mapping[Identity, str] | None) -> list[str]:
    rows = []
    for edge in sorted(circuit.edges, key=lambda e: -(e.weight if e.influence is None else e.influence)):
        share = f"{edge.weight:.3f}" if edge.influence is None else f"{edge.influence:.1%}"
        source, target = (html.escape(node_label(circuit.nodes[i], circuit.tokens)) for i in (edge.source, edge.target))
        rows.append(
            f'<tr data-from="{edge.source}" data-to="{edge.target}"><td>{source}</td><td>{target}</td>'
            f"<td>{edge.side}</td><td>{share}</td><td>{edge.alone:.3f}</td>"
            f"<td>{html.escape(channels_label(edge.channels, 12))}</td>"
            + ("" if named is None else f"<td>{html.escape(named.get(_identity(circuit, edge), ''))}</td>")
            + "</tr>\n"
        )
    return rows
