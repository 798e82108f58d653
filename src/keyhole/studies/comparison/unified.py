"""Many circuits as one: components and edges with their frequencies, pruned by these; and published circuits.

Weights of the same edge are summed over prompts and divided by the number of circuits, also of those that lack it.
Pruning by frequency drops components that are in fewer circuits than round(threshold * circuits), then those without
edges, then those that are not connected to the target. Tokens are left out, and with them embeddings, biases and
offsets.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from keyhole.brief import brief, head_named
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.exports import MibEdge, MibFile
from keyhole.circuits.records import Component
from keyhole.errors import KeyholeError
from keyhole.studies.families.sets import Sets, Term, circuit_sets, store_sets

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

    def frequency(self, counted: Often | Link) -> float:
        """The share of circuits that have it."""
        return counted.circuits / self.circuits


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
    """A unified circuit without the components that are in less than this share of circuits.

    >>> heads = [Component("head", layer, 0) for layer in (1, 2, 3)]
    >>> links = tuple(Link(Term(head, TARGET, "target"), n, 1.0) for head, n in zip(heads, (10, 4, 1)))
    >>> small = prune(Unified(10, tuple(Often(h, n) for h, n in zip(heads, (10, 4, 1))), links), 0.4)
    >>> [often.component.layer for often in small.components], len(small.edges)
    ([1, 2], 2)
    """
    if not 0 <= threshold <= 1:
        raise KeyholeError(f"a threshold is a share of circuits between 0 and 1, not {threshold}.")
    least = round(threshold * unified.circuits)
    kept = {often.component for often in unified.components if often.circuits >= least} | {TARGET}
    return part(unified, lambda edge: edge.term.source in kept and edge.term.target in kept)


def part(unified: Unified, keeps: Callable[[Link], bool]) -> Unified:
    """Only these edges; components without edges, or not connected to the target, are dropped with theirs."""
    edges = [edge for edge in unified.edges if keeps(edge)]
    joined = _joined(TARGET, [(edge.term.source, edge.term.target) for edge in edges])
    return Unified(
        unified.circuits,
        tuple(often for often in unified.components if often.component in joined),
        tuple(edge for edge in edges if edge.term.source in joined),
    )


def _joined(start: Component, pairs: Iterable[tuple[Component, Component | None]]) -> set[Component]:
    """Everything that is connected by edges, in either direction."""
    neighbours: dict[Component, set[Component]] = {}
    for source, target in pairs:
        assert target is not None, "an edge leads somewhere"
        neighbours.setdefault(source, set()).add(target)
        neighbours.setdefault(target, set()).add(source)
    reached, waiting = {start}, [start]
    while waiting:
        new = neighbours.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _counts(sets: Sets) -> list[tuple[Term, int]]:
    """How many circuits have each term, the most frequent first."""
    counts = np.asarray(sets.matrix.sum(axis=0)).ravel().astype(int).tolist()
    return sorted(zip(sets.terms, counts, strict=True), key=lambda pair: -pair[1])


def term_of(circuit: Circuit, edge: Edge) -> Term:
    """An edge without its tokens and channels."""
    source, target = (Component.of(circuit.nodes[end]) for end in (edge.sender, edge.receiver))
    return Term(source, target, edge.side)


def _weights_of(circuits: Sequence[Circuit]) -> Mapping[Term, float]:
    weights: dict[Term, float] = {}
    for circuit in circuits:
        for edge in circuit.edges:
            term = term_of(circuit, edge)
            weights[term] = weights.get(term, 0.0) + edge.weight
    return weights


def _weights_in(store: "Store", prompts: Int[np.ndarray, "circuits"]) -> Mapping[Term, float]:
    """The same from a store's table, which pyarrow sums up."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = store.table("edges", columns=["prompt", *_ENDS, "side", "weight"])
    table = table.filter(pc.is_in(table["prompt"], value_set=pa.array(prompts, pa.int64())))
    weights = {}
    for row in table.group_by([*_ENDS, "side"]).aggregate([("weight", "sum")]).to_pylist():
        ends = [Component(*(row[f"{end}_{name}"] for name in ("kind", "layer", "head"))) for end in ("from", "to")]
        weights[Term(ends[0], ends[1], row["side"])] = row["weight_sum"]
    return weights


# Which circuits were published for a model and a task? Lists of components by class, with their source.
#
# A list is here only if its source names every component. Two that papers compare with are missing: gendered pronouns
# of GPT-2 by ACDC (16 components) and indirect objects of Pythia-160M by EAP-IG (14 heads). Their sizes are published,
# but their members only in pictures: see `MISSING`.


@dataclass(frozen=True)
class Published:
    """A published circuit."""

    name: str  # of the list
    model: str
    task: str
    method: str
    source: str
    classes: Mapping[str, frozenset[Component]]  # heads and MLPs by the class that the source gives them
    kinds: frozenset[str]  # of components that the study could have named; others are not scored
    shape: tuple[int, int]  # layers of the model, heads of each
    note: str = ""
    family: str = ""  # of the model, as transformers calls its type; empty: not known
    edges: frozenset[MibEdge] = frozenset()  # where the circuit is known edge by edge; those of words are left out
    possible_edges: int = 0  # of the model, between components that could have been named, and the answer

    @property
    def components(self) -> frozenset[Component]:
        """All components, whatever their class."""
        return frozenset[Component]().union(*self.classes.values())

    @property
    def universe(self) -> tuple[Component, ...]:
        """Every component of the model that could have been named."""
        layers, heads = self.shape
        components: list[Component] = [
            Component("head", layer, head) for layer in range(layers) for head in range(heads)
        ]
        components += [Component("mlp", layer, None) for layer in range(layers)]
        return tuple(component for component in components if component.kind in self.kinds)


def _heads(*texts: str) -> frozenset[Component]:
    return frozenset(Component("head", *head) for head in map(head_named, texts) if head)


def _mlps(*layers: int) -> frozenset[Component]:
    return frozenset(Component("mlp", layer, None) for layer in layers)


PUBLISHED: Mapping[str, Published] = {
    "gpt2-ioi": Published(
        name="gpt2-ioi",
        model="gpt2",
        family="gpt2",
        task="ioi",
        method="path patching",
        source="Wang et al. 2022, arXiv 2211.00593",
        classes={
            "name mover": _heads("9.9", "10.0", "9.6"),
            "backup name mover": _heads("10.10", "10.6", "10.2", "10.1", "11.2", "9.7", "9.0", "11.9"),
            "negative name mover": _heads("10.7", "11.10"),
            "S-inhibition": _heads("7.3", "7.9", "8.6", "8.10"),
            "induction": _heads("5.5", "5.8", "5.9", "6.9"),
            "duplicate token": _heads("0.1", "0.10", "3.0"),
            "previous token": _heads("2.2", "4.11"),
        },
        kinds=frozenset({"head"}),
        shape=(12, 12),
    ),
    "gpt2-greater-than": Published(
        name="gpt2-greater-than",
        model="gpt2",
        family="gpt2",
        task="greater_than",
        method="path patching",
        source="Hanna et al. 2023, arXiv 2305.00586",
        classes={
            "into MLP 9": _heads("9.1"),
            "into MLP 8": _heads("8.11", "8.8", "7.10", "6.9", "5.5", "5.1"),
            "added later": _heads("6.1"),
            "MLP": _mlps(8, 9, 10, 11),
        },
        kinds=frozenset({"head", "mlp"}),
        shape=(12, 12),
        note="the paper's text names seven heads; 6.1 is the eighth of later comparisons (Conmy et al. 2023)",
    ),
}
MISSING: Mapping[str, str] = {
    "gpt2-pronouns": "no list of the 16 components that ACDC found could be had to compare with",
    "pythia-160m-ioi": "no list of the 14 heads that EAP-IG found could be had to compare with",
}


def published(name: str) -> Published:
    """A published circuit by its name.

    >>> len(published("gpt2-ioi").components), len(published("gpt2-greater-than").components)
    (26, 12)
    """
    if name in MISSING:
        raise KeyholeError(f"published:{name} cannot be compared with: {MISSING[name]}.")
    if name not in PUBLISHED:
        raise KeyholeError(f"there is no published circuit {name!r} here: there are {', '.join(PUBLISHED)}.")
    return PUBLISHED[name]


def published_in(file: MibFile) -> Published:
    """A circuit of EAP-IG or MIB as one to compare with: the edges that are in it, and the components they join."""
    edges = frozenset(edge for edge in file.kept if edge.source.kind != "embedding")
    if not edges:
        raise KeyholeError(
            f"{file.name} has scores, but no circuit: no edge between components is in_graph. Score it by `keyhole "
            "curves --file`, or take its best edges first."
        )
    ends = {component for edge in file.kept for component in (edge.source, edge.target)}
    kinds = {"head": "heads", "mlp": "MLPs"}
    return Published(
        name=file.name,
        model="",
        task="",
        method="",
        source=file.name,
        classes={name: frozenset(end for end in ends if end.kind == kind) for kind, name in kinds.items()},
        kinds=frozenset(kinds),
        shape=(file.layers, file.heads),
        note="the file names neither its model nor its prompts: make sure that they are the same",
        edges=edges,
        possible_edges=file.possible,
    )
