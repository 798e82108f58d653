"""Are true claims told from false ones, and is what a test says so? Planted claims first, then files and words."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keyhole
from commands import keyhole as command
from keyhole import KeyholeError, Model
from keyhole.claims import (
    ClaimResult,
    ClaimSettings,
    Exchange,
    Matches,
    Moves,
    Needs,
    Sender,
    TaskPrompts,
    UntestableError,
    claim_of,
    document_of,
    keep_claim,
    kept_claims,
    load_claim,
    load_result,
    save_claim,
)
from keyhole.claims.cases import Cases, cases_of, negatives_of, own_prompts, rewritten
from keyhole.claims.evidence import above, at_least, enough, half_on_negatives, more_than_random
from keyhole.claims.heads import channel_draws, signal
from keyhole.claims.measuring import (
    Change,
    Written,
    attention_predicted,
    attention_with,
    lost,
    lost_to_changes,
    lost_to_random,
    moved,
)
from keyhole.lab.claims import PlantedClaim, planted_claims
from keyhole.tasks import examples
from stores import stored

HOW = ClaimSettings(draws=19)
IOI = TaskPrompts("ioi", 14)
RECEIVER = Moves(claim="Head 1.6 moves the receiver to the end", prompts=IOI, head=(1, 6), src="IO", settings=HOW)
# Each kind of a claim, and each trap; the others are tried with the slow tests.
FIRST = (
    "the value of the token that is found",
    "channels of a match",
    "a signal on the side of keys",
    "an effect of the size of a write",
    "by chance on four prompts",
    "a circuit that lets any name through",
)


@pytest.fixture(scope="module")
def planted() -> tuple[PlantedClaim, ...]:
    return planted_claims(0, n=13, settings=ClaimSettings(draws=19, texts=4, others=4), only=FIRST)


@pytest.fixture(scope="module")
def passed(organism: Model) -> ClaimResult:
    return keyhole.claim(organism, RECEIVER, texts=4, others=4)


def test_true_claims_pass_and_false_ones_fail(planted: tuple[PlantedClaim, ...]) -> None:
    assert len(planted) == len(FIRST)
    for each in planted:
        result = keyhole.claim(each.model, each.claim)
        assert result.verdict == ("passes" if each.holds else "fails"), f"{each.trap}\n{result}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_every_planted_claim(seed: int) -> None:
    for each in planted_claims(seed):
        result = keyhole.claim(each.model, each.claim)
        assert result.verdict == ("passes" if each.holds else "fails"), f"{each.trap}\n{result}"


# What is measured is what is said.


@pytest.fixture(scope="module")
def cases(organism: Model) -> Cases:
    return cases_of(organism, "own", examples("ioi", organism, 5, 3))


def test_changes_are_the_edits(organism: Model, cases: Cases) -> None:
    """An edge, or a signal, taken away as a vector costs what its edit costs in the model's own pass."""
    written = Written((1, 6), "END", "IO")
    by_edit = lost(organism, cases.cases, lambda case: [written.edit(case)])
    vectors = [Change(i, case.at("END"), -written.vector(case)) for i, case in enumerate(cases)]
    assert np.allclose(lost_to_changes(organism, cases.cases, 1, vectors), by_edit, atol=1e-4)
    claim = Needs(
        claim="-", prompts=IOI, head=(1, 6), src="IO", channels=(5, 12), sender=Sender("mlp", 0), settings=HOW
    )
    by_edit = lost(organism, cases.cases, lambda case: [signal(claim, case)])
    rows = attention_predicted(cases.cases, (1, 6), "END", lambda case: [signal(claim, case)])
    changes = [
        Change(i, case.at("END"), moved(case, (1, 6), case.at("END"), row))
        for i, (case, row) in enumerate(zip(cases, rows, strict=True))
    ]
    assert np.abs(by_edit).min() > 0.1
    assert np.allclose(lost_to_changes(organism, cases.cases, 1, changes), by_edit, atol=1e-4)
    measured = attention_with(organism, cases.cases, (1, 6), "END", lambda case: [signal(claim, case)])
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(rows, measured, strict=True))


def test_random_directions_are_as_long_as_the_write(organism: Model, cases: Cases, monkeypatch: Any) -> None:
    seen: list[Change] = []
    monkeypatch.setattr(
        "keyhole.claims.measuring.lost_to_changes",
        lambda model, cases, layer, changes: np.zeros(len([seen.append(change) for change in changes])),
    )
    written = Written((1, 6), "END", "IO")
    writes = [written.vector(case) for case in cases]
    for instead in (False, True):
        seen.clear()
        assert lost_to_random(organism, cases.cases, written, 3, 0, instead=instead).shape == (3, len(cases))
        for change in seen:
            vector = change.vector + writes[change.case] if instead else change.vector
            assert math.isclose(float(vector.norm()), float(writes[change.case].norm()), rel_tol=1e-9)
            assert change.dest == cases.cases[change.case].at("END")


def test_channels_are_drawn_once(organism: Model) -> None:
    drawn = channel_draws(organism, (1, 6), (5,), 39, 0)
    assert len(drawn) == len(set(drawn)) == 15 and (5,) not in drawn
    drawn = channel_draws(organism, (1, 6), (5, 12), 39, 0)
    assert len(drawn) == len(set(drawn)) == 39 and not any({5, 12} & set(ks) for ks in drawn)
    with pytest.raises(UntestableError, match="too few"):
        channel_draws(organism, (1, 6), tuple(range(16)), 39, 0)
    with pytest.raises(KeyholeError, match="no channel 16"):
        channel_draws(organism, (1, 6), (16,), 39, 0)


# Evidence: what an interval leaves open is no pass.


def test_an_interval_that_reaches_the_bound_is_no_pass() -> None:
    sure, unsure = [0.5, 0.52, 0.48, 0.5], [0.1, 0.9, 0.2, 0.8]
    assert at_least("a", sure, 0.4, HOW).holds and not at_least("a", unsure, 0.4, HOW).holds
    assert not at_least("a", [0.9], 0.4, HOW).holds and not at_least("a", [], 0.4, HOW).holds
    assert above("a", sure, HOW).holds and not above("a", unsure[:2], HOW).holds
    wide, narrow = (at_least("a", sure, 0.4, replace(HOW, confidence=c)) for c in (0.999, 0.5))
    assert wide.low < narrow.low
    assert [enough(n, 20, HOW).holds for n in (11, 12)] == [False, True]


def test_random_controls_are_reached_by_few() -> None:
    effects = np.array([1.0, 1.1, 0.9, 1.0])
    rest = np.zeros((18, 4))
    rest[:] = np.linspace(0, 0.1, 4)
    assert more_than_random("a", effects, np.vstack([rest, rest[:2]]), HOW).holds
    two = more_than_random("a", effects, np.vstack([rest, np.full((2, 4), 1.2)]), HOW)
    assert not two.holds and "reached by 2 of 20, p = 0.14" in two.note


def test_negatives_have_less_than_half() -> None:
    effects, pairs = np.array([1.0, 1.1, 0.9, 1.0]), [0, 1, 2, 3]
    assert half_on_negatives(effects, np.full(4, 0.2), pairs, "a", HOW).holds
    assert not half_on_negatives(effects, np.full(4, 0.5), pairs, "a", HOW).holds
    assert half_on_negatives(effects, np.array([0.2, 0.1, 0.2]), [None] * 3, "a", HOW).holds
    assert not half_on_negatives(effects, np.array([0.2]), [None], "a", HOW).holds


# Prompts.


def test_rewrites_and_negatives_are_made(organism: Model) -> None:
    prompts = own_prompts(organism, RECEIVER)
    for rewrite in rewritten(organism, RECEIVER, prompts, 0):
        assert len(rewrite) >= 12 and not {case.example.text for case in rewrite} & {p.text for p in prompts}
    negatives = negatives_of(organism, RECEIVER, prompts)
    for case in negatives:
        own = prompts[case.number]
        assert case.example.word("IO") != own.word("IO") and case.example.word("S2") == own.word("S2")
        assert case.metric.targets == cases_of(organism, "", [own]).cases[0].metric.targets
    swapped = negatives_of(organism, replace(RECEIVER, negatives=Exchange("S2", by="IO")), prompts)
    assert len(swapped) == len(negatives) == len(prompts) and not any(case.right for case in swapped)
    assert all(case.example.word("S2") == prompts[case.number].word("IO") for case in swapped)


def test_given_prompts_get_the_words_of_others(organism: Model) -> None:
    prompts = tuple(examples("ioi", organism, 8, 1, wordings=[0], order="ABBA"))
    claim = replace(RECEIVER, prompts=prompts)
    (rewrite,) = rewritten(organism, claim, prompts, 0)
    assert len(rewrite) == 8 and all(case.example.word("IO") == case.example.answer for case in rewrite)
    result = keyhole.claim(organism, replace(claim, prompts=prompts[:1]))
    assert result.verdict == "cannot be tested" and not result.tests and "prompts" in result.summary


def test_what_cannot_be_tested_says_why(organism: Model, planted: tuple[PlantedClaim, ...]) -> None:
    wrong = tuple(
        replace(p, answer=p.against[0], answers=p.against, against=p.answers) for p in examples("ioi", organism, 12, 1)
    )
    result = keyhole.claim(organism, replace(RECEIVER, prompts=wrong))
    assert (result.verdict, "in 0 of 12 prompts" in result.reason) == ("cannot be tested", True)
    machine = planted[0]
    result = keyhole.claim(machine.model, replace(machine.claim, unrelated=()))
    assert result.verdict == "cannot be tested" and "as unrelated" in result.reason
    listens = Matches(claim="-", prompts=machine.claim.prompts, head=(2, 1), src="TOPIC", channels=(0,))
    listens = replace(listens, rewrites=machine.claim.rewrites, unrelated=machine.claim.unrelated)
    assert "too few to compare with" in keyhole.claim(machine.model, listens).reason


# Results.


def test_a_result_says_everything(passed: ClaimResult, tmp_path: Path) -> None:
    assert passed.passes and passed.failed == () and passed.summary == "Passes: 11 of 11 tests passed."
    text, page = str(passed), passed.to_html()
    for test in passed.tests:
        assert test.name in page and test.name.split()[0] in text
    assert passed.save(tmp_path / "r.html").read_text() == page
    record = json.loads(passed.save(tmp_path / "r.json").read_text())
    assert record["claim"]["settings"]["draws"] == 19 and len(record["tests"]) == 11
    assert passed.save(tmp_path / "r.csv").read_text().count("\n") == 12
    again = load_result(tmp_path / "r.json")
    assert str(again) == text and again.document == passed.document and again.prompts == passed.prompts
    record["tests"][0]["holds"] = False
    (tmp_path / "r.json").write_text(json.dumps(record))
    with pytest.raises(KeyholeError, match="does not follow from its tests"):
        load_result(tmp_path / "r.json")


def test_results_are_kept_beside_a_store(passed: ClaimResult, outcomes: Any, tmp_path: Path) -> None:
    store = stored(tmp_path / "store", outcomes)
    path = keep_claim(store, passed)
    assert path == keep_claim(tmp_path / "store", passed) and path.parent.name == "claims"
    (kept,) = kept_claims(tmp_path / "store")
    assert kept.claim == passed.claim and str(kept) == str(passed)
    assert not store.check().damaged
    with pytest.raises(KeyholeError, match="other weights"):
        keep_claim(store, replace(passed, model={"name": "other", "fingerprint": "0"}))


# Claims from what was found.


def test_claims_from_findings(organism: Model) -> None:
    example = examples("ioi", organism, 1, 2, wordings=[0], order="ABBA")[0]
    run = organism.run(example.text)
    circuit = run.trace(example.answer, against=example.wrong)
    claims = circuit.claims(example, most=6)
    assert claims[0].kind == "suffices" and {claim.kind for claim in claims} >= {"moves", "needs"}
    assert len({claim.says for claim in claims}) == len(claims) == 6
    for claim in claims:
        assert claim_of(json.loads(json.dumps(document_of(claim)))).says == claim.says
    edge = next(edge for edge in circuit.edges if edge.side == "src")
    assert edge.claim(example).kind == "needs"
    firing = run.explain(head=(1, 6), dest=-1, src=example.position(run, "IO")).claim(example)
    assert (firing.src, firing.dest, firing.kind) == ("IO", "END", "matches")
    with pytest.raises(KeyholeError, match="is no task of the catalogue"):
        edge.claim(replace(example, task="mine"))
    assert edge.claim(replace(example, task="mine"), prompts="ioi").prompts == TaskPrompts("ioi")


def test_a_claim_from_a_contrast(organism: Model) -> None:
    from keyhole.features.contrast import Contrast
    from keyhole.tasks import boxes

    contrast = Contrast.from_roles("box", boxes(60, 0, n_boxes=3), positive="BOX", negative="box_*")
    found = organism.contrast(contrast)
    head = next(head for head in found.heads if head.rank)
    claim = head.claim("BOX", prompts=TaskPrompts("boxes", 14), channels=3)
    assert claim.head == head.head and len(claim.channels) == 3


# Files.


def test_files_are_read_back(tmp_path: Path, planted: tuple[PlantedClaim, ...]) -> None:
    for each in planted:
        path = save_claim(each.claim, tmp_path / "claim.json")
        again = load_claim(path)
        assert again.says == each.claim.says and document_of(again) == document_of(each.claim)
    toml = tmp_path / "claim.toml"
    toml.write_text(
        'schema = 1\nclaim = "Head 1.6 moves the receiver to the end"\nkind = "moves"\nhead = "1.6"\nsrc = "IO"\n'
        '[prompts]\ntask = "ioi"\nn = 14\n[settings]\ndraws = 19\n'
    )
    assert load_claim(toml) == RECEIVER
    toml.write_text(
        'schema = 1\nclaim = "x"\nkind = "matches"\nhead = "1.5"\nsrc = "NAME"\nchannels = [0]\n'
        '[[prompts]]\nprompt = "So Mary is a great friend, isn\'t"\ntarget = "she"\nroles = {NAME = "Mary"}\n'
    )
    claim = load_claim(toml)
    assert isinstance(claim, Matches) and isinstance(claim.prompts, tuple) and claim.prompts[0].word("NAME") == "Mary"


DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "claim": "Head 1.6 moves IO",
    "kind": "moves",
    "head": "1.6",
    "src": "IO",
    "prompts": {"task": "ioi", "n": 12},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"heads": "1.6"}, "unknown key 'heads': did you mean head?"),
        ({"head": 1.6}, "head is 1.6, but should be"),
        ({"head": "1.6.2"}, "should be a layer and a head"),
        ({"schema": 2}, "its schema is 2"),
        ({"schema": True}, "its schema is True"),
        ({"kind": "proves"}, "choose one of moves, matches, needs, suffices"),
        ({"kind": "matches"}, "there is no channels"),
        ({"kind": "matches", "channels": [1, 1]}, "different numbers"),
        ({"kind": "matches", "channels": ["a"]}, "no whole number"),
        ({"claim": " "}, "a claim is a sentence"),
        ({"prompts": {"n": 3}}, "prompts has no task"),
        ({"prompts": {"task": "ioi", "n": -1}}, "whole numbers from 0"),
        ({"prompts": {"task": "ioi", "many": 3}}, "unknown key 'many'"),
        ({"prompts": [{"prompt": "a b", "target": "c", "roles": {"A": "x"}}]}, "occurs 0 times"),
        ({"settings": {"draw": 3}}, "did you mean draws?"),
        ({"settings": {"draws": 3}}, "draws is 3, but should be at least 19"),
        ({"negatives": {"swap": "IO"}}, "unknown key 'swap'"),
        ({"rewrites": [1]}, "has exactly a name and prompts"),
        ({"kind": "suffices", "circuit": "c.json", "head": None}, "unknown key 'head'"),
        ({"unrelated": "text"}, "is no list"),
    ],
)
def test_bad_files_are_refused_in_a_sentence(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(KeyholeError, match=reason.replace("?", r"\?").replace(".", r"\.")) as refused:
        claim_of(DOCUMENT | change)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"head": "9.6"}, "there is no layer 9"),
        ({"head": "3.8"}, "there is no head 3.8"),
        ({"src": "RECEIVER"}, "'RECEIVER' is no role of"),
        ({"src": "IO+99"}, "would be token"),
        ({"src": "END+1"}, "would be token"),
        ({"src": "IO", "dest": "START"}, "stands after"),
        ({"src": "IO+x"}, "names no token"),
        ({"prompts": {"task": "oio"}}, "there is no task 'oio'"),
        ({"prompts": {"task": "ioi", "choices": {"wording": 3}}}, "ioi has no choice 'wording'"),
        ({"prompts": []}, "a claim needs prompts"),
        ({"negatives": {"exchange": "X"}}, "no role 'X'"),
        ({"kind": "matches", "channels": [99]}, "there is no channel 99"),
        ({"kind": "needs", "channels": [1], "sender": {"kind": "mlp", "layer": 3}}, "writes nothing that"),
        ({"kind": "needs", "channels": [1], "sender": {"kind": "head", "layer": 0}}, "a head has a number"),
    ],
)
def test_claims_that_do_not_fit_the_model_are_refused(change: dict[str, Any], reason: str, organism: Model) -> None:
    with pytest.raises(KeyholeError) as refused:
        keyhole.claim(organism, claim_of(DOCUMENT | change))
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_the_command(tmp_path: Path) -> None:
    """What passes, and with 0, is in docs/claims.md."""
    few, bad, page = tmp_path / "few.json", tmp_path / "bad.json", tmp_path / "page.html"
    few.write_text(json.dumps(DOCUMENT | {"prompts": {"task": "ioi", "n": 1}}))
    settings = {"texts": 4, "others": 4, "draws": 19}
    bad.write_text(json.dumps(DOCUMENT | {"src": "S1", "settings": settings}))
    failed = command("claim", str(few), str(bad), "--json")
    assert failed.returncode == 1, failed.stderr
    assert [claim["verdict"] for claim in json.loads(failed.stdout)["claims"]] == ["cannot be tested", "fails"]
    untested = command("claim", str(few), "--out", str(page))
    assert untested.returncode == 3 and "Cannot be tested" in untested.stdout and page.exists(), untested.stderr
    assert command("claim", str(few), str(bad), "--out", str(page)).returncode == 2
