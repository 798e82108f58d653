"""Along which directions is what a circuit's MLPs write read? Rebuilt from its edges, top down: files keep none.

Each MLP's D is what its readers read, weighted by the influence that they hand it, as when the circuit was traced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.parameters import Accpp
from keyhole.circuits.writer import SideName, Signal
from keyhole.errors import KeyholeError
from keyhole.tracing.answers.goals import answer_direction
from keyhole.tracing.firings.sites import Sites
from keyhole.tracing.mlps.directions import Readings, values_along
from keyhole.tracing.mlps.flow import Through
from keyhole.tracing.mlps.places import Places, mlp_places, weights_of
from keyhole.tracing.mlps.through import Flows, Handed
from keyhole.tracing.writes.upstream import Writes

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
    flows = Flows(Writes([run]), Through(constants=told.constants or "baseline"))
    along = answer_direction(flows.writes, told, circuit.probe)
    _reach(flows, circuit, [(edge, along) for edge in _into(circuit, "target")])
    found: dict[int, ReadMlp] = {}
    for layer in reversed(range(len(run.layers))):
        found |= _mlps(flows, circuit, layer)
        _heads(flows, circuit, layer)
    return found


def _into(circuit: Circuit, side: str, node: int | None = None) -> list[Edge]:
    """The edges that hand influence on, through one side."""
    return [e for e in circuit.edges if e.side == side and e.influence and node in (None, e.target)]


def _reach(flows: Flows, circuit: Circuit, edges: Sequence[tuple[Edge, Float[Tensor, "d_model"]]]) -> None:
    """What edges hand on to writers that are read along a direction."""
    if not edges:
        return
    writers = [circuit.nodes[edge.source].writer for edge, _ in edges]
    along, wrote = torch.stack([d for _, d in edges]).double(), flows.writes.written([0] * len(edges), writers).double()
    values, shares = (along * wrote).sum(1).tolist(), [edge.influence or 0.0 for edge, _ in edges]
    flows.directions.add([(0, *own) for own in zip(writers, shares, values, strict=True)], along)


def _mlps(flows: Flows, circuit: Circuit, layer: int) -> dict[int, ReadMlp]:
    nodes = [one.node for one in circuit.mlps if circuit.nodes[one.node].layer == layer]
    if not nodes:
        return {}
    spots = [(0, circuit.nodes[node].dest) for node in nodes]
    weights = weights_of(flows.writes.runs[0], layer)
    places = mlp_places(flows.writes, spots, weights, layer, constants=flows.settings.constants == "baseline")
    D = _directions(flows, circuit, nodes).to(places.x)
    g, _ = places.back(places.along(D))
    _reach(flows, circuit, [(edge, g[i]) for i, node in enumerate(nodes) for edge in _into(circuit, "mlp", node)])
    return {node: ReadMlp(node, places.at(i), D[i]) for i, node in enumerate(nodes)}


def _heads(flows: Flows, circuit: Circuit, layer: int) -> None:
    """What a layer's heads move, and where they look."""
    handing = {edge.target for edge in circuit.edges if edge.influence}
    nodes = [i for i in handing if circuit.nodes[i].kind == "head" and circuit.nodes[i].layer == layer]
    if not nodes:
        return
    writes, heads = flows.writes, [circuit.nodes[i].writer for i in nodes]
    sites = Sites.of([(0, w.head or 0, w.dest, w.src) for w in heads], writes.device)
    values = [(i, edge) for i, node in enumerate(nodes) for edge in _into(circuit, "value", node)]
    if values:
        at = torch.tensor([i for i, _ in values], device=writes.device)
        weights = torch.tensor([circuit.attention[nodes[i]] for i, _ in values], dtype=torch.float64)
        D = _directions(flows, circuit, [nodes[i] for i, _ in values])
        g = values_along(writes, layer, sites[at], weights.to(at.device), D)
        _reach(flows, circuit, [(edge, along) for (_, edge), along in zip(values, g, strict=True)])
    handed = [
        Handed(0, heads[i], i, _signal(circuit, edge, side), edge.influence or 0.0)
        for side in get_args(SideName)
        for i, node in enumerate(nodes)
        for edge in _into(circuit, side, node)
    ]
    flows.reach_signals(Readings(writes, layer, sites), handed)


def _directions(flows: Flows, circuit: Circuit, nodes: Sequence[int]) -> Float[Tensor, "node d_model"]:
    """Along which directions some nodes are read; a file may tell of readers that read nothing of them."""
    keys = [(0, circuit.nodes[node].writer) for node in nodes]
    for node, key in zip(nodes, keys, strict=True):
        if key not in flows.directions:
            raise KeyholeError(
                f"node {node} of the circuit hands on influence, and in this prompt nobody reads what it writes: the "
                "file was changed. Trace the circuit again."
            )
    return flows.directions.of(keys)


def _signal(circuit: Circuit, edge: Edge, side: SideName) -> Signal:
    return Signal(circuit.nodes[edge.source].writer, side, edge.channels, edge.weight, edge.ig, edge.alone)
