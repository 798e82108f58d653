"""Do Neuronpedia and circuit-tracer read our graphs? Their schema, and what their viewers stumble over beyond it."""

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import keyhole
from commands import keyhole as typed
from keyhole import Circuit, KeyholeError
from keyhole.circuits.circuit import Edge, Node
from keyhole.circuits.neuronpedia import PINNED, to_neuronpedia
from keyhole.circuits.shown import SHOWN, shown, strongest
from keyhole.circuits.text import node_label

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "neuronpedia_graph.json").read_text())
PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module", params=["mlps", "heads"])
def circuit(request: pytest.FixtureRequest, organism: keyhole.Model) -> Circuit:
    return organism.run(PROMPT).trace("Mary", against="John", through=request.param)


def graph(circuit: Circuit, **options: Any) -> dict[str, Any]:
    found = json.loads(to_neuronpedia(circuit, **options))
    jsonschema.validate(found, SCHEMA)
    return found


def test_a_graph_of_svt_says_what_its_numbers_are(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    told = graph(run.trace("Mary", against="John", method="svt"))["metadata"]["info"]["description"]
    assert "links are contributions (equation 8 of the 2024 paper)" in told and "drops" not in told
    assert (
        "links are drops of attention" in graph(run.trace("Mary", through="heads"))["metadata"]["info"]["description"]
    )


def test_the_schema_refuses_what_is_none(circuit: Circuit) -> None:
    found = graph(circuit)
    for broken in (
        {**found, "nodes": [{**found["nodes"][0], "feature": "3"}]},
        {**found, "links": [{"source": "a", "target": "b"}]},
        {**found, "metadata": {**found["metadata"], "scan": None}},
        {name: value for name, value in found.items() if name != "qParams"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, SCHEMA)


def test_every_node_is_there_as_viewers_know_it(circuit: Circuit) -> None:
    found = graph(circuit)
    nodes = found["nodes"]
    known = {"head": "lorsa", "mlp": "mlp", "embedding": "embedding", "target": "logit"}
    for node, own, attention in zip(nodes, circuit.nodes, circuit.attention, strict=False):
        assert node["feature_type"] == known.get(own.kind, "bias") and node["ctx_idx"] == own.dest
        if own.kind == "head":
            assert (node["activation"], node["clerp"]) == (
                attention,
                node_label(own, circuit.tokens).replace("<bos>", "\u2039bos>"),
            )
        if own.kind not in ("embedding", "target"):
            assert node["layer"] == str(own.layer)
    tokens = [node for node in nodes if node["feature_type"] == "embedding"]
    assert {node["layer"] for node in tokens} == {"E"}
    assert sorted(node["ctx_idx"] for node in tokens) == list(range(len(circuit.tokens)))  # viewers name no others
    silent, linked = nodes[len(circuit.nodes) :], {link[end] for link in found["links"] for end in ("source", "target")}
    assert silent and all(node in tokens and node["node_id"] not in linked for node in silent)


def test_what_viewers_tell_nodes_by_is_nodes_own(circuit: Circuit) -> None:
    nodes = graph(circuit)["nodes"]
    assert len({node["node_id"] for node in nodes}) == len(nodes)
    assert len({(node["layer"], node["feature"], node["ctx_idx"]) for node in nodes}) == len(nodes)
    above = max(int(node["layer"]) for node in nodes if node["feature_type"] not in ("logit", "embedding"))
    (answer,) = (node for node in nodes if node["feature_type"] == "logit")
    assert int(answer["layer"]) > above > 0
    token, likely = answer["clerp"].split('"')[1], answer["clerp"].split("(p=")[1].split(")")[0]
    assert (token, float(likely)) == ("Mary", pytest.approx(answer["token_prob"], abs=1e-3))


def test_kinds_of_one_layer_and_token_do_not_collide(circuit: Circuit) -> None:
    """All kinds and heads side by side, at one token."""
    kinds = [Node(kind, 1, None, 3, 3) for kind in ("mlp", "mixer", "bias", "mlp_offset")]
    heads = [Node(kind, 1, head, 3, 3) for kind in ("offset", "value_offset") for head in range(40)]
    moved = [Node("head", 1, head, 3, src) for head in range(40) for src in range(4)]
    nodes = (*kinds, *heads, *moved, circuit.nodes[-1])
    full = replace(circuit, nodes=nodes, attention=(0.5,) * len(nodes), edges=(), firings=(), influence=(), mlps=())
    found = graph(full)["nodes"]
    told = {(node["layer"], node["feature"], node["ctx_idx"]) for node in found}
    assert len(told) == len(found) == len(nodes) + len(circuit.tokens)


def test_links_are_edges_added_up(circuit: Circuit) -> None:
    found = graph(circuit)
    ids = [node["node_id"] for node in found["nodes"]]
    links = {(link["source"], link["target"]): link["weight"] for link in found["links"]}
    assert len(links) == len(found["links"])  # viewers find a link by its two ends
    total: dict[tuple[str, str], float] = defaultdict(float)
    for edge in circuit.edges:
        total[ids[edge.sender], ids[edge.receiver]] += edge.weight if edge.influence is None else edge.influence
    assert links == pytest.approx({ends: weight for ends, weight in total.items() if weight})


def test_sides_are_queries_and_keys(circuit: Circuit) -> None:
    found = graph(circuit)["nodes"][: len(circuit.nodes)]
    for i, node in enumerate(found):
        if circuit.nodes[i].kind != "head":
            assert "qk_tracing_results" not in node
            continue
        for side, name in (("dest", "q"), ("src", "k")):
            told = [tuple(one) for one in node["qk_tracing_results"][f"top_{name}_marginal_contributors"]]
            own = [(found[e.sender]["node_id"], e.weight) for e in circuit.edges_into(i) if e.side == side]
            assert sorted(told) == sorted(own) and [w for _, w in told] == sorted((w for _, w in told), reverse=True)
    assert any(node["qk_tracing_results"]["top_k_marginal_contributors"] for node in found if "activation" in node)


def test_pruning_begins_with_what_our_page_shows(circuit: Circuit) -> None:
    found = graph(circuit)
    if not circuit.influence:
        assert "node_threshold" not in found["metadata"] and "influence" not in found["nodes"][0]
        return
    limit, nodes = found["metadata"]["node_threshold"], found["nodes"][: len(circuit.nodes)]
    told = [node["influence"] for node in nodes]
    assert [share is None for share in told] == [node.kind == "target" for node in circuit.nodes]
    kept = [i for i, share in enumerate(told) if share is None or share <= limit]  # answers always
    assert [circuit.nodes[i] for i in kept] == list(shown(circuit).nodes)
    assert 0 < len(kept) < len(circuit.nodes) and all(circuit.influence[i] >= SHOWN for i in kept)
    shares = sorted((s for i, s in enumerate(circuit.influence) if told[i] is not None), reverse=True)
    assert sorted(s for s in told if s is not None) == pytest.approx(np.cumsum(shares) / sum(shares))
    assert max(s for s in told if s is not None) == 1.0  # above it no slider finds a node


def test_a_last_digit_hides_no_node(circuit: Circuit) -> None:
    """Shares whose sum depends on the order."""
    if circuit.influence:
        for seed in range(20):
            shares = np.random.default_rng(seed).random(len(circuit.nodes)).tolist()
            nodes = graph(replace(circuit, influence=tuple(shares)))["nodes"]
            assert max(node.get("influence") or 0.0 for node in nodes) <= 1.0


def test_the_strongest_edges_are_pinned(circuit: Circuit) -> None:
    found = graph(circuit)
    by_id = dict(zip((node["node_id"] for node in found["nodes"]), circuit.nodes, strict=False))
    pinned = [by_id[one] for one in found["qParams"]["pinnedIds"]]
    assert pinned == list(strongest(circuit, PINNED).nodes) and 5 < len(pinned) < len(circuit.nodes)
    assert "target" in {node.kind for node in pinned}


def test_names_stand_where_they_end(circuit: Circuit) -> None:
    edge = next(edge for edge in circuit.edges if edge.side == "dest")
    labels = [node["clerp"] for node in graph(circuit, names={edge: "a name said twice"})["nodes"]]
    assert [i for i, label in enumerate(labels) if "a name said twice" in label] == [edge.receiver]
    assert labels[edge.receiver].endswith("; dest: a name said twice")


def test_labels_are_no_markup(circuit: Circuit) -> None:
    hostile = replace(circuit, tokens=("<img src=x onerror=alert(1)>", *circuit.tokens[1:]))
    found = graph(hostile)
    assert not any(
        "<img" in text for text in (*found["metadata"]["prompt_tokens"], *(n["clerp"] for n in found["nodes"]))
    )


def test_answers_without_a_probability_or_a_token(circuit: Circuit) -> None:
    bare = replace(circuit.parameters, target_probability=(), target_text=(), target_ids=(), against_text=())
    (answer,) = (n for n in graph(replace(circuit, parameters=bare))["nodes"] if n["feature_type"] == "logit")
    assert answer["clerp"] == 'Output "a direction" (p=?)' and "token_prob" not in answer


def test_what_their_viewer_cannot_draw_is_refused(circuit: Circuit) -> None:
    low = tuple(node for node in circuit.nodes if not node.layer)
    flat = replace(circuit, nodes=low, attention=(None,) * len(low), edges=(), firings=(), influence=(), mlps=())
    with pytest.raises(KeyholeError, match="above layer 0"):
        to_neuronpedia(flat)


def test_the_suffix_decides(circuit: Circuit, tmp_path: Path) -> None:
    circuit.save(tmp_path / "mary.Neuronpedia.JSON")
    circuit.save(tmp_path / "mary.json")
    jsonschema.validate(json.loads((tmp_path / "mary.Neuronpedia.JSON").read_text()), SCHEMA)
    assert Circuit.load(tmp_path / "mary.json") == circuit
    with pytest.raises(KeyholeError, match=r"read from their \.json.*--out mary\.json`"):
        Circuit.load(tmp_path / "mary.Neuronpedia.JSON")


def test_by_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "mary.neuronpedia.json"
    told = typed("trace", PROMPT, "--target", "Mary", "--out", str(path))
    assert told.returncode == 0, told.stderr
    found = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["metadata"]["prompt"].endswith("John gave a drink to")


def test_what_the_graph_is_called(circuit: Circuit) -> None:
    metadata = graph(circuit, slug="mine", scan="gpt2-small")["metadata"]
    assert (metadata["slug"], metadata["scan"]) == ("mine", "gpt2-small")
    path = replace(circuit, model={**circuit.model, "name": "google/gemma-2-2b"})
    assert graph(path)["metadata"]["scan"] == "gemma-2-2b"


def test_edges_of_no_weight_are_no_links(circuit: Circuit) -> None:
    edge = circuit.edges[0]
    none = Edge(edge.sender, edge.receiver, edge.side, 0.0, 0.0, 0.0, (), None if edge.influence is None else 0.0)
    assert graph(replace(circuit, edges=(none,)))["links"] == []


def test_an_answer_that_looks_like_a_label_is_read_as_a_word(circuit: Circuit) -> None:
    odd = replace(circuit.parameters, target_text=('" (p=9)',))
    found = graph(replace(circuit, parameters=odd, tokens=("<script>", *circuit.tokens[1:])))
    (answer,) = (node for node in found["nodes"] if node["feature_type"] == "logit")
    assert answer["clerp"].count('"') == 4 and answer["clerp"].count("(p=") == 1  # two words in quotes
    assert "<script>" not in found["metadata"]["prompt"]
