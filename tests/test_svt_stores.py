"""Stores of singular vector tracing: exact circuits back, the same after any stop, and what can be asked of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keyhole
from alike import NUMBERS
from bulk_runs import files_of, statuses, unfinished
from commands import keyhole as typed
from keyhole import KeyholeError, Model, SvtSettings
from keyhole.naming.subjects import store_subjects
from keyhole.store import Local, Store, Tracing, bulk, estimate, open_store
from keyhole.store.batches import trace_batch
from keyhole.store.store import signal_vectors
from keyhole.studies.comparison.compare import compare
from keyhole.studies.curves.cohort import questions_of
from keyhole.studies.curves.scores import traced
from keyhole.studies.directions.directions import shared
from keyhole.studies.sinks import sinks
from keyhole.studies.stability.stability import stability
from keyhole.tasks import ioi
from keyhole.tracing.svt import trace_svt

pytestmark = pytest.mark.xdist_group("bulk")
SETTINGS = SvtSettings(0.25, 0.6)
N, PART, BATCH = 12, 4, 3


def traced_by_svt(model: Model, out: Path, **options: Any) -> Store:
    tracing = Tracing(method=SETTINGS, batch=BATCH)
    return bulk("ioi", model, **{"n": N, "seed": 7, "part": PART, "tracing": tracing, "out": out, **options})


@pytest.fixture(scope="module")
def store(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return traced_by_svt(organism, tmp_path_factory.mktemp("svt") / "store")


@pytest.fixture(scope="module")
def of_accpp(organism: Model, tmp_path_factory: pytest.TempPathFactory) -> Store:
    out = tmp_path_factory.mktemp("svt") / "accpp"
    return traced_by_svt(organism, out, tracing=Tracing(through="heads", batch=BATCH))


# -- what is kept --------------------------------------------------------------------------------------------------


def test_circuits_are_those_of_one_prompt_at_a_time(organism: Model, store: Store) -> None:
    assert len(store) == N and set(statuses(store)) == {"circuit"}
    for outcome in store:
        run, example, kept = organism.run(outcome.example.text), outcome.example, outcome.circuit
        alone = trace_svt(run, example.answer, against=list(example.against), settings=SETTINGS)
        assert kept is not None and kept.nodes == alone.nodes and kept.parameters.method == "svt"
        shape = [(edge.sender, edge.receiver, edge.side, edge.channels) for edge in alone.edges]
        assert [(edge.sender, edge.receiver, edge.side, edge.channels) for edge in kept.edges] == shape
        assert [edge.weight for edge in kept.edges] == pytest.approx([edge.weight for edge in alone.edges], **NUMBERS)


def test_what_is_read_back_is_what_was_traced(organism: Model, store: Store) -> None:
    examples = [store[i].example for i in range(BATCH)]
    made = trace_batch(organism, 0, examples, Tracing(method=SETTINGS, batch=BATCH)).outcomes
    assert [store[i] for i in range(BATCH)] == list(made)


def test_the_manifest_has_the_method_and_its_settings(store: Store, of_accpp: Store) -> None:
    told = {"method": "svt", "threshold": 0.25, "share": 0.6, "channels": "singular", "start": None, "seeds": "linear"}
    assert told.items() <= open_store(store.path).manifest.settings.items() and store.manifest.method == "svt"
    assert not {"tau", "keys", "sinks", "through"} & set(store.manifest.settings)
    assert "method" not in of_accpp.manifest.settings, "stores made before there was a choice are gone on with"
    assert of_accpp.manifest.method == "accpp"


def test_an_interrupted_run_goes_on_to_the_same_bytes(organism: Model, store: Store, tmp_path: Path) -> None:
    unfinished(store.path, tmp_path / "store", 0, 2)
    told: list[int] = []
    traced_by_svt(organism, tmp_path / "store", progress=lambda done, total: told.append(done))
    assert files_of(tmp_path / "store") == files_of(store.path) and told[0] == PART and told[-1] == N
    traced_by_svt(organism, tmp_path / "other", engine=Local(workers=2))
    assert files_of(tmp_path / "other") == files_of(store.path)


@pytest.mark.parametrize(
    ("tracing", "difference"),
    [
        (Tracing(method=replace(SETTINGS, share=0.7), batch=BATCH), r"settings share is 0\.6 there and 0\.7 here"),
        (Tracing(batch=BATCH), r"else: settings method is 'svt' there and 'accpp' here\. Give"),
    ],
)
def test_another_way_of_tracing_is_another_store(
    organism: Model, store: Store, tracing: Tracing, difference: str
) -> None:
    with pytest.raises(KeyholeError, match=difference):
        traced_by_svt(organism, store.path, tracing=tracing)


# -- where tracing begins ------------------------------------------------------------------------------------------


def test_starts_are_called_by_roles(organism: Model, tmp_path: Path) -> None:
    settings = SvtSettings(0.25, start=[(1, 6, "END", "IO"), (3, 1), (3, 6, -1, "gave")])
    examples, (other,) = ioi(3, seed=3, wordings=[0]), ioi(1, seed=3, wordings=[2])  # which "handed"
    store = bulk([*examples, other], organism, out=tmp_path / "store", tracing=Tracing(method=settings))
    assert statuses(store) == ["circuit"] * 3 + ["failed"]
    assert "start names 'gave', which is no token of this prompt and none of its roles (" in str(store[3].error)
    for i, example in enumerate(examples):
        run, circuit = organism.run(example.text), store.circuit(i)
        end, start = len(run) - 1, circuit.parameters.start
        assert start is not None and start[0] == (1, 6, end, example.position(run, "IO"))
        assert start[1] == (3, 1, end, int(run.pattern(3)[1, -1, 1:].argmax()) + 1)
        assert start[2] == (3, 6, end, run.position("gave")) and circuit.parameters.seeds == "given"
        answers = [text.strip() for text in circuit.parameters.target_text]
        assert example.answer in answers, "what the model should say is kept with the circuit"
    assert store.manifest.settings["start"] == [[1, 6, "END", "IO"], [3, 1], [3, 6, -1, "gave"]]


def test_prompts_in_which_no_start_fires_are_empty(organism: Model, tmp_path: Path) -> None:
    settings = SvtSettings(0.99, start=[(3, 1)])
    store = bulk(ioi(2, seed=3), organism, out=tmp_path / "store", tracing=Tracing(method=settings))
    assert statuses(store) == ["empty", "empty"] and "no start is a firing" in str(store[0].error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "acc"}, "method is one of accpp, svt, not 'acc'"),
        ({"method": "svt", "tau": 0.3}, "settings of the method accpp"),
        ({"method": "svt", "through": keyhole.Through()}, "settings of the method accpp"),
        ({"method": SvtSettings(start=[(3, 1)]), "metric": "linear"}, "leave one of them out"),
        ({"method": SvtSettings(start=[(3, 8)])}, r"start names head 3\.8, and organism has none: .* heads 0 to 7"),
    ],
)
def test_bad_settings_are_refused_before_any_work(
    organism: Model, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(KeyholeError, match=message):
        bulk(ioi(2), organism, out=tmp_path / "store", tracing=Tracing(**options))
    assert not (tmp_path / "store").exists()


# -- what it takes -------------------------------------------------------------------------------------------------


def test_an_estimate_is_of_the_method(organism: Model) -> None:
    told = estimate("ioi", organism, n=N, part=PART, tracing=Tracing(method=SETTINGS, batch=BATCH))
    assert told.load.method == "svt" and told.load.firings > 0 and told.load.places == 0 and told.prompts == N
    assert told.disk > 0 and 0 < told.seconds < 60


def test_the_command_traces_estimates_and_goes_on(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "svt.store"
    method = ["--method", "svt", "--threshold", "0.25", "--share", "0.6"]
    sizes = ["--n", str(N), "--seed", "7", "--part", str(PART), "--batch", str(BATCH)]
    done = typed("bulk", "ioi", *sizes, *method, "--out", str(out), "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["circuit"] == N
    assert files_of(out) == files_of(store.path)
    assert "3 of 3 parts are in" in typed("bulk", "ioi", *sizes, *method, "--out", str(out)).stderr
    told = json.loads(typed("bulk", "ioi", *sizes, *method, "--estimate", "--json").stdout)
    assert told["prompts"] == N and told["load"]["method"] == "svt"
    given = ["--method", "svt", "--start", "1.6:END:IO", "--threshold", "0.25", "--out", str(tmp_path / "given")]
    assert typed("bulk", "ioi", "--n", "2", *given).returncode == 0
    assert open_store(tmp_path / "given").manifest.settings["start"] == [[1, 6, "END", "IO"]]


# -- what is asked of it -------------------------------------------------------------------------------------------


def test_families_are_found_by_heads_edges_and_channels(store: Store) -> None:
    for granularity in ("heads", "edges", "channels"):
        found = keyhole.families(store, granularity=granularity)
        assert sum(len(family.members) for family in found.families) == N
    with pytest.raises(KeyholeError, match="keep to heads and have no influence to weigh by"):
        keyhole.families(store, weighted=True)


def test_two_stores_of_svt_are_compared_with_their_signals(store: Store, organism: Model) -> None:
    comparison = compare(store, store, model=organism, members=2)
    assert [one.granularity for one in comparison.terms] == ["heads", "edges", "channels"]
    assert comparison.signals is not None and comparison.signals.rows
    assert all(row.cosine == pytest.approx(1.0) for row in comparison.signals.rows)  # a circuit against itself


def test_signals_are_kept_and_named(organism: Model, tmp_path: Path) -> None:
    kept = keyhole.bulk(
        "ioi", organism, n=6, out=tmp_path / "signals.store", tracing=Tracing(method="svt", signals=True)
    )
    prompt, circuit = next(iter(kept.circuits({"prompt": [0]})))
    vectors = signal_vectors(replace(circuit, run=organism.run(list(circuit.token_ids), bos=False)))
    rows = kept.table("signals", where={"prompt": prompt}).to_pylist()
    assert len(rows) == len(vectors) > 0
    for row in rows:
        np.testing.assert_allclose(row["vector"], vectors[row["edge"]], atol=1e-4)
    subjects = store_subjects(kept, organism, most=5, each=2)
    assert len(subjects) == 5 and all(one.about["basis"] == "homogeneous" for one in subjects)


def test_channels_of_two_methods_are_not_compared(store: Store, of_accpp: Store, organism: Model) -> None:
    found = compare(store, of_accpp, model=organism, members=2)
    assert [one.granularity for one in found.terms] == ["heads", "edges"] and found.signals is None
    note = "traced with svt and with accpp, which number channels in other bases: signals and removals are not compared"
    assert note in found.notes
    assert "channels" not in found.record()["terms"] and str(found) and found.plot()
    both = compare(of_accpp, of_accpp, model=organism, members=2)
    assert len(both.terms) == 3 and both.signals is not None, "those of accpp are compared as ever"


def test_curves_take_the_circuits_of_the_store(store: Store, of_accpp: Store, organism: Model) -> None:
    (question,), (other,) = (questions_of(one, organism, [0]) for one in (store, of_accpp))
    assert traced("svt", question) is question.circuit and traced("heads", other) is other.circuit
    assert traced("heads", question).parameters.method == "accpp"
    assert traced("svt", other).parameters.record()["threshold"] == SvtSettings().threshold


def test_sinks_need_its_prompts_alone(store: Store, organism: Model) -> None:
    assert sinks(store, organism, prompts=6, draws=19, controls=1).prompts == 4


def test_what_is_of_accpp_alone_is_refused(store: Store, of_accpp: Store, organism: Model) -> None:
    for asked in (
        lambda: shared(store, model=organism, prompts=4, draws=19),
        lambda: shared(of_accpp, store, organism, prompts=4, draws=19),
        lambda: stability(store, organism, prompts=2),
    ):
        with pytest.raises(KeyholeError, match=r"was traced with svt, .* give a store of accpp"):
            asked()
