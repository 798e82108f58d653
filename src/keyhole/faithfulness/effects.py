"""What does the answer lose without a token, node or edge, and how much of it does a circuit carry?

How much of an answer do some edges carry? Alone, without them, with half of the rest; on other prompts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from keyhole.cache import readable
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.records import Component, Faithfulness, Measured, Sufficient
from keyhole.errors import KeyholeError, require_choice
from keyhole.faithfulness.baseline import Baseline, Likes, as_far, baseline, exchanged, ids_like
from keyhole.faithfulness.masked import rows_at_once
from keyhole.faithfulness.search import LEAST_GAP, small_gap
from keyhole.faithfulness.shares import MaskedQuestion, question, until_answer
from keyhole.faithfulness.token_masks import EdgeList, Mask, all_but, no_edges, only
from keyhole.faithfulness.wiring import Wiring
from keyhole.intervene.cuts import metric_of, run_of
from keyhole.intervene.removal import Metric
from keyhole.models.tokens import Prompt
from keyhole.progress import Progress, part_of, silent
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

DRAWS = 8  # random halves of the rest
OTHERS = 8  # prompts that a circuit is tried on besides its own


def faithfulness(
    edges: EdgeList, question: MaskedQuestion, *, draws: int = DRAWS, seed: int = 0, progress: Progress | None = None
) -> Faithfulness:
    """Kept, cut and rest of some edges, as shares of the gap, and the answer's rank with them alone."""
    everything, nothing = question.ends
    of = edges_in(question)
    alone, *rows = question.logits([only(edges), all_but(edges)])
    size = max(1, rows_at_once(question.masked) // 2)  # halves are as large as the model has edges: few at a time
    for start in range(0, draws, size):
        pairs = [_halved(edges, question, seed, draw) for draw in range(start, min(start + size, draws))]
        rows += question.logits([mask for pair in pairs for mask in pair])
        (progress or silent)(min(start + size, draws), draws)
    kept, cut, *left = ((question.metric.of(row) - nothing) / (everything - nothing) for row in (alone, *rows))
    return Faithfulness(
        kept=kept,
        cut=cut,
        rest=tuple(left[::2]),
        random=tuple(left[1::2]),
        rank=question.metric.rank(alone),
        edges=len(edges),
        of=of,
    )


def edges_in(question: MaskedQuestion) -> int:
    """How many token-level edges a model has in a prompt; the answer reads only the tokens that predict it."""
    wiring = question.masked.wiring
    return (len(wiring) - len(wiring.writers)) * len(question.run) + len(wiring.writers) * len(_answers_at(question))


def _answers_at(question: MaskedQuestion) -> list[int]:
    """The tokens at which the answer is read."""
    at = question.metric.at
    return [at] if isinstance(at, int) else at


def _halved(edges: EdgeList, question: MaskedQuestion, seed: int, draw: int) -> tuple[Mask, Mask]:
    """These edges with a random half of all others, and as many random ones in their place with the same half."""
    wiring, n, rng = question.masked.wiring, len(question.run), np.random.default_rng((seed, draw))
    half = rng.integers(0, 2, (*wiring.joined.shape, n), dtype=bool)
    chosen = random_edges(question, len(edges), rng)
    without = half.copy()
    without[tuple(edges.T)] = False
    return Mask(edges, 1.0, half), Mask(chosen, 1.0, without)


def random_edges(question: MaskedQuestion, count: int, rng: np.random.Generator) -> EdgeList:
    """So many token-level edges of a prompt, each as likely as another."""
    wiring, n = question.masked.wiring, len(question.run)
    every = wiring.edges[wiring.edges[:, 1] < len(wiring.readers) - 1]
    answers = np.array(_answers_at(question))
    last = np.column_stack([np.argwhere(wiring.joined[:, -1]), np.full(len(wiring.writers), len(wiring.readers) - 1)])
    picked = rng.choice(edges_in(question), min(count, edges_in(question)), replace=False)
    inside, into_answer = picked[picked < len(every) * n], picked[picked >= len(every) * n] - len(every) * n
    return np.concatenate(
        [
            np.column_stack([every[inside // n], inside % n]),
            np.column_stack([last[into_answer // len(answers)], answers[into_answer % len(answers)]]),
        ]
    )


def kept_on_others(edges: EdgeList, run: "Run", mean: Baseline, like: Likes) -> tuple[float, ...]:
    """What the same edges keep of other prompts' answers, each at the mean of the others; without a gap: left out."""
    known = [example for example in like if isinstance(example, Example) and example.answer and mean.prompts]
    kept = []
    for example in known[:OTHERS]:
        ids = ids_like(run, example)
        if ids not in mean.prompts:
            continue
        other, right = run.model.run(list(ids), bos=False), answer_ids(run.model, example)
        posed = question(other, Metric(len(other) - 1, right.answers, right.against), exchanged(run, mean, other))
        everything, nothing = posed.ends
        if everything - nothing >= LEAST_GAP:
            kept.append((float(posed.answers([only(edges)])[0]) - nothing) / (everything - nothing))
    return tuple(kept)


# What does the answer lose without a token, a node or an edge? Measured in a pass each, against a baseline.
#
#     effect(x) = m(everything) - m(with x at its baseline)         everything downstream is free
#
# Beside effects: shares of edges, and how much of the answer a circuit carries (see `keyhole.circuits.records`).

What = Literal["words", "nodes", "edges", "shares", "faithfulness"]
UNASKED = 1 << 27  # floats: if all components' writes take more, faithfulness is measured on request only
_AT = {"dest": "dest", "mlp": "dest", "target": "dest", "src": "src", "value": "src"}  # token of the reader, by side


def effects(
    circuit: Circuit,
    model: "Model | None" = None,
    *,
    like: Likes | None = None,
    counterfactual: Prompt | Example | None = None,
    text: Path | str | None = None,
    what: Sequence[What] = get_args(What),
    progress: Progress | None = None,
) -> Circuit:
    """A circuit with the effects and shares of its nodes and edges, and how much of the answer it carries.

    Args:
        circuit: The circuit.
        model: The model that made the circuit, if it was read from a file.
        like: Prompts of the same template, at least eight: their mean is the baseline. Also "words" or "resting".
        counterfactual: One prompt of equal length, whose writes are the baseline.
        text: A file whose resting state is the baseline, a paragraph a line.
        what: What is measured: "words", "nodes", "edges", "shares", "faithfulness".
        progress: Called with the number of passes done and their total.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John")
    >>> effects(circuit, like="resting", what=["faithfulness"]).measured.baseline
    'the resting state'
    """
    for name in what:
        require_choice("what", name, What)
    progress = progress or silent
    whole, metric = run_of(circuit, model), metric_of(circuit)
    run = until_answer(whole, metric.end)
    if like is not None and not isinstance(like, str):
        like = [as_far(prompt, run, whole) for prompt in like]
    counterfactual = None if counterfactual is None else as_far(counterfactual, run, whole)
    start = part_of(progress, 0.0, 0.2)
    stand_in = baseline(run, like=like, counterfactual=counterfactual, text=text, progress=start)
    posed = question(run, metric, stand_in)
    measured = measure(circuit, posed, what=what, progress=part_of(progress, 0.2, 1.0))
    if like is not None and measured.faithfulness is not None and not metric.continuation:  # others have one token
        others = kept_on_others(circuit_edges(circuit, posed), run, stand_in, like)
        measured = replace(measured, faithfulness=replace(measured.faithfulness, others=others))
    return replace(circuit, measured=measured)


def unasked_faithfulness(circuit: Circuit, *, progress: Progress | None = None) -> tuple[Circuit, str]:
    """A circuit with its faithfulness at the default baseline; or the circuit unchanged, and the reason.

    A circuit without an answer, or by svt, has no faithfulness, and no reason is given. Where it would take more memory
    than tracing did, it is measured on request only, by `effects`.
    """
    run = run_of(circuit, None)
    if circuit.parameters.method == "svt" or not circuit.parameters.target_ids:
        return circuit, ""
    dims = run.model.dims
    floats = dims.layers * (dims.heads + 1) * dims.d_model * len(run)
    if floats > UNASKED:
        return circuit, f"a pass edge by edge takes {readable(4 * floats)} of memory and more for this prompt"
    try:
        return effects(circuit, what=("faithfulness",), progress=progress), ""
    except KeyholeError as error:
        return circuit, str(error)


def measure(
    circuit: Circuit,
    question: MaskedQuestion,
    *,
    what: Sequence[What] = get_args(What),
    progress: Progress | None = None,
) -> Measured:
    """Measure what `what` names, all at one baseline."""
    wiring, n = question.masked.wiring, len(question.run)
    everything, nothing = question.ends
    measured = Measured(
        baseline=question.baseline.name,
        metric="logit difference" if question.metric.against else "log-probability",
        everything=everything,
        nothing=nothing,
        note=question.baseline.note,
    )
    places: dict[str, list[tuple[int, int] | None]] = {
        "words": [(0, token) for token in range(n)] if "words" in what else [],
        "nodes": [place_of(node, wiring) for node in circuit.nodes] if "nodes" in what else [],
    }
    joints = [edge_of(circuit, edge, wiring) for edge in circuit.edges]
    masks: dict[tuple[int, ...], Mask] = {}
    for place in (place for several in places.values() for place in several if place is not None):
        masks[place] = all_but(out_of(wiring, *place))
    if "edges" in what:
        masks |= {joint: all_but(np.array([joint])) for joint in joints if joint is not None}
    progress = progress or silent
    answers = question.answers(list(masks.values()), part_of(progress, 0.0, 0.5))
    lost = dict(zip(masks, (everything - answers).tolist(), strict=True))
    words, nodes = (tuple(None if p is None else lost[p] for p in places[name]) for name in ("words", "nodes"))
    words += (None,) * (len(circuit.tokens) - len(words)) if words else ()
    measured = replace(measured, words=words, nodes=nodes)
    if "edges" in what:
        measured = replace(measured, edges=tuple(None if j is None else lost[j] for j in joints))
    if measured.gap < LEAST_GAP:
        small = (
            f"the answer is at {everything:+.2f} in the prompt and at {nothing:+.2f} at the baseline: "
            f"{small_gap(measured.gap)} to be shared out"
        )
        return replace(measured, note=f"{measured.note}; {small}" if measured.note else small)
    if "shares" in what:
        shared = question.with_shares(part_of(progress, 0.5, 0.8))
        measured = replace(measured, **_shares(circuit, shared, joints))
    if "faithfulness" in what:
        edges = circuit_edges(circuit, question)
        measured = replace(measured, faithfulness=faithfulness(edges, question, progress=part_of(progress, 0.8, 1.0)))
    return measured


def circuit_edges(circuit: Circuit, question: MaskedQuestion) -> EdgeList:
    """The token-level edges of a circuit; constants, which no mask can take away, have none.

    Of a sufficient circuit, the edges that suffice, without the signals that are attached to its heads.
    """
    n = circuit.parameters.found if isinstance(circuit.parameters, Sufficient) else len(circuit.edges)
    return edge_list(edge_of(circuit, edge, question.masked.wiring) for edge in circuit.edges[:n])


def edge_list(joints: Iterable[tuple[int, int, int] | None]) -> EdgeList:
    """Edges without repetitions, in order."""
    distinct = sorted({joint for joint in joints if joint is not None})
    return np.array(distinct, dtype=np.int64) if distinct else no_edges()


def edge_of(circuit: Circuit, edge: Edge, wiring: Wiring) -> tuple[int, int, int] | None:
    """A circuit's edge as writer, reader and the token where it is read; None: a constant's."""
    writer, reader = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
    ends = wiring.number(writer, reader, edge.side)
    if edge.side == "target" and circuit.parameters.continuation:
        reader = writer  # the answer is read where its writer writes: it is predicted at several tokens
    return None if ends is None else (*ends, int(getattr(reader, _AT[edge.side])))


def out_of(wiring: Wiring, writer: int, token: int) -> EdgeList:
    """All edges out of a writer at a token."""
    readers = np.flatnonzero(wiring.joined[writer])
    return np.column_stack([np.full(len(readers), writer), readers, np.full(len(readers), token)])


def place_of(node: Node, wiring: Wiring) -> tuple[int, int] | None:
    """The writer that a node is, whole, and its token; None: a constant, or the answer."""
    if node.kind not in ("embedding", "head", "mlp"):
        return None
    return wiring.writer_number(Component.of(node)), node.dest


def _shares(
    circuit: Circuit, question: MaskedQuestion, joints: Sequence[tuple[int, int, int] | None]
) -> dict[str, Any]:
    values = question.shares.values
    places = [place_of(node, question.masked.wiring) for node in circuit.nodes]
    return {
        "edge_shares": tuple(None if joint is None else float(values[joint]) for joint in joints),
        "node_shares": tuple(None if p is None else float(values[p[0], :, p[1]].sum()) for p in places),
        "completeness": question.shares.completeness,
    }
