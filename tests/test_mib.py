"""Circuit files of EAP-IG and MIB: ours are theirs, theirs are read, and both are scored as any method is."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keyhole
from commands import keyhole as typed
from conftest import edge_name, tiny_model
from keyhole import Circuit, KeyholeError, Model
from keyhole.circuits.exports import MibEdge, Scored, is_mib, mib_from, read_mib, to_mib
from keyhole.circuits.records import Component
from keyhole.faithfulness.masked import masked
from keyhole.intervene import Metric
from keyhole.studies.comparison.compare import compare
from keyhole.studies.comparison.unified import unify
from keyhole.studies.curves.cohort import CohortQuestion, groups_of
from keyhole.studies.curves.curves import compare_methods
from keyhole.studies.curves.scores import circuit_scores, file_scores, slopes, write_mib_scores
from keyhole.studies.curves.settings import CurveSettings

PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def circuit(organism: Model) -> Circuit:
    return organism.run(PROMPT).trace("Mary", against="John")


def all_edges(cfg: dict[str, Any]) -> Iterator[str]:
    """Every edge that EAP-IG makes out of a cfg, written down from its description: slow and obvious."""
    stream = ["input"]
    for layer in range(cfg["n_layers"]):
        heads = [f"a{layer}.h{head}" for head in range(cfg["n_heads"])]
        yield from (f"{writer}->{head}<{slot}>" for writer in stream for head in heads for slot in "qkv")
        before = list(stream)
        stream += heads
        yield from (f"{writer}->m{layer}" for writer in (before if cfg["parallel_attn_mlp"] else stream))
        stream.append(f"m{layer}")
    yield from (f"{writer}->logits" for writer in stream)


def document(edges: dict[str, tuple[float, bool]], **cfg: Any) -> dict[str, Any]:
    sizes = {"n_layers": 4, "n_heads": 8, "d_model": 64, "parallel_attn_mlp": False} | cfg
    told = {name: {"score": score, "in_graph": kept} for name, (score, kept) in edges.items()}
    return {"cfg": sizes, "nodes": {"input": {"in_graph": True}}, "edges": told}


# -- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["gpt2", "gpt_neox", "llama"])
@pytest.mark.parametrize("through", ["mlps", "heads"])
def test_our_files_have_edges_that_they_have(variant: str, through: Any) -> None:
    model = tiny_model(variant)
    run = model.run([3, 5, 7, 11, 3, 5])
    best, worst = int(run.logits[-1].argmax()), int(run.logits[-1].argmin())
    told = json.loads(to_mib(run.trace(best, against=worst, through=through, tau=0.01)))
    dims = model.dims
    assert told["cfg"] == {
        "n_layers": dims.layers,
        "n_heads": dims.heads,
        "d_model": dims.d_model,
        "parallel_attn_mlp": variant == "gpt_neox",
    }
    there = set(all_edges(told["cfg"]))
    assert told["edges"] and set(told["edges"]) <= there
    nodes = {end.split("<")[0] for name in there for end in name.split("->")}
    assert set(told["nodes"]) <= nodes and all(set(own) == {"in_graph"} for own in told["nodes"].values())
    for own in told["edges"].values():  # `Graph.from_json` takes both from each
        assert set(own) == {"score", "in_graph"} and isinstance(own["score"], float) and own["in_graph"] is True
    ends = {end.split("<")[0] for name in told["edges"] for end in name.split("->")}
    assert ends <= set(told["nodes"])  # an edge of a node that is out would be pruned there


def test_sizes_come_from_the_file_or_the_model(circuit: Circuit, organism: Model, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.json")
    stored = Circuit.load(tmp_path / "mary.json")
    assert to_mib(stored) == to_mib(stored, organism) == to_mib(circuit)
    with pytest.raises(KeyholeError, match="other weights"):
        to_mib(stored, tiny_model("gpt2"))
    older = replace(stored, sizes=None)
    assert to_mib(older, organism) == to_mib(circuit)
    with pytest.raises(KeyholeError, match="does not know: give it"):
        to_mib(older)
    assert stored.sizes is not None
    with pytest.raises(KeyholeError, match="it is not known what MLPs of organism read"):
        to_mib(replace(stored, sizes=replace(stored.sizes, parallel=None)))


def test_blocks_that_have_no_name_there_are_refused() -> None:
    run = tiny_model("lfm2").run([3, 5, 7, 11, 3, 5])
    circuit = run.trace(int(run.logits[-1].argmax()), against=int(run.logits[-1].argmin()))
    assert any(node.kind == "mixer" for node in circuit.nodes)
    with pytest.raises(KeyholeError, match="no name for a block that mixes tokens"):
        to_mib(circuit)


# -- reading ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_says(tmp_path: Path) -> None:
    told = document({"a0.h1->a2.h3<k>": (-0.5, True), "input->m0": (0.25, False), "m3->logits": (0.0, True)})
    path = tmp_path / "peer.json"
    path.write_text(json.dumps(told))
    assert is_mib(path) and is_mib(tmp_path / "any.mib")
    file = read_mib(path)
    key = MibEdge(Component("head", 0, 1), Component("head", 2, 3), "src")
    last = MibEdge(Component("mlp", 3, None), Component("target", None, None), "target")
    assert file.edges[key] == Scored(-0.5, True) and file.kept == {key, last}
    assert file.edges[MibEdge(Component("embedding", 0, None), Component("mlp", 0, None), "mlp")] == Scored(0.25, False)


def test_files_that_are_older_than_neurons_are_read() -> None:
    told = document({"a0.h1->a2.h3<k>": (0.5, True)})
    del told["cfg"]["d_model"]
    file = mib_from({**told, "nodes": {"input": True, "a0.h1": True}}, "older")
    assert len(file.kept) == 1 and file.d_model is None
    file.require_sizes(4, 8, 64)
    with pytest.raises(KeyholeError, match="4 layers, 8 heads"):
        file.require_sizes(4, 9, 64)


@pytest.mark.parametrize("parallel", [False, True])
def test_all_edges_that_they_have_are_read_and_no_other(parallel: bool) -> None:
    told = document({}, n_layers=3, n_heads=2, parallel_attn_mlp=parallel)
    names = list(all_edges(told["cfg"]))
    full = document(dict.fromkeys(names, (1.0, True)), **told["cfg"])
    file = mib_from(full, "all")
    assert len(file.edges) == len(names) == len(set(names))
    assert file.possible == sum(not name.startswith("input") for name in names)
    ends = ["input", "logits", *(f"m{i}" for i in range(3)), *(f"a{i}.h{j}" for i in range(3) for j in range(2))]
    slots = {end: ["<q>", "<k>", "<v>"] if end.startswith("a") else [""] for end in ends}
    every = {f"{a}->{b}{slot}" for a in ends for b in ends for slot in slots[b]}
    for name in sorted(every - set(names)):
        with pytest.raises(KeyholeError, match="not read here"):
            mib_from(document({name: (1.0, True)}, **told["cfg"]), "one")


BAD = [
    ({"edges": {}}, "no edge has a score"),
    ({"cfg": {}}, "no n_layers"),
    ({"cfg": None}, "lacks cfg"),
    ({"cfg": {"n_layers": 10**12, "n_heads": 8}}, "more than 1,000,000 heads"),
    ({"cfg": {"n_layers": 4, "n_heads": 8, "d_model": None}}, "no d_model"),
    ({"nodes": {"m0": {"in_graph": True, "neurons": [True]}}}, "of neurons"),
    ({"edges": {"a0.h1=>m1": {"score": 1.0, "in_graph": True}}}, "edges are called as in"),
    ({"edges": {"a0.h1->a1.h1": {"score": 1.0, "in_graph": True}}}, "end in <q>"),
    ({"edges": {"a0.h1->m1<q>": {"score": 1.0, "in_graph": True}}}, "end in <q>"),
    ({"edges": {"a0.h9->m1": {"score": 1.0, "in_graph": True}}}, "names a0.h9"),
    ({"edges": {"m0->m4": {"score": 1.0, "in_graph": True}}}, "names m4"),
    ({"edges": {f"m{'9' * 5000}->logits": {"score": 1.0, "in_graph": True}}}, "edges are called as in"),
    ({"edges": {"m\uff11->logits": {"score": 1.0, "in_graph": True}}}, "edges are called as in"),
    ({"edges": {"m0->m1": {"score": "1", "in_graph": True}}}, "should have a score"),
    ({"edges": {"m0->m1": {"score": 1.0}}}, "should have a score"),
    ({"edges": {"m0->m1": True}}, "should have a score"),
]


@pytest.mark.parametrize(("change", "reason"), BAD)
def test_what_is_none_is_refused(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.mib"
    path.write_text(json.dumps({**document({"m0->m1": (1.0, True)}), **change}))
    with pytest.raises(KeyholeError, match=reason):
        read_mib(path)


def test_pickles_and_our_own_files_are_told_apart(circuit: Circuit, tmp_path: Path) -> None:
    with pytest.raises(KeyholeError, match="pickle"):
        read_mib(tmp_path / "graph.pt")
    circuit.save(tmp_path / "mary.json")
    assert not is_mib(tmp_path / "mary.json") and not is_mib(tmp_path / "none.json")


# -- scored by curves ------------------------------------------------------------------------------------------------


def test_a_file_of_ours_is_the_circuit(circuit: Circuit) -> None:
    made = masked([circuit.run])  # type: ignore[list-item]
    dims = made.model.dims
    file = mib_from(json.loads(to_mib(circuit)), "ours")
    own = circuit_scores(circuit, made.wiring, made.words.shape[1]).sum(-1)[tuple(made.wiring.edges.T)]
    assert np.count_nonzero(own) > 20 and np.allclose(file_scores(file, made.wiring, dims), own)
    plain = document(
        dict.fromkeys(["m0->logits", "a0.h1->a2.h3<v>"], (0.0, True)), **json.loads(to_mib(circuit))["cfg"]
    )
    marked = file_scores(mib_from(plain, "binary"), made.wiring, dims)
    names = sorted(edge_name(made.wiring, int(i)) for i in np.flatnonzero(marked))
    assert names == ["0.1 -> 2.3 value", "MLP 0 -> answer"]
    assert set(marked) == {0.0, 1.0}


def test_another_models_file_is_refused(circuit: Circuit) -> None:
    made = masked([circuit.run])  # type: ignore[list-item]
    file = mib_from(document({"m0->m1": (1.0, True)}, n_layers=9), "other")
    with pytest.raises(KeyholeError, match="9 layers"):
        file_scores(file, made.wiring, made.model.dims)


def test_a_file_of_blocks_in_another_order_is_refused() -> None:
    """Of a model whose MLPs read what its heads read, with as many layers, heads and dimensions."""
    run = tiny_model("gpt_neox").run([3, 5, 7])
    made, dims = masked([run]), run.model.dims
    sizes = {"n_layers": dims.layers, "n_heads": dims.heads, "d_model": dims.d_model}
    file = mib_from(document({"a0.h1->m0": (1.0, True)}, **sizes), "other")
    with pytest.raises(KeyholeError, match=r"an edge 0\.1 -> MLP 0, and this model has none: .* Give the file's own"):
        file_scores(file, made.wiring, dims)


def test_a_file_is_scored_as_the_method_that_made_it(organism: Model, tmp_path: Path) -> None:
    """Slopes of the answer, once as a method and once out of a file: the same curve."""
    prompts = [
        f"When {a} and {b} went to the store, {b} gave a drink to" for a, b in [("Mary", "John"), ("John", "Mary")]
    ]
    runs = organism.run_many(prompts)
    answers = [(230, 280), (280, 230)]
    asked = [
        CohortQuestion(run, Metric(len(run) - 1, (right,), (wrong,)))
        for run, (right, wrong) in zip(runs, answers, strict=True)
    ]
    groups = groups_of(asked)
    wiring, found = groups[0].masked.wiring, slopes(groups)
    sides = {"dest": "<q>", "src": "<k>", "value": "<v>", "mlp": "", "target": ""}
    edges = {}
    for (writer, reader), score in zip(wiring.edges, found, strict=True):
        one, into = wiring.writers[writer], wiring.readers[reader]
        parent = (
            "input"
            if one.kind == "embedding"
            else f"a{one.layer}.h{one.head}"
            if one.kind == "head"
            else f"m{one.layer}"
        )
        child = (
            "logits" if into.layer is None else f"m{into.layer}" if into.head is None else f"a{into.layer}.h{into.head}"
        )
        edges[f"{parent}->{child}{sides[into.side]}"] = (float(score), bool(score > 0))
    dims = organism.dims
    told = document(edges, n_layers=dims.layers, n_heads=dims.heads, d_model=dims.d_model)
    path = tmp_path / "eap.json"
    path.write_text(json.dumps(told))
    curves = compare_methods(
        asked, asked, CurveSettings(methods=("gradients", "random"), baseline="zero"), files=[read_mib(path)]
    )
    assert [curve.method for curve in curves.curves] == ["gradients", "random", "eap.json"]
    own, its = curves["gradients"], curves["eap.json"]
    assert np.allclose(own.answers, its.answers) and own.found == its.found
    assert curves.cpr("eap.json") == pytest.approx(curves.cpr("gradients"))
    assert curves.cmd("eap.json")[0] < curves.cmd("random")[0]
    assert any(row[0] == "eap.json" for row in curves.cells[1]) and curves.plot() is not None
    with pytest.raises(KeyholeError, match="same name"):
        compare_methods(asked, asked, CurveSettings(methods=("random",)), files=[read_mib(path), read_mib(path)])


# -- scored by comparison --------------------------------------------------------------------------------------------


def test_precision_and_recall_are_counted_by_hand(circuit: Circuit, organism: Model, tmp_path: Path) -> None:
    ours = sorted(name for name in json.loads(to_mib(circuit))["edges"] if not name.startswith("input"))
    cfg = json.loads(to_mib(circuit))["cfg"]
    other = next(name for name in all_edges(cfg) if name not in ours and not name.startswith("input"))
    words = next(name for name in all_edges(cfg) if name.startswith("input"))
    half = ours[: len(ours) // 2]
    path = tmp_path / "peer.mib"
    path.write_text(json.dumps(document(dict.fromkeys([*half, other, words], (1.0, True)), **cfg)))
    found = compare(circuit, str(path))
    (against,) = found.published
    assert against.edges is not None
    whole = len({edge.term for edge in unify([circuit]).edges})
    assert (against.edges.there, against.edges.both) == (len(half) + 1, len(half))
    assert len(ours) <= against.edges.found <= whole
    assert against.edges.f1 == pytest.approx(2 * len(half) / (against.edges.found + len(half) + 1))
    possible = sum(not name.startswith("input") for name in all_edges(cfg))
    chance = 2 * (against.edges.found * (len(half) + 1) / possible) / (against.edges.found + len(half) + 1)
    assert against.random_edges_f1 == pytest.approx(chance) and chance < 0.5 * against.edges.f1
    assert against.score.recall > against.random_f1 and "make sure that they are the same" in str(found)
    assert found.record()["published"][0]["edges"]["both"] == len(half)


def test_what_has_no_circuit_is_not_compared(circuit: Circuit, tmp_path: Path) -> None:
    path = tmp_path / "scores.mib"
    path.write_text(json.dumps(document({"m0->m1": (1.0, False)})))
    with pytest.raises(KeyholeError, match="curves --file"):
        compare(circuit, str(path))
    path.write_text(json.dumps(document({"m0->m1": (1.0, True)}, n_layers=2)))
    with pytest.raises(KeyholeError, match="another model"):
        compare(circuit, str(path))


def test_by_the_command_line(circuit: Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.json")
    circuit.save(tmp_path / "mary.mib")
    told = typed("compare", str(tmp_path / "mary.json"), str(tmp_path / "mary.mib"), "--json")
    assert told.returncode == 0, told.stderr
    (row,) = json.loads(told.stdout)["published"]
    assert row["precision"] == row["recall"] == 1.0 and row["edges"]["recall"] == 1.0
    assert keyhole.Circuit.load(tmp_path / "mary.json") == circuit


@pytest.mark.parametrize("variant", ["gpt2", "gpt_neox", "llama"])
def test_scores_of_all_edges_come_back_with_their_signs(variant: str, tmp_path: Path) -> None:
    model = tiny_model(variant)
    made = masked([model.run([3, 5, 7, 11, 3, 5])])
    scores = np.random.default_rng(0).normal(size=made.wiring.joined.shape)
    path = write_mib_scores(tmp_path / "scores.json", scores, made.wiring, model.dims)
    written = json.loads(path.read_text())
    assert set(written["edges"]) == set(all_edges(written["cfg"]))
    back = file_scores(read_mib(path), made.wiring, model.dims)
    assert np.array_equal(back, scores[tuple(made.wiring.edges.T)]) and back.min() < -1
    with pytest.raises(KeyholeError, match="writers and"):
        write_mib_scores(tmp_path / "x.json", scores[1:], made.wiring, model.dims)
