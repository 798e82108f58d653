"""An answer of several tokens: its seeds account for all of its log-probability, and every measure of it is a sum."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from playwright.sync_api import expect

import keyhole
from alike import assert_alike
from commands import keyhole as keyhole_command
from conftest import prompts_of, tiny_model
from keyhole import Circuit, Continuation, KeyholeError, Model, Run, Untraced
from keyhole.circuits.exports import signal_rows
from keyhole.circuits.files import from_json
from keyhole.circuits.records import Writer
from keyhole.circuits.text import answer_label, circuit_text
from keyhole.faithfulness.baseline import baseline
from keyhole.faithfulness.effects import edge_of
from keyhole.faithfulness.shares import question
from keyhole.intervene import Metric, edge_cut, intervene
from keyhole.intervene.cuts import metric_of
from keyhole.models.tokens import token_label
from keyhole.tracing.seeds import Likely, loss_of, prob_goals, state_of
from keyhole.tracing.trace import trace, trace_many
from keyhole.tracing.upstream import Writes
from pages import chromium
from tiny import Sizes

PROMPT = "When Mary and John went to the store, John gave a drink to"
VARIANTS = ["gpt2", "llama-bias", "gemma2", "olmo2", "gpt_oss", "mixtral", "llama4_text", "lfm2", "gptj", "cohere"]


def likely_pair(model: Model) -> tuple[Run, tuple[int, int]]:
    """A run, and the two tokens that the model would go on with."""
    (ids,) = prompts_of(model, 9)
    run = model.run(ids)
    first = int(run.logits[-1].argmax())
    return run, (first, int(model.run([*ids, first]).logits[-1].argmax()))


def seeds_of(circuit: Circuit) -> list[tuple[Writer, float, float]]:
    into = [edge for edge in circuit.edges if edge.side == "target"]
    return [(circuit.nodes[edge.sender].writer, edge.weight, edge.alone) for edge in into]


def objective(writes: Writes, answers: Sequence[Likely], removed: Sequence[Writer]) -> tuple[float, float, float]:
    """The total log-probability: of the run, without these writers, and with nothing written at all."""
    loss, z = loss_of(writes, answers)
    states = []
    for answer in answers:
        here = [writer for writer in removed if writer.dest == answer.end]
        gone = writes.written([answer.run] * len(here), here).sum(0) / writes.runs[answer.run].final_scale[answer.end]
        states.append(state_of(writes, answer.run, answer.end) - gone)
    left = torch.stack(states) @ loss.out.W_U
    return float(loss.of(z).sum()), float(loss.of(left).sum()), float(loss.of(torch.zeros_like(z)).sum())


# -- seeds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_seeds_account_for_the_total_log_probability(variant: str) -> None:
    """Without its seeds an answer of two tokens loses the share that is asked for of what it gained, as one does."""
    model = tiny_model(variant, Sizes(seed=3))
    run, pair = likely_pair(model)
    circuit = run.trace(Continuation(pair), through="heads")
    whole = circuit.run
    assert whole is not None and whole.token_ids == (*run.token_ids, pair[0])
    writes, end = Writes([whole]), len(run) - 1
    answers = [Likely(0, end, pair[:1]), Likely(0, end + 1, pair[1:])]
    seeds = seeds_of(circuit)
    told, left, nothing = objective(writes, answers, [writer for writer, _, _ in seeds])
    assert told == pytest.approx(metric_of(circuit).of(whole.logits[[end, end + 1]]), abs=1e-3)
    assert told - left >= 0.8 * (told - nothing) * (1 - 1e-4)
    assert {writer.dest for writer, _, _ in seeds} == {end, end + 1}


@pytest.mark.parametrize("variant", VARIANTS)
def test_attributions_add_up_to_the_total_log_probability(variant: str) -> None:
    """All writers at both tokens: their attributions are what the answer gained, but for the steps of the path."""
    model = tiny_model(variant, Sizes(seed=3))
    run, pair = likely_pair(model)
    writes = Writes([model.run([*run.token_ids, pair[0]])])
    answers = [Likely(0, len(run) - 1, pair[:1]), Likely(0, len(run), pair[1:])]
    told, _, nothing = objective(writes, answers, [])
    streams = [writes.runs[0].final_resid[answer.end].double() for answer in answers]
    goals = [goal() for goal in prob_goals(writes, answers)]
    pushed = sum(float(goal.along.double() @ stream) for goal, stream in zip(goals, streams, strict=True))
    assert pushed == pytest.approx(told - nothing, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("metric", ["prob", "linear"])
def test_the_seeds_of_two_tokens_are_those_of_each(variant: str, metric: Any) -> None:
    model = tiny_model(variant, Sizes(seed=3))
    run, (first, second) = likely_pair(model)
    both = seeds_of(run.trace(Continuation((first, second)), metric=metric, through="heads"))
    one = seeds_of(run.trace(first, metric=metric, through="heads"))
    other = seeds_of(model.run([*run.token_ids, first]).trace(second, metric=metric, through="heads"))
    assert [writer for writer, _, _ in both] == [writer for writer, _, _ in (*one, *other)]
    numbers = [number for _, *numbers in (*one, *other) for number in numbers]
    assert [number for _, *numbers in both for number in numbers] == pytest.approx(numbers, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_influence_is_conserved(variant: str) -> None:
    """All of an answer of two tokens ends somewhere, and each token has the share of its own attributions."""
    run, pair = likely_pair(tiny_model(variant, Sizes(seed=3)))
    circuit = run.trace(Continuation(pair))
    ended = [share for share, leaf in zip(circuit.influence, circuit.leaves, strict=True) if leaf is not None]
    assert sum(ended) == pytest.approx(1.0, abs=1e-5)
    into = [edge for edge in circuit.edges if edge.side == "target"]
    total = sum(edge.weight for edge in into)
    assert [edge.influence for edge in into] == pytest.approx([edge.weight / total for edge in into], abs=1e-6)
    assert from_json(circuit.to_json()) == circuit


@pytest.fixture(scope="module")
def run(organism: Model) -> Run:
    return organism.run(PROMPT)


@pytest.fixture(scope="module")
def circuit(run: Run) -> Circuit:
    return run.trace("Mary .")


def test_a_text_is_followed_token_by_token(run: Run, circuit: Circuit, organism: Model) -> None:
    told = circuit.parameters
    assert told.continuation and [text.strip() for text in told.target_text] == ["Mary", "."]
    assert circuit.tokens == (*run.tokens, "Mary") and told.end == len(run)
    assert told.predicted == ((len(run) - 1, told.target_ids[:1]), (len(run), told.target_ids[1:]))
    assert circuit.run is not None
    each = [float(circuit.run.logits[end].double().softmax(-1)[ids[0]]) for end, ids in told.predicted]
    assert told.target_probability == pytest.approx(each) and told.likely == pytest.approx(each[0] * each[1])
    text = circuit_text(circuit)
    assert "answer at 14:to and 15:Mary: 'Mary' + '.' (probability 1)" in text
    assert answer_label(circuit) == ": 'Mary' + '.' (probability 1)"
    # a prompt that goes on with the answer needs no further pass
    longer = organism.run(f"{PROMPT} Mary . Then")
    there = longer.trace("Mary .", end=len(run) - 1)
    assert there.run is longer and there.parameters == circuit.parameters
    assert [writer for writer, _, _ in seeds_of(there)] == [writer for writer, _, _ in seeds_of(circuit)]


def test_one_token_is_as_it_was(run: Run) -> None:
    """A text of one token, a continuation of one token and an id are the same circuit, and files say nothing new."""
    one = run.trace("Mary")
    assert one == run.trace(Continuation(one.parameters.target_ids)) == run.trace(one.parameters.target_ids[0])
    assert not one.parameters.continuation and "continuation" not in one.parameters.record()


def test_many_runs_have_answers_of_their_own_lengths(organism: Model, run: Run, circuit: Circuit) -> None:
    others = [run, run, organism.run("Mary and John went to the store. John gave a drink to")]
    found = trace_many(others, ["Mary .", "Mary", ["Mary .", "John"]])
    assert [writer for writer, _, _ in seeds_of(found[0])] == [writer for writer, _, _ in seeds_of(circuit)]
    assert found[0].parameters.record() == pytest.approx(circuit.parameters.record())
    assert found[1].parameters.target_text == ("Mary",) and not found[1].parameters.continuation
    assert "several answers together are one token each" in str(found[2].error)
    rows = found.to_dataframe()
    assert rows["answer"][0] == "Mary ." and rows["probability"][0] == pytest.approx(circuit.parameters.likely)


# -- against another answer ----------------------------------------------------------------------------------


def test_against_another_answer_one_circuit_reaches_the_first_difference(run: Run, organism: Model) -> None:
    apart = run.trace("Mary .", against="John .")
    assert apart == run.trace("Mary", against="John")
    alike = run.trace("Mary .", against="Mary and")
    assert alike == organism.run(f"{PROMPT} Mary").trace(".", against="and")
    assert run.trace("Mary", against="John .") == apart
    assert run.trace("Mary .", against="John", method="svt") == run.trace("Mary", against="John", method="svt")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target": "Mary .", "method": "svt"}, "svt begins with one token, and this answer is several"),
        ({"target": ["Mary .", "John"]}, "several answers together are one token each"),
        ({"target": "Mary .", "against": ["John", "Albert"]}, "held against one other answer"),
        ({"target": ["Mary", "Albert"], "against": "John ."}, "held against one other answer"),
        ({"target": "Mary .", "against": "Mary"}, "no token in which they differ"),
        ({"target": "Mary .", "against": "Mary ."}, "no token in which they differ"),
        ({"target": "Mary to"}, "gives 'to' .* no more probability"),
        ({"target": "Mary xyzzy"}, "does not know 'xyzzy'"),
        ({"target": Continuation([2, 10**6])}, "outside the vocabulary"),
    ],
)
def test_what_cannot_be_traced_is_refused(run: Run, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(KeyholeError, match=reason):
        trace(run, **options)


def test_one_answer_alone_is_asked_elsewhere(run: Run) -> None:
    with pytest.raises(KeyholeError, match="has none"):
        Continuation([])
    with pytest.raises(KeyholeError, match="give one token"):
        run.sufficient(Continuation(run.token_ids[1:3]))
    with pytest.raises(KeyholeError, match="not one token"):
        run.sufficient("Mary .")


def test_two_answers_stand_side_by_side(run: Run, organism: Model) -> None:
    """Each traced in its own run, the difference of their totals, and one circuit of the tokens where they part."""
    both = run.trace_both("Mary .", "Mary and", through="heads")
    assert_alike(both.target.circuit, run.trace("Mary .", through="heads"))  # type: ignore[arg-type]
    assert isinstance(both.against.circuit, Untraced) and "no more probability" in str(both.against.circuit.error)
    assert both.apart == run.trace("Mary .", against="Mary and", through="heads")
    longer = organism.run(f"{PROMPT} Mary")
    first, last = (one.logits[-1].double().log_softmax(-1) for one in (run, longer))
    ids = both.target.ids, both.against.ids
    totals = [float(first[pair[0]] + last[pair[1]]) for pair in ids]
    assert [both.target.total, both.against.total] == pytest.approx(totals, abs=1e-5)
    assert both.difference == pytest.approx(totals[0] - totals[1], abs=1e-5)
    assert run.trace_both(Continuation(ids[0]), Continuation(ids[1]), through="heads").target == both.target
    assert "a difference of" in str(both) and "is not traced" in str(both)
    assert both.record()["against"]["total"] == both.against.total
    assert run.trace_both("Mary", "John", end=len(run) - 1).apart == run.trace("Mary", against="John")
    with pytest.raises(KeyholeError, match="one of these is several"):
        run.trace_both(["Mary", "Albert"], "John .")
    with pytest.raises(KeyholeError, match="leave out svt"):
        run.trace_both("Mary .", "John .", method="svt")


def test_the_command_line_takes_texts_of_several_tokens(tmp_path: Any) -> None:
    out = tmp_path / "mary.json"
    found = keyhole_command(
        "trace", PROMPT, "--target", "Mary .", "--depth", "1", "--no-faithfulness", "--out", str(out)
    )
    assert "answer at 14:to and 15:Mary: 'Mary' + '.' (probability 1)" in found.stdout
    assert "likeliest next tokens: 'Mary' 1" in found.stdout
    assert Circuit.load(out).parameters.continuation
    beside = keyhole_command("trace", PROMPT, "--target", "Mary .", "--against", "Mary and", "--no-faithfulness")
    assert "answer at 15:Mary: '.' (probability 1) against 'and'" in beside.stdout
    assert "a difference of +17.85" in " ".join(beside.stdout.split())


# -- what is measured ----------------------------------------------------------------------------------------


def test_a_metric_of_a_continuation_is_the_sum_of_its_tokens(run: Run, circuit: Circuit) -> None:
    metric, told, whole = metric_of(circuit), circuit.parameters, circuit.run
    assert whole is not None and metric.at == [end for end, _ in told.predicted]
    each = [Metric(end, ids) for end, ids in told.predicted]
    assert metric.of(whole.logits[metric.at]) == pytest.approx(sum(one.of(whole.logits[one.at]) for one in each))
    assert metric.rank(whole.logits[metric.at]) == max(one.rank(whole.logits[one.at]) for one in each)


def test_removals_change_the_sum(circuit: Circuit) -> None:
    """Each signal removed: the answer is that of its two tokens, each measured by itself."""
    whole, told = circuit.run, circuit.parameters
    assert whole is not None
    cuts = [edge_cut(circuit, edge) for edge in circuit.edges if edge.side in ("dest", "src")][:6]
    both = intervene(whole, cuts, metric_of(circuit), mode="global")
    each = [intervene(whole, cuts, Metric(end, ids), mode="global") for end, ids in told.predicted]
    sums = [sum(pair) for pair in zip(*([one.metric_after for one in outcomes] for outcomes in each), strict=True)]
    assert [outcome.metric_after for outcome in both] == pytest.approx(sums, abs=1e-5)


@pytest.mark.parametrize("mode", ["exact", "chain", "global"])
def test_verification_sees_all_tokens(circuit: Circuit, mode: Any) -> None:
    verified = circuit.verify(mode=mode, draws=1)
    assert all(row.agrees is not False for row in verified.rows)
    told = circuit.run.logits  # type: ignore[union-attr]
    before = metric_of(circuit).of(told[metric_of(circuit).at])
    assert [row.metric_before for row in verified.rows] == pytest.approx([before] * len(verified.rows), abs=1e-6)


def test_effects_are_of_all_tokens(run: Run, circuit: Circuit) -> None:
    """The gap, the effects of edges and the shares are of the sum: each token's own pass gives its part of it."""
    whole, told = circuit.run, circuit.parameters
    assert whole is not None
    measured = circuit.effects(like="resting").measured
    assert measured is not None
    stand_in = baseline(whole, like="resting")
    both, last = question(whole, metric_of(circuit), stand_in), question(whole, Metric(*told.predicted[1]), stand_in)
    first = question(run, Metric(*told.predicted[0]), replace(stand_in, writes=stand_in.writes[:, : len(run)]))
    assert both.ends == pytest.approx([a + b for a, b in zip(first.ends, last.ends, strict=True)], abs=1e-4)
    assert (measured.everything, measured.nothing) == pytest.approx(both.ends)
    assert measured.completeness == pytest.approx(1.0, abs=0.06)
    shares = both.shares.values
    into = [i for i, edge in enumerate(circuit.edges) if edge.side == "target" and measured.edge_shares[i] is not None]
    assert {circuit.nodes[circuit.edges[i].sender].dest for i in into} == {len(run) - 1, len(run)}
    assert shares[:, -1, : len(run) - 1].any() == False and shares[:, -1, len(run) - 1].any()  # noqa: E712
    found = measured.faithfulness
    assert found is not None and found.edges < found.of


def test_edges_into_the_answer_end_where_they_are_written(circuit: Circuit) -> None:
    assert circuit.run is not None
    posed = question(circuit.run, metric_of(circuit), baseline(circuit.run, like="resting"))
    for edge in circuit.edges:
        joint = edge_of(circuit, edge, posed.masked.wiring)
        if edge.side == "target" and joint is not None:
            assert joint[2] == circuit.nodes[edge.sender].dest and posed.shares.values[joint] != 0


def test_a_story_is_of_the_whole_answer(circuit: Circuit) -> None:
    story = circuit.story(like="resting")
    text = str(story)
    assert "answer at 14:to and 15:Mary: 'Mary' + '.'" in text
    assert story.answer == pytest.approx(metric_of(circuit).of(circuit.run.logits[[14, 15]]))  # type: ignore[union-attr]
    ends = {step.dest for path in story.paths for step in path.steps}
    assert {14, 15} <= ends


# -- files ---------------------------------------------------------------------------------------------------


def test_files_have_continuations_and_damaged_ones_are_refused(circuit: Circuit, organism: Model) -> None:
    document = json.loads(circuit.to_json())
    again = from_json(json.dumps(document))
    assert again == circuit and again.parameters.continuation
    assert len(again.verify(organism, draws=1, edges=[0]).rows if again.edges[0].channels else [1]) == 1

    def changed(**parameters: Any) -> str:
        return json.dumps({**document, "parameters": {**document["parameters"], **parameters}})

    for reason, text in [
        ("tokens but the last do not end its prompt", changed(target_ids=document["parameters"]["target_ids"][::-1])),
        ("its method does not trace", changed(against_ids=[3], against_text=["a"], against_probability=[0.1])),
        ("writes at token 14", changed(continuation=False)),
        ("from schema 4 on", json.dumps({**{k: v for k, v in document.items() if k != "sizes"}, "schema": 3})),
    ]:
        with pytest.raises(KeyholeError, match=reason):
            from_json(text)


def test_neuronpedia_has_no_place_for_it(circuit: Circuit, tmp_path: Any) -> None:
    with pytest.raises(KeyholeError, match="answers of one token"):
        circuit.save(tmp_path / "mary.neuronpedia.json")
    for name in ("mary.html", "mary.svg", "mary.graphml", "mary.mib", "mary.json"):
        circuit.save(tmp_path / name)
    assert keyhole.Circuit.load(tmp_path / "mary.json") == circuit


def test_a_comparison_says_that_answers_are_of_other_lengths(run: Run, circuit: Circuit) -> None:
    one, said = run.trace("Mary"), "is several tokens, traced together"
    assert said in str(keyhole.compare(circuit, one)) and said not in str(keyhole.compare(circuit, circuit))


def test_tables_and_pages_name_the_whole_answer(circuit: Circuit, tmp_path: Any) -> None:
    seeds = [row for row in signal_rows(circuit) if row["side"] == "target"]
    for row in seeds:
        assert row["causes"] == f"answer at {token_label(circuit.tokens, circuit.nodes[row['source']].dest)}"
    path = tmp_path / "mary.html"
    circuit.save(path)
    with chromium() as browser:
        page = browser.new_page()
        page.goto(path.as_uri())
        expect(page.locator("h1")).to_contain_text("Mary + .")
        expect(page.locator("body")).to_contain_text("probability 1 ")
