"""What do many circuits come to as one? Components and edges with how often they appear; pruned, what is left of it.

Weights of the same edge are summed over prompts and divided by the number of circuits, also of those that lack it.
Pruning by frequency drops components that are in fewer circuits than round(threshold * circuits), then what is joined
to nothing, then what is not joined to the target. Tokens are left out, and with them embeddings, biases and offsets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.writer import Component
from keyhole.errors import KeyholeError
from keyhole.family.sets import Sets, circuit_sets, store_sets
from keyhole.family.terms import Term

if TYPE_CHECKING:
    from keyhole.store.store import Store

TARGET = Component("target", None, None)
_ENDS = tuple(f"{end}_{name}" for end in ("from", "to") for name in ("kind", "layer", "head"))


@dataclass(frozen=True)
class Often:
    """A component and the number of circuits that have it."""

    component: Component
    circuits: int


@dataclass(frozen=True)
class Link:
    """An edge, the number of circuits that have it, and its weight: summed, over the number of all circuits."""

    term: Term
    circuits: int
    weight: float


@dataclass(frozen=True, repr=False)
class Unified:
    """Many circuits as one."""

    circuits: int
    components: tuple[Often, ...]  # without the target, which all have
    edges: tuple[Link, ...]

    __repr__ = brief

    @property
    def named(self) -> frozenset[Component]:
        """Its components, as published circuits name them."""
        return frozenset(often.component for often in self.components if often.component.layer is not None)

    def frequency(self, one: Often | Link) -> float:
        """The share of circuits that have it."""
        return one.circuits / self.circuits


def unify(source: "Store | Sequence[Circuit]", *, prompts: Sequence[int] | None = None) -> Unified:
    """The circuits of a store (all, or of these prompts), or circuits in hand, as one."""
    if isinstance(source, Sequence):
        nodes, edges = circuit_sets(source, "heads"), circuit_sets(source, "edges")
        weights = _weights_of(source)
    else:
        nodes, edges = store_sets(source, "heads", prompts=prompts), store_sets(source, "edges", prompts=prompts)
        weights = _weights_in(source, nodes.prompts)
    if not len(nodes.prompts):
        raise KeyholeError("there are no circuits to unify here: trace some prompts, or ask for others.")
    return Unified(
        circuits=len(nodes.prompts),
        components=tuple(Often(term.source, count) for term, count in _counts(nodes)),
        edges=tuple(Link(term, count, weights[term] / len(nodes.prompts)) for term, count in _counts(edges)),
    )


def prune(unified: Unified, threshold: float) -> Unified:
    """What is left when components go that are in less than this share of circuits.

    >>> heads = [Component("head", layer, 0) for layer in (1, 2, 3)]
    >>> links = tuple(Link(Term(head, TARGET, "target"), n, 1.0) for head, n in zip(heads, (10, 4, 1)))
    >>> small = prune(Unified(10, tuple(Often(h, n) for h, n in zip(heads, (10, 4, 1))), links), 0.4)
    >>> [one.component.layer for one in small.components], len(small.edges)
    ([1, 2], 2)
    """
    if not 0 <= threshold <= 1:
        raise KeyholeError(f"a threshold is a share of circuits between 0 and 1, not {threshold}.")
    least = round(threshold * unified.circuits)
    kept = {one.component for one in unified.components if one.circuits >= least} | {TARGET}
    return part(unified, lambda edge: edge.term.source in kept and edge.term.target in kept)


def part(unified: Unified, keeps: Callable[[Link], bool]) -> Unified:
    """These edges alone: components that are joined to nothing, or not to the target, go with theirs."""
    edges = [edge for edge in unified.edges if keeps(edge)]
    joined = _joined(TARGET, [(edge.term.source, edge.term.target) for edge in edges])
    return Unified(
        unified.circuits,
        tuple(one for one in unified.components if one.component in joined),
        tuple(edge for edge in edges if edge.term.source in joined),
    )


def _joined(start: Component, pairs: Iterable[tuple[Component, Component | None]]) -> set[Component]:
    """Everything that can be reached along edges, whichever way they point."""
    beside: dict[Component, set[Component]] = {}
    for one, other in pairs:
        assert other is not None, "an edge leads somewhere"
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    met, waiting = {start}, [start]
    while waiting:
        new = beside.get(waiting.pop(), set()) - met
        met |= new
        waiting += new
    return met


def _counts(sets: Sets) -> list[tuple[Term, int]]:
    """How many circuits have each term, the most frequent first."""
    counts = np.asarray(sets.matrix.sum(axis=0)).ravel().astype(int).tolist()
    return sorted(zip(sets.terms, counts, strict=True), key=lambda pair: -pair[1])


def _weights_of(circuits: Sequence[Circuit]) -> Mapping[Term, float]:
    found: dict[Term, float] = {}
    for circuit in circuits:
        for edge in circuit.edges:
            source, target = circuit.nodes[edge.source], circuit.nodes[edge.target]
            ends = [Component.of(node) for node in (source, target)]
            term = Term(ends[0], ends[1], edge.side)
            found[term] = found.get(term, 0.0) + edge.weight
    return found


def _weights_in(store: "Store", prompts: Int[np.ndarray, "circuits"]) -> Mapping[Term, float]:
    """The same from a store's table, which is not read row by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = store.table("edges", columns=["prompt", *_ENDS, "side", "weight"])
    table = table.filter(pc.is_in(table["prompt"], value_set=pa.array(prompts, pa.int64())))
    found = {}
    for row in table.group_by([*_ENDS, "side"]).aggregate([("weight", "sum")]).to_pylist():
        ends = [Component(*(row[f"{end}_{name}"] for name in ("kind", "layer", "head"))) for end in ("from", "to")]
        found[Term(ends[0], ends[1], row["side"])] = row["weight_sum"]
    return found
