"""Stores keep what was measured of circuits, and circuits that suffice, and give both back exactly."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import keyhole
from commands import keyhole as typed
from keyhole import KeyholeError, Model
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Measured, Sufficient
from keyhole.store import Local, Outcome, Store, Tracing, bulk
from keyhole.store.batches import Block, trace_block
from keyhole.store.schema import columns
from keyhole.store.settings import MOST, alike_in, like_of
from keyhole.studies.families.families import families
from keyhole.tasks import Example, ioi, like, pronouns
from keyhole.tasks.files import write_examples
from stores import SETTINGS, manifest_for, stored

pytestmark = pytest.mark.xdist_group("measured")  # they share stores that are made once
N, FAMILY = 3, 10  # prompts of a store, and of one that is clustered


@pytest.fixture(scope="module")
def sufficient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sufficient") / "store"
    done = typed("bulk", "ioi", "--n", str(FAMILY), "--sufficient", "--batch", "3", "--out", str(path))
    assert done.returncode == 0 and f"{FAMILY} prompts, {FAMILY} circuits" in done.stdout, done.stderr
    return path


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("measured") / "store"
    done = typed("bulk", "ioi", "--n", str(N), "--effects", "--batch", "3", "--out", str(path))
    assert done.returncode == 0 and f"{N} prompts, {N} circuits" in done.stdout, done.stderr
    return path


def close(mine: Measured | None, its: Measured | None) -> bool:
    """The same to rounding: in a batch, sums are added up in another order."""
    assert mine is not None and its is not None and (mine.faithfulness is None) == (its.faithfulness is None)
    assert (mine.baseline, mine.metric, mine.note) == (its.baseline, its.metric, its.note)
    for name in ("words", "nodes", "edges", "node_shares", "edge_shares"):
        values, expected = getattr(mine, name), getattr(its, name)
        assert [value is None for value in values] == [value is None for value in expected] and values
        assert [value or 0 for value in values] == pytest.approx([value or 0 for value in expected], abs=2e-3)
    numbers = [(*found.faithfulness.rest, found.faithfulness.kept) for found in (mine, its)]
    return numbers[0] == pytest.approx(numbers[1], abs=1e-3)


def test_effects_are_those_of_one_prompt_at_a_time(measured: Path, organism: Model) -> None:
    store = keyhole.open_store(measured)
    assert store.manifest.settings["effects"] is True and store.manifest.settings["like"] == MOST
    for outcome in store:
        run = organism.run(outcome.example.text)
        alone = run.trace(outcome.example.answer, against=list(outcome.example.against))
        alone = alone.effects(like=like(outcome.example, organism, MOST))
        assert outcome.circuit is not None and outcome.error is None
        assert close(outcome.circuit.measured, alone.measured)


def test_circuits_that_suffice_are_those_of_one_prompt_at_a_time(sufficient: Path, organism: Model) -> None:
    store = keyhole.open_store(sufficient)
    assert store.manifest.method == "sufficient" and store.manifest.settings["level"] == 0.9
    for outcome in list(store)[:N]:
        run = organism.run(outcome.example.text)
        others = like(outcome.example, organism, MOST)
        alone = run.sufficient(outcome.example.answer, against=list(outcome.example.against), like=others)
        kept = outcome.circuit
        assert kept is not None and isinstance(kept.parameters, Sufficient) and kept.nodes == alone.nodes
        assert [edge.channels for edge in kept.edges] == [edge.channels for edge in alone.edges]
        assert kept.parameters == alone.parameters or kept.parameters.found == alone.parameters.found
        assert close(kept.measured, alone.measured)


@pytest.fixture(scope="module")
def circuits(organism: Model) -> list[tuple[Example, Circuit]]:
    """Everything measured; faithfulness alone; a gap that is too small; nothing; a circuit that suffices."""
    examples = ioi(5, seed=3)
    runs = [organism.run(example.text) for example in examples]
    pairs = [{"target": example.answer, "against": example.against[0]} for example in examples]
    traced = [run.trace(**pair) for run, pair in zip(runs[:3], pairs[:3], strict=True)]
    near = [int(i) for i in runs[2].token_ids]  # another place, which the answer does not depend on
    near[-5] = next(i for i in near if i != near[-5])
    found = [
        traced[0].effects(like=like(examples[0], organism, 8)),
        traced[1].effects(what=("faithfulness",), like="resting"),
        traced[2].effects(counterfactual=near),
        runs[3].trace(**pairs[3], through="heads"),
        runs[4].sufficient(**pairs[4], like=like(examples[4], organism, 8), both_signs=True),
    ]
    return list(zip(examples, found, strict=True))


def test_what_was_measured_comes_back(circuits: list[tuple[Example, Circuit]], tmp_path: Path) -> None:
    outcomes = [Outcome(i, example, "circuit", circuit) for i, (example, circuit) in enumerate(circuits)]
    store = stored(tmp_path / "store", outcomes, settings={**SETTINGS, "effects": True})
    found = [outcome.circuit for outcome in store]
    assert found == [replace(circuit, run=None) for _, circuit in circuits]
    assert [circuit.measured is None for circuit in found if circuit is not None] == [False, False, False, True, False]
    rows = store.table("edges", columns=["effect", "share"], where={"prompt": 0}).to_pylist()
    assert circuits[0][1].measured is not None
    assert [row["effect"] for row in rows] == list(circuits[0][1].measured.edges)
    assert store.table("circuits", columns=["kept"])["kept"].to_pylist()[3] is None


def test_stores_without_effects_are_as_they_were(circuits: list[tuple[Example, Circuit]], tmp_path: Path) -> None:
    """Same columns, same settings, so that older stores are opened and gone on with; and nothing is lost unsaid."""
    assert not {"effects", "like", "level", "sufficient"} & set(Tracing().plain())
    outcome = Outcome(0, *circuits[0][:1], "circuit", replace(circuits[0][1], measured=None))
    assert not {"effect", "baseline"} & {
        name for table in ("circuits", "nodes", "edges") for name in columns(manifest_for([outcome]), table)
    }
    stored(tmp_path / "plain", [outcome])
    with pytest.raises(KeyholeError, match="prompt 0 was measured, and this store keeps no effects"):
        stored(tmp_path / "store", [replace(outcome, circuit=circuits[0][1])])


def test_a_store_is_not_gone_on_with_by_other_measurements(measured: Path) -> None:
    done = typed("bulk", "ioi", "--n", str(N), "--batch", "3", "--out", str(measured))
    assert done.returncode == 2 and "settings effects is True there and None here" in done.stderr
    done = typed("bulk", "ioi", "--n", str(N), "--batch", "3", "--sufficient", "--out", str(measured))
    assert done.returncode == 2 and "settings method is 'accpp' there and 'sufficient' here" in done.stderr


def test_prompts_of_a_file_are_measured_against_each_other(organism: Model, tmp_path: Path) -> None:
    """Those of its template and length, itself left out; where there are too few, the circuit is kept and says so."""
    [example] = ioi(1, 2, wordings=[0], order="ABBA")
    alike = [replace(one, task="own") for one in [example, *like(example, organism, 8)]]
    odd = replace(ioi(1, 5, wordings=[3], order="BABA")[0], task="own")
    write_examples([*alike, odd], tmp_path / "own.jsonl")
    tracing = Tracing(effects=True, batch=4)
    store = bulk(tmp_path / "own.jsonl", organism, n=10, out=tmp_path / "store", tracing=tracing, part=5)
    first, last = store[0], store[9]
    expected = organism.run(example.text).trace(example.answer, against=list(example.against)).effects(like=alike[1:])
    assert first.circuit is not None and close(first.circuit.measured, expected.measured)
    assert (
        first.circuit.measured is not None and first.circuit.measured.baseline == "the mean of 8 prompts like this one"
    )
    assert last.circuit is not None and last.circuit.measured is None and "only 0 other prompts" in str(last.error)
    again = bulk(tmp_path / "own.jsonl", organism, out=tmp_path / "by_two", tracing=tracing, part=5, engine=Local(2))
    assert [outcome.circuit for outcome in again] == [outcome.circuit for outcome in store]


def test_prompts_that_are_not_alike_are_refused_at_once(organism: Model, tmp_path: Path) -> None:
    prompts = [replace(one, task="own") for one in ioi(6, seed=3)]
    with pytest.raises(KeyholeError, match=r"at least 8 others, and no more than \d of these 6 prompts are alike"):
        bulk(prompts, organism, out=tmp_path / "store", tracing=Tracing(effects=True))
    assert not (tmp_path / "store").exists()


def test_which_prompts_are_alike(organism: Model) -> None:
    [example] = ioi(1, 2, wordings=[0], order="ABBA")
    many = [example, *like(example, organism, 40)]
    strange = replace(example, text="When Zaphod and Ford went")  # words that the organism does not know
    alike = alike_in(organism, [*many, *many, strange], None)
    assert [len(group) for group in alike.values()] == [MOST + 1]
    assert like_of(organism, many[3], alike, None) == [*many[:3], *many[4 : MOST + 1]]
    assert like_of(organism, many[-1], alike, None) == many[:MOST]
    assert like_of(organism, example, None, None) == like(example, organism, MOST)


def test_a_prompt_without_a_circuit_that_suffices_says_why(organism: Model) -> None:
    [example] = pronouns(1)
    turned = replace(example, answer=str(example.wrong), answers=example.against[:1], against=example.answers[:1])
    [found] = trace_block(organism, Block(0, 0, (turned,)), Tracing(sufficient=True))
    assert found.status == "failed" and "gap" in str(found.error)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"level": 0.5}, "ask for these"),
        ({"both_signs": True}, "ask for these"),
        ({"sufficient": True, "level": 2.0}, "level is 2.0"),
        ({"sufficient": True, "method": "svt"}, "searched for and not traced"),
        ({"sufficient": True, "tau": 0.3}, "searched for and not traced"),
        ({"sufficient": True, "seeds": "prob"}, "searched for and not traced"),
    ],
)
def test_choices_that_make_no_sense_together(options: dict[str, object], told: str) -> None:
    with pytest.raises(KeyholeError, match=told):
        Tracing(**options)  # type: ignore[arg-type]


def test_what_measuring_takes_is_told(organism: Model) -> None:
    asked = ("bulk", "ioi", "--n", "40", "--estimate", "--json")
    plain, more = (json.loads(typed(*asked, *further).stdout) for further in ((), ("--sufficient",)))
    assert more["seconds"] > 3 * plain["seconds"] and more["memory"] > plain["memory"] + 100e6


def test_stores_of_circuits_that_suffice_are_clustered_and_compared(sufficient: Path, measured: Path) -> None:
    store: Store = keyhole.open_store(sufficient)
    found = families(store)
    assert sum(len(family.members) for family in found.families) == FAMILY
    compared = typed("compare", str(measured), str(sufficient), "--members", "2", "--json")
    assert compared.returncode == 0, compared.stderr
    terms = json.loads(compared.stdout)["terms"]
    assert set(terms) == {"heads", "edges", "channels"}  # of one basis
