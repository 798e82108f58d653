"""Which part of a large circuit is drawn? What carries most of its influence; the file keeps everything."""

from dataclasses import replace

from keyhole.circuits.circuit import Circuit

SHOWN = 0.02  # of the answer


def shown(circuit: Circuit, eps: float = SHOWN) -> Circuit:
    """Nodes with at least `eps` of the answer, and edges between them with a quarter of it; all, if none is told."""
    if not circuit.influence:
        return circuit
    kept = [i for i, share in enumerate(circuit.influence) if share >= eps]
    index = {old: new for new, old in enumerate(kept)}
    edges = [
        replace(edge, source=index[edge.source], target=index[edge.target])
        for edge in circuit.edges
        if edge.source in index and edge.target in index and (edge.influence or 0.0) >= eps / 4
    ]
    return replace(
        circuit,
        nodes=tuple(circuit.nodes[i] for i in kept),
        attention=tuple(circuit.attention[i] for i in kept),
        influence=tuple(circuit.influence[i] for i in kept),
        leaves=tuple(circuit.leaves[i] for i in kept),
        edges=tuple(edges),
        firings=tuple(replace(one, node=index[one.node]) for one in circuit.firings if one.node in index),
        mlps=tuple(
            replace(one, node=index[one.node], causes=tuple(index[i] for i in one.causes))
            for one in circuit.mlps
            if one.node in index and all(i in index for i in one.causes)  # what is left is without all of them
        ),
    )
