"""Is the circuit that tracing finds the right one? A transformer whose weights are written down, and its true circuit.

known = build("French : big cat , red dog . big")
circuit = known.model.run(known.prompt).trace(known.answer, against=known.against, through="mlps")
compare(circuit, known.truth)                  precision and recall, over nodes and over edges

The truth follows from the weights (`known_machine.py`) alone: who writes what a component reads, and where.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from keyhole.circuits.circuit import Circuit, Node
from keyhole.circuits.records import Writer
from keyhole.errors import KeyholeError
from keyhole.faithfulness.wiring import Wiring
from keyhole.intervene.removal import Metric
from keyhole.lab.known_machine import Places, Stream, places, tokenizer, transformer
from keyhole.models.load import load
from keyhole.models.model import Model
from keyhole.models.tokens import token_id
from keyhole.studies.comparison.score import Score
from keyhole.studies.curves.cohort import CohortQuestion, StandIn, groups_of, means_of
from keyhole.studies.curves.cutting import token_edges
from keyhole.studies.curves.scores import prompt_scores
from keyhole.studies.curves.settings import METHODS, EdgeMethod
from keyhole.tracing.mlp_directions import Step

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
        (circuit.nodes[e.sender].writer, None if into.kind == "target" else into.writer, e.side)
        for e in circuit.edges
        for into in [circuit.nodes[e.receiver]]
        if e.influence is None or e.influence > 0
    }
    return Comparison(_agreement(nodes, truth.nodes), _agreement(edges, truth.edges))


def _agreement(in_circuit: Set[object], in_truth: Set[object]) -> Score:
    return Score(len(in_circuit), len(in_truth), len(in_circuit & in_truth))


# A machine, a prompt that it answers, and the circuit behind the answer.

PROMPT = "French : big cat , red dog , old sun . red"


@dataclass(frozen=True)
class Known:
    """What to trace, and what a right circuit has."""

    model: Model
    prompt: str
    answer: str
    against: str
    truth: Truth

    @classmethod
    def of(cls, model: Model, prompt: str) -> "Known":
        """What is true of a prompt."""
        at = places(prompt)
        return cls(model, prompt, at.answer, at.against, true_circuit(at, last=model.dims.layers - 1))

    def ask(self, prompt: str) -> "Known":
        """The same machine with another prompt."""
        return Known.of(self.model, prompt)


def build(prompt: str = PROMPT, *, seed: int | None = None, backup: bool = False, loud: bool = False) -> Known:
    """The machine of `machine.py`, with a seed in directions turned at random, and a prompt of its words (`words.py`).

    `backup`: with a head (3.0) that stands in for another (2.0) when that is gone, and does nothing before.
    `loud`: with a head (2.2) that writes what nobody reads, so much that the norms, and so the answer, count on it.

    >>> known = build()
    >>> known.answer, known.against
    ('chien', 'Hund')
    >>> known.ask("Berlin : new sun . new").answer
    'Sonne'
    """
    return Known.of(load((transformer(Stream.make(seed), backup=backup, loud=loud), tokenizer())), prompt)


# Does a method rank the true edges of the machine above all others? The area under the ROC curve, as in InterpBench.
#
# AUROC is the probability that a true edge has a larger score (by absolute value) than an edge that is not true;
# equal scores count half. 1: all true edges first; .5: chance. Of components, an edge is true if it is at some token.

_AT_READER = ("dest", "mlp", "target")  # sides that read where their component writes; keys and values: at its source


@dataclass(frozen=True)
class Recovery:
    """How well a method ranks the true edges: means over prompts for token-level edges, of mean scores for others."""

    method: str
    components: float
    tokens: float


def recovery(known: Known, prompts: Sequence[str], methods: Sequence[EdgeMethod] = METHODS) -> tuple[Recovery, ...]:
    """The AUROC of every method on prompts of the machine that have as many tokens; their mean is the baseline."""
    known_prompts = [known.ask(prompt) for prompt in prompts]
    questions = [_question(known_prompt) for known_prompt in known_prompts]
    if len({len(question.run) for question in questions}) != 1:
        raise KeyholeError("prompts of the machine should have as many tokens: their mean is taken token by token.")
    means = means_of(known.model, [("", question.run.token_ids) for question in questions])
    groups = groups_of(questions, StandIn("mean", means))
    if len(groups) != 1:
        raise KeyholeError(f"{len(prompts)} prompts are too few or too many to take a mean over: give 8 to 32.")
    (group,) = groups
    wiring, length = group.masked.wiring, group.masked.words.shape[1]
    every = tuple(token_edges(wiring, length).T)
    true = [true_edges(known_prompt, wiring, length) for known_prompt in known_prompts]
    of_components = np.any(true, axis=(0, 3))[tuple(wiring.edges.T)]
    results = []
    for method in methods:
        if method == "random":
            continue
        scores = prompt_scores(method, group, questions)
        components = np.abs(scores.sum(-1).mean(0))[tuple(wiring.edges.T)]
        by_prompt = [
            auroc(np.abs(scores_of_prompt[every]), true_of_prompt[every])
            for scores_of_prompt, true_of_prompt in zip(scores, true, strict=True)
        ]
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
