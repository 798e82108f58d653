"""How does each method score every edge? Signed scores of token-level edges, prompt by prompt: + for the answer.

accpp       influence, in circuits that go through MLPs
heads, svt  an edge's share of all weights into the same firing and side (into the answer: of all its seeds)
gradients   change of the writer times slope at the reader, all edges kept: edge attribution patching (EAP)
integrated  the same at five points of the masks, evenly from no edge to all
eap-ig-inputs, gim  see `attribution.py`
share       as integrated, at points placed where the answer changes: they add up to its change within 5 %
sufficient  edges of the smallest circuit that a search finds for the prompt; all others by their share
random      none
a file      the scores of a circuit of EAP-IG or MIB (`file_scores`)

How scores are combined over tokens and prompts, with or without their sign, is the same for all (`cutting.py`).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.exports import MibFile, mib_edge_name
from keyhole.circuits.records import Component
from keyhole.errors import KeyholeError
from keyhole.faithfulness.effects import edge_of
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.search import Found, Search, search_together
from keyhole.faithfulness.shares import shares_together
from keyhole.faithfulness.wiring import Reader, Wiring, reach_of
from keyhole.files import user_path, write_at_once
from keyhole.intervene.removal import Metric
from keyhole.models.weights import Dims
from keyhole.settings.tracing import TraceSettings
from keyhole.studies.curves.attribution import along_masks, eap, eap_ig_inputs, gim
from keyhole.studies.curves.cohort import CohortQuestion, Group
from keyhole.studies.curves.settings import EdgeMethod
from keyhole.tracing.trace import trace

STEPS = 5  # of the way, for "integrated"
BELOW = 1e6  # how many times the scores of a sufficient circuit's edges are above the largest share
_FLOATS = 1 << 22  # size of what all components write: the backward pass keeps as much for every layer
PromptScores = Float[np.ndarray, "prompt writer reader pos"]


def prompt_scores(method: EdgeMethod, group: Group, questions: Sequence[CohortQuestion]) -> PromptScores:
    """A method's scores of every token-level edge in each prompt of a group; `group.numbers` index `questions`."""
    if method == "random":
        raise KeyholeError("random edges have no scores: they are drawn.")
    if method in _ATTRIBUTED:
        return _ATTRIBUTED[method](group.masked, group.metrics)
    in_group = [questions[number] for number in group.numbers]
    if method == "share":
        values = [shares.values for shares in shares_together(group.masked, group.metrics, range(len(in_group)))]
    elif method == "sufficient":
        values = sufficient(group, in_group)
    else:
        wiring = group.masked.wiring
        values = [circuit_scores(traced(method, question), wiring, len(question.run)) for question in in_group]
    return np.stack(values)


def _integrated(masked: Masked, metrics: Sequence[Metric]) -> PromptScores:
    return along_masks(masked, metrics, [((step + 0.5) / STEPS, 1 / STEPS) for step in range(STEPS)])


_ATTRIBUTED: dict[str, Callable[[Masked, Sequence[Metric]], PromptScores]] = {
    "gradients": eap,
    "integrated": _integrated,
    "eap-ig-inputs": eap_ig_inputs,
    "gim": gim,
}


def sufficient(group: Group, questions: Sequence[CohortQuestion]) -> list[Float[np.ndarray, "writer reader pos"]]:
    """For each prompt of a group: 1 on the edges of a circuit that suffices, and far below it the shares of all edges.

    Where no set of edges suffices there are shares alone. So the average over prompts says how often an edge is in such
    a circuit, and edges that are equally often in one are ranked by their share.
    """
    wiring = group.masked.wiring
    all_shares = shares_together(group.masked, group.metrics, range(len(questions)))
    searches = [
        Search(group.masked, metric, shares, reach_of(question.run, wiring), prompt=i)
        for i, (metric, shares, question) in enumerate(zip(group.metrics, all_shares, questions, strict=True))
    ]
    scores = []
    for shares, circuit in zip(all_shares, search_together(searches), strict=True):
        values = shares.values / (BELOW * max(float(np.abs(shares.values).max()), 1e-30))
        if isinstance(circuit, Found):
            values[tuple(circuit.edges.T)] += 1.0
        scores.append(values)
    return scores


def traced(method: EdgeMethod, question: CohortQuestion) -> Circuit:
    """A circuit by one of the methods that trace: the store's, if it was made so, or traced with default settings."""
    stored, metric = question.circuit, question.metric
    how = TraceSettings("svt" if method == "svt" else "accpp", through="mlps" if method == "accpp" else "heads")
    if stored is not None:
        by = (stored.parameters.method, getattr(stored.parameters, "through", "heads"))
        if by == (how.method, how.through):
            return stored
    return trace(question.run, list(metric.targets), against=list(metric.against) or None, settings=how)


def circuit_scores(circuit: Circuit, wiring: Wiring, length: int) -> Float[np.ndarray, "writer reader pos"]:
    """A circuit's edges, each at the token where it is read; what it does not have is 0."""
    total = np.zeros((*wiring.joined.shape, length))
    whole: dict[tuple[int, str], float] = defaultdict(float)
    for edge in circuit.edges:
        whole[edge.receiver, edge.side] += max(edge.weight, 0.0)
    for edge in circuit.edges:
        place = edge_of(circuit, edge, wiring)
        if place is None:
            continue
        if circuit.influence:
            total[place] += edge.influence or 0.0
        elif whole[edge.receiver, edge.side] > 0:
            total[place] += max(edge.weight, 0.0) / whole[edge.receiver, edge.side]
    return total


def file_scores(file: MibFile, wiring: Wiring, dims: Dims) -> Float[np.ndarray, "edge"]:
    """A file's scores, signed as they are; of a circuit without scores, 1 on its edges. What it lacks is 0."""
    file.require_sizes(dims.layers, dims.heads, dims.d_model)
    plain = not any(entry.score for entry in file.edges.values())
    total = np.zeros(wiring.joined.shape)
    for edge, entry in file.edges.items():
        reader = Reader(edge.side, edge.target.layer, edge.target.head)
        place = wiring.place(edge.source, reader)
        if place is None:
            raise KeyholeError(
                f"{file.name} has an edge {edge.source} -> {reader}, and this model has none: its MLPs read what the "
                "heads of their layer read, and not what these write. Give the file's own model."
            )
        total[place] = float(entry.kept) if plain else entry.score
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
        name = mib_edge_name(source, target.component, target.side)
        if name is not None:
            edges[name] = {"score": float(scores[writer, reader]), "in_graph": False}
    nodes = sorted({end.split("<")[0] for name in edges for end in name.split("->")})
    # An MLP that reads what its layer's heads read has no edge from them.
    parallel = wiring.place(Component("head", 0, 0), Reader("mlp", 0)) is None
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
