"""Backups: removals in pairs are what masks say, planted ones are found, and softmax hands on what was predicted."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_model
from keyhole import KeyholeError, Model, Run
from keyhole.brief import Head
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Component, Signal, Writer
from keyhole.cli.app import app
from keyhole.faithfulness.backup_record import Backups, handed_on, handovers, predicted_row
from keyhole.faithfulness.backups import JOINT, LEAST, Lab, PairSettings, backups
from keyhole.faithfulness.baseline import Baseline
from keyhole.faithfulness.masked import Masked
from keyhole.faithfulness.shares import MaskedQuestion
from keyhole.faithfulness.token_masks import all_but
from keyhole.intervene.removal import Cut, Metric, intervene
from keyhole.lab.known import Known, build, compare
from test_known import WHOLE, agreements
from test_token_masks import TAKEN, all_edges, at_a_mean

FIRST, SUBSTITUTE = (2, 0), (3, 0)  # of the known machine: `induction`, and the head that stands in for it
CUES, NOUNS = ("big", "red", "old"), ("cat", "dog", "sun")
LIKE = [
    f"{topic} : {c[0]} {n[0]} , {c[1]} {n[1]} , {c[2]} {n[2]} . {c[1]}"
    for topic in ("French", "German")
    for c in itertools.permutations(CUES)
    for n in itertools.permutations(NOUNS)
]


def traced(known: Known) -> Circuit:
    return known.model.run(known.prompt).trace(known.answer, against=known.against, through="mlps")


@pytest.fixture(scope="module")
def planted() -> Circuit:
    return traced(build(backup=True))


@pytest.fixture(scope="module")
def plain() -> Circuit:
    return traced(build())


def grown(result: Backups) -> dict[tuple[Head, Head], str | None]:
    return {(pair.first, pair.second): pair.kind for pair in result.pairs}


# -- the same as masks -------------------------------------------------------------------------------------------------


def lab_of(variant: str) -> tuple[Lab, Masked]:
    runs, made = at_a_mean(variant)
    run = runs[0]
    assert made.baseline is not None
    one = replace(made, words=made.words[:1])
    return Lab(MaskedQuestion(run, Metric(len(run) - 1, (5,), (7,)), Baseline("mean", "", made.baseline), one)), one


def out_of_heads(made: Masked, heads: list[Head]) -> np.ndarray:
    edges = all_edges(made)
    return edges[np.isin(edges[:, 0], [made.wiring.writer_number(Component("head", *head)) for head in heads])]


@pytest.mark.parametrize("variant", TAKEN)
def test_pairs_are_what_masks_say(variant: str) -> None:
    """Without one head, two of a layer, two of different layers: the model's own pass and the pass with masks agree."""
    lab, made = lab_of(variant)
    sets: list[list[Head]] = [[(0, 1)], [(1, 0), (1, 2)], [(0, 1), (2, 0)]]
    answers = lab.answers([lab.without(heads) for heads in sets])
    expected = lab.question.answers([all_but(out_of_heads(made, heads)) for heads in sets])
    assert np.allclose(answers, expected, atol=1e-6)
    assert abs(expected - lab.question.ends[0]).min() > 1e-4  # something was removed


@pytest.mark.parametrize("variant", ["gpt2", "llama", "gemma2"])
def test_reactions_are_what_masks_say(variant: str) -> None:
    """A head held at what it wrote in the prompt is a removed one whose baseline that is."""
    lab, made = lab_of(variant)
    first, second = (0, 1), (2, 0)
    number = made.wiring.writer_number(Component("head", *second))
    assert made.baseline is not None
    base = made.baseline.clone()
    base[number] = lab.written[number]
    held = replace(lab.question, masked=replace(made, baseline=base))
    expected = held.answers([all_but(out_of_heads(made, [first, second]))])
    assert np.allclose(lab.answers([lab.without([first], [second])]), expected, atol=1e-6)
    [alone] = lab.answers([lab.without([], [second])])
    assert abs(alone - lab.question.ends[0]) < 1e-6  # as in the prompt


# -- the softmax -------------------------------------------------------------------------------------------------------


def test_weights_after_scores_fall() -> None:
    """The softmax of lower scores, from weights alone; masked keys stay masked, and a sink keeps its score."""
    generator = torch.Generator().manual_seed(0)
    scores, lost = torch.randn(2, 5, 7, generator=generator).double()
    scores[:, 5:] = -torch.inf
    lost[0] = 900.0  # all of them, by much: nothing changes
    found = handed_on(scores.softmax(-1), lost)
    assert torch.allclose(found, (scores - lost).softmax(-1))
    assert torch.allclose(found[0], scores[0].softmax(-1)) and not found[:, 5:].any()
    sink = torch.full((5, 1), 0.3).double()
    both = torch.cat([scores, sink], 1).softmax(-1)
    lost[0] = -900.0
    expected = torch.cat([scores - lost, sink], 1).softmax(-1)
    assert torch.allclose(handed_on(both[:, :-1], lost, sink=True), expected[:, :-1])


@pytest.mark.parametrize("variant", TAKEN)
def test_softmax_hands_on_what_was_predicted(variant: str) -> None:
    """RoPE, softcaps, windows and sinks inside: measured weights of all keys are the predicted ones."""
    model = tiny_model(variant)
    run = model.run([3, 14, 15, 9, 26, 5, 35, 8, 9, 7], bos=False)
    signal = Signal(Writer("embedding", 0, None, 8, 8), "src", (0, 1, 2))
    cut = Cut(1, 0, dest=9, src=8, signals=(signal,))
    [outcome] = intervene(run, [cut], Metric(9, (5,), (7,)), mode="local", keep=True)
    row, before = predicted_row(run, cut), run.attention_run(1).weights([0], [9])[0, 0].double()
    assert outcome.row is not None
    assert (outcome.row.double() - row).abs().max() < 1e-5 < 1e-4 < (row - before).abs().max()


def test_firings_hand_on_to_other_keys(planted: Circuit) -> None:
    """`induction` without what its keys hold looks at no token more than at others: the rest is shared out."""
    assert planted.run is not None
    found = {row.head: row for row in handovers(planted, planted.run, Metric(12, (5,), (7,)))}
    row = found[FIRST]
    assert row.before > 0.99 and row.after < 0.2 and row.error < 1e-6
    assert row.gained == pytest.approx(row.predicted, abs=1e-6) and 0.05 < row.gained < 0.2 and row.key != row.src
    assert not handovers(planted, planted.run, Metric(12, (5,), (7,)), heads=[(0, 0)])


# -- machines with known answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 2])
def test_the_planted_machine_works_as_the_plain_one(seed: int | None) -> None:
    known = build(backup=True, seed=seed)
    run = known.model.run(known.prompt)
    assert agreements(known, run, against=known.against, through="mlps") == WHOLE
    assert compare(traced(known), known.truth).nodes.both == 9


@pytest.mark.parametrize("like", ["words", "resting"])
def test_the_planted_backup_is_found(planted: Circuit, like: str) -> None:
    """That one alone, and it wakes; its own removal, and that of the first head, look harmless."""
    result = backups(planted, like=like)  # type: ignore[arg-type]
    assert grown(result) == {(FIRST, SUBSTITUTE): "wakes"}
    [pair] = result.pairs
    gap = result.everything - result.nothing
    [row] = [row for row in result.heads if row.head == FIRST]
    assert abs(pair.alone) < 0.1 * gap and abs(row.effect) < 0.1 * gap
    assert pair.after > 0.9 * gap and pair.reaction == pytest.approx(pair.growth, abs=0.1 * gap)
    assert row.joint is not None and row.joint > 0.9 * gap
    assert len(row.random) == JOINT and np.mean(row.random) < 0.2 * gap
    assert row.joint == pytest.approx(row.effect + pair.after) and row.expected == pytest.approx(
        row.effect + pair.alone
    )


def test_the_planted_backup_is_by_far_the_largest(planted: Circuit) -> None:
    """At the mean of prompts like it, where little is left of `previous`: `induction` and its backup share that."""
    result = backups(planted, like=LIKE)
    first, *others = result.pairs
    assert (first.first, first.second, first.kind) == (FIRST, SUBSTITUTE, "wakes")
    assert {pair.first for pair in others} <= {(1, 0)} and all(pair.growth < first.growth / 4 for pair in others)


@pytest.mark.parametrize("like", [LIKE, "words", "resting"])
@pytest.mark.parametrize("seed", [None, 2])
def test_no_backups_where_there_are_none(like: object, seed: int | None) -> None:
    """Two heads that are both needed are no backups of each other: without one, the other has nothing to do."""
    result = backups(traced(build(seed=seed)), like=like)  # type: ignore[arg-type]
    assert not result.pairs and result.verdict.startswith("No backups")
    both = [pair for row in result.heads for pair in row.pairs if {pair.first, pair.second} == {(2, 0), (2, 1)}]
    assert both and all(pair.growth < -10 for pair in both)
    assert result.bar >= LEAST * (result.everything - result.nothing)


def test_first_heads_are_those_named(planted: Circuit) -> None:
    """With every head from their layer on."""
    result = backups(planted, like=LIKE, settings=PairSettings(named=(FIRST,), draws=20))
    assert [row.head for row in result.heads] == [FIRST]
    seconds = [pair.second for pair in result.heads[0].pairs]
    assert sorted(seconds) == [(2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]


def test_random_pairs_set_the_bar(file: Path, organism: Model) -> None:
    """Their first heads are outside the circuit, and no growth below theirs counts."""
    circuit = Circuit.load(file)
    result = backups(circuit, organism, settings=PairSettings(first=3, draws=60))
    assert len(result.random) == 60
    assert not {pair.first for pair in result.random} & {(node.layer, node.head) for node in circuit.heads}
    largest = max(abs(pair.growth) for pair in result.random)
    assert result.bar == largest > LEAST * (result.everything - result.nothing)
    grown = [pair for row in result.heads for pair in row.pairs if pair.kind]
    assert grown == [pair for row in result.heads for pair in row.pairs if pair.growth > largest]


def test_what_is_stopped_shows_what_is_finished(planted: Circuit) -> None:
    calls = 0

    def stop(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if done > 0.8 * total:
            raise KeyboardInterrupt

    result = backups(planted, like="resting", progress=stop)
    assert calls and result.stopped is not None and len(result.heads) < 3
    assert result.stopped.of == 3 and "stopped" in result.summary


def test_what_cannot_be_removed_is_refused(planted: Circuit, plain: Circuit) -> None:
    with pytest.raises(KeyholeError, match=r"head 0\.2 is not in the circuit"):
        backups(planted, settings=PairSettings(named=((0, 2),)))
    assert isinstance(plain.run, Run)
    with pytest.raises(KeyholeError, match="model"):
        backups(planted, plain.run.model)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import keyhole

    path = tmp_path_factory.mktemp("circuits") / "mary.json"
    run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    run.trace("Mary", against="John").save(path)
    return path


def test_the_command(file: Path, tmp_path: Path) -> None:
    page, rows = tmp_path / "backups.html", tmp_path / "backups.csv"
    args = ["backups", str(file), "--first", "2", "--draws", "20", "--out", str(page), "--out", str(rows)]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    assert "growth" in result.output and "Softmax" in result.output
    text = page.read_text()
    assert "Pairs of heads" in text and "What the softmax hands on" in text
    assert "A_j exp(-d_j) / (sum_k A_k exp(-d_k) + s)" in " ".join(text.split())  # as `handed_on` computes it
    assert len(rows.read_text().splitlines()) > 40
    record = json.loads(CliRunner().invoke(app, [*args[:6], "--json"]).stdout)
    assert len(record["heads"]) == 2 and len(record["random_growth"]) == 20
    assert record["verdict"] in " ".join(result.output.split())  # lines break where the terminal ends


def test_verify_removes_heads_with_their_backups(file: Path) -> None:
    args = ["verify", str(file), "--sides-only", "--draws", "0"]
    result = CliRunner().invoke(app, [*args, "--backups"])
    assert result.exit_code == 0, result.output
    assert "joint effect" in result.output and "Backups: what does the answer lose" in result.output
    record = json.loads(CliRunner().invoke(app, [*args, "--backups", "--json"]).stdout)
    joint = [head for head in record["backups"]["heads"] if head["joint"] is not None]
    assert joint and all(len(head["random"]) == JOINT for head in joint)
    assert "backups" not in json.loads(CliRunner().invoke(app, [*args, "--json"]).stdout)
