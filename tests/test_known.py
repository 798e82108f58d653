"""A machine whose circuit is known: tracing finds it, all of it and nothing else, and interventions agree."""

from dataclasses import replace

import pytest
import torch

from keyhole import KeyholeError, Run
from keyhole.circuits.records import Writer
from keyhole.intervene import Metric, answers_without
from keyhole.lab.known import Known, build, compare
from keyhole.lab.known_machine import BALLAST, HEADS, Stream
from keyhole.models.tokens import token_id
from keyhole.studies.comparison.score import Score
from keyhole.tracing.exactness import check
from keyhole.tracing.writers import written_by

PROMPTS = [
    *[
        f"{topic} : big cat , red dog , old sun . {cue}"
        for topic in ("French", "Berlin")
        for cue in ("big", "red", "old")
    ],
    *[f"{topic} : new sun , old dog . {cue}" for topic in ("Paris", "German") for cue in ("new", "old")],
    "big cat , red dog . Paris : big",  # the language stands last
    "old cat , new cat German , red dog : new",  # the same word twice
    "dog sun Paris cat dog",  # a noun asks
    "Berlin : new sun new",
    "red dog , big cat , old sun , new dog , French : big cat . new",  # what follows is said twice
]
WHOLE = Score(found=9, there=9, both=9), Score(found=13, there=13, both=13)


def agreements(known: Known, run: Run, **options: object) -> tuple[Score, Score]:
    found = compare(run.trace(known.answer, **options), known.truth)
    return found.nodes, found.edges


@pytest.fixture(scope="module")
def known() -> Known:
    return build()


@pytest.fixture(scope="module")
def turned() -> Known:
    return build(seed=2)


@pytest.fixture(scope="module")
def run(known: Known) -> Run:
    return known.model.run(known.prompt)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_tracing_finds_the_circuit(known: Known, prompt: str) -> None:
    """Every node and every edge with its side, and no other, with default settings."""
    known = known.ask(prompt)
    run = known.model.run(prompt)
    assert run.logits[-1].softmax(-1)[token_id(known.model, known.answer)] > 0.99
    assert agreements(known, run, against=known.against, through="mlps") == WHOLE


@pytest.mark.parametrize("prompt", PROMPTS[-4:-1])
def test_no_axis_is_needed(turned: Known, prompt: str) -> None:
    """Turned at random, nothing is exactly zero: what others do is rounding, and is left out."""
    known = turned.ask(prompt)
    run = known.model.run(prompt)
    assert agreements(known, run, against=known.against, through="mlps") == WHOLE
    assert agreements(known, run, through="mlps") == WHOLE  # from the answer's probability


def test_influence_is_what_the_construction_says(known: Known, run: Run) -> None:
    """Half of an AND to each operand, half of a head to what it moves, a quarter to each of its sides."""
    circuit = run.trace(known.answer, against=known.against, through="mlps")
    told = dict(zip(circuit.nodes, circuit.influence, strict=True))
    words = {run.tokens[n.dest] + str(n.dest): told[n] for n in told if n.kind == "embedding"}
    expected = {"French1": 3 / 8, "red6": 3 / 32, "dog7": 9 / 32, "red12": 1 / 4}
    assert words == pytest.approx(expected, abs=1e-3)
    assert sorted(told[n] for n in circuit.heads) == pytest.approx([1 / 8, 1 / 2, 1 / 2], abs=1e-3)


def test_heads_alone_stop_at_the_first_mlp(known: Known, run: Run) -> None:
    nodes, edges = agreements(known, run, against=known.against, through="heads")
    assert (nodes, edges) == (Score(1, 9, 1), Score(1, 13, 1))
    assert nodes.precision == 1 and nodes.recall == 1 / 9


def test_a_comparison_counts_what_is_missing_and_what_is_too_much(known: Known, run: Run) -> None:
    circuit = run.trace(known.answer, against=known.against, through="mlps")
    truth = known.truth
    gone = Writer("head", 1, 0, 7, 6)
    fewer = replace(truth, nodes=truth.nodes - {gone}, edges=frozenset(e for e in truth.edges if gone not in e))
    found = compare(circuit, fewer)
    assert (found.nodes, found.edges) == (Score(9, 8, 8), Score(13, 9, 9))
    assert found.nodes.precision == 8 / 9 and found.nodes.recall == 1
    other_side = frozenset((who, into, "src" if side == "dest" else side) for who, into, side in truth.edges)
    found = compare(circuit, replace(truth, edges=other_side))
    assert found.nodes.recall == 1 and found.edges.both == 10  # three dest edges are no src edges
    silent = replace(circuit, influence=(0.0,) * len(circuit.nodes))
    assert compare(silent, truth).nodes.precision == 0


def test_the_answer_needs_every_node_and_no_other(known: Known) -> None:
    known = known.ask("Berlin : new sun new")
    run = known.model.run(known.prompt)
    n, truth = len(run), known.truth
    metric = Metric(n - 1, *[(token_id(known.model, word),) for word in (known.answer, known.against)])
    # Without ballast the norm would blow up what is left of a token: the word and its place go, the ballast stays.
    blank = {w: BALLAST * Stream.make().ballast[0] for w in truth.nodes if w.kind == "embedding"}
    without = answers_without(run, [[node] for node in truth.nodes], metric, instead=blank)
    whole = metric.of(run.logits[-1])
    assert len(without) == 9 and max(map(abs, without)) < 0.01 * whole
    every = [
        Writer("head", layer, h, d, s)
        for layer in range(3)
        for h in range(HEADS)
        for d in range(n)
        for s in range(d + 1)
    ]
    every += [Writer("mlp", layer, None, t, t) for layer in range(3) for t in range(n)]
    others = [writer for writer in every if writer not in truth.nodes]
    assert truth.distractors < set(others)
    left = answers_without(run, [sorted(truth.distractors, key=str), others], metric)
    assert left == pytest.approx([whole, whole], rel=0.01)


def test_distractors_are_as_busy_as_the_circuit(known: Known, run: Run) -> None:
    """At the end, where the answer is made, every one of them writes as much, and its heads look as sharply."""
    end, wrote = len(run) - 1, dict[tuple[int, int | None], torch.Tensor]()
    for writer in known.truth.distractors | known.truth.nodes:
        if writer.dest == end and writer.kind != "embedding":
            place = (writer.layer, writer.head)
            wrote[place] = wrote.get(place, 0.0) + written_by(run, writer, [end])[0]
    norms = {place: float(vector.norm()) for place, vector in wrote.items()}
    distracting = [norms.pop(place) for place in [(0, 0), (1, 1), (2, 2), (1, None)]]
    assert set(norms) == {(2, 0), (2, 1), (2, None)}
    assert min(distracting) > 0.95 * max(norms.values()) > 0.9 and max(distracting) > 2.5
    assert float(run.attention_run(2).weights([2], [end])[0, 0, 7]) > 0.99  # where induction looks, too


def test_the_machine_is_read_exactly(known: Known) -> None:
    found = check(known.model, known.prompt)
    assert found.exact and found.mlps is not None and found.mlps < 1e-5


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("French : big house . big", "does not know 'house'"),
        ("big cat . big", "name one of French"),
        ("French German : big cat . big", "name one of French"),
        ("French : big cat . red", "let 'red', its end, stand once before"),
        ("French : big cat , big dog . big", "stand once before"),
        ("French : big . big", "'.' follows 'big'"),
        ("French : " + "red dog , " * 7 + "big cat . big", "counts to 24"),
    ],
)
def test_prompts_it_was_not_made_for_are_refused(known: Known, prompt: str, why: str) -> None:
    with pytest.raises(KeyholeError, match=why):
        known.ask(prompt)
