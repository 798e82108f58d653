"""Does a method rank the true edges of the machine above all others? The area under the ROC curve, as in InterpBench.

AUROC is the probability that a true edge has a larger score (by absolute value) than an edge that is not true; equal
scores count half. 1: all true edges first; .5: chance. Of components, an edge is true if it is at some token.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from keyhole.circuits.circuit import Node
from keyhole.errors import KeyholeError
from keyhole.faithful.cohort import CohortQuestion, StandIn, groups_of, means_of
from keyhole.faithful.edge_scores import prompt_scores
from keyhole.faithful.ranked import token_edges
from keyhole.faithful.settings import METHODS, EdgeMethod
from keyhole.faithfulness.wiring import Wiring
from keyhole.intervene.remove import Metric
from keyhole.lab.known.record import Known
from keyhole.models.tokens.prompts import token_id

_AT_READER = ("dest", "mlp", "target")  # sides that read where their component writes; keys and values: at its source


@dataclass(frozen=True)
class Recovery:
    """How well a method ranks the true edges: means over prompts for token-level edges, of mean scores for others."""

    method: str
    components: float
    tokens: float


def recovery(known: Known, prompts: Sequence[str], methods: Sequence[EdgeMethod] = METHODS) -> tuple[Recovery, ...]:
    """The AUROC of every method on prompts of the machine that have as many tokens; their mean is the baseline."""
    asked = [known.ask(prompt) for prompt in prompts]
    questions = [_question(one) for one in asked]
    if len({len(question.run) for question in questions}) != 1:
        raise KeyholeError("prompts of the machine should have as many tokens: their mean is taken token by token.")
    means = means_of(known.model, [("", question.run.token_ids) for question in questions])
    groups = groups_of(questions, StandIn("mean", means))
    if len(groups) != 1:
        raise KeyholeError(f"{len(prompts)} prompts are too few or too many to take a mean over: give 8 to 32.")
    (group,) = groups
    wiring, length = group.masked.wiring, group.masked.words.shape[1]
    every = tuple(token_edges(wiring, length).T)
    true = [true_edges(one, wiring, length) for one in asked]
    of_components = np.any(true, axis=(0, 3))[tuple(wiring.edges.T)]
    results = []
    for method in methods:
        if method == "random":
            continue
        scores = prompt_scores(method, group, questions)
        components = np.abs(scores.sum(-1).mean(0))[tuple(wiring.edges.T)]
        by_prompt = [auroc(np.abs(own[every]), there[every]) for own, there in zip(scores, true, strict=True)]
        results.append(Recovery(method, auroc(components, of_components), float(np.mean(by_prompt))))
    return tuple(results)


def true_edges(known: Known, wiring: Wiring, length: int) -> Bool[np.ndarray, "writer reader pos"]:
    """The true circuit of a prompt as token-level edges."""
    true = np.zeros((*wiring.joined.shape, length), dtype=bool)
    target = Node("target", None, None, length - 1, length - 1)
    for writer, into, side in known.truth.edges:
        reader = target if into is None else Node.of(into)
        place = wiring.number(Node.of(writer), reader, side)
        if place is not None:
            true[(*place, reader.dest if side in _AT_READER else reader.src)] = True
    return true


def auroc(scores: Float[np.ndarray, "edge"], true: Bool[np.ndarray, "edge"]) -> float:
    """The probability that a true edge has a larger score than another; equal ones count half.

    >>> auroc(np.array([3.0, 1.0, 2.0, 1.0]), np.array([True, True, False, False]))
    0.625
    """
    if not 0 < true.sum() < len(true):
        raise KeyholeError("an AUROC compares true edges with others: there are none of the one or of the other.")
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum() - (counts - 1) / 2)[place]  # the mean rank of equal scores
    n = int(true.sum())
    return float((ranks[true].sum() - n * (n + 1) / 2) / (n * (len(true) - n)))


def _question(known: Known) -> CohortQuestion:
    run = known.model.run(known.prompt)
    right, wrong = (token_id(known.model, word) for word in (known.answer, known.against))
    return CohortQuestion(run, Metric(len(run) - 1, (right,), (wrong,)))
