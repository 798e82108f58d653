"""How much does a method think of every edge? Scores of token-level edges, prompt by prompt; signed, + for the answer.

accpp       influence, in circuits that go through MLPs
heads, svt  an edge's share of all weights into the same firing and side (into the answer: of all its seeds)
gradients   change of the writer times slope at the reader, all edges kept: edge attribution patching (EAP)
integrated  the same at five points, evenly from no edge to all: all edges together are about the whole change
share       the same at points placed where the answer changes, so that they add up to the change within 5 %
sufficient  edges of the smallest circuit that a search finds for the prompt; all others by their share
random      none
a file      what somebody else's method found: a circuit of EAP-IG or MIB (`file_scores`)

What is done with them, over tokens or prompts, with or without their sign, is the same for all (`ranked.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.mib import MibFile
from keyhole.errors import KeyholeError
from keyhole.faithful.cohort import Group, Question
from keyhole.faithful.settings import EdgeMethod
from keyhole.faithfulness.connected import reach_of
from keyhole.faithfulness.effects import edge_of
from keyhole.faithfulness.search import Search, search
from keyhole.faithfulness.shares import integrated, shares
from keyhole.faithfulness.wiring import Reader, Source, Wiring
from keyhole.models.architecture.weights import Dims
from keyhole.tracing.levels import ThroughOption
from keyhole.tracing.methods import Method, trace_by

STEPS = 5  # of the way, for "integrated"
LEVEL = 0.9  # of the gap, that a circuit that suffices keeps
FOUND = 1e3  # by how much the edges of such a circuit are above the largest share of all others
PromptScores = Float[np.ndarray, "prompt writer reader pos"]
EdgeScores = Float[np.ndarray, "writer reader pos"]


def prompt_scores(method: EdgeMethod, group: Group, questions: Sequence[Question]) -> PromptScores:
    """What a method thinks of every token-level edge in each prompt of a group; `questions` are those it numbers."""
    score = _BY_PROMPT.get(method)
    if score is None:
        raise KeyholeError(f"{method!r} has no scores: its edges are drawn.")
    return np.stack([score(group, i, questions[number]) for i, number in enumerate(group.numbers)])


def gradients(group: Group, i: int, question: Question) -> EdgeScores:
    """Slopes by the masks of all edges, at 1."""
    return integrated(group.masked, group.metrics[i], [(1.0, 1.0)], i)


def integrated_gradients(group: Group, i: int, question: Question, steps: int = STEPS) -> EdgeScores:
    """The same in the middle of each of several steps from 0 to 1."""
    cells = [((step + 0.5) / steps, 1 / steps) for step in range(steps)]
    return integrated(group.masked, group.metrics[i], cells, i)


def share(group: Group, i: int, question: Question) -> EdgeScores:
    """Shares that add up to the gap."""
    return shares(group.masked, group.metrics[i], i).values


def sufficient(group: Group, i: int, question: Question) -> EdgeScores:
    """The edges of a circuit that suffices, each as much as all others; these by their share.

    Where no set of edges suffices, shares alone.
    """
    metric, all_shares = group.metrics[i], shares(group.masked, group.metrics[i], i)
    values = all_shares.values / (FOUND * max(float(np.abs(all_shares.values).max()), 1e-30))
    reach = reach_of(question.run, group.masked.wiring)
    try:
        circuit = search(Search(group.masked, metric, all_shares, reach, LEVEL, prompt=i))
    except KeyholeError:
        return values
    values[tuple(circuit.edges.T)] += 1.0
    return values


def _traced_scores(method: EdgeMethod) -> Callable[[Group, int, Question], EdgeScores]:
    def score(group: Group, i: int, question: Question) -> EdgeScores:
        return circuit_scores(traced(method, question), group.masked.wiring, len(question.run))

    return score


_BY_PROMPT: dict[str, Callable[[Group, int, Question], EdgeScores]] = {
    "accpp": _traced_scores("accpp"),
    "heads": _traced_scores("heads"),
    "svt": _traced_scores("svt"),
    "gradients": gradients,
    "integrated": integrated_gradients,
    "share": share,
    "sufficient": sufficient,
}


def traced(method: EdgeMethod, question: Question) -> Circuit:
    """By one of the methods that trace: the store's own, or traced with default settings."""
    stored, metric = question.circuit, question.metric
    through: ThroughOption = "mlps" if method == "accpp" else "heads"
    by: Method = "svt" if method == "svt" else "accpp"
    if stored is not None and (stored.parameters.method, getattr(stored.parameters, "through", "heads")) == (
        by,
        through,
    ):
        return stored
    against = list(metric.against) or None
    return trace_by(by, question.run, list(metric.targets), against=against, through=through)


def circuit_scores(circuit: Circuit, wiring: Wiring, length: int) -> EdgeScores:
    """A circuit's edges, each at the token where it is read; what it does not have is 0."""
    total = np.zeros((*wiring.joined.shape, length))
    whole: dict[tuple[int, str], float] = defaultdict(float)
    for edge in circuit.edges:
        whole[edge.target, edge.side] += max(edge.weight, 0.0)
    for edge in circuit.edges:
        place = edge_of(circuit, edge, wiring)
        if place is None:
            continue
        if circuit.influence:
            total[place] += edge.influence or 0.0
        elif whole[edge.target, edge.side] > 0:
            total[place] += max(edge.weight, 0.0) / whole[edge.target, edge.side]
    return total


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
