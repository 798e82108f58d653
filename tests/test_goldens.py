"""Circuits of an independent implementation: same seeds, nodes, edges and channels, weights within 1e-4."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import keyhole
from alike import assert_alike
from keyhole.tracing.trace import trace, trace_many
from keyhole.tracing.why import explain

GOLDENS = Path(__file__).parent / "goldens"
CASES = {
    case["name"]: case
    for name in ("tiny_gpt2", "tiny_neox")
    for case in json.loads((GOLDENS / f"{name}.json").read_text())["cases"]
}
KINDS = {"mlp": 0, "bias": 1, "embedding": 2, "offset": 3}


@cache
def model(name: str) -> keyhole.Model:
    return keyhole.load(GOLDENS / name.partition(":")[0])


def identity(node: Any, heads: int) -> tuple[int, int, int, int]:
    """Goldens number components after the heads, and put embeddings and offsets at layer 0."""
    component = node.head if node.kind == "head" else heads + KINDS[node.kind]
    return 0 if node.kind in ("embedding", "offset") else node.layer, component, node.dest, node.src


def options(case: dict[str, Any]) -> dict[str, Any]:
    settings = case["settings"]
    found = {"tau": settings["attn_weight_thresh"], "seeds": settings["seeding"]}
    if settings["seeding"] == "linear":
        return {**found, "target": settings["answer"], "against": settings["wrong"]}
    return {**found, "target": settings["target_tokens"]}


@pytest.mark.parametrize("name", CASES)
def test_circuit_is_the_published_one(name: str) -> None:
    case, m = CASES[name], model(name)
    heads = m.dims.heads
    circuit = trace(m.run(case["token_ids"]), through="heads", **options(case))
    ours = {}
    for edge in circuit.edges:
        source, target = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        into = None if target.kind == "target" else identity(target, heads)
        channels = None if into is None else list(edge.channels)
        ours[identity(source, heads), into, "s" if edge.side == "src" else "d"] = (edge.weight, channels)
    theirs = {}
    for source, target, side, weight, channels in case["edges"]:
        into = None if target == -1 else tuple(case["nodes"][target][:4])
        theirs[tuple(case["nodes"][source][:4]), into, side] = (weight, channels)
    assert set(ours) == set(theirs)
    for key, (weight, channels) in theirs.items():
        assert ours[key][1] == channels
        assert ours[key][0] == pytest.approx(weight, abs=1e-4)
    nodes = {identity(n, heads): a for n, a in zip(circuit.nodes, circuit.attention, strict=True) if n.kind != "target"}
    assert set(nodes) == {tuple(node[:4]) for node in case["nodes"]}
    for *key, weight in case["nodes"]:
        if weight is not None:  # a seed below tau has none there
            assert nodes[tuple(key)] == pytest.approx(weight, abs=1e-4)
    assert len(circuit.firings) == len(case["firings"])


@pytest.mark.parametrize("name", CASES)
def test_every_firing_is_searched_alike(name: str) -> None:
    case, m = CASES[name], model(name)
    run = m.run(case["token_ids"])
    assert case["firings"]
    for firing in case["firings"]:
        ours = explain(run, (firing["layer"], firing["head"]), firing["dest"], firing["src"], tau=firing["tau"])
        assert ours.attention == pytest.approx(firing["attn_weight"], abs=1e-4)
        for side, key in (("dest", "d"), ("src", "s")):
            found = ours.side(side).removed
            expected = firing[key]["removed"]
            order = [(*identity(r.writer, m.dims.heads)[:2], r.writer.src, r.channel) for r in found]
            assert order == [tuple(row[:4]) for row in expected]
            for mine, (*_, ig, after) in zip(found, expected, strict=True):
                assert mine.ig == pytest.approx(ig, abs=1e-4) and mine.after == pytest.approx(after, abs=1e-4)


@pytest.mark.parametrize("name", ["tiny_gpt2", "tiny_neox"])
def test_tracing_together_is_tracing_alone(name: str) -> None:
    cases = [case for case in CASES.values() if case["name"].startswith(name) and case["settings"]["seeding"] == "prob"]
    runs = model(name).run_many([case["token_ids"] for case in cases])
    targets = [case["settings"]["target_tokens"] for case in cases]
    assert len(cases) == 6
    for run, target, together in zip(runs, targets, trace_many(runs, targets, through="heads"), strict=True):
        assert_alike(together, trace(run, target, through="heads"))
