"""Which part of a large circuit is drawn? What carries most of its influence; the file keeps everything."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import Sufficient

SHOWN = 0.02  # of the answer


def shown(circuit: Circuit, eps: float = SHOWN) -> Circuit:
    """Nodes with at least `eps` of the answer, and edges between them with a quarter of it; all, if none is told."""
    if not circuit.influence:
        return circuit
    kept = {i for i, share in enumerate(circuit.influence) if share >= eps}
    return _part(circuit, kept, [edge for edge in circuit.edges if (edge.influence or 0.0) >= eps / 4])


def strongest(circuit: Circuit, most: int) -> Circuit:
    """The answer, and what hangs together with it by `most` edges, the strongest first; everything, if it has no more.

    An edge is as strong as its influence. Where there is none: as its drop, or its part of the largest into the answer.
    """
    if len(circuit.edges) <= most:
        return circuit
    into_answer = max((abs(edge.weight) for edge in circuit.edges if edge.side == "target"), default=0.0) or 1.0
    into: dict[int, list[tuple[float, int]]] = {}
    for index, edge in enumerate(circuit.edges):
        into.setdefault(edge.target, []).append((-_strength(edge, into_answer), index))
    read = {edge.source for edge in circuit.edges}
    nodes = {i for i, node in enumerate(circuit.nodes) if node.kind == "target" or (i not in read and i in into)}
    waiting = [one for node in nodes for one in into.get(node, [])]
    heapify(waiting)
    edges: set[int] = set()
    while waiting and len(edges) < most:
        _, index = heappop(waiting)
        edges.add(index)
        source = circuit.edges[index].source
        if source not in nodes:
            nodes.add(source)
            for one in into.get(source, []):
                heappush(waiting, one)
    return _part(circuit, nodes, [circuit.edges[index] for index in sorted(edges)])


def _strength(edge: Edge, into_answer: float) -> float:
    if edge.influence is not None:
        return edge.influence
    return abs(edge.weight) / (into_answer if edge.side == "target" else 1.0)


def _part(circuit: Circuit, nodes: Collection[int], edges: Collection[Edge]) -> Circuit:
    """These nodes, and those of the edges that join them; MLPs with all of their causes, or not at all."""
    kept = sorted(nodes)
    index = {old: new for new, old in enumerate(kept)}
    wanted = {*edges}
    joined = [
        i for i, edge in enumerate(circuit.edges) if edge in wanted and edge.source in index and edge.target in index
    ]
    parameters = circuit.parameters
    if isinstance(parameters, Sufficient):  # which counts its edges
        parameters = replace(parameters, found=sum(i < parameters.found for i in joined))
    return replace(
        circuit,
        parameters=parameters,
        nodes=tuple(circuit.nodes[i] for i in kept),
        attention=tuple(circuit.attention[i] for i in kept),
        influence=tuple(circuit.influence[i] for i in kept) if circuit.influence else (),
        leaves=tuple(circuit.leaves[i] for i in kept) if circuit.leaves else (),
        edges=tuple(_renumbered(circuit.edges[i], index) for i in joined),
        firings=tuple(replace(one, node=index[one.node]) for one in circuit.firings if one.node in index),
        mlps=tuple(
            replace(one, node=index[one.node], causes=tuple(index[i] for i in one.causes))
            for one in circuit.mlps
            if one.node in index and all(i in index for i in one.causes)  # what is left is without all of them
        ),
        measured=None if circuit.measured is None else circuit.measured.part(kept, joined),
    )


def _renumbered(edge: Edge, index: Mapping[int, int]) -> Edge:
    return replace(edge, source=index[edge.source], target=index[edge.target])
