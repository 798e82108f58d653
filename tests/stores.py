"""Stores for tests: outcomes of every kind on the organism, traced once, and a store of them in milliseconds."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keyhole
from conftest import rich_circuit
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.store import Manifest, Outcome, Store, make_store, manifest_of
from keyhole.store.store import signal_vectors
from keyhole.tasks import ioi

SETTINGS = {"through": "mlps", "seeds": "linear", "tau": "dynamic", "eps": 0.01}
PART = 3


def outcomes_of_every_kind(model: keyhole.Model) -> list[Outcome]:
    """Heads alone, through MLPs, other seeds, the 2024 method; no heads, nothing to trace, failed, skipped."""
    examples = [replace(one, labels={**one.labels, "number": str(i)}) for i, one in enumerate(ioi(10, seed=3))]
    runs = [model.run(example.text) for example in examples]
    pairs = [{"target": one.answer, "against": one.against[0]} for one in examples]
    circuits = [
        runs[0].trace(**pairs[0], through="heads"),
        runs[1].trace(**pairs[1]),
        runs[2].trace(pairs[2]["target"], metric=keyhole.Probability(0.5)),
        runs[3].trace(keyhole.Likeliest(3)),
        rich_circuit(runs[4]),
        runs[5].trace(**pairs[5], method="svt"),
        headless(runs[6].trace(**pairs[6], through="heads")),
    ]
    assert all(circuit.heads for circuit in circuits[:6]) and circuits[4].firings and circuits[1].mlps
    told: dict[str, Any] = {"correct": True, "predicted": " Mary", "probability": 0.75, "difference": 1 / 3}
    found = [
        Outcome(i, examples[i], "circuit" if circuit.heads else "headless", circuit, **told)
        for i, circuit in enumerate(circuits)
    ]
    found.append(Outcome(7, examples[7], "empty", error="nothing to trace", **{**told, "difference": None}))
    found.append(Outcome(8, examples[8], "failed", error="“Zoë” is 2 tokens"))
    found.append(Outcome(9, examples[9], "skipped", **{**told, "correct": False}))
    return found


def headless(circuit: Circuit) -> Circuit:
    """A circuit of the same prompt whose only seed is an MLP."""
    end = circuit.parameters.end
    nodes = (Node("mlp", 2, None, end, end), Node("target", None, None, end, end))
    edges = (Edge(0, 1, "target", 0.5, 0.5, 0.5, ()),)
    return replace(circuit, nodes=nodes, attention=(None, None), edges=edges, firings=())


def with_signals(outcome: Outcome) -> Outcome:
    circuit = outcome.circuit
    return outcome if circuit is None else replace(outcome, signals=signal_vectors(circuit))


def manifest_for(outcomes: Sequence[Outcome], **other: Any) -> Manifest:
    circuit = next(one.circuit for one in outcomes if one.circuit is not None)
    told: dict[str, Any] = {"model": circuit.model, "settings": SETTINGS, "task": {"name": "ioi", "seed": 3}}
    return manifest_of(
        [one.example for one in outcomes], **{**told, "versions": circuit.versions, "part": PART, **other}
    )


def stored(path: Path, outcomes: Sequence[Outcome], **other: Any) -> Store:
    """A store of these outcomes, complete."""
    store = make_store(path, manifest_for(outcomes, **other))
    with store.writing():
        for number in range(store.manifest.parts):
            store.write(number, [outcomes[i] for i in store.manifest.span(number)])
    return store


def contents(root: Path) -> dict[str, bytes]:
    """Every file that is not hidden, by its name."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}
