"""Which part of a large circuit is drawn? What carries most of its influence; the file keeps everything."""

from collections.abc import Collection
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np
from jaxtyping import Bool

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.columns import Mlps
from keyhole.circuits.records import Sufficient

SHOWN = 0.02  # of the answer


def shown(circuit: Circuit, eps: float = SHOWN) -> Circuit:
    """Nodes with at least `eps` of the answer, and edges between them with a quarter of it; without influence, all."""
    if not circuit.influence:
        return circuit
    kept = {i for i, share in enumerate(circuit.influence) if share >= eps}
    return _part(circuit, kept, circuit.edges.influence >= eps / 4)


def strongest(circuit: Circuit, most: int) -> Circuit:
    """The answer, and what hangs together with it by `most` edges, the strongest first; everything, if it has no more.

    An edge is as strong as its influence. Where there is none: as its drop, or its part of the largest into the answer.
    """
    edges = circuit.edges
    if len(edges) <= most:
        return circuit
    strength, seeds = np.abs(edges.weight), edges.side == "target"
    strength[seeds] /= strength[seeds].max(initial=0.0) or 1.0
    strength = np.where(np.isnan(edges.influence), strength, edges.influence)
    into: dict[int, list[tuple[float, int]]] = {}
    for index, (receiver, strong) in enumerate(zip(edges.receiver.tolist(), strength.tolist(), strict=True)):
        into.setdefault(receiver, []).append((-strong, index))
    senders = edges.sender.tolist()
    read, targets = {*senders}, (circuit.nodes.kind == "target").tolist()
    nodes = {i for i, is_target in enumerate(targets) if is_target or (i not in read and i in into)}
    waiting = [end for node in nodes for end in into.get(node, [])]
    heapify(waiting)
    chosen = np.zeros(len(edges), dtype=bool)
    left = most
    while waiting and left:
        _, index = heappop(waiting)
        chosen[index], left = True, left - 1
        if senders[index] not in nodes:
            nodes.add(senders[index])
            for end in into.get(senders[index], []):
                heappush(waiting, end)
    return _part(circuit, nodes, chosen)


def _part(circuit: Circuit, nodes: Collection[int], edges: Bool[np.ndarray, "edge"]) -> Circuit:
    """These nodes, and those of the edges that join them; MLPs with all of their causes, or not at all."""
    kept = sorted(nodes)
    index = np.full(len(circuit.nodes), -1)
    index[kept] = np.arange(len(kept))
    ends = index[circuit.edges.sender], index[circuit.edges.receiver]
    joined = np.nonzero(edges & (ends[0] >= 0) & (ends[1] >= 0))[0]
    parameters = circuit.parameters
    if isinstance(parameters, Sufficient):  # which counts its edges
        parameters = replace(parameters, found=int((joined < parameters.found).sum()))
    firings = circuit.firings.take(np.nonzero(index[circuit.firings.node] >= 0)[0])
    mlps = [
        replace(mlp, node=int(index[mlp.node]), causes=tuple(index[list(mlp.causes)].tolist()))
        for mlp in circuit.mlps
        if index[mlp.node] >= 0 and (index[list(mlp.causes)] >= 0).all()  # what is left is without all of them
    ]
    return replace(
        circuit,
        parameters=parameters,
        nodes=circuit.nodes.take(kept),
        attention=tuple(circuit.attention[i] for i in kept),
        influence=tuple(circuit.influence[i] for i in kept) if circuit.influence else (),
        leaves=tuple(circuit.leaves[i] for i in kept) if circuit.leaves else (),
        edges=replace(circuit.edges.take(joined), sender=ends[0][joined], receiver=ends[1][joined]),
        firings=replace(firings, node=index[firings.node]),
        mlps=Mlps.of(mlps),
        directions={},
        measured=None if circuit.measured is None else circuit.measured.part(kept, joined.tolist()),
    )
