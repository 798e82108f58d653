"""How much does a method think of every edge? Circuits added up over tokens and prompts, or slopes of the answer.

accpp       influence, in circuits that go through MLPs
heads, svt  an edge's share of all weights into the same firing and side (into the answer: of all its seeds)
gradients   the slope of the answer by the edge's mask, all edges kept: edge attribution patching
integrated  the same along the way from no edge to all: all edges together are the whole change of the answer
random      none
a file      what somebody else's method found: a circuit of EAP-IG or MIB (`file_scores`)
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.mib import MibFile, mib_edge_name
from keyhole.errors import KeyholeError
from keyhole.faithful.attribution import along_masks
from keyhole.faithful.cohort import Group, Question
from keyhole.faithfulness.wiring import Reader, Source, Wiring
from keyhole.files import user_path, write_at_once
from keyhole.models.architecture.weights import Dims
from keyhole.tracing.levels import ThroughOption
from keyhole.tracing.methods import Method, trace_by

EdgeMethod = Literal["accpp", "heads", "svt", "gradients", "integrated", "random"]
STEPS = 5  # of the way, for "integrated"
_FLOATS = 1 << 22  # of what all components write: the way back keeps as much for every layer


def scores(
    method: EdgeMethod, wiring: Wiring, questions: Sequence[Question], groups: Sequence[Group]
) -> Float[np.ndarray, "edge"] | None:
    """What a method thinks of every edge, from these questions; None: nothing (random)."""
    if method == "random":
        return None
    if method in ("gradients", "integrated"):
        return slopes(groups, 1 if method == "gradients" else STEPS)
    return circuit_scores([traced(method, one) for one in questions], wiring)


def traced(method: EdgeMethod, question: Question) -> Circuit:
    """By one of the methods that trace: the store's own, or traced with default settings."""
    own, metric = question.circuit, question.metric
    through: ThroughOption = "mlps" if method == "accpp" else "heads"
    by: Method = "svt" if method == "svt" else "accpp"
    if own is not None and (own.parameters.method, getattr(own.parameters, "through", "heads")) == (by, through):
        return own
    against = list(metric.against) or None
    return trace_by(by, question.run, list(metric.targets), against=against, through=through)


def circuit_scores(circuits: Iterable[Circuit], wiring: Wiring) -> Float[np.ndarray, "edge"]:
    """Circuits added up, edge by edge, without their tokens; what they do not have is 0."""
    total = np.zeros(wiring.joined.shape)
    for circuit in circuits:
        whole: dict[tuple[int, str], float] = defaultdict(float)
        for edge in circuit.edges:
            whole[edge.target, edge.side] += max(edge.weight, 0.0)
        for edge in circuit.edges:
            place = wiring.number(circuit.nodes[edge.source], circuit.nodes[edge.target], edge.side)
            if place is None:
                continue
            if circuit.influence:
                total[place] += edge.influence or 0.0
            elif whole[edge.target, edge.side] > 0:
                total[place] += max(edge.weight, 0.0) / whole[edge.target, edge.side]
    return np.asarray(total[tuple(wiring.edges.T)])


def file_scores(file: MibFile, wiring: Wiring, dims: Dims) -> Float[np.ndarray, "edge"]:
    """A file's scores, signed as they are; of a circuit without scores, 1 on its edges. What it lacks is 0."""
    file.require_sizes(dims.layers, dims.heads, dims.d_model)
    plain = not any(own.score for own in file.edges.values())
    total = np.zeros(wiring.joined.shape)
    for edge, own in file.edges.items():
        _, layer, head = edge.target
        writer, reader = Source(*edge.source), Reader(edge.side, layer, head)  # type: ignore[arg-type]
        place = wiring.place(writer, reader)
        if place is None:
            raise KeyholeError(
                f"{file.name} has an edge {writer} -> {reader}, and this model has none: its MLPs read what the heads "
                "of their layer read, and not what these write. Give the file's own model."
            )
        total[place] = float(own.kept) if plain else own.score
    return np.asarray(total[tuple(wiring.edges.T)])


def write_mib_scores(path: Path | str, scores: Float[np.ndarray, "writer reader"], wiring: Wiring, dims: Dims) -> Path:
    """Signed scores of all edges as a file of EAP-IG and MIB; `file_scores` reads the same numbers back.

    `scores` are sums or means over prompts and tokens, above 0 where an edge supports the answer. No circuit is chosen:
    every edge is in the file, and none is in the graph, so that a reader ranks by score.
    """
    if scores.shape != wiring.joined.shape or not np.isfinite(scores[wiring.joined]).all():
        raise KeyholeError(
            f"the scores have the shape {scores.shape}, or are not all finite: give a number for each of "
            f"{len(wiring.writers)} writers and {len(wiring.readers)} readers."
        )
    edges = {}
    for writer, reader in wiring.edges.tolist():
        source, target = wiring.writers[writer], wiring.readers[reader]
        name = mib_edge_name((source.kind, source.layer, source.head), (target.side, target.layer, target.head))
        edges[name] = {"score": float(scores[writer, reader]), "in_graph": False}
    nodes = sorted({end.split("<")[0] for name in edges for end in name.split("->")})
    # An MLP that reads what its layer's heads read has no edge from them.
    parallel = wiring.place(Source("head", 0, 0), Reader("mlp", 0)) is None
    sizes = {"n_layers": dims.layers, "n_heads": dims.heads, "d_model": dims.d_model, "parallel_attn_mlp": parallel}
    document = {"cfg": sizes, "nodes": {name: {"in_graph": True} for name in nodes}, "edges": edges}
    write_at_once(path, json.dumps(document, indent=1) + "\n")
    return user_path(path)


def slopes(groups: Sequence[Group], steps: int = 1) -> Float[np.ndarray, "edge"]:
    """The slope of the answers' sum by every edge's mask: at 1 or, of several steps, in the middle of each."""
    if not groups:
        raise KeyholeError("there are no prompts to take slopes of.")
    wiring = groups[0].masked.wiring
    total = np.zeros(wiring.joined.shape)
    points = [(1.0, 1.0)] if steps == 1 else [((step + 0.5) / steps, 1 / steps) for step in range(steps)]
    for group in groups:
        size = max(1, _FLOATS // (len(wiring.writers) * group.masked.words[0].numel()))
        for part in group.parts(size):
            total += along_masks(part.masked, part.metrics, points).sum((0, 3))
    return np.asarray(total[tuple(wiring.edges.T)])


def ranking(found: Float[np.ndarray, "edge"] | None, n: int, rng: np.random.Generator) -> np.ndarray:
    """All edges, best first; equals, and those that a method has nothing to say of, in random order."""
    order = rng.permutation(n)
    return order if found is None else order[np.argsort(-found[order], kind="stable")]
