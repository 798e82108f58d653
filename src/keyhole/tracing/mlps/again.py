"""Along which directions is what a circuit's MLPs write read? Rebuilt from its edges, top down: files keep none.

Each MLP's D is what its readers read, weighted by the influence that they hand it, as when the circuit was traced.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.parameters import Accpp
from keyhole.circuits.writer import SideName, Signal
from keyhole.errors import KeyholeError
from keyhole.tracing.firing import Firing
from keyhole.tracing.mlps.directions import Reading, value_along
from keyhole.tracing.mlps.places import Places, mlp_places, weights_of
from keyhole.tracing.mlps.spots import Spot
from keyhole.tracing.mlps.through import Flow, Through
from keyhole.tracing.seeds import answer_direction
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run


@dataclass(frozen=True)
class ReadMlp:
    """One MLP of a circuit: its place, and the direction that all its readers together read."""

    node: int
    place: Places  # one spot
    direction: Float[Tensor, "d_model"]


def read_mlps(circuit: Circuit, run: "Run") -> dict[int, ReadMlp]:
    """Every MLP that a circuit explains, by its node."""
    told = circuit.parameters
    if not isinstance(told, Accpp) or told.through != "mlps":
        raise KeyholeError('this circuit ends at MLPs: trace with through="mlps" to explain and verify them.')
    flow = Flow(Writes(run), Through(constants=told.constants or "baseline"))
    along = answer_direction(flow.writes, told, circuit.probe)
    for edge in _into(circuit, "target"):
        _reach(flow, circuit, edge, along)
    found: dict[int, ReadMlp] = {}
    for layer in reversed(range(len(run.layers))):
        found |= _mlps(flow, circuit, layer)
        for node, own in enumerate(circuit.nodes):
            if own.kind == "head" and own.layer == layer:
                _head(flow, circuit, node)
    return found


def _into(circuit: Circuit, side: str, node: int | None = None) -> list[Edge]:
    """The edges that hand influence on, through one side."""
    return [e for e in circuit.edges if e.side == side and e.influence and node in (None, e.target)]


def _reach(flow: Flow, circuit: Circuit, edge: Edge, along: Float[Tensor, "d_model"]) -> None:
    writer, into = circuit.nodes[edge.source].writer, circuit.nodes[edge.target]
    value = float(along.double() @ flow.writes.written(writer).double())
    who = None if into.kind == "target" else into.writer
    flow.reach(writer, edge.influence or 0.0, along, value, (who, edge.side))


def _mlps(flow: Flow, circuit: Circuit, layer: int) -> dict[int, ReadMlp]:
    nodes = [one.node for one in circuit.mlps if circuit.nodes[one.node].layer == layer]
    if not nodes:
        return {}
    spots = [Spot(flow.writes, circuit.nodes[node].dest) for node in nodes]
    weights = weights_of(flow.writes.run, layer)
    places = mlp_places(spots, weights, layer, constants=flow.settings.constants == "baseline")
    D = torch.stack([flow.along[circuit.nodes[node].writer] for node in nodes]).to(places.x)
    g, _ = places.back(places.along(D))
    for i, node in enumerate(nodes):
        for edge in _into(circuit, "mlp", node):
            _reach(flow, circuit, edge, g[i])
    return {node: ReadMlp(node, places.at(i), D[i]) for i, node in enumerate(nodes)}


def _head(flow: Flow, circuit: Circuit, node: int) -> None:
    own = circuit.nodes[node]
    if not any(edge.influence for edge in circuit.edges_into(node)):
        return
    weight = circuit.attention[node]
    assert own.layer is not None and own.head is not None and weight is not None
    firing = Firing(own.layer, own.head, own.dest, own.src, weight, 0.0, 0, (), flow.writes.run)
    values = _into(circuit, "value", node)
    if values:
        g = value_along(firing, flow.writes, flow.along[own.writer])
        for edge in values:
            _reach(flow, circuit, edge, g)
    reading, sides = Reading.of(firing, flow.writes), get_args(SideName)
    for side in sides:
        edges = _into(circuit, side, node)
        signals = [_signal(circuit, edge, side) for edge in edges]
        shares = [edge.influence or 0.0 for edge in edges]
        flow.reach_signals(own.writer, side, signals, shares, reading=reading)


def _signal(circuit: Circuit, edge: Edge, side: SideName) -> Signal:
    return Signal(circuit.nodes[edge.source].writer, side, edge.channels, edge.weight, edge.ig, edge.alone)
