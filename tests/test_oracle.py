"""The fast search and trace against the slow ones of `oracle.py`: the same removals, signals, edges and weights."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import oracle as slowly
from conftest import prompts_of, tiny_model
from keyhole.circuits.circuit import Circuit, Node
from keyhole.circuits.records import Writer
from keyhole.models import run
from keyhole.tracing import bounds, search, why, writers
from keyhole.tracing.answers import Likeliest
from keyhole.tracing.firing import Firing, Side
from keyhole.tracing.seeds import Probability
from keyhole.tracing.trace import trace
from keyhole.tracing.why import explain
from oracle import Oracle, Seed, numbers
from tiny import Sizes

VARIANTS = [
    "gpt2",
    "gpt_neox",  # parallel residual, partial rotation
    "llama",
    "llama-bias",
    "llama-yarn",
    "mistral",  # a window shorter than the prompt
    "qwen3",  # QK-norm
    "phi-qknorm",  # QK-norm with a bias
    "gemma2",  # softcaps, norms on what blocks write
    "gemma3_text",
    "cohere-qknorm",  # Omega of less than full rank, adjacent pairs rotate
    "gpt_oss",  # sinks, value biases
    "stablelm",
    "stablelm-parallel-qknorm",
    "bloom",  # ALiBi
    "lfm2",  # layers without attention
    "olmo2",  # QK-norm over all heads, no norm before attention
    "llama4_text",  # chunks, a factor on queries
]
IN_FLOAT32 = ["gpt2", "llama", "gemma2", "gpt_oss"]
SIZES = Sizes(layers=3, heads=4, kv_heads=2, d_head=6, window=4, seed=6)
N = 10
END = N - 1
Place = tuple[int, int, int, int]  # layer, head, dest, src


@functools.cache
def oracle_of(variant: str, dtype: torch.dtype = torch.float64) -> Oracle:
    sizes = replace(SIZES, layers=5) if variant == "lfm2" else SIZES  # every second layer has attention
    model = tiny_model(variant, sizes, dtype)
    return Oracle(model.run(prompts_of(model, N)[0]))


def close(oracle: Oracle) -> float:
    """How far the two may be apart: the oracle computes in float64 whatever the run did."""
    return 1e-8 if oracle.run.logits.dtype == torch.float64 else 1e-4


def noise(oracle: Oracle) -> float:
    """The attribution that rounding gives to rows without any: a key bias that is alike for all keys has none."""
    return 1e-12 if oracle.run.logits.dtype == torch.float64 else 1e-7


def strongest(oracle: Oracle, per_layer: int = 4, above: float = 1.0) -> list[Place]:
    """The strongest weights of each upper layer that are at least tau; no two of the same head and dest."""
    chosen: list[Place] = []
    for layer in oracle.run.model.attention_layers[1:]:
        found = []
        for head in range(oracle.run.model.dims.heads):
            for dest in range(2, len(oracle.run)):
                weights = oracle.pattern(layer, head)[dest]
                src = int(weights.argmax())
                if weights[src] >= above * oracle.tau(layer, dest):
                    found.append((float(weights[src]), (layer, head, dest, src)))
        chosen += [place for _, place in sorted(found, reverse=True)[:per_layer]]
    assert chosen
    return chosen


# -- the oracle itself ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_candidates_add_up_to_the_scores(variant: str) -> None:
    oracle = oracle_of(variant)
    for layer, head, dest, src in strongest(oracle, per_layer=2):
        G_d, G_s = oracle.channels(layer, head)
        if not np.allclose(G_d @ G_s, np.eye(len(G_d))):  # a rank-deficient head keeps a rest that nobody can remove
            assert variant in ("cohere-qknorm", "phi-qknorm", "stablelm-parallel-qknorm") and not G_s[-1].any()
            continue
        scores = oracle.scores(layer, head, dest)
        rows = [c.row for c in oracle.dest_candidates(layer, head, dest)]
        columns = [c.row for c in oracle.src_candidates(layer, head, dest, src, "all")]
        tolerance = 1e-5 * float(np.abs(scores).max())  # some families compute their norms in float32
        np.testing.assert_allclose(sum(rows), scores, rtol=0, atol=tolerance)
        np.testing.assert_allclose(sum(columns), scores, rtol=0, atol=tolerance)


@pytest.mark.parametrize("variant", VARIANTS)
def test_attribution_is_complete(variant: str) -> None:
    oracle = oracle_of(variant)
    for layer, head, dest, src in strongest(oracle, per_layer=2):
        scores = oracle.scores(layer, head, dest)
        change = oracle.pattern(layer, head)[dest, src] - oracle.weights(layer, head, dest, 0 * scores)[src]
        assert oracle.path(layer, head, dest, src) @ scores == pytest.approx(change, abs=2e-3)


# -- firings --------------------------------------------------------------------------------------------------------


def same_firing(fast: Firing, slow: slowly.Firing, oracle: Oracle) -> None:
    assert fast.attention == pytest.approx(slow.attention, abs=close(oracle))
    assert (fast.tau, fast.visible) == (slow.tau, slow.visible)
    assert [side.side for side in fast.sides] == list(slow.sides)
    for side in fast.sides:
        same_side(side, slow.sides[side.side], oracle)
        assert side.reached == (slow.sides[side.side].after < slow.tau)


def same_side(fast: Side, slow: slowly.Side, oracle: Oracle) -> None:
    ours = [r for r in fast.removed if r.ig > noise(oracle)]
    theirs = [r for r in slow.removed if r.ig > noise(oracle)]
    assert [(r.writer, r.channel) for r in ours] == [(r.candidate.writer, r.candidate.channel) for r in theirs]
    for numbers_of in (lambda r: r.ig, lambda r: r.after):
        assert [numbers_of(r) for r in ours] == pytest.approx([numbers_of(r) for r in theirs], abs=close(oracle))
    assert fast.after == pytest.approx(slow.after, abs=close(oracle))
    signals = {signal.writer: signal for signal in fast.signals if signal.ig > noise(oracle)}
    expected = {writer: signal for writer, signal in slow.signals.items() if signal.ig > noise(oracle)}
    assert list(signals) == list(expected)
    for writer, signal in expected.items():
        same_signal(signals[writer], signal, oracle)


def same_signal(fast: object, slow: slowly.Signal, oracle: Oracle) -> None:
    assert fast.channels == slow.channels  # type: ignore[attr-defined]
    for name in ("weight", "ig", "alone"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), abs=close(oracle)), name


@pytest.mark.parametrize("keys", ["all", "source"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_firings(variant: str, keys: str) -> None:
    oracle = oracle_of(variant)
    for layer, head, dest, src in strongest(oracle):
        fast = explain(oracle.run, (layer, head), dest, src, keys=keys)
        assert len(fast.sides) == 2
        same_firing(fast, oracle.explain(layer, head, dest, src, keys=keys), oracle)


@pytest.mark.parametrize("variant", VARIANTS)
def test_firings_searched_to_the_end(variant: str) -> None:
    """A small tau makes the order of removal long, and runs out of candidates now and then."""
    oracle = oracle_of(variant)
    for layer, head, dest, src in strongest(oracle, per_layer=2):
        fast = explain(oracle.run, (layer, head), dest, src, tau=0.003)
        same_firing(fast, oracle.explain(layer, head, dest, src, tau=0.003), oracle)


@pytest.mark.parametrize("variant", IN_FLOAT32)
def test_firings_in_float32(variant: str) -> None:
    oracle = oracle_of(variant, torch.float32)
    for layer, head, dest, src in strongest(oracle):
        fast = explain(oracle.run, (layer, head), dest, src)
        same_firing(fast, oracle.explain(layer, head, dest, src), oracle)


@pytest.mark.parametrize("few", [0, 8])  # however many writes bounds leave: none are computed for all, or all are
@pytest.mark.parametrize("variant", ["gpt2", "mistral", "gemma2", "gpt_oss", "bloom", "glm4"])
def test_long_prompts_are_traced_alike(variant: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where attention is not kept but rebuilt, and firings and heads are taken one by one, nothing changes."""
    monkeypatch.setattr(bounds, "_FEW", few)
    monkeypatch.setattr(bounds, "_NEAR", 2)
    monkeypatch.setattr(bounds, "_AHEAD", 1)
    monkeypatch.setattr(writers, "_KEPT_FLOATS", 0)
    monkeypatch.setattr(run, "_DEST_BLOCK", 4)
    monkeypatch.setattr(why, "_COORD_FLOATS", 1)
    monkeypatch.setattr(why, "PROJECTED_FLOATS", 1)
    monkeypatch.setattr(search, "_ROW_FLOATS", 100)
    oracle = oracle_of(variant)
    for layer, head, dest, src in strongest(oracle, per_layer=2):
        fast = explain(oracle.run, (layer, head), dest, src, tau=0.003)
        same_firing(fast, oracle.explain(layer, head, dest, src, tau=0.003), oracle)
    targets, end, seeds = traceable(oracle, lambda ids, end: oracle.prob_seeds(ids, 0.8, end), n=3)
    same_circuit(trace(oracle.run, targets, end=end, through="heads"), seeds, oracle)


def test_weights_below_tau_are_not_searched() -> None:
    oracle = oracle_of("mistral")
    weights = oracle.pattern(2, 0)[END]
    for src in oracle.visible(2, END):
        fast = explain(oracle.run, (2, 0), END, src)
        assert bool(fast.sides) == (weights[src] >= oracle.tau(2, END))
        same_firing(fast, oracle.explain(2, 0, END, src), oracle)


def test_what_was_moved_from_beyond_src_is_removed_but_is_no_signal() -> None:
    later = 0
    for variant in ("gpt2", "llama", "gemma2"):
        oracle = oracle_of(variant)
        for layer, head, dest, src in strongest(oracle, per_layer=12):
            side = explain(oracle.run, (layer, head), dest, src, tau=0.02).side("src")
            later += sum(removal.writer.src > src for removal in side.removed)
            assert all(signal.writer.src <= src for signal in side.signals)
    assert later > 0


# -- circuits -------------------------------------------------------------------------------------------------------


def writer_of(node: Node) -> Writer | None:
    if node.kind == "target":
        return None
    assert node.layer is not None
    return Writer(node.kind, node.layer, node.head, node.dest, node.src)


def same_circuit(fast: Circuit, seeds: list[Seed], oracle: Oracle, tau: object = "dynamic", keys: str = "all") -> None:
    assert fast.firings
    slow = {join: s for join, s in oracle.trace(seeds, tau, keys).items() if s.ig > noise(oracle)}
    edges = {(writer_of(fast.nodes[e.sender]), writer_of(fast.nodes[e.receiver]), e.side): e for e in fast.edges}
    assert {writer_of(node) for node in fast.nodes} == {end for join in edges for end in join[:2]}
    edges = {join: edge for join, edge in edges.items() if edge.ig > noise(oracle)}
    assert set(edges) == set(slow)
    for join, signal in slow.items():
        same_signal(edges[join], signal, oracle)
    for node, attention in zip(fast.nodes, fast.attention, strict=True):
        if attention is not None:
            expected = oracle.pattern(node.layer, node.head)[node.dest, node.src]  # type: ignore[arg-type]
            assert attention == pytest.approx(expected, abs=close(oracle))
    same_removals(fast, oracle, tau, keys)


def same_removals(fast: Circuit, oracle: Oracle, tau: object, keys: str) -> None:
    """What the circuit keeps of every firing that was searched."""
    for traced in fast.firings:
        node = fast.nodes[traced.node]
        slow = oracle.explain(node.layer, node.head, node.dest, node.src, tau, keys)  # type: ignore[arg-type]
        assert (traced.tau, traced.visible) == (slow.tau, slow.visible)
        for name, removed in (("dest", traced.dest), ("src", traced.src)):
            ours = [(r.writer, r.channel) for r in removed if r.ig > noise(oracle)]
            theirs = [
                (r.candidate.writer, r.candidate.channel) for r in slow.sides[name].removed if r.ig > noise(oracle)
            ]
            assert ours == theirs


Seeding = Callable[[list[int], int], list[Seed]]  # of target ids and the predicting position


def traceable(oracle: Oracle, seeds_of: Seeding, n: int) -> tuple[list[int], int, list[Seed]]:
    """The first n neighbouring token ids, from the end backwards, with a seed to trace: an upper head above tau."""
    for end in reversed(range(2, N)):
        for start in range(oracle.run.model.dims.vocab - n):
            targets = list(range(start, start + n))
            seeds = seeds_of(targets, end)
            upper = [seed.writer for seed in seeds if seed.writer.kind == "head" and seed.writer.layer > 0]
            if any(oracle.pattern(w.layer, w.head)[end, w.src] >= oracle.tau(w.layer, end) for w in upper):
                return targets, end, seeds
    raise AssertionError("no target is written by an upper head")


@pytest.mark.parametrize("variant", VARIANTS)
def test_circuits_from_probabilities(variant: str) -> None:
    oracle = oracle_of(variant)
    targets, end, seeds = traceable(oracle, lambda ids, end: oracle.prob_seeds(ids, 0.8, end), n=3)
    same_circuit(trace(oracle.run, targets, end=end, through="heads"), seeds, oracle)


@pytest.mark.parametrize("variant", VARIANTS)
def test_circuits_from_differences_of_logits(variant: str) -> None:
    oracle, against = oracle_of(variant), [7, 11, 13]
    targets, end, seeds = traceable(oracle, lambda ids, end: oracle.linear_seeds(ids, against, end), n=2)
    same_circuit(trace(oracle.run, targets, against=against, metric="linear", end=end, through="heads"), seeds, oracle)


@pytest.mark.parametrize("variant", ["gpt2", "mistral", "gemma2", "gpt_oss", "bloom"])
def test_circuits_against_the_whole_vocabulary(variant: str) -> None:
    oracle = oracle_of(variant)
    (target,), end, seeds = traceable(oracle, lambda ids, end: oracle.linear_seeds(ids, [], end), n=1)
    circuit = trace(oracle.run, target, metric="linear", end=end, tau=0.2, keys="source", through="heads")
    same_circuit(circuit, seeds, oracle, tau=0.2, keys="source")


def test_a_circuit_of_the_likeliest_tokens() -> None:
    oracle, end = oracle_of("llama"), 6
    targets = numbers(oracle.run.logits[end]).argsort()[::-1][:4].tolist()
    circuit = trace(oracle.run, Likeliest(4), metric=Probability(0.95), end=end, through="heads")
    same_circuit(circuit, oracle.prob_seeds(targets, 0.95, end), oracle)


@pytest.mark.parametrize("variant", IN_FLOAT32)
def test_circuits_in_float32(variant: str) -> None:
    oracle = oracle_of(variant, torch.float32)
    targets, end, seeds = traceable(oracle, lambda ids, end: oracle.prob_seeds(ids, 0.8, end), n=3)
    same_circuit(trace(oracle.run, targets, end=end, through="heads"), seeds, oracle)
