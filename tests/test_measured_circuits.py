"""What was measured of a circuit is shown, exported, cut and saved with the edges that it belongs to."""

import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import networkx as nx
import pytest

import keyhole
from commands import keyhole as typed
from conftest import tiny_model
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.exports import mib_from, signal_rows, to_graphml, to_mib
from keyhole.circuits.files import from_json, load_circuit
from keyhole.circuits.neuronpedia import to_neuronpedia
from keyhole.circuits.records import Sufficient
from keyhole.circuits.shown import shown, strongest
from keyhole.circuits.text import circuit_text, faithfulness_label, node_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.effects import unasked_faithfulness
from keyhole.tasks import like
from keyhole.tasks.copying import ioi
from keyhole.tasks.example import Example
from keyhole.tasks.files import read_prompts, write_examples

PROMPT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Anna and John went to the store, Anna gave a drink to"


@pytest.fixture(scope="module")
def example() -> Example:
    return ioi(1, 2, names=["Mary", "John"], wordings=[0], order="ABBA")[0]


@pytest.fixture(scope="module")
def others(example: Example, organism: keyhole.Model) -> list[Example]:
    return like(example, organism, n=12)


@pytest.fixture(scope="module")
def measured(example: Example, others: list[Example], organism: keyhole.Model) -> Circuit:
    run = organism.run(example.text)
    return run.trace(example.answer, against=example.wrong).effects(like=others)


@pytest.fixture(scope="module")
def sufficient(example: Example, others: list[Example], organism: keyhole.Model) -> Circuit:
    run = organism.run(example.text)
    return run.sufficient(example.answer, against=example.wrong, like=others)


def by_label(circuit: Circuit) -> dict[tuple[str, str, str], tuple[float | None, float | None]]:
    """Effect and share of every edge, by what it joins."""
    assert circuit.measured is not None
    return {
        (*(node_label(circuit.nodes[end], circuit.tokens) for end in (edge.sender, edge.receiver)), edge.side): (
            circuit.measured.edges[i],
            circuit.measured.edge_shares[i],
        )
        for i, edge in enumerate(circuit.edges)
    }


@pytest.mark.parametrize("cut", [shown, lambda circuit: strongest(circuit, 5)], ids=["shown", "strongest"])
@pytest.mark.parametrize("which", ["measured", "sufficient"])
def test_a_part_of_a_circuit_keeps_what_was_measured_of_it(
    which: str, cut: Callable[[Circuit], Circuit], request: pytest.FixtureRequest
) -> None:
    circuit = request.getfixturevalue(which)
    part = cut(circuit)
    assert part.measured is not None and circuit.measured is not None
    assert by_label(part).items() <= by_label(circuit).items()
    of_nodes = dict(zip(circuit.nodes, circuit.measured.nodes, strict=True))
    assert part.measured.nodes == tuple(of_nodes[node] for node in part.nodes)
    assert len(part.measured.words) == len(circuit.tokens)
    if isinstance(part.parameters, Sufficient):  # its first edges are still those that suffice
        found = set(by_label(replace(circuit, edges=circuit.edges[: circuit.parameters.found])))
        assert from_json(part.to_json()) == replace(part, run=None)
        assert [edge in found for edge in by_label(part)] == [i < part.parameters.found for i in range(len(part.edges))]


def test_parts_are_smaller(measured: Circuit, sufficient: Circuit) -> None:
    assert 3 < len(shown(measured).edges) < len(measured.edges)
    assert isinstance(sufficient.parameters, Sufficient)
    part = strongest(sufficient, 5)
    assert len(part.edges) == 5 < len(sufficient.edges) and part.parameters.found < sufficient.parameters.found


def test_the_tree_shows_effects_and_names_the_baseline_once(measured: Circuit) -> None:
    text = str(measured)
    assert text.count("the mean of 12 prompts like this one") == 1
    assert text.splitlines()[-1] == faithfulness_label(measured) and measured.measured is not None
    i, edge = max(enumerate(measured.edges), key=lambda pair: abs(measured.measured.edges[pair[0]] or 0.0))
    effect, share = measured.measured.edges[i], measured.measured.edge_shares[i]
    first = next(line for line in text.splitlines() if node_label(measured.nodes[edge.sender], measured.tokens) in line)
    assert f"[effect {effect:+.2f}, share {share / measured.measured.gap:+.1%}]" in first
    plain = str(replace(measured, measured=None))
    assert "effect" not in plain and "faithfulness" not in plain


def test_branches_are_in_order_of_their_effects(measured: Circuit) -> None:
    assert measured.measured is not None
    top = [line for line in str(measured).splitlines() if line.startswith(("├─", "└─")) and "effect" in line]
    sizes = [abs(float(line.split("[effect ")[1].split(",")[0])) for line in top]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) > 2


def test_a_tree_separates_what_suffices_from_why_heads_look(sufficient: Circuit) -> None:
    assert isinstance(sufficient.parameters, Sufficient)
    text, found = circuit_text(sufficient, depth=9, width=99), sufficient.parameters.found
    attached = len(sufficient.edges) - found
    assert f"{found} edges that suffice, {attached} signals attached" in text and attached > 0
    under, above = [], []
    indent: int | None = None
    for line in text.splitlines():
        at = len(line) - len(line.lstrip("│├└─ "))
        if indent is not None and at <= indent:
            indent = None
        if "why it looks there" in line:
            indent = at
        elif "─ " in line and "(above)" not in line:
            (above if indent is None else under).append(line)
    assert len(under) == attached and all("% " not in line for line in under)
    assert all("% " in line for line in above) and "faithfulness" in text.splitlines()[-1]


def test_a_circuit_that_suffices_has_no_story(sufficient: Circuit) -> None:
    with pytest.raises(KeyholeError, match="its edges have shares and no influence, along which stories are told"):
        sufficient.story()


def test_tables_have_effects_and_shares(measured: Circuit) -> None:
    assert measured.measured is not None
    rows = signal_rows(measured)
    key = {(edge.sender, edge.receiver, edge.side): i for i, edge in enumerate(measured.edges)}
    for row in rows:
        i = key[row["source"], row["target"], row["side"]]
        assert (row["effect"], row["share"]) == (measured.measured.edges[i], measured.measured.edge_shares[i])
    bare = signal_rows(replace(measured, measured=None))
    assert {row["effect"] for row in bare} == {row["share"] for row in bare} == {None}
    some = signal_rows(replace(measured, measured=replace(measured.measured, edges=(), edge_shares=())))
    assert {row["effect"] for row in some} == {None}


def test_graphs_have_effects_and_shares(measured: Circuit) -> None:
    assert measured.measured is not None
    graph = measured.to_networkx()
    assert graph.graph["baseline"] == measured.measured.baseline
    assert [graph.nodes[i]["effect"] for i in range(len(measured.nodes))] == list(measured.measured.nodes)
    assert sorted(data["share"] or 0.0 for _, _, data in graph.edges(data=True)) == sorted(
        share or 0.0 for share in measured.measured.edge_shares
    )
    read = nx.parse_graphml(to_graphml(measured), force_multigraph=True)
    effects_read = [data["effect"] for _, _, data in read.edges(data=True) if "effect" in data]
    assert sorted(effects_read) == pytest.approx(sorted(e for e in measured.measured.edges if e is not None))


def test_mib_files_have_signed_shares(
    measured: Circuit, sufficient: Circuit, example: Example, others: list[Example], organism: keyhole.Model
) -> None:
    """Also of a circuit in which a head takes something from several tokens."""
    run = organism.run(example.text)
    both = run.sufficient(example.answer, against=example.wrong, like=others, both_signs=True, level=0.99)
    places = [(node.layer, node.head, node.dest) for node in both.heads]
    assert len(set(places)) < len(places)
    for circuit in (measured, sufficient, both):
        assert circuit.measured is not None
        file = mib_from(json.loads(to_mib(circuit)), "c")
        n = circuit.parameters.found if isinstance(circuit.parameters, Sufficient) else len(circuit.edges)
        whole = {}  # an edge between components at a token counts once, however many tokens its head takes from
        for edge, share in zip(circuit.edges[:n], circuit.measured.edge_shares, strict=False):
            writer, reader = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
            if share is not None:
                whole[writer.kind, writer.layer, writer.head, writer.dest, reader.layer, reader.head, edge.side] = share
        assert sum(scored.score for scored in file.edges.values()) == pytest.approx(sum(whole.values()))
    assert any(scored.score < 0 for scored in mib_from(json.loads(to_mib(measured)), "c").edges.values())
    plain = mib_from(json.loads(to_mib(replace(measured, measured=None))), "c")
    assert all(scored.score > 0 for scored in plain.edges.values())


def test_neuronpedias_graph_says_what_was_measured(measured: Circuit) -> None:
    assert measured.measured is not None
    graph = json.loads(to_neuronpedia(measured))
    assert "the mean of 12 prompts like this one" in graph["metadata"]["info"]["description"]
    labels = {node["clerp"] for node in graph["nodes"]}
    strong = max(range(len(measured.nodes)), key=lambda i: measured.measured.nodes[i] or 0.0)
    label = node_label(measured.nodes[strong], measured.tokens)
    assert f"{label}; effect {measured.measured.nodes[strong]:+.2f}" in labels


# -- keyhole trace -------------------------------------------------------------------------------------------------


def test_trace_measures_faithfulness_unasked(organism: keyhole.Model, tmp_path: Path) -> None:
    asked = ("trace", PROMPT, "--target", "Mary", "--against", "John")
    done = typed(*asked, "--out", str(tmp_path / "c.json"))
    expected = organism.run(PROMPT).trace("Mary", against="John").effects(what=("faithfulness",))
    assert load_circuit(tmp_path / "c.json").measured == expected.measured
    told = "copies of the prompt with other words, where the logit difference is"
    assert done.stdout.count(told) == 1
    assert faithfulness_label(expected) in done.stdout and not done.stderr
    assert "faithfulness" not in typed(*asked, "--no-faithfulness").stdout
    resting = typed(*asked, "--like", "resting")
    assert "faithfulness (baseline: the resting state, where" in resting.stdout
    svt = typed("trace", PROMPT, "--method", "svt", "--threshold", "0.3")
    assert svt.returncode == 0 and "faithfulness" not in svt.stdout + svt.stderr


def test_trace_measures_effects_against_prompts_like_this_one(
    example: Example, others: list[Example], measured: Circuit, tmp_path: Path
) -> None:
    write_examples(others, tmp_path / "like.jsonl")
    (tmp_path / "like.txt").write_text("".join(f"{other.text}\n" for other in others))
    asked = ("trace", example.text, "--target", example.answer, "--against", str(example.wrong), "--effects", "--json")
    of_examples = json.loads(typed(*asked, "--like", str(tmp_path / "like.jsonl")).stdout)
    assert from_json(json.dumps(of_examples)).measured == measured.measured
    of_texts = json.loads(typed(*asked, "--like", str(tmp_path / "like.txt")).stdout)["measured"]
    assert (
        not of_texts["faithfulness"].pop("others") and len(of_examples["measured"]["faithfulness"].pop("others")) == 8
    )
    assert of_texts == of_examples["measured"]
    alone = json.loads(typed(*asked, "--no-faithfulness", "--counterfactual", OTHER).stdout)["measured"]
    assert alone["faithfulness"] is None and alone["edges"] and repr(OTHER) in alone["baseline"]


def test_trace_measures_effects_against_a_text(organism: keyhole.Model, others: list[Example], tmp_path: Path) -> None:
    """The text is the baseline, by name and in numbers, unasked or with effects."""
    text = tmp_path / "letters.txt"
    text.write_text("".join(f"{other.text}\n" for other in others))
    asked = ("trace", PROMPT, "--target", "Mary", "--against", "John", "--json")
    expected = organism.run(PROMPT).trace("Mary", against="John").effects(text=text).measured
    assert from_json(typed(*asked, "--effects", "--text", str(text)).stdout).measured == expected
    unasked = json.loads(typed(*asked, "--text", str(text)).stdout)["measured"]
    assert unasked["baseline"] == "the resting state in letters.txt" and not unasked["edges"]
    resting = json.loads(typed(*asked, "--like", "resting").stdout)["measured"]
    assert resting["baseline"] == "the resting state" and resting["nothing"] != unasked["nothing"]


def test_trace_finds_a_circuit_that_suffices(
    example: Example, others: list[Example], sufficient: Circuit, tmp_path: Path
) -> None:
    write_examples(others, tmp_path / "like.jsonl")
    asked = ("trace", example.text, "--target", example.answer, "--against", str(example.wrong), "--sufficient")
    done = typed(*asked, "--depth", "3", "--like", str(tmp_path / "like.jsonl"), "--out", str(tmp_path / "c.json"))
    assert done.returncode == 0 and "why it looks there" in done.stdout
    assert load_circuit(tmp_path / "c.json") == replace(sufficient, run=None)
    both = typed(*asked, "--counterfactual", OTHER, "--both-signs", "--level", "0.8", "--json")
    parameters = json.loads(both.stdout)["parameters"]
    assert (parameters["both_signs"], parameters["level"]) == (True, 0.8)


def test_what_cannot_be_measured_unasked_is_a_note(
    organism: keyhole.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    short = typed("trace", "Mary and John", "--tau", "0.2")
    assert short.returncode == 0
    circuit = organism.run(PROMPT).trace("Mary")
    monkeypatch.setattr(import_module("keyhole.faithfulness.effects"), "UNASKED", 1)
    same, why = unasked_faithfulness(circuit)
    assert same is circuit and "of memory" in why
    monkeypatch.undo()
    tiny_model("lfm2").hf.save_pretrained(tmp_path / "model")  # which has layers that the masked pass refuses
    done = typed("trace", "--model", str(tmp_path / "model"), "--token-ids", "1,2,3,4,5,6,7")
    assert done.returncode == 0 and done.stderr.count("note: faithfulness was not measured: ") == 1
    refused = typed("trace", "--model", str(tmp_path / "model"), "--token-ids", "1,2,3,4,5,6,7", "--effects")
    assert refused.returncode == 2 and refused.stderr.startswith("error: ")


def test_a_gap_that_is_too_small_is_said(organism: keyhole.Model) -> None:
    """An answer that any other prompt would have had, too."""
    circuit = organism.run(PROMPT).trace("Mary", against="John")
    other = "When Mary and John went to the park, John gave a drink to"
    line = faithfulness_label(circuit.effects(counterfactual=other, what=("faithfulness",)))
    assert "not measured" in line and "the gap is too small" in line


def test_prompts_of_a_file(tmp_path: Path, others: list[Example]) -> None:
    write_examples(others, tmp_path / "like.txt")  # by what is in it, not by its name
    assert read_prompts(tmp_path / "like.txt") == others
    (tmp_path / "plain.txt").write_text("one prompt\r\n\n {a brace}\n  two spaces\n")
    assert read_prompts(tmp_path / "plain.txt") == ["one prompt", " {a brace}", "  two spaces"]
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(KeyholeError, match="has no prompts: write one a line"):
        read_prompts(tmp_path / "empty.txt")
