"""Which circuit suffices for this answer? Found by search, and made into a circuit that is read like any other.

What moves comes from the search: edges into values, MLPs and the answer, and those into queries and keys that differ
from the baseline. Why heads look where they look mostly does not differ from it, so every head's firing is explained as
in a traced circuit, and its strongest signals are attached.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack

import numpy as np
import torch
import transformers

from keyhole.circuits.circuit import Circuit, Edge, EdgeSide, Node, Traced
from keyhole.circuits.columns import Edges, Firings, Nodes
from keyhole.circuits.records import Sizes, Sufficient
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Likes, as_far, baseline
from keyhole.faithfulness.effects import kept_on_others, measure
from keyhole.faithfulness.search import Found, Search, search_together
from keyhole.faithfulness.shares import MaskedQuestion, joined, question, shares_together, until_answer
from keyhole.intervene.removal import Metric
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import Prompt
from keyhole.progress import Progress, part_of, silent
from keyhole.qk.omega import omega
from keyhole.settings.fields import chosen
from keyhole.settings.measuring import SufficientOptions, SufficientSettings
from keyhole.tasks.example import Example
from keyhole.tracing.answers import Likeliest, Target, Tokens, choose_targets, token_ids
from keyhole.tracing.assemble import answer_facts, checked, model_facts
from keyhole.tracing.exactness import check_runs
from keyhole.tracing.firing import Firing
from keyhole.tracing.settings import AnswerMetric, Settings
from keyhole.tracing.upstream import Writes
from keyhole.tracing.why import explain_sites
from keyhole.version import __version__

if TYPE_CHECKING:
    from keyhole.models.run import Run


class Sufficing(SufficientOptions, total=False):
    """What can be given by name: the baseline, and the fields of `SufficientSettings`."""

    like: Likes | None
    counterfactual: Prompt | Example | None


def sufficient(
    run: "Run",
    target: Target = None,
    *,
    against: Tokens | None = None,
    settings: SufficientSettings | None = None,
    end: int | str = -1,
    progress: Progress | None = None,
    **options: Unpack[Sufficing],
) -> Circuit:
    """The smallest circuit that a search finds to keep `level` of the answer, everything else at the baseline.

    See `Run.sufficient`.

    Args:
        run: The run of the prompt.
        target: The answer, as `Run.trace` takes it. Default: the likeliest next token.
        against: The other answer: the lead of `target` over it is kept, not a probability.
        settings: What is required of the circuit: a `SufficientSettings`.
        end: The token after which the answer is predicted. Default: the last.
        progress: Called with how much is done, of a thousand.
        **options: The fields of `settings` by name, and the baseline. `like`: prompts of the same template, at least
            eight. `counterfactual`: one prompt of equal length. Without either it is the mean over copies with other
            words.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> sufficient(run, "Mary").measured.faithfulness is not None
    True
    """
    progress, like, counterfactual = progress or silent, options.pop("like", None), options.pop("counterfactual", None)
    wanted = chosen(settings, SufficientSettings, options)
    request = ask(
        run,
        target,
        against=against,
        like=like,
        counterfactual=counterfactual,
        end=end,
        progress=part_of(progress, 0.0, 0.1),
    )
    (circuit,) = sufficient_together([request], wanted, part_of(progress, 0.1, 1.0))
    if isinstance(circuit, KeyholeError):
        raise circuit
    return circuit


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """A prompt that a circuit is wanted for, with the prompts like it."""

    run: "Run"
    question: MaskedQuestion
    like: Likes | None


def ask(
    run: "Run",
    target: Target = None,
    *,
    against: Tokens | None = None,
    like: Likes | None = None,
    counterfactual: Prompt | Example | None = None,
    end: int | str = -1,
    progress: Progress | None = None,
) -> SearchRequest:
    """What `sufficient` is asked, with its baseline."""
    at = run.position(end)
    chosen = tuple(choose_targets(run, Likeliest(k=1) if target is None else target, at))
    metric = Metric(at, chosen, tuple(token_ids(run, against, at)))
    until = until_answer(run, at)
    if like is not None and not isinstance(like, str):
        like = [as_far(prompt, until, run) for prompt in like]
    counterfactual = None if counterfactual is None else as_far(counterfactual, until, run)
    stand_in = baseline(until, like=like, counterfactual=counterfactual, progress=progress)
    return SearchRequest(run, question(until, metric, stand_in), like)


def sufficient_together(
    requests: Sequence[SearchRequest], wanted: SufficientSettings, progress: Progress | None = None
) -> list[Circuit | KeyholeError]:
    """The circuits that suffice for prompts of one model, or why there is none; equally long ones share their passes.

    Each is the one that `sufficient` finds for the prompt alone, but for rounding.
    """
    progress = progress or silent
    by_length = defaultdict[int, list[int]](list)
    for i, request in enumerate(requests):
        by_length[len(request.question.run)].append(i)
    circuits: dict[int, Circuit | KeyholeError] = {}
    for numbers in by_length.values():
        start, middle, end = ((len(circuits) + part * len(numbers)) / len(requests) for part in (0.0, 0.7, 1.0))
        results = searched([requests[i].question for i in numbers], wanted, part_of(progress, start, middle))
        last = part_of(progress, middle, end)
        for done, (i, (of_prompt, result)) in enumerate(zip(numbers, results, strict=True)):
            part = part_of(last, done / len(numbers), (done + 1) / len(numbers))
            circuits[i] = _measured(requests[i], of_prompt, result, wanted, part)
    return [circuits[i] for i in range(len(requests))]


def searched(
    questions: Sequence[MaskedQuestion], wanted: SufficientSettings, progress: Progress | None = None
) -> list[tuple[MaskedQuestion, Found | KeyholeError]]:
    """Questions of equally long prompts, with their shares and what a search of all of them together found."""
    progress, whole = progress or silent, joined(questions)
    metrics = [question.metric for question in questions]
    all_shares = shares_together(whole, metrics, range(len(questions)), part_of(progress, 0.0, 0.3))
    questions = [replace(question, precomputed=shares) for question, shares in zip(questions, all_shares, strict=True)]
    searches = [
        Search(whole, question.metric, question.shares, question.reach, wanted.level, wanted.both_signs, prompt=i)
        for i, question in enumerate(questions)
    ]
    return list(zip(questions, search_together(searches, part_of(progress, 0.3, 1.0)), strict=True))


def _measured(
    request: SearchRequest,
    question: MaskedQuestion,
    result: Found | KeyholeError,
    wanted: SufficientSettings,
    progress: Progress,
) -> Circuit | KeyholeError:
    """The circuit of what was found, with effects and what it keeps of other prompts."""
    if isinstance(result, KeyholeError):
        return result
    try:
        circuit = circuit_of(question, result, request.run, wanted)
        measured = measure(circuit, question, progress=progress)
    except KeyholeError as error:
        return error
    if request.like is not None and measured.faithfulness is not None:
        others = kept_on_others(result.edges, question.run, question.baseline, request.like)
        measured = replace(measured, faithfulness=replace(measured.faithfulness, others=others))
    return replace(circuit, measured=measured)


def circuit_of(question: MaskedQuestion, result: Found, run: "Run", wanted: SufficientSettings) -> Circuit:
    """The edges of a search as a circuit of `run`, with the signals of its heads attached."""
    joints = list(_joints(question, result))
    heads = sorted({end for joint in joints for end in joint[:2] if end.kind == "head"}, key=lambda node: node.key)
    firings = _explained(run, heads)
    metric = question.metric
    answer: AnswerMetric = "linear" if metric.against else "prob"
    settings = Settings(target_ids=metric.targets, against_ids=metric.against, end=metric.end, metric=answer)
    signals = [
        (Node.of(signal.writer), head, signal)
        for head in heads
        for side in firings[head].sides
        for signal in sorted(side.signals, key=lambda signal: -signal.weight)[: wanted.signals]
    ]
    target = Node("target", None, None, metric.end, metric.end)
    named = {end for joint in joints for end in joint[:2]} | {writer for writer, _, _ in signals}
    nodes = [*sorted(named - {target}, key=lambda node: node.key), target]
    index = {node: i for i, node in enumerate(nodes)}
    edges = [
        Edge(index[writer], index[reader], side, part, part, part, _channels(run, reader, side))
        for writer, reader, side, part in joints
    ]
    found_edges = len(edges)
    whole = {(edge.sender, edge.receiver, edge.side) for edge in edges}
    edges += [
        Edge(index[writer], index[head], s.side, s.weight, s.ig, s.alone, s.channels)
        for writer, head, s in signals
        if (index[writer], index[head], s.side) not in whole
    ]
    searched = {edges[i].receiver for i in range(len(edges)) if edges[i].channels}
    (check,) = check_runs(Writes([run]), logits_at=[[metric.end]])
    checked(check, run)
    return Circuit(
        model=model_facts(run.model),
        versions={"keyhole": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        parameters=Sufficient(
            **{**settings.shared(), **answer_facts(run, settings)},
            level=wanted.level,
            both_signs=wanted.both_signs,
            baseline=question.baseline.name,
            signals=wanted.signals,
            found=found_edges,
        ),
        errors={"scores": check.scores, "residuals": check.residuals, "logits": check.logits},
        token_ids=run.token_ids,
        tokens=run.tokens,
        nodes=Nodes.of(nodes),
        attention=tuple(_weight(run, node) if node.kind == "head" else None for node in nodes),
        edges=Edges.of(edges),
        firings=Firings.of(_traced(index[head], firings[head]) for head in heads if index[head] in searched),
        run=run,
        sizes=Sizes.of(run.model),
    )


def _channels(run: "Run", reader: Node, side: EdgeSide) -> tuple[int, ...]:
    """An edge of the search into a query or key is whole: all channels of the head."""
    if side not in ("dest", "src"):
        return ()
    return tuple(range(int(omega(run.model, reader.layer or 0).rank[reader.head or 0])))


def _weight(run: "Run", node: Node) -> float:
    return float(run.attention_run(node.layer or 0).weights([node.head or 0], [node.dest])[0, 0, node.src])


def _traced(node: int, firing: Firing) -> Traced:
    dest, src = (side.removed for side in firing.sides) if firing.sides else ((), ())
    return Traced(node, firing.tau, firing.visible, dest, src)


def _explained(run: "Run", heads: Sequence[Node]) -> dict[Node, Firing]:
    """Why every head looks where it looks; those whose weight is below tau have no signals."""
    writes, by_layer = Writes([run]), defaultdict[int, list[Node]](list)
    for node in heads:
        by_layer[node.layer or 0].append(node)
    firings: dict[Node, Firing] = {}
    with exact_matmul(), run.model._steady():
        for layer, nodes in by_layer.items():
            sites = [(0, node.head or 0, node.dest, node.src) for node in nodes]
            for firing in explain_sites(writes, layer, sites).firings():
                firings[Node("head", layer, firing.head, firing.dest, firing.src)] = firing
    return firings


def _joints(question: MaskedQuestion, result: Found) -> Iterator[tuple[Node, Node, EdgeSide, float]]:
    """Edges between nodes, with their parts of the gap.

    A head is a node for each token that it takes something from, so an edge out of it, or into its query, becomes one
    for each of these; its part is divided among them by attention, as is that of a key or value between tokens.
    """
    wiring = question.masked.wiring
    sources = _sources(question, result)
    for (writer, reader, token), share in zip(result.edges.tolist(), result.shares.tolist(), strict=True):
        who, into = wiring.writers[writer], wiring.readers[reader]
        if who.kind == "head":
            begins = {Node("head", who.layer, who.head, token, s): A for s, A in sources[writer, token].items()}
        else:
            begins = {Node(who.kind, who.layer, None, token, token): 1.0}
        if into.layer is None:
            ends = {Node("target", None, None, token, token): 1.0}
        elif into.head is None:
            ends = {Node("mlp", into.layer, None, token, token): 1.0}
        else:
            head = int(question.reach.component[reader])
            places = [(d, s, A) for (h, d), ss in sources.items() if h == head for s, A in ss.items()]
            at = 0 if into.side == "dest" else 1
            ends = {Node("head", into.layer, into.head, d, s): A for d, s, A in places if (d, s)[at] == token}
        total = sum(begins.values()) * sum(ends.values()) * question.shares.gap
        for begin, first in begins.items():
            for end, second in ends.items():
                yield begin, end, into.side, share * first * second / total


def _sources(question: MaskedQuestion, result: Found) -> dict[tuple[int, int], dict[int, float]]:
    """For each head that is kept at a token: which tokens it takes something from there, with its attention to them."""
    wiring, run, reach = question.masked.wiring, question.run, question.reach
    kept = {(w, t) for w, _, t in result.edges.tolist() if wiring.writers[w].kind == "head"}
    read = {(int(reach.component[r]), t) for _, r, t in result.edges.tolist() if reach.moves[r]}
    sources = {}
    for writer, dest in sorted(kept):
        who = wiring.writers[writer]
        weights = run.attention_run(who.layer).weights([who.head or 0], [dest])[0, 0].tolist()
        taken = [s for s in range(dest + 1) if (writer, s) in read and reach.looks[writer, dest, s]]
        taken = taken or [int(np.argmax(weights[: dest + 1]))]  # only its query is kept: where it looks most
        sources[writer, dest] = {s: weights[s] for s in taken}
    return sources
