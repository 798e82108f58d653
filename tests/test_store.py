"""A store gives back what it was given, in any table tool's hands, and says what it cannot hold or is asked wrongly."""

import json
import math
import os
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import keyhole
from conftest import ROOT, prompts_of, rich_circuit, tiny_model
from keyhole import KeyholeError
from keyhole.circuits.files import to_json
from keyhole.store import Outcome, Store, make_part, make_store, open_store
from keyhole.store.schema import arrow_schema, columns, tables
from keyhole.store.store import signal_vectors
from keyhole.tasks import Example
from stores import PART, SETTINGS, manifest_for, stored, with_signals

NOBODY = Example(task="", text="", answer="", against=(), answers=(), roles={}, template="", continuation="")


@pytest.fixture(scope="module")
def store(outcomes: list[Outcome], tmp_path_factory: pytest.TempPathFactory) -> Store:
    return stored(tmp_path_factory.mktemp("stores") / "ioi.store", outcomes)


def changed(outcomes: list[Outcome], index: int, **what: Any) -> list[Outcome]:
    """The first part, with another circuit."""
    own = outcomes[index].circuit
    assert own is not None
    return [replace(one, circuit=replace(own, **what)) if one.index == index else one for one in outcomes[:PART]]


def with_edge(outcomes: list[Outcome], **what: Any) -> list[Outcome]:
    edges = outcomes[1].circuit.edges  # type: ignore[union-attr]
    return changed(outcomes, 1, edges=(*edges[:-1], replace(edges[-1], **what)))


# Out of a store comes what went in.


def test_outcomes_come_back_exactly(store: Store, outcomes: list[Outcome]) -> None:
    again = list(open_store(store.path))
    assert again == outcomes and len(store) == len(outcomes) == store.manifest.n
    for old, new in zip(outcomes, again, strict=True):
        if old.circuit is not None and new.circuit is not None:
            kept = replace(old.circuit, sizes=None, directions={})  # stores have neither
            assert to_json(new.circuit) == to_json(kept)  # numbers to the last digit, and every order
            assert new.circuit.run is None and new.circuit.probe is None
    assert sum(one.circuit is not None for one in again) == 7


def test_one_prompt_is_read_by_its_number(store: Store, outcomes: list[Outcome]) -> None:
    assert [store[i] for i in range(10)] == outcomes
    assert store.circuit(4) == outcomes[4].circuit
    for index, reason in ((7, "it is empty: nothing to trace"), (8, "failed: “Zoë”"), (9, "skipped: not traced")):
        with pytest.raises(KeyholeError, match=reason):
            store.circuit(index)
    for index in (-1, 10):
        with pytest.raises(KeyholeError, match=f"no prompt {index}: this store is of 10"):
            _ = store[index]


@pytest.mark.parametrize("value", [5e-324, -9.999999999999999e29, 0.1 + 0.2, -0.0, 1 / 3])
def test_numbers_are_kept_to_the_last_bit(value: float, outcomes: list[Outcome], tmp_path: Path) -> None:
    found = with_edge(outcomes, weight=value, ig=-value)
    edge = stored(tmp_path, found).circuit(1).edges[-1]
    assert (edge.weight.hex(), edge.ig.hex()) == (value.hex(), (-value).hex())


def test_what_differs_from_the_manifest_is_kept(outcomes: list[Outcome], tmp_path: Path) -> None:
    """A run that is finished on another machine, with another torch, where the model has another place."""
    own = outcomes[1].circuit
    assert own is not None
    found = changed(outcomes, 1, versions={**own.versions, "torch": "9.9"}, model={**own.model, "name": "elsewhere"})
    store = stored(tmp_path, found)
    assert list(store) == found and store.circuit(1).versions["torch"] == "9.9" != store.circuit(0).versions["torch"]
    rows = store.table("circuits", columns=["versions", "model"]).to_pylist()
    assert [bool(row["versions"] and row["model"]) for row in rows] == [False, True, False]


def test_circuits_of_another_family_come_back(tmp_path: Path) -> None:
    """Tiny models of other shapes, without a tokenizer: mixers among the writers, and no influence at all."""
    for variant, through in (("lfm2", "mlps"), ("gpt_oss", "mlps"), ("gpt2", "heads")):
        model = tiny_model(variant)
        circuit = rich_circuit(model.run(prompts_of(model, 9)[0]), through=through)
        found = [Outcome(0, NOBODY, "circuit" if circuit.heads else "headless", circuit)]
        assert list(stored(tmp_path / variant, found)) == found


def test_nothing_of_an_example_is_forgotten(store: Store) -> None:
    own = {one.name for one in fields(Example)} - {"labels"}
    assert own <= set(columns(store.manifest, "prompts")) and store.manifest.labels


# The tables hold together.


def test_the_tables_are_one_circuit(store: Store, outcomes: list[Outcome]) -> None:
    """Edges say at both ends what nodes say; counts are of rows; ends of influence add up."""
    nodes = {(row["prompt"], row["node"]): row for row in store.table("nodes").to_pylist()}
    edges = store.table("edges").to_pylist()
    for edge in edges:
        circuit = outcomes[edge["prompt"]].circuit
        assert circuit is not None
        ends = circuit.edges.sender[edge["edge"]], circuit.edges.receiver[edge["edge"]]
        assert (edge["from_node"], edge["to_node"]) == ends
        for end in ("from", "to"):
            node = nodes[edge["prompt"], edge[f"{end}_node"]]
            told = [edge[f"{end}_{name}"] for name in ("kind", "layer", "head", "dest", "src")]
            assert told == [node[name] for name in ("kind", "layer", "head", "dest", "src")]
    circuits = store.table("circuits").to_pylist()
    for row in circuits:
        circuit = outcomes[row["prompt"]].circuit
        assert circuit is not None and row["heads"] == len(circuit.heads) and row["firings"] == len(circuit.firings)
        for table, found in (("nodes", nodes.values()), ("edges", edges), ("removals", removals(store))):
            assert row[table] == sum(one["prompt"] == row["prompt"] for one in found)
        shares = [row[f"ends_{kind}"] for kind in ("words", "heads", "mlps", "mixers", "constants")]
        if circuit.influence:
            assert math.isclose(sum(shares), 1.0, abs_tol=1e-6) and row["ends_words"] > 0.1
            words = [x for x, node in zip(circuit.influence, circuit.nodes, strict=True) if node.kind == "embedding"]
            assert math.isclose(row["ends_words"], sum(words))
        else:
            assert shares == [None] * 5
    assert len(circuits) == 7


def removals(store: Store) -> list[dict[str, Any]]:
    return store.table("removals").to_pylist()


def test_tokens_and_removals_are_where_they_belong(store: Store, outcomes: list[Outcome]) -> None:
    for row in store.table("nodes").to_pylist():
        circuit = outcomes[row["prompt"]].circuit
        assert circuit is not None
        assert (row["dest_token"], row["src_token"]) == (circuit.tokens[row["dest"]], circuit.tokens[row["src"]])
    assert removals(store)
    for row in removals(store):
        head = outcomes[row["prompt"]].circuit.nodes[row["node"]]  # type: ignore[union-attr]
        assert head.kind == "head" and row["dest"] == getattr(head, row["side"])


def test_counts_and_words(store: Store) -> None:
    assert store.counts() == {"circuit": 6, "headless": 1, "empty": 1, "failed": 1, "skipped": 1}
    assert repr(store) == f"<Store {store.path}: 4 of 4 parts, 10 of 10 prompts>"
    assert "6 circuit, 1 headless, 1 empty, 1 failed, 1 skipped" in str(store) and "organism" in str(store)


# Asking.


def test_rows_are_asked_for_by_value(store: Store, outcomes: list[Outcome]) -> None:
    rows = store.table("edges", columns=["prompt", "weight"], where={"side": ["dest", "src"], "from_kind": "mlp"})
    wanted = [
        (one.index, edge.weight)
        for one in outcomes
        if one.circuit is not None
        for edge in one.circuit.edges
        if edge.side in ("dest", "src") and one.circuit.nodes[edge.sender].kind == "mlp"
    ]
    assert wanted and list(zip(*rows.to_pydict().values(), strict=True)) == wanted
    heavy = store.table("edges", where=pc.field("weight") > 0.5)
    assert 0 < heavy.num_rows < store.table("edges").num_rows and min(heavy["weight"].to_pylist()) > 0.5
    assert store.table("nodes", where={"layer": None})["kind"].to_pylist() == ["target"] * 7


def test_rows_are_asked_for_by_what_their_prompt_is(store: Store) -> None:
    rows = store.table("edges", columns=["prompt"], where={"label_number": ["1", "4", "8"], "side": "target"})
    assert set(rows["prompt"].to_pylist()) == {1, 4}
    assert store.table("edges", where={"status": "failed"}).num_rows == 0
    assert store.table("edges", where={"status": "circuit", "prompt": 6}).num_rows == 0


def test_circuits_are_chosen_by_their_prompts(store: Store, outcomes: list[Outcome]) -> None:
    chosen = list(store.circuits({"status": "circuit", "label_number": ["0", "5", "6", "9"]}))
    assert chosen == [(i, outcomes[i].circuit) for i in (0, 5)]
    assert [i for i, _ in store.circuits()] == [*range(7)]
    assert [one.index for one in store.outcomes(pc.field("probability").is_null())] == [8]


def test_outcomes_are_read_part_by_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = Store._rows
    monkeypatch.setattr(Store, "_rows", lambda own, *rest: read.append(rest[1]) or original(own, *rest))
    first = next(iter(store))
    assert first.index == 0 and set(read) == {0}


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda s: s.table("circus"), "no table 'circus': it has prompts, circuits"),
        (lambda s: s.table("signals"), "no table 'signals'"),
        (lambda s: s.table("edges", columns=["wait"]), "edges has no column 'wait': it has prompt, edge"),
        (lambda s: s.table("edges", where={"labels.order": 1}), "edges has no column 'labels.order'"),
        (lambda s: s.table("edges", where=pc.field("wait") > 1), "cannot be filtered"),
        (lambda s: s.table("edges", where={"weight": "heavy"}), "cannot be filtered"),
        (lambda s: list(s.circuits({"side": "dest"})), "prompts has no column 'side'"),
    ],
)
def test_what_cannot_be_asked_is_refused(ask: Any, reason: str, store: Store) -> None:
    with pytest.raises(KeyholeError, match=re.escape(reason)):
        ask(store)


# What a store cannot hold is refused rather than wrapped, rounded or lost.


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"weight": math.nan}, "weight of edges holds finite numbers, but prompt 1 has nan"),
        ({"influence": math.inf}, "influence of edges holds finite numbers, but prompt 1 has inf"),
        ({"channels": (3, 40_000)}, "column channels of edges cannot hold"),
        ({"channels": (3, -1)}, "channels of edges holds numbers from 0, but prompt 1 has -1"),
        ({"weight": "heavy"}, "column weight of edges cannot hold"),
    ],
)
def test_an_edge_that_does_not_fit_is_refused(what: dict[str, Any], reason: str, outcomes: list[Outcome]) -> None:
    manifest = manifest_for(outcomes)
    with pytest.raises(KeyholeError, match=reason):
        make_part(manifest, 0, with_edge(outcomes, **what))


def test_a_circuit_that_does_not_fit_is_refused(outcomes: list[Outcome]) -> None:
    manifest, own = manifest_for(outcomes), outcomes[1].circuit
    assert own is not None
    for what, reason in (
        ({"token_ids": (2**31, *own.token_ids[1:])}, "column token_ids of circuits cannot hold"),
        ({"model": {**own.model, "fingerprint": "0"}}, "the circuit of prompt 1 is of another model"),
        ({"firings": tuple(own.firings) * 2}, "prompt 1 explains a node twice"),
        ({"errors": {"scores": 0.0}}, "prompt 1 has other errors"),
        ({"tokens": ("\ud800", *own.tokens[1:])}, "column tokens of circuits cannot hold"),
    ):
        with pytest.raises(KeyholeError, match=reason):
            make_part(manifest, 0, changed(outcomes, 1, **what))


def test_a_part_is_of_its_prompts(outcomes: list[Outcome]) -> None:
    manifest = manifest_for(outcomes)
    for found in (outcomes[:2], outcomes[1:4], [outcomes[0], *outcomes[:2]]):
        with pytest.raises(KeyholeError, match="part 0 has prompts 0 to 2, each once"):
            make_part(manifest, 0, found)
    other = replace(outcomes[0], example=replace(outcomes[0].example, answer="Nobody"))
    with pytest.raises(KeyholeError, match="part 0 are not those that this store was made for"):
        make_part(manifest, 0, [other, *outcomes[1:3]])


def test_an_outcome_has_what_its_status_says(outcomes: list[Outcome]) -> None:
    for one, what, reason in (
        (outcomes[0], {"status": "empty"}, "and a circuit"),
        (outcomes[7], {"status": "circuit"}, "and no circuit"),
        (outcomes[0], {"status": "headless"}, "if it has no heads, and only then"),
        (outcomes[6], {"status": "circuit"}, "if it has no heads, and only then"),
        (outcomes[8], {"error": None}, "say why"),
        (outcomes[8], {"status": "lost"}, "status is one of"),
    ):
        with pytest.raises(KeyholeError, match=reason):
            replace(one, **what)


def test_the_same_outcomes_give_the_same_bytes(outcomes: list[Outcome]) -> None:
    manifest = manifest_for(outcomes)
    part = make_part(manifest, 1, outcomes[3:6])
    assert make_part(manifest_for(list(outcomes)), 1, [outcomes[i] for i in (5, 3, 4)]) == part
    assert make_part(manifest, 1, list(reversed(outcomes[3:6]))).files["edges"] == part.files["edges"]


# Vectors of signals.


def test_signals_are_what_the_firings_say(outcomes: list[Outcome], tmp_path: Path, organism: keyhole.Model) -> None:
    found = [with_signals(one) for one in outcomes[:PART]]
    width = organism.dims.d_model
    store = stored(tmp_path, found, signals=width)
    rows = store.table("signals").to_pylist()
    circuit = outcomes[1].circuit
    assert circuit is not None and circuit.run is not None
    vectors = {row["edge"]: np.array(row["vector"], np.float32) for row in rows if row["prompt"] == 1}
    assert set(vectors) == {i for i, edge in enumerate(circuit.edges) if edge.channels}
    seen = 0
    for traced in circuit.firings:
        own = circuit.nodes[traced.node]
        firing = circuit.run.explain((own.layer, own.head), own.dest, own.src, tau=traced.tau)
        for side in firing.sides:
            for signal in side.signals:
                who = signal.writer
                (edge,) = [
                    i
                    for i, edge in enumerate(circuit.edges)
                    if (edge.receiver, edge.side) == (traced.node, side.side)
                    and circuit.nodes[edge.sender].writer == who
                ]
                np.testing.assert_allclose(vectors[edge], firing.vector(signal).numpy(), rtol=1e-4, atol=1e-6)
                seen += 1
    assert seen == len(vectors) > 3
    assert list(store) == found and store.manifest.signals == width


def test_a_part_is_named_after_all_that_decides_it(outcomes: list[Outcome]) -> None:
    manifest = manifest_for(outcomes)
    others = (
        replace(manifest, labels=()),
        replace(manifest, signals=8),
        replace(manifest, settings={**manifest.settings, "tau": 0.5}),
        replace(manifest, model={**manifest.model, "fingerprint": "other"}),
        replace(manifest, prompts=("other", *manifest.prompts[1:])),
        replace(manifest, schema=manifest.schema + 1),
    )
    assert manifest.labels and len({one.key(0) for one in (manifest, *others)}) == 7
    assert replace(manifest, versions={"keyhole": "other"}).key(0) == manifest.key(0)


def test_signals_that_are_not_there_are_refused(outcomes: list[Outcome], organism: keyhole.Model) -> None:
    manifest = manifest_for(outcomes, signals=organism.dims.d_model)
    with pytest.raises(KeyholeError, match="prompt 0 has no such"):
        make_part(manifest, 0, outcomes[:PART])
    with pytest.raises(KeyholeError, match="which this circuit came without"):
        signal_vectors(replace(outcomes[0].circuit, run=None))  # type: ignore[type-var]


# Any table tool reads it, and docs/store.md says what is there.

DOCS = (ROOT / "docs" / "store.md").read_text()


def test_every_tool_reads_the_same_rows_in_order(store: Store) -> None:
    for table in tables(store.manifest):
        files, wanted = str(store.path / table / "*.parquet"), store.table(table)
        rows = wanted.to_pylist()
        assert duckdb.sql(f"select * from read_parquet('{files}')").fetchall() == [tuple(row.values()) for row in rows]
        assert pl.read_parquet(files).rows() == [tuple(row.values()) for row in rows]
        frame = pd.read_parquet(store.path / table)
        assert list(frame.columns) == wanted.column_names and len(frame) == len(rows)
        assert pa.Table.from_pandas(frame, schema=wanted.schema, preserve_index=False).equals(wanted)


def test_the_docs_list_every_column(store: Store, outcomes: list[Outcome]) -> None:
    manifest = manifest_for(outcomes, signals=16, settings={**SETTINGS, "effects": True})
    for table in tables(manifest):
        section = DOCS.split(f"\n### `{table}`", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
        listed = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", section, re.M)
        told = {name: kind.strip(" `") for names, kind in listed for name in re.findall(r"`([^`]*)`", names)}
        own = {name: kind for name, kind in columns(manifest, table).items() if not name.startswith("label_")}
        assert told == own | ({"label_NAME": "string"} if table == "prompts" else {})


def test_types_are_as_small_as_they_are_told(store: Store) -> None:
    file = next(iter(sorted((store.path / "edges").iterdir())))
    schema = pq.read_schema(file)
    assert schema.field("channels").type == pa.list_(pa.int16()) and schema.field("from_layer").type == pa.int16()
    assert schema.equals(arrow_schema(store.manifest, "edges"))
    metadata = pq.read_metadata(file)
    found = [metadata.row_group(0).column(i) for i in range(metadata.num_columns)]
    assert {column.compression for column in found} == {"ZSTD"} and metadata.num_row_groups == 1
    encodings = {column.path_in_schema: column.encodings for column in found}
    assert "BYTE_STREAM_SPLIT" in encodings["weight"] and "RLE_DICTIONARY" in encodings["from_kind"]


def test_a_manifest_is_plain_json(store: Store) -> None:
    told = json.loads((store.path / "manifest.json").read_text())
    assert told["model"]["fingerprint"] == store.manifest.model["fingerprint"] and told["settings"]["eps"] == 0.01
    assert open_store(store.path).manifest == store.manifest and make_store(store.path, store.manifest).manifest
    assert not [name for name in os.listdir(store.path) if name.endswith(".part")]


def test_a_store_of_an_older_schema_is_read() -> None:
    store = open_store(ROOT / "tests/schemas/store-1")
    assert store.counts()["circuit"] == 2 and not store.check().damaged
    for prompt, circuit in store.circuits():
        rows = store.table("edges", where={"prompt": prompt})
        assert rows["weight"].to_pylist() == [edge.weight for edge in circuit.edges]
        assert circuit.mlps and store.table("signals", where={"prompt": prompt}).num_rows
