"""Which circuit is behind the machine's answer, and how much of it is found?

The truth follows from the weights (`machine.py`) alone: who writes what a component reads, and where.
"""

from collections.abc import Set
from dataclasses import dataclass

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.writer import Writer
from keyhole.comparison.score import Score
from keyhole.lab.known.words import Places
from keyhole.tracing.mlps.flow import Step

DISTRACTING_HEADS, DISTRACTING_MLP = ((0, 0), (1, 1), (2, 2)), 1


@dataclass(frozen=True)
class Truth:
    """The writers that the answer needs, the steps between them, and all writes of the distractors."""

    nodes: frozenset[Writer]
    edges: frozenset[Step]  # who, into whom (None: the answer), through which side
    distractors: frozenset[Writer]


@dataclass(frozen=True)
class Comparison:
    """A circuit against the truth."""

    nodes: Score
    edges: Score


def true_circuit(at: Places, last: int = 2) -> Truth:
    """The circuit of a prompt, component by component as in `machine.py`; `last`: the layer that translates."""
    words = {t: Writer("embedding", 0, None, t, t) for t in range(at.end + 1)}
    names, translate = Writer("mlp", 0, None, at.topic, at.topic), Writer("mlp", last, None, at.end, at.end)
    previous = Writer("head", 1, 0, at.next, at.before)
    induction, listens = Writer("head", 2, 0, at.end, at.next), Writer("head", 2, 1, at.end, at.topic)
    steps: list[Step] = [
        (words[at.topic], names, "mlp"),
        (words[at.next], previous, "dest"),  # its position
        (words[at.before], previous, "src"),  # its position
        (words[at.before], previous, "value"),
        (words[at.end], induction, "dest"),
        (previous, induction, "src"),
        (words[at.next], induction, "value"),
        (words[at.end], listens, "dest"),  # the ballast: a query that every token has
        (names, listens, "src"),
        (names, listens, "value"),
        (induction, translate, "mlp"),
        (listens, translate, "mlp"),
        (translate, None, "target"),
    ]
    return Truth(frozenset(who for who, _, _ in steps), frozenset(steps), _distractors(at.end + 1))


def _distractors(n: int) -> frozenset[Writer]:
    heads = [Writer("head", *head, d, s) for head in DISTRACTING_HEADS for d in range(n) for s in range(d + 1)]
    return frozenset(heads + [Writer("mlp", DISTRACTING_MLP, None, t, t) for t in range(n)])


def compare(circuit: Circuit, truth: Truth) -> Comparison:
    """How much of the truth is in a circuit, and how much of the circuit is true?

    Over all nodes but the target, and all edges with their sides, that carry influence; in a circuit that does not
    account for it, over all.
    """
    influence = circuit.influence or (1.0,) * len(circuit.nodes)
    nodes = {n.writer for n, share in zip(circuit.nodes, influence, strict=True) if n.kind != "target" and share > 0}
    edges = {
        (circuit.nodes[e.source].writer, None if into.kind == "target" else into.writer, e.side)
        for e in circuit.edges
        for into in [circuit.nodes[e.target]]
        if e.influence is None or e.influence > 0
    }
    return Comparison(_agreement(nodes, truth.nodes), _agreement(edges, truth.edges))


def _agreement(found: Set[object], there: Set[object]) -> Score:
    return Score(len(found), len(there), len(found & there))
