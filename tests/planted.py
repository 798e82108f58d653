"""Families of circuits that are known: sets with shared, own and chance terms, and stores of such circuits."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array

from keyhole.circuits.circuit import Circuit, Edge, Node, Traced
from keyhole.circuits.records import Removal
from keyhole.store import Outcome, Store
from keyhole.tasks import ioi
from stores import stored


def planted(
    k: int, n: int, seed: int, *, terms: int = 160, own: int = 20, keep: float = 0.8, sizes: float = 0.0
) -> tuple[csr_array, np.ndarray]:
    """n circuits of k families: 30 terms that all may have, `own` terms of each family, and 3 % of all others.

    `sizes` is by how much circuits differ in how much they keep, as a deviation of log odds.
    """
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % k
    likely = np.full((k, terms), 0.03)
    likely[:, :30] = keep
    for family in range(k):
        likely[family, rng.choice(np.arange(30, terms), own, replace=False)] = keep
    odds = np.log(likely / (1 - likely))[truth] + sizes * rng.standard_normal((n, 1))
    return csr_array((rng.random(odds.shape) < 1 / (1 + np.exp(-odds))).astype(np.float64)), truth


def planted_store(
    path: Path, circuit: Circuit, matrix: csr_array, labels: Sequence[dict[str, str]], *, wrong: Sequence[int] = ()
) -> Store:
    """A store of circuits whose edges are the terms: term t leads from head 1.(t // 16) to head 2.(t % 16)."""
    examples = ioi(len(labels), seed=4)
    outcomes = []
    for i, (example, told) in enumerate(zip(examples, labels, strict=True)):
        own = matrix.indices[matrix.indptr[i] : matrix.indptr[i + 1]].tolist()
        example = replace(example, labels=told)
        outcomes.append(
            Outcome(i, example, "circuit", _with_edges(circuit, own), correct=i not in wrong, predicted=" Mary")
        )
    return stored(path, outcomes, part=50)


def _with_edges(circuit: Circuit, terms: Sequence[int]) -> Circuit:
    end = circuit.parameters.end
    pairs = [(Node("head", 1, t // 16, end, end), Node("head", 2, t % 16, end, end)) for t in terms]
    target = Node("target", None, None, end, end)
    nodes = [*sorted({node for pair in pairs for node in pair}, key=lambda node: node.key), target]
    edges = [Edge(nodes.index(a), nodes.index(b), "dest", 0.1, 0.1, 0.1, (0,)) for a, b in pairs]
    gone: dict[int, list[Removal]] = {}
    for edge in edges:
        gone.setdefault(edge.receiver, []).append(Removal(nodes[edge.sender].writer, 0, 0.1, 0.4))
    firings = [Traced(node, 0.2, end + 1, tuple(gone[node]), ()) for node in sorted(gone)]
    attention = (0.5,) * (len(nodes) - 1) + (None,)
    return replace(circuit, nodes=tuple(nodes), attention=attention, edges=tuple(edges), firings=tuple(firings))
