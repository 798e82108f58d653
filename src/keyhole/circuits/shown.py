"""Which part of a large circuit is drawn? What carries most of its influence; the file keeps everything."""

from collections.abc import Collection
from dataclasses import replace

from keyhole.circuits.circuit import Circuit, Edge

SHOWN = 0.02  # of the answer


def shown(circuit: Circuit, eps: float = SHOWN) -> Circuit:
    """Nodes with at least `eps` of the answer, and edges between them with a quarter of it; all, if none is told."""
    if not circuit.influence:
        return circuit
    kept = {i for i, share in enumerate(circuit.influence) if share >= eps}
    return _part(circuit, kept, [edge for edge in circuit.edges if (edge.influence or 0.0) >= eps / 4])


def strongest(circuit: Circuit, most: int) -> Circuit:
    """The answer, and what reaches it by its `most` strongest edges; everything, if there are no more than so many.

    An edge is as strong as its influence. Where there is none: as its drop, or its share of the answer's logits.
    """
    if len(circuit.edges) <= most:
        return circuit
    into_answer = sum(abs(edge.weight) for edge in circuit.edges if edge.side == "target") or 1.0
    ranked = sorted(circuit.edges, key=lambda edge: -_strength(edge, into_answer))[:most]
    into: dict[int, list[Edge]] = {}
    for edge in ranked:
        into.setdefault(edge.target, []).append(edge)
    ends = {edge.source for edge in circuit.edges}
    waiting = [i for i, node in enumerate(circuit.nodes) if node.kind == "target" or (i not in ends and i in into)]
    kept = set(waiting)
    while waiting:
        new = {edge.source for edge in into.get(waiting.pop(), [])} - kept
        kept |= new
        waiting += sorted(new)
    return _part(circuit, kept, ranked)


def _strength(edge: Edge, into_answer: float) -> float:
    if edge.influence is not None:
        return edge.influence
    return abs(edge.weight) / (into_answer if edge.side == "target" else 1.0)


def _part(circuit: Circuit, nodes: Collection[int], edges: Collection[Edge]) -> Circuit:
    """These nodes, and those of the edges that join them; firings and MLPs with all that is told of them, or not at all."""
    kept = sorted(nodes)
    index = {old: new for new, old in enumerate(kept)}
    wanted = {*edges}
    joined = [edge for edge in circuit.edges if edge in wanted and edge.source in index and edge.target in index]
    return replace(
        circuit,
        nodes=tuple(circuit.nodes[i] for i in kept),
        attention=tuple(circuit.attention[i] for i in kept),
        influence=tuple(circuit.influence[i] for i in kept) if circuit.influence else (),
        leaves=tuple(circuit.leaves[i] for i in kept) if circuit.leaves else (),
        edges=tuple(replace(edge, source=index[edge.source], target=index[edge.target]) for edge in joined),
        firings=tuple(replace(one, node=index[one.node]) for one in circuit.firings if one.node in index),
        mlps=tuple(
            replace(one, node=index[one.node], causes=tuple(index[i] for i in one.causes))
            for one in circuit.mlps
            if one.node in index and all(i in index for i in one.causes)  # what is left is without all of them
        ),
    )
