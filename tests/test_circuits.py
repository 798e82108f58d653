"""Circuits as files and for other tools; targets, thresholds, sinks; bad input."""

import base64
import html
import json
import math
import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text
from PIL import Image

import keyhole
from alike import assert_alike
from conftest import ROOT, prompts_of, rich_circuit, tiny_model
from keyhole import KeyholeError
from keyhole.circuits.columns import Nodes
from keyhole.circuits.exports import mib_from, to_mib, to_networkx
from keyhole.circuits.files import from_json, load_circuit, to_json
from keyhole.circuits.graph import Node
from keyhole.circuits.records import Writer
from keyhole.circuits.shown import shown
from keyhole.errors import NothingToTraceError
from keyhole.faithfulness.verification import verify
from keyhole.figures.circuit import circuit_figure
from keyhole.tracing.answers import Likeliest, targets_of
from keyhole.tracing.batch import Untraced
from keyhole.tracing.linear import Probe
from keyhole.tracing.seeds import Probability
from keyhole.tracing.trace import trace, trace_many

NO_CIRCUIT = "it is not valid JSON|it is not a JSON object"
PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def circuit(organism: keyhole.Model) -> keyhole.Circuit:
    return organism.run(PROMPT).trace("Mary", against="John", metric="linear", through="heads")


def test_round_trip_is_lossless(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "c.json")
    again = load_circuit(tmp_path / "c.json")
    assert again == circuit and again.run is None
    assert to_json(again) == to_json(circuit)
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]  # nothing half-written is left behind


def test_the_document_has_the_designed_keys(circuit: keyhole.Circuit) -> None:
    document = json.loads(to_json(circuit))
    assert document["schema"] == 4 and document["model"]["fingerprint"] and document["versions"]["transformers"]
    sizes = {"layers": 4, "heads": 8, "kv_heads": 8, "d_head": 16, "d_model": 128, "vocab": 481, "parallel": False}
    assert document["sizes"] == sizes
    assert set(document["nodes"][0]) == {"kind", "layer", "head", "dest", "src", "attention"}
    assert set(document["edges"][0]) == {"from", "to", "side", "weight", "ig", "alone", "channels"}
    assert document["parameters"]["method"] == "accpp" and document["parameters"]["tau"] == "dynamic"


def damaged(document: dict) -> list[tuple[str, dict]]:
    node, edge, firing = document["nodes"][0], document["edges"][-1], document["firings"][0]
    return [
        ("schema", {**document, "schema": 99}),
        ("keys", {**document, "extra": 1}),
        ("keys", {k: v for k, v in document.items() if k != "edges"}),
        ("token_ids", {**document, "tokens": document["tokens"][:-1]}),
        ("outside the prompt", {**document, "nodes": [{**node, "dest": 10_000}, *document["nodes"][1:]]}),
        (
            r"nodes\[0\].kind is 'neuron', which is none of embedding",
            {**document, "nodes": [{**node, "kind": "neuron"}, *document["nodes"][1:]]},
        ),
        ("twice", {**document, "nodes": [*document["nodes"], node]}),
        ("do not exist", {**document, "edges": [{**edge, "to": 9999}]}),
        ("no number", {**document, "edges": [{**edge, "weight": "big"}]}),
        ("no number", {**document, "edges": [{**edge, "weight": True}]}),
        ("channels", {**document, "edges": [{**edge, "channels": [-1]}]}),
        ("side is 'left', which is none of dest, src", {**document, "edges": [{**edge, "side": "left"}]}),
        ("firing", {**document, "firings": [{**firing, "node": 9999}]}),
        (r"firings\[0\].dest is 3, which is no list", {**document, "firings": [{**firing, "dest": 3}]}),
        ("no number", {**document, "edges": [{**edge, "weight": 10**400}]}),
        ("object", {**document, "parameters": []}),
        ("its method", {**document, "parameters": {**document["parameters"], "method": []}}),
    ]


def test_damaged_files_are_refused_with_the_reason(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    document = json.loads(to_json(circuit))
    for reason, broken in damaged(document):
        with pytest.raises(KeyholeError, match=reason):
            from_json(json.dumps(broken))
    for text in ("", "[1, 2", "[]", '{"schema": NaN}', "null"):
        with pytest.raises(KeyholeError, match=NO_CIRCUIT):
            from_json(text)
    with pytest.raises(KeyholeError, match="there is no file"):
        load_circuit(tmp_path / "none.json")
    (tmp_path / "image.json").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(KeyholeError, match="cannot read"):
        load_circuit(tmp_path / "image.json")


@given(st.text())
def test_no_text_makes_the_reader_stumble(text: str) -> None:
    with pytest.raises(KeyholeError, match=NO_CIRCUIT):
        from_json(text)


def test_exports_carry_everything(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    graph = to_networkx(circuit)
    assert (len(graph), graph.number_of_edges()) == (len(circuit.nodes), len(circuit.edges))
    circuit.save(tmp_path / "c.graphml")
    read = nx.read_graphml(tmp_path / "c.graphml", force_multigraph=True)
    assert (len(read), read.number_of_edges()) == (len(circuit.nodes), len(circuit.edges))
    assert [data["sink"] for _, data in read.nodes(data=True)] == [circuit.is_sink(i) for i in range(len(read))]
    weights = sorted(data["weight"] for *_, data in read.edges(data=True))
    assert weights == pytest.approx(sorted(e.weight for e in circuit.edges))
    mib = json.loads(to_mib(circuit))
    assert mib_from(mib, "ours").kept
    assert any(name.endswith("->logits") for name in mib["edges"]) and any("<k>" in name for name in mib["edges"])
    with pytest.raises(KeyholeError, match="should end in"):
        circuit.save(tmp_path / "c.xlsx")
    with pytest.raises(KeyholeError, match="no folder"):
        circuit.save(tmp_path / "nowhere" / "c.json")


def test_graphml_without_networkx(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    """What the format asks of any reader: every value has a key with a type, and edges join nodes that are there."""
    bell = replace(circuit, tokens=("\x07<a>&",) * len(circuit.tokens))
    bell.save(tmp_path / "c.graphml")
    root, own = ElementTree.parse(tmp_path / "c.graphml").getroot(), "{http://graphml.graphdrawing.org/xmlns}"
    keys = {(key.get("for"), key.get("id")): key for key in root.iter(f"{own}key")}
    kinds = {"boolean": ("false", "true").index, "int": int, "long": int, "double": float, "string": str}
    found = {what: list(root.iter(f"{own}{what}")) for what in ("node", "edge")}
    assert root.tag == f"{own}graphml" and len(found["node"]) == len(circuit.nodes)
    for what, elements in found.items():
        for data in (data for element in elements for data in element.iter(f"{own}data")):
            kinds[keys[what, data.get("key")].get("attr.type", "")](data.text or "")
    names = [node.get("id") for node in found["node"]]
    ends = sorted((names.index(e.get("source")), names.index(e.get("target"))) for e in found["edge"])
    assert ends == sorted((edge.sender, edge.receiver) for edge in circuit.edges)


@pytest.mark.filterwarnings("error")  # of glyphs that a font has not
def test_pictures_are_pictures(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    """As others read them: an XML parser, Pillow, and what a PDF begins and ends with."""
    bell = replace(circuit, tokens=("\x07<a>&",) * len(circuit.tokens))
    for suffix in ("svg", "png", "pdf"):
        bell.save(tmp_path / f"c.{suffix}")
    tags = [element.tag.rpartition("}")[2] for element in ElementTree.parse(tmp_path / "c.svg").iter()]
    assert tags[0] == "svg" and tags.count("path") > 10
    with Image.open(tmp_path / "c.png") as picture:
        assert picture.format == "PNG" and min(picture.size) > 100 and len(picture.convert("RGB").getcolors(10**6)) > 10
    assert re.fullmatch(rb"%PDF-1\.\d.*startxref\n\d+\n%%EOF\n", (tmp_path / "c.pdf").read_bytes(), re.DOTALL)


def test_tokens_in_pictures_are_no_mathematics(circuit: keyhole.Circuit, tmp_path: Path) -> None:
    sums = replace(circuit, tokens=("$a_$",) * len(circuit.tokens))
    sums.save(tmp_path / "sums.svg")
    assert f"{circuit.parameters.end}:$a_$" in (tmp_path / "sums.svg").read_text()


def test_another_models_circuit_is_refused(circuit: keyhole.Circuit) -> None:
    stored = from_json(to_json(circuit))
    with pytest.raises(KeyholeError, match="read from a file"):
        verify(stored)
    with pytest.raises(KeyholeError, match="other weights"):
        verify(stored, tiny_model("gpt2"))


def test_every_node_leads_to_the_answer(circuit: keyhole.Circuit) -> None:
    graph = nx.DiGraph(to_networkx(circuit))
    root = next(i for i, node in enumerate(circuit.nodes) if node.kind == "target")
    assert nx.ancestors(graph, root) | {root} == set(graph)
    assert circuit.firings
    for traced in circuit.firings:  # what remains after each side is below its threshold
        assert traced.dest[-1].after < traced.tau and traced.src[-1].after < traced.tau


def test_drops_add_up(circuit: keyhole.Circuit) -> None:
    """Every step of every removal belongs to an edge, or to a head that moved from a later token than is read."""
    assert circuit.firings
    for traced in circuit.firings:
        node = circuit.nodes[traced.node]
        for side, token in (("dest", node.dest), ("src", node.src)):
            removed, edges = getattr(traced, side), [e for e in circuit.edges_into(traced.node) if e.side == side]
            steps = pairwise([circuit.attention[traced.node], *(r.after for r in removed)])
            lost: dict[Writer, float] = defaultdict(float)
            for r, (before, after) in zip(removed, steps, strict=True):
                lost[r.writer] += before - after
            assert edges
            for edge in edges:
                assert edge.weight == pytest.approx(lost.pop(circuit.nodes[edge.sender].writer))
            assert all(writer.kind == "head" and writer.src > token for writer in lost)


def test_offsets_belong_to_their_head() -> None:
    model = tiny_model("phi-qknorm")
    circuit = rich_circuit(model.run(prompts_of(model, 12)[0]), tau=0.1)
    joined = [(circuit.nodes[edge.sender], circuit.nodes[edge.receiver]) for edge in circuit.edges]
    offsets = [(source, target) for source, target in joined if source.kind == "offset"]
    assert offsets
    assert all((source.layer, source.head) == (target.layer, target.head) for source, target in offsets)


def test_sinks_can_be_marked_or_collapsed() -> None:
    model = tiny_model("gptj")
    run = model.run(prompts_of(model, 12)[0])
    kept, marked, collapsed = (rich_circuit(run, tau=0.2, first_token=s) for s in ("keep", "mark", "collapse"))
    assert marked.nodes == kept.nodes and marked.parameters.sinks == "mark"
    assert any(kept.is_sink(t.node) for t in kept.firings)
    assert not any(collapsed.is_sink(t.node) for t in collapsed.firings)
    assert " sink" in str(marked) and " sink" not in str(kept)


def test_targets_from_probability() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert targets_of(logits, None, 2) == [0, 1]
    assert targets_of(logits, 0.79, None) == [0, 1] and targets_of(logits, 0.9, None) == [0, 1, 2]


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "cohere", "granite"])
def test_seeds_explain_the_objective(variant: str) -> None:
    """Removing all writers at the end loses all of the objective; attributions add up to that."""
    from keyhole.tracing.mlp_attribution import parts_at
    from keyhole.tracing.upstream import Writes

    model = tiny_model(variant)
    run = model.run(prompts_of(model, 10)[0])
    writes = Writes([run])
    direction = torch.randn(model.dims.d_model, generator=torch.Generator().manual_seed(0))
    for layer, resid in ((len(run.layers), run.final_resid[9]), (2, run.layers[2].resid[9])):
        found = parts_at(writes, [(0, 9)], direction[None], layer=layer, attended=False)
        assert float(found.values.sum()) == pytest.approx(float(resid @ direction), rel=1e-3, abs=1e-3)


def test_a_probe_seeds_a_circuit(gpt2: keyhole.Model) -> None:
    run = gpt2.run(prompts_of(gpt2, 10)[0])
    direction = run.layers[2].resid[9]
    circuit = trace(run, metric=Probe(direction, 2), tau=0.2)
    assert circuit.parameters.seeds == "probe" and circuit.parameters.probe_layer == 2
    assert all(node.layer is None or node.layer < 2 for node in circuit.nodes)
    with pytest.raises(KeyholeError, match="entries"):
        trace(run, metric=Probe(direction[:5], 2))


def test_functions_and_numbers_as_thresholds(gpt2: keyhole.Model) -> None:
    run = gpt2.run(prompts_of(gpt2, 10)[0])
    target = int(run.logits[-1].argmax())
    fixed, computed = trace(run, target, tau=0.3), trace(run, target, tau=lambda dest: 0.3)
    assert fixed.edges == computed.edges and computed.parameters.tau == "function"
    with pytest.raises(KeyholeError, match="between 0 and 1"):
        trace(run, target, tau=3.0)


def test_runs_and_targets_go_together(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    for runs, targets, options in [([], [], {}), ([run, run], ["Mary"], {}), ([run], ["Mary"], {"against": []})]:
        with pytest.raises(KeyholeError, match="for each run"):
            trace_many(runs, targets, **options)


def test_bad_requests_are_named(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    for options, reason in [
        ({"target": Likeliest(0)}, "vocabulary"),
        ({"target": "Mary", "against": "John", "seeds": "prob"}, "belongs to"),
        ({"target": "Mary", "tau": 0.0}, "no weight is below 0"),
        ({"target": "Mary", "tau": lambda dest: 0.0}, "no weight is below 0"),
        ({"target": "Mary and John", "method": "svt"}, "begins with one token"),
        ({"target": "John", "against": "Mary"}, "prefers 'Mary' to 'John'"),
        ({"target": "to"}, "no more probability"),
    ]:
        with pytest.raises(KeyholeError, match=reason):
            trace(run, **options)
    for make, options, reason in [
        (Likeliest, {"k": 2, "p": 0.5}, "exactly one"),
        (Likeliest, {}, "exactly one"),
        (Likeliest, {"p": 1.5}, "between 0 and 1"),
        (Probability, {"tau": 2.0}, r"seed_tau is 2\.0"),
        (Probability, {"tau": 0.0}, r"seed_tau is 0\.0"),
    ]:
        with pytest.raises(KeyholeError, match=reason):
            make(**options)


def test_no_target_is_the_likeliest_token(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    likeliest = int(run.logits[-1].argmax())
    assert run.trace() == run.trace(Likeliest(1)) and run.trace().parameters.target_ids == (likeliest,)
    assert run.trace(method="svt").parameters.target_ids == (likeliest,)


def test_another_answer_implies_linear_seeds(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    assert run.trace("Mary", against="John") == run.trace("Mary", against="John", metric="linear")
    assert run.trace("Mary").parameters.seeds == "prob"


def test_a_circuit_tells_its_answer(organism: keyhole.Model, circuit: keyhole.Circuit) -> None:
    run = organism.run(PROMPT)
    likely = run.logits[-1].double().softmax(-1)
    right, wrong = (float(likely[organism.tokenizer.convert_tokens_to_ids(name)]) for name in ("Mary", "John"))
    line = f"answer at 14:to: 'Mary' (probability {right:.3g}) against 'John' ({wrong:.3g})"
    assert line in str(circuit).splitlines() and line in str(from_json(to_json(circuit))).splitlines()
    assert line in html.unescape(circuit.to_html()).splitlines()  # for those without scripts
    assert "against the mean of all tokens" in str(run.trace(metric="linear"))
    many = run.trace(Likeliest(5))
    assert f"and 2 more (probability {float(likely.topk(5).values.sum()):.3g})" in str(many)


def test_files_without_probabilities_are_read(circuit: keyhole.Circuit) -> None:
    document = json.loads(to_json(circuit))
    for name in ("target_probability", "against_text", "against_probability"):
        del document["parameters"][name]
    old = from_json(json.dumps(document))
    assert "answer at 14:to: 'Mary'\n" in str(old) and old.edges == circuit.edges


def test_a_circuit_without_heads_says_so(organism: keyhole.Model, circuit: keyhole.Circuit) -> None:
    run = organism.run(PROMPT)
    bare = run.trace("Mary", metric=Probability(0.3), through="heads")
    assert not bare.heads and "no attention head is in this circuit" in str(bare)
    assert "--against" in str(bare) and "--metric linear" in str(bare)
    assert run.trace("Mary", metric="linear").heads and circuit.heads  # what it recommends has some
    assert "no attention head" not in str(circuit)


def test_what_the_model_prefers_is_said(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    logits = run.logits[-1].double()
    mary, john = (organism.tokenizer.convert_tokens_to_ids(name) for name in ("Mary", "John"))
    with pytest.raises(NothingToTraceError, match=re.escape(f"difference {float(logits[john] - logits[mary]):.2f}")):
        run.trace("John", against="Mary")
    with pytest.raises(NothingToTraceError, match=r"are the same, 'Mary'.*against another"):
        run.trace("Mary", against=["Mary"])
    least = int(logits.argmin())
    with pytest.raises(NothingToTraceError, match="prefers the mean of all tokens to"):
        run.trace(least, metric="linear")
    with pytest.raises(NothingToTraceError, match="Turn the direction round"):
        trace(run, metric=Probe(-run.layers[2].resid[-1], 2))


def test_prompts_that_cannot_be_traced_keep_their_place(organism: keyhole.Model) -> None:
    """Circuits and reasons in the order of the prompts; raising names the first bad one."""
    runs = organism.run_many([PROMPT, "Then Mary and John went to the store, John gave a drink to", PROMPT])
    targets, against = ["Mary", "John", "Mary"], ["John", "Mary", "John"]
    found = trace_many(runs, targets, against=against, through="heads")
    assert_alike(found[0], trace(runs[0], "Mary", against="John", through="heads"))
    assert_alike(found[0], found[2])
    bad = found[1]
    assert isinstance(bad, Untraced) and bad.index == 1 and bad.prompt.startswith("Then Mary")
    assert isinstance(bad.error, NothingToTraceError) and "prefers 'Mary'" in str(bad)
    with pytest.raises(NothingToTraceError, match=r"prompt 1 \('Then Mary and John .*prefers 'Mary' to 'John'"):
        trace_many(runs, targets, against=against, errors="raise")
    with pytest.raises(KeyholeError, match=r"^the model prefers"):  # a single prompt needs no number
        trace(runs[1], "John", against="Mary")


def test_settings_that_fit_no_prompt_are_refused_at_once(organism: keyhole.Model) -> None:
    with pytest.raises(KeyholeError, match=r"^tau"):
        trace_many([organism.run(PROMPT)] * 2, ["Mary", "Mary"], tau=2.0, errors="keep")


def test_a_circuit_as_a_picture(organism: keyhole.Model) -> None:
    """Every edge between drawn nodes is there, as wide as what it carries; words say how much ends in them."""
    circuit = organism.run(PROMPT).trace("Mary", against="John")
    (axis,) = circuit.plot().axes
    drawn = shown(circuit)
    constants = {i for i, node in enumerate(drawn.nodes) if node.kind not in ("head", "mlp", "embedding", "target")}
    edges = [e for e in drawn.edges if not {e.sender, e.receiver} & constants]
    assert len(axis.patches) == len(edges) > 10
    widest = max(axis.patches, key=lambda patch: patch.get_linewidth())
    assert widest.get_linewidth() == pytest.approx(14 * max(e.influence for e in edges))
    assert "2:Mary\n38%" in [label.get_text() for label in axis.get_xticklabels()]


def test_names_in_the_picture(organism: keyhole.Model) -> None:
    """Named edges that are drawn have their name's number, in the middle of them; each name stands once below."""
    circuit = organism.run(PROMPT).trace("Mary", against="John")
    signals = sorted((e for e in circuit.edges if e.side in ("dest", "src")), key=lambda e: -(e.influence or 0))
    names = {signals[0]: "a name", signals[1]: "another", signals[2]: "a name", signals[-1]: "of an edge too weak"}
    (axis,) = circuit_figure(circuit, names=names).axes
    assert axis.get_xlabel() == "1  a name\n2  another"
    marks = [text for text in axis.texts if text.get_text() in ("1", "2")]
    assert sorted(text.get_text() for text in marks) == ["1", "1", "2"]
    straight = [patch for patch in axis.patches if patch.get_connectionstyle().rad == 0]
    middles = [tuple((a + b) / 2 for a, b in zip(*patch._posA_posB, strict=True)) for patch in straight]
    assert sorted(middles) == sorted(text.get_position() for text in marks)


@pytest.mark.parametrize("width", [3.25, 6.75])
@pytest.mark.parametrize("through", ["mlps", "heads"])
def test_a_picture_has_all_its_letters_at_the_width_of_a_column(
    organism: keyhole.Model, width: float, through: Literal["mlps", "heads"]
) -> None:
    """Legend, title and labels lie inside, none smaller than 6 points, and the title has no folder in it."""
    circuit = organism.run(PROMPT).trace("Mary", against="John", through=through)
    circuit = replace(circuit, model={**circuit.model, "name": "/home/somebody/models/a-model.gguf"})
    figure = circuit.plot(width=width)
    figure.draw_without_rendering()
    assert figure.get_figwidth() == width
    texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width, text.get_text()
        assert box.y0 >= 0 and box.y1 <= figure.bbox.height, text.get_text()
        assert text.get_fontsize() >= 6
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width and box.y0 >= 0
    assert len(legend.get_texts()) == len({edge.side for edge in shown(circuit).edges})
    (axis,) = figure.axes
    title = axis.get_title(loc="left")
    assert title.startswith("a-model.gguf: 'Mary'") and "/" not in title
    nodes = [text.get_window_extent() for text in axis.texts if re.fullmatch(r"m?\d+(\.\d+)?", text.get_text())]
    assert len(nodes) > 5 and not any(a.overlaps(b) for i, a in enumerate(nodes) for b in nodes[:i])


def test_a_picture_without_width_is_refused(organism: keyhole.Model) -> None:
    circuit = organism.run(PROMPT).trace("Mary", through="heads")
    with pytest.raises(KeyholeError, match=r"2 to 40 inches wide, not 0"):
        circuit.plot(width=0)


@pytest.mark.parametrize("schema", [1, 2, 3, 4])
def test_circuits_of_older_schemas_are_read_and_written_as_they_were(schema: int) -> None:
    """Files of earlier versions: of heads alone, through MLPs, measured, and with sizes and directions."""
    text = (ROOT / f"tests/schemas/circuit-{schema}.json").read_text()
    circuit = from_json(text)
    assert to_json(circuit) == text and json.loads(text)["schema"] == schema
    assert bool(circuit.mlps) == bool(circuit.influence) == (schema > 1) and bool(circuit.measured) == (schema > 2)
    assert (circuit.sizes is not None) == (schema == 4) and len(circuit.directions) == len(circuit.mlps) * (schema == 4)


@pytest.fixture(scope="module")
def through(organism: keyhole.Model) -> keyhole.Circuit:
    return organism.run(PROMPT).trace("Mary")


def test_a_column_holds_a_text_whole_or_refuses_it() -> None:
    """NumPy's arrays of texts cut what is too long."""
    assert Nodes.of([Node("value_offset", 1, 0, 0, 0)])[0].kind == "value_offset"
    with pytest.raises(KeyholeError, match=r"column kind of nodes cannot hold .*'value_offsets' has more than 12"):
        Nodes.of_cells([("value_offsets", 1, 0, 0, 0)])


def test_files_keep_directions_and_sizes(through: keyhole.Circuit) -> None:
    read = from_json(to_json(through))
    assert read.sizes == through.sizes and read.directions.keys() == {mlp.node for mlp in through.mlps} != set()
    assert all(np.array_equal(read.directions[node], along) for node, along in through.directions.items())
    assert not shown(through, eps=0.5).directions  # a part is there to be looked at


def _packed(*numbers: float) -> str:
    return base64.b64encode(np.array(numbers, dtype="<f4").tobytes()).decode()


@pytest.mark.parametrize(
    ("direction", "reason"),
    [
        (_packed(*range(127)), "has 508 bytes, and 128 float32 numbers have 512"),
        (_packed(*[0.0] * 128), "is zero"),
        (_packed(math.nan, *[1.0] * 127), "NaN or infinite"),
        ("a" * 683, "is not base64"),
        ("\u00e9" + "a" * 683, "is not base64"),
        (_packed(*range(128)).replace("A", "\n", 1), "is not base64"),
        ([1.0] * 128, "is no text"),
        (None, "is no text"),
    ],
)
def test_directions_that_are_none_are_refused(through: keyhole.Circuit, direction: object, reason: str) -> None:
    document = json.loads(to_json(through))
    document["mlps"][0]["direction"] = direction
    with pytest.raises(KeyholeError, match=reason):
        from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"heads": 6, "kv_heads": 6},
            r"it names head \d\.\d, and its model has 4 layers of 6 heads",
        ),
        ({"layers": 3}, "it names .* 3, and its model has 3 layers"),
        ({"d_head": 2}, "it names channel"),
        ({"vocab": 20}, "it names token"),
        ({"kv_heads": 9}, "its model has 9 kv_heads"),
        ({"layers": 0}, "its model has 0 layers"),
        ({"d_model": 64}, "has 512 bytes, and 64 float32 numbers have 256"),
        ({"d_model": -128}, "no whole number from 0 on"),
        ({"parallel": 1}, "parallel"),
        ({"experts": 4}, "exactly the keys"),
    ],
)
def test_sizes_hold_for_all_that_a_file_names(through: keyhole.Circuit, change: dict[str, object], reason: str) -> None:
    document = json.loads(to_json(through))
    document["sizes"] |= change
    with pytest.raises(KeyholeError, match=reason):
        from_json(json.dumps(document))


def test_sizes_and_directions_are_of_the_newest_schema(through: keyhole.Circuit) -> None:
    document = json.loads(to_json(through))
    some = [{k: v for k, v in mlp.items() if k != "direction" or i} for i, mlp in enumerate(document["mlps"])]
    bare = {key: value for key, value in document.items() if key != "sizes"}
    for changed, reason in (
        ({**document, "schema": 2}, "keys are not of schema 2"),
        ({**document, "schema": 3}, "keys are not of schema 3"),
        (bare, "keys are not of schema 4"),
        ({**bare, "schema": 2}, "from schema 4 on"),
        ({**document, "schema": True}, "its schema is True, and this version reads 1 to 4"),
        ({**document, "mlps": some}, "some of its MLPs have a direction"),
    ):
        with pytest.raises(KeyholeError, match=reason):
            from_json(json.dumps(changed))


def test_another_models_sizes_are_refused(through: keyhole.Circuit, organism: keyhole.Model) -> None:
    assert through.sizes is not None
    other = replace(through, sizes=replace(through.sizes, vocab=482), run=None)
    with pytest.raises(KeyholeError, match="482 tokens, and organism has 4 layers"):
        other.verify(organism, draws=0)
