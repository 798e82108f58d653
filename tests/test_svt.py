"""Singular vector tracing against plain loops over d_model vectors, dense SVDs and pseudo-inverses."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model, Run
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import from_json, to_json
from keyhole.qk.controls import slice_use
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import omega
from keyhole.tracing.answers import Likeliest
from keyhole.tracing.settings import SvtSettings
from keyhole.tracing.svt import contributions, places_of, significant, trace_svt
from keyhole.tracing.trace import trace

Array = np.ndarray
FAMILIES = ["gpt2", "llama", "llama-bias", "qwen3", "gemma2", "gpt_oss", "lfm2"]
DEFICIENT = "stablelm-parallel-qknorm"  # centred queries and keys: one channel fewer than dimensions
PLACES = [(2, 0, 13, 13), (2, 1, 13, 10), (2, 3, 11, 9), (2, 2, 9, 8)]
IOI = "When Mary and John went to the store, John gave a drink to"


@dataclass(frozen=True)
class Oracle:
    """One firing read with d_model vectors: u_k and v_k of a dense Omega, RoPE lifted with pseudo-inverses."""

    run: Run
    layer: int
    head: int
    dest: int
    src: int

    def factor(self, side: str) -> Array:
        """[W; b] of the head, homogeneous."""
        w = self.run.model.folded(self.layer)
        W, b = (w.W_Q[self.head], w.b_Q[self.head]) if side == "dest" else self._of_key(w.W_K, w.b_K)
        return np.vstack([W.numpy(), b.numpy()[None]])

    def _of_key(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(t[self.run.model.folded(self.layer).kv(self.head)] for t in tensors)

    @cached_property
    def svd(self) -> tuple[Array, Array, Array]:
        W_Q, W_K = self.factor("dest"), self.factor("src")
        U, sigma, Vh = np.linalg.svd(W_Q @ W_K.T)
        n = W_Q.shape[1]
        return U[:, :n], sigma[:n], Vh[:n].T

    def token(self, side: str) -> int:
        return self.dest if side == "dest" else self.src

    def norm(self, side: str) -> float:
        return float(self.run.attention_run(self.layer).norm_scale[self.token(side)])

    def turned(self, x: Array, side: str) -> Array:
        """x M, with M = s W R^T W^+ for dest and its counterpart for src: what reading, scaling and RoPE do to x."""
        record, t, W = self.run.attention_run(self.layer), self.token(side), self.factor(side)
        scale = record.q_scale[self.head] if side == "dest" else self._of_key(record.k_scale)[0]
        return (float(scale[t]) * self.rotate(x @ W, t)) @ np.linalg.pinv(W)

    def constant(self, side: str) -> Array:
        """The bias of a norm on q or k escapes its scale, so it is a writer of its own."""
        w = self.run.model.folded(self.layer)
        c = w.c_Q[self.head] if side == "dest" else self._of_key(w.c_K)[0]
        return self.rotate(c.numpy(), self.token(side)) @ np.linalg.pinv(self.factor(side))

    def rotate(self, x: Array, t: int) -> Array:
        rotary = self.run.attention_run(self.layer).rotary
        if rotary is None:
            return x
        out, n = x.copy(), rotary.cos.shape[1]
        for f in range(n):
            i, j = (f, f + n) if rotary.pairing == "halves" else (2 * f, 2 * f + 1)
            cos, sin = float(rotary.cos[t, f]), float(rotary.sin[t, f])
            out[i], out[j] = cos * x[i] - sin * x[j], sin * x[i] + cos * x[j]
        return out

    def written(self, side: str) -> dict[tuple[str, int, int | None], Array]:
        """Homogeneous vectors of all writers at the token; a head's sources together; the 1 is a writer, too."""
        split = self.run.writers(self.layer, self.token(side))
        found: dict[tuple[str, int, int | None], Array] = {}
        for writer, vector in zip(split.writers, split.vectors.numpy(), strict=True):
            key = (writer.kind, writer.layer, writer.head)
            found[key] = found.get(key, 0.0) + np.append(vector / self.norm(side), 0.0)
        found["one", self.layer, self.head] = np.append(np.zeros(len(split.residual)), 1.0)
        return found

    def whole(self, side: str) -> Array:
        x = self.run.layers[self.layer].resid[self.token(side)].double().numpy() / self.norm(side)
        return self.turned(np.append(x, 1.0), side) + self.constant(side)

    def used(self) -> list[int]:
        """S: the shortest prefix of the terms in descending order whose sum exceeds the total."""
        U, sigma, V = self.svd
        terms = (self.whole("dest") @ U) * sigma * (self.whole("src") @ V)
        towards = terms if terms.sum() >= 0 else -terms
        prefix: list[int] = []
        for k in np.argsort(-towards):
            prefix.append(int(k))
            if towards[prefix].sum() > abs(terms.sum()):
                break
        return prefix

    @cached_property
    def signs(self) -> Array:
        return np.sign(self.whole("dest") @ self.svd[0])

    def project(self, x: Array, side: str, channels: list[int]) -> float:
        U, sigma, V = self.svd
        basis = U if side == "dest" else V
        return sum(math.sqrt(sigma[k]) * self.signs[k] * float(x @ basis[:, k]) for k in channels)


def run_of(variant: str) -> Run:
    model = tiny_model(variant, dtype=torch.float64)
    return model.run(prompts_of(model, 14)[0])


def places(run: Run) -> list[Oracle]:
    found = [Oracle(run, *p) for p in PLACES if int(run.attention_run(p[0]).first[p[2]]) <= p[3]]
    assert len(found) > 1
    return found


@pytest.mark.parametrize("variant", FAMILIES)
def test_contributions_are_those_of_a_plain_loop(variant: str) -> None:
    run = run_of(variant)
    for oracle in places(run):
        found = contributions(run, (oracle.layer, oracle.head), oracle.dest, oracle.src)
        assert list(found.channels) == oracle.used()
        everything = contributions(run, (oracle.layer, oracle.head), oracle.dest, oracle.src, channels="all")
        assert sorted(everything.channels) == list(range(run.model.dims.d_head))
        for ours in (found, everything):
            for side, values in (("dest", ours.at_dest), ("src", ours.at_src)):
                written = oracle.written(side)
                for index, layer in enumerate(ours.layers):
                    for head in range(run.model.dims.heads):
                        vector = oracle.turned(written["head", layer, head], side)
                        expected = oracle.project(vector, side, list(ours.channels))
                        assert float(values[index, head]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("variant", FAMILIES)
def test_heads_and_all_other_writers_make_up_the_whole_projection(variant: str) -> None:
    run = run_of(variant)
    for oracle in places(run):
        found = contributions(run, (oracle.layer, oracle.head), oracle.dest, oracle.src)
        for side, values in (("dest", found.at_dest), ("src", found.at_src)):
            channels = list(found.channels)
            others = [v for (kind, *_), v in oracle.written(side).items() if kind != "head"]
            rest = sum(oracle.project(oracle.turned(v, side), side, channels) for v in others)
            rest += oracle.project(oracle.constant(side), side, channels)
            assert float(values.sum()) + rest == pytest.approx(oracle.project(oracle.whole(side), side, channels))
        a = oracle.whole("dest") @ oracle.svd[0]
        expected = sum(math.sqrt(oracle.svd[1][k]) * abs(a[k]) for k in found.channels)
        assert oracle.project(oracle.whole("dest"), "dest", list(found.channels)) == pytest.approx(expected)


def test_without_rope_the_channels_are_the_library_s_own_vectors() -> None:
    run = run_of("gpt2")
    for oracle in places(run):
        om = omega(run.model, oracle.layer, "homogeneous")
        found = contributions(run, (oracle.layer, oracle.head), oracle.dest, oracle.src)
        k = list(found.channels)
        u, v = om.u(oracle.head)[:, k].numpy(), om.v(oracle.head)[:, k].numpy()
        roots = om.sigma[oracle.head, k].sqrt().numpy() * np.sign(oracle.whole("dest") @ u)
        for side, basis, values in (("dest", u, found.at_dest), ("src", v, found.at_src)):
            for (kind, layer, head), vector in oracle.written(side).items():
                if kind == "head":
                    assert float(values[layer, head]) == pytest.approx(float(vector @ basis @ roots))


def test_slices_are_those_of_slice_use(gpt2: Model) -> None:
    runs = gpt2.run_many(prompts_of(gpt2, 16, 17, 18, 19))
    use = slice_use(runs, (1, 3))
    assert len(use.pairs)
    for (prompt, dest, src), terms, used in zip(use.pairs.tolist(), use.terms, use.used, strict=True):
        found = contributions(runs[prompt], (1, 3), dest, src)
        assert set(found.channels) == set(used.nonzero().flatten().tolist())
        assert terms[list(found.channels)].diff().le(0).all()


values = st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=12)


@given(values, st.sampled_from([0.3, 0.7, 0.95]))
def test_the_significant_are_the_smallest_set_and_its_ties(row: list[float], share: float) -> None:
    chosen = significant(torch.tensor([row]), share)[0].tolist()
    picked = sorted((v for v, c in zip(row, chosen, strict=True) if c), reverse=True)
    left = [v for v, c in zip(row, chosen, strict=True) if not c]
    if sum(row) <= 0:
        assert not picked
        return
    assert sum(picked) > share * sum(row) and min(picked) > max([*left, -math.inf])
    without_ties = [v for v in picked if v > picked[-1]]
    assert sum(without_ties) <= share * sum(row)


def test_the_share_must_be_exceeded() -> None:
    assert significant(torch.tensor([[6.0, 4.0, 2.0]]), 0.5).tolist() == [[True, True, False]]


def test_nothing_is_significant_where_nothing_is() -> None:
    assert significant(torch.zeros(0, 4)).shape == (0, 4)
    assert not significant(torch.zeros(2, 4)).any()


Fired = tuple[int, int, int, int]


@cache
def attention(run: Run, layer: int) -> torch.Tensor:
    """All weights of a layer, computed once for a run."""
    return run.pattern(layer)


def fired(run: Run, layer: int, head: int, dest: int, threshold: float) -> list[Fired]:
    """The firings of a head from a token, one pair after the other."""
    row, scores = attention(run, layer)[head, dest], run.attention_run(layer).scores([head], [dest])[0, 0]
    return [(layer, head, dest, b) for b in range(1, dest + 1) if row[b] >= threshold and scores[b] >= 0]


def algorithm_1(run: Run, firing: Fired, threshold: float, edges: dict[tuple[Fired, Fired, str], float]) -> None:
    """The paper's recursion, as it is printed but for firings met before; a head that does not fire is a leaf."""
    layer, head, dest, src = firing
    if firing not in fired(run, layer, head, dest, threshold) or layer == run.model.attention_layers[0]:
        return
    found = contributions(run, (layer, head), dest, src)
    for side, token, values in (("dest", dest, found.at_dest), ("src", src, found.at_src)):
        for index, other in significant(values).nonzero().tolist():
            upper = found.layers[index]
            most = int(attention(run, upper)[other, token].argmax())
            for source in fired(run, upper, other, token, threshold) or [(upper, other, token, most)]:
                known = any(up == source for up, _, _ in edges)
                edges[source, firing, side] = float(values[index, other])
                if not known:
                    algorithm_1(run, source, threshold, edges)


def check_circuit(run: Run, circuit: Circuit, threshold: float) -> None:
    """The edges are those of the recursion; what is explained fires; nodes carry their attention."""
    place = [(n.layer, n.head, n.dest, n.src) for n in circuit.nodes]
    seeds = [e.sender for e in circuit.edges if e.side == "target"]
    expected: dict[tuple[Fired, Fired, str], float] = {}
    for seed in seeds:
        if circuit.nodes[seed].kind == "head":
            algorithm_1(run, place[seed], threshold, expected)
    signals = [edge for edge in circuit.edges if edge.side != "target"]
    assert {(place[e.sender], place[e.receiver], e.side): e.weight for e in signals} == pytest.approx(expected)
    joined = {i for edge in circuit.edges for i in (edge.sender, edge.receiver)}
    assert joined == set(range(len(circuit.nodes)))
    assert all(e.weight == e.ig == e.alone > 0 and e.channels for e in signals)
    explained = {firing.node for firing in circuit.firings}
    for index, node in enumerate(circuit.nodes):
        if node.kind != "head":
            assert circuit.attention[index] is None
            continue
        weight = float(attention(run, node.layer)[node.head, node.dest, node.src])
        assert circuit.attention[index] == pytest.approx(weight, abs=1e-6)
        fires = place[index] in fired(run, *place[index][:3], threshold)
        assert (index in explained) == (fires and node.layer > run.model.attention_layers[0])
    for firing in circuit.firings:
        node = circuit.nodes[firing.node]
        assert (firing.tau, firing.dest, firing.src) == (threshold, (), ())
        assert firing.visible == node.dest - int(run.attention_run(node.layer).first[node.dest]) + 1


def test_every_node_of_a_circuit_leads_to_the_target(organism: Model) -> None:
    circuit = trace_svt(organism.run(IOI), "Mary", against="John", settings=SvtSettings(threshold=0.2))
    reached, before = {i for i, n in enumerate(circuit.nodes) if n.kind == "target"}, 0
    while len(reached) > before:
        before = len(reached)
        reached |= {edge.sender for edge in circuit.edges if edge.receiver in reached}
    assert len(reached) == len(circuit.nodes) > 10


def test_the_organism_s_ioi_circuit(organism: Model) -> None:
    run = organism.run(IOI)
    circuit = trace_svt(run, "Mary", against="John")
    check_circuit(run, circuit, 0.5)
    assert len(circuit.firings) >= 1 and any(edge.side == "dest" for edge in circuit.edges)
    assert circuit.model == trace(run, "Mary").model and circuit.errors == trace(run, "Mary").errors
    method = {"method": "svt", "basis": "homogeneous", "rope": None, "channels": "singular"}
    chosen = {"threshold": 0.5, "share": 0.7, "start": None, "end": len(run) - 1}
    shared = trace(run, "Mary", metric="linear", against="John").parameters.record()
    accpp_only = ("method", "basis", "tau", "keys", "sinks", "through", "cover", "eps", "values", "constants")
    kept = {name: value for name, value in shared.items() if name not in accpp_only}
    assert circuit.parameters.record() == {**kept, **method, **chosen}
    assert from_json(to_json(circuit)) == circuit


def test_edges_are_the_significant_contributions(organism: Model) -> None:
    run = organism.run(IOI)
    circuit = trace_svt(run, "Mary", against="John", settings=SvtSettings(threshold=0.2, share=0.6))
    assert circuit.firings
    for firing in circuit.firings:
        node = circuit.nodes[firing.node]
        found = contributions(run, (node.layer, node.head), node.dest, node.src)
        for side, values in (("dest", found.at_dest), ("src", found.at_src)):
            edges = [edge for edge in circuit.edges_into(firing.node) if edge.side == side]
            sources = {(circuit.nodes[e.sender].layer, circuit.nodes[e.sender].head): e for e in edges}
            assert set(sources) == {(found.layers[i], h) for i, h in significant(values, 0.6).nonzero().tolist()}
            for (layer, head), edge in sources.items():
                assert edge.weight == pytest.approx(float(values[found.layers.index(layer), head]))
                assert edge.channels == found.channels


def test_the_baseline_uses_all_channels(organism: Model) -> None:
    run = organism.run(IOI)
    few, every = (trace_svt(run, "Mary", against="John", settings=SvtSettings(channels=c)) for c in ("singular", "all"))
    seeds = [[(e.sender, e.weight) for e in c.edges if e.side == "target"] for c in (few, every)]
    assert [w for _, w in seeds[0]] == [w for _, w in seeds[1]]
    assert {k for e in few.edges for k in e.channels} <= {k for e in every.edges for k in e.channels}
    assert all(len(e.channels) == organism.dims.d_head for e in every.edges if e.side != "target")
    assert {e.weight for e in few.edges} != {e.weight for e in every.edges}


def test_chosen_firings_begin_a_circuit(organism: Model) -> None:
    run = organism.run(IOI)
    seeded = trace_svt(run, "Mary", against="John")
    node = seeded.nodes[max(firing.node for firing in seeded.firings)]
    start = (node.layer, node.head, node.dest, node.src)
    circuit = trace_svt(run, settings=SvtSettings(start=[start, (0, 0, -1, 0), start]))
    check_circuit(run, circuit, 0.5)
    into = [edge for edge in circuit.edges if edge.side == "target"]
    assert {circuit.nodes[e.sender].layer for e in into} == {node.layer, 0} and len(into) == 2
    for edge in into:
        assert edge.weight == edge.ig == edge.alone == circuit.attention[edge.sender]
    recorded = circuit.parameters
    assert recorded.seeds == "given" and recorded.target_ids == ()
    assert recorded.start is not None and recorded.start[:2] == (start, (0, 0, len(run) - 1, 0))
    recorded = trace_svt(run, "Mary", settings=SvtSettings(start=[start])).parameters
    assert recorded.target_ids == seeded.parameters.target_ids


def test_a_picture_is_as_wide_as_contributions_are(organism: Model) -> None:
    """They have no bound as drops of attention have: the largest is as wide as a drop of all attention."""
    circuit = organism.run(IOI).trace(method=SvtSettings(0.3, start=[(3, 1)]))
    most = max(edge.weight for edge in circuit.edges)
    axis = circuit.plot().axes[0]
    widths = [patch.get_linewidth() for patch in axis.patches]
    assert most > 2 and max(widths) == pytest.approx(14.0)  # the answer has one edge
    assert sorted(widths)[-2] == pytest.approx(7.0)
    below = [text.get_text() for text in axis.texts if "contributions" in text.get_text()]
    assert " ".join(" ".join(below).split()) == "edges are as wide as contributions (equation 8)"


@pytest.mark.parametrize("variant", [*FAMILIES[1:], DEFICIENT])
def test_circuits_of_other_families(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 20)[0])
    sites = [s for s in find_firings(run, 0.3) if s.layer == 2 and (s.dest > 14 or s.src == 0)]
    starts = [(s.layer, s.head, s.dest, s.src) for s in sites]
    circuit = trace_svt(run, settings=SvtSettings(threshold=0.3, start=starts))
    check_circuit(run, circuit, 0.3)
    assert {edge.side for edge in circuit.edges} == {"dest", "src", "target"}
    assert any(s.src == 0 for s in sites)  # a leaf, whatever its weight
    assert circuit.parameters.rope == "rotated" and from_json(to_json(circuit)) == circuit
    seeded = trace_svt(run, Likeliest(1), settings=SvtSettings(threshold=0.3), metric="prob")
    check_circuit(run, seeded, 0.3)
    assert seeded.parameters.top_k == 1 and len(seeded.parameters.target_ids) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.0}, r"share is 1\.0"),
        ({"share": 0}, "share is 0, but a share of all contributions lies above 0 and below 1"),
        ({"threshold": 0.0}, r"threshold is 0\.0"),
        ({"threshold": 1.5}, r"threshold is 1\.5"),
        ({"threshold": math.nan}, "threshold is nan"),
        ({"channels": "many"}, "channels is one of singular, all, not 'many'"),
        ({"start": []}, "start is empty"),
        ({"start": (2, 1)}, "2 is neither"),
        ({"start": ["2.1"]}, r"'2\.1' is neither"),
        ({"start": [(2, 0, 5, 0)]}, r"no start is a firing .*2\.0 \(5 <- 0\)"),
        ({"start": [(2, 0, 3, 5)]}, "not visible from dest 3"),
        ({"start": [(7, 0, 5, 3)]}, "no layer 7"),
        ({"start": [(2, 9)]}, r"no head 2\.9"),
        ({"start": [(2, 1, 40, 3)]}, "dest 40 is outside"),
    ],
)
def test_bad_settings_are_named(gpt2: Model, settings: dict, message: str) -> None:
    with pytest.raises(KeyholeError, match=message):
        trace_svt(gpt2.run([1, 2, 3, 2, 5, 6]), settings=SvtSettings(**settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": 3, "end": 40}, "end 40 is outside"),
        ({"target": 3, "against": 4, "seeds": "prob"}, '`against` belongs to the metric "linear"'),
        ({"seeds": "linear", "settings": SvtSettings(start=[(2, 1)])}, "leave one of them out"),
        ({"end": 0, "settings": SvtSettings(start=[(2, 1)])}, r"head 2\.1 sees nothing but the first token"),
    ],
)
def test_bad_input_is_named(gpt2: Model, options: dict, message: str) -> None:
    with pytest.raises(KeyholeError, match=message):
        trace_svt(gpt2.run([1, 2, 3, 2, 5, 6]), **options)


def test_a_head_alone_begins_where_it_attends_most(organism: Model) -> None:
    run = organism.run(IOI)
    row = run.pattern(1)[4, -1].tolist()
    most = max(range(1, len(row)), key=row.__getitem__)
    settings = SvtSettings(threshold=0.3, start=[(1, 4)])
    circuit = trace_svt(run, settings=settings)
    assert circuit.parameters.start == ((1, 4, len(run) - 1, most),)
    assert circuit == trace_svt(run, settings=SvtSettings(threshold=0.3, start=[(1, 4, -1, most)]))
    resting = next(
        (layer, head) for layer in range(4) for head in range(8) if run.pattern(layer)[head, -1].argmax() == 0
    )  # a head that attends to the first token most: the next is meant
    (place,) = places_of(run, SvtSettings(start=[resting]), len(run) - 1)
    weights = run.pattern(resting[0])[resting[1], -1]
    assert place[3] == int(weights[1:].argmax()) + 1
    early = trace_svt(run, end="gave", settings=SvtSettings(threshold=0.3, start=[(1, 7)]))
    assert early.parameters.start == ((1, 7, 11, 10),) and early.parameters.end == 11


def test_settings_reach_the_circuit_by_run_trace(organism: Model) -> None:
    run, settings = organism.run(IOI), SvtSettings(0.2, 0.6, "all", [(3, 1, "gave", "John")])
    with pytest.raises(KeyholeError, match="src 'John' is ambiguous"):
        run.trace(method=settings)
    settings = SvtSettings(0.2, 0.6, "all", [(3, 1), (3, 6, -1, "gave")])
    told = run.trace("Mary", method=settings).parameters.record()
    kept = {name: told[name] for name in ("method", "threshold", "share", "channels", "start", "seeds")}
    starts = ((3, 1, 14, 11), (3, 6, 14, 11))
    assert kept == {
        "method": "svt",
        "threshold": 0.2,
        "share": 0.6,
        "channels": "all",
        "start": starts,
        "seeds": "given",
    }
    assert run.trace("Mary", method=SvtSettings()) == run.trace("Mary", method="svt")
    with pytest.raises(KeyholeError, match="method is one of accpp, svt, not 'acc'"):
        run.trace("Mary", method="acc")


def test_contributions_need_heads_below(gpt2: Model) -> None:
    with pytest.raises(KeyholeError, match="no attention head lies below layer 0"):
        contributions(gpt2.run([1, 2, 3]), (0, 1), 2, 1)


def test_a_stale_run_is_refused() -> None:
    model = keyhole.load((tiny_model("gpt2").hf, None))
    run = model.run([1, 2, 3, 4])
    with torch.no_grad():
        next(model.hf.parameters()).mul_(1.5)
    with pytest.raises(KeyholeError, match="weights have changed"):
        trace_svt(run, 3)
