"""Removals on SVT circuits, against dense projections: whole heads, channels of the homogeneous basis."""

from collections import Counter

import numpy as np
import pytest
import torch

from commands import keyhole as command
from conftest import prompts_of, tiny_model
from keyhole import Circuit, KeyholeError, Model, Run
from keyhole.circuits.circuit import Edge
from keyhole.circuits.records import Signal, Writer
from keyhole.features.sae import edge_vector
from keyhole.intervene import Cut, edge_cut, intervene, parallel, random_cut, serial, side_cut
from keyhole.intervene.cuts import metric_of
from keyhole.intervene.removal import Metric, head_delta, residual_delta
from keyhole.naming.naming import random_subjects
from keyhole.naming.subjects import signal_subjects
from keyhole.naming.subjects.subject import About, alike
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import omega
from keyhole.store.store import signal_vectors
from keyhole.studies.comparison.exclusive import cut_in, placed_edges
from keyhole.studies.comparison.signals import Member
from keyhole.tracing.settings import SvtSettings
from keyhole.tracing.svt import trace_svt
from test_exact import SUPPORTED
from test_svt import DEFICIENT, FAMILIES, IOI, Oracle, places, run_of

SIDES = ("dest", "src")


def removed(oracle: Oracle, side: str, writer: tuple[int, int], channels: list[int]) -> np.ndarray:
    """What the rotated query or key loses: the head's whole output, projected onto u_k or v_k and read again."""
    U, _, V = oracle.svd
    basis = (U if side == "dest" else V)[:, channels]
    vector = oracle.turned(oracle.written(side)["head", *writer], side)
    return basis @ (basis.T @ vector) @ oracle.factor(side)


def weight_without(oracle: Oracle, side: str, lost: np.ndarray) -> float:
    """The attention weight once the query, or the key at src, has lost this; softmax by hand."""
    record = oracle.run.attention_run(oracle.layer)
    q, k = record.q[oracle.head].numpy().copy(), record.k[record.kv(oracle.head)].numpy().copy()
    (q if side == "dest" else k)[oracle.token(side)] -= lost
    scores = torch.from_numpy(k @ q[oracle.dest]) * record.rule.scaling
    return float(record.rule.of_head(scores, record.visible([oracle.dest])[0], oracle.head)[oracle.src])


def circuit_of(run: Run, threshold: float = 0.3) -> Circuit:
    """From the firings of the last attention layer."""
    last = run.model.attention_layers[-1]
    sites = [s for s in find_firings(run, threshold) if s.layer == last and s.src > 0]
    start = [(s.layer, s.head, s.dest, s.src) for s in sites]
    return trace_svt(run, 3, settings=SvtSettings(threshold=threshold, start=start))


def signals(circuit: Circuit) -> list[Edge]:
    return [edge for edge in circuit.edges if edge.side in SIDES]


def oracle_of(circuit: Circuit, edge: Edge) -> Oracle:
    into = circuit.nodes[edge.receiver]
    assert circuit.run is not None
    return Oracle(circuit.run, into.layer, into.head, into.dest, into.src)


def expected(circuit: Circuit, edge: Edge) -> np.ndarray:
    source = circuit.nodes[edge.sender]
    return removed(oracle_of(circuit, edge), edge.side, (source.layer, source.head), list(edge.channels))


@pytest.mark.parametrize("variant", FAMILIES)
def test_a_cut_takes_the_whole_head_in_the_homogeneous_basis(variant: str) -> None:
    run = run_of(variant)
    for oracle in places(run):
        channels = oracle.used()
        for side in SIDES:
            for layer in run.model.attention_layers[:-1]:
                for head in range(run.model.dims.heads):
                    writer = Writer("head", layer, head, oracle.token(side), 0)
                    signal = Signal(writer, side, tuple(channels), basis="homogeneous")
                    cut = Cut(oracle.layer, oracle.head, oracle.dest, oracle.src, (signal,), "source")
                    lost = removed(oracle, side, (layer, head), channels)
                    np.testing.assert_allclose(head_delta(run, cut)[0].numpy(), lost, atol=1e-9)
                    (outcome,) = intervene(run, [cut], Metric(13), mode="local")
                    assert outcome.after == pytest.approx(weight_without(oracle, side, lost), abs=1e-9)


@pytest.mark.parametrize("variant", ["gpt2", "llama-bias", "qwen3"])
def test_edges_side_by_side_and_along_a_path_against_plain_loops(variant: str) -> None:
    model = tiny_model(variant, dtype=torch.float64)
    circuit = circuit_of(model.run(prompts_of(model, 20)[0]))
    by_node: dict[int, list[Edge]] = {}
    for edge in signals(circuit):
        np.testing.assert_allclose(
            head_delta(circuit.run, edge_cut(circuit, edge))[0].numpy(), expected(circuit, edge), atol=1e-9
        )
        by_node.setdefault(edge.sender, []).append(edge)
    leaving = max(by_node, key=lambda node: len(by_node[node]))
    cuts = parallel(circuit, leaving)
    assert len(cuts) == len(by_node[leaving]) > 1
    for cut, edge in zip(cuts, by_node[leaving], strict=True):
        np.testing.assert_allclose(head_delta(circuit.run, cut)[0].numpy(), expected(circuit, edge), atol=1e-9)
    pairs = Counter((edge.sender, edge.receiver) for edge in signals(circuit))
    alone = [edge for edge in signals(circuit) if pairs[edge.sender, edge.receiver] == 1]  # on one side
    first, second = next((a, b) for a in alone for b in signals(circuit) if a.target == b.source)
    path = serial(circuit, [first.sender, first.receiver, second.receiver])
    above = [e for e in signals(circuit) if (e.sender, e.receiver) == (second.sender, second.receiver)]
    along = [first, *above]
    assert len(path) == len(along) >= 2
    for cut, edge in zip(path, along, strict=True):
        np.testing.assert_allclose(head_delta(circuit.run, cut)[0].numpy(), expected(circuit, edge), atol=1e-9)
    (outcome,) = intervene(circuit.run, [path], metric_of(circuit), mode="exact")
    without = weight_without(oracle_of(circuit, first), first.side, expected(circuit, first))
    assert outcome.after == pytest.approx(without, abs=1e-9)  # of the lower head, which nothing above changes


@pytest.mark.parametrize("variant", SUPPORTED)
def test_measured_is_predicted_on_every_architecture(variant: str) -> None:
    model = tiny_model(variant)
    circuit = circuit_of(model.run(prompts_of(model, 16)[0]), 0.2)
    edges = signals(circuit)
    assert edges
    some = [circuit.edges.index(edge) for edge in edges[:12]]
    rows = [*circuit.verify(draws=1, edges=some).rows, *circuit.verify(draws=0, mode="local", edges=some).rows]
    assert len(rows) == 2 * len(some) and all(row.agrees for row in rows)
    assert max(abs(row.after - row.predicted) for row in rows) < 1e-4
    assert any(abs(row.drop) > 1e-3 for row in rows)


@pytest.mark.parametrize("variant", ["gpt2", DEFICIENT])
def test_sides_are_removed_at_once_and_a_head_only_once(variant: str) -> None:
    model = tiny_model(variant, dtype=torch.float64)
    circuit = circuit_of(model.run(prompts_of(model, 16)[0]), 0.2)
    several = 0
    for traced in circuit.firings:
        for side in SIDES:
            edges = [e for e in signals(circuit) if (e.receiver, e.side) == (traced.node, side)]
            if not edges:
                with pytest.raises(KeyholeError, match="nothing was removed"):
                    side_cut(circuit, traced, side)
                continue
            heads = {(circuit.nodes[e.sender].layer, circuit.nodes[e.sender].head): e for e in edges}
            several += len(edges) > len(heads)
            cut = side_cut(circuit, traced, side)
            assert len(cut.signals) == len(heads)
            if variant == "gpt2":
                lost = sum(expected(circuit, edge) for edge in heads.values())
                np.testing.assert_allclose(head_delta(circuit.run, cut)[0].numpy(), lost, atol=1e-9)
    assert several  # a head with two sources has two edges, which are one signal
    sides = circuit.verify(edges=False, draws=1).sides
    assert sides and all(row.agrees for row in sides)
    nodes = [i for i, n in enumerate(circuit.nodes) if n.kind == "head" and (n.layer, n.head) == (1, 0)]
    both = parallel(circuit, *nodes)
    places = [(c.layer, c.head, c.dest, c.src, c.side, c.signals[0].writer.dest) for c in both]
    assert len(set(places)) == len(places)


def test_the_residual_stream_loses_the_projection_without_its_last_coordinate() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    circuit = circuit_of(model.run(prompts_of(model, 16)[0]))
    vectors = signal_vectors(circuit)
    assert vectors
    for number, shown in vectors.items():
        edge = circuit.edges[number]
        oracle, source = oracle_of(circuit, edge), circuit.nodes[edge.sender]
        vector = oracle.written(edge.side)["head", source.layer, source.head] * oracle.norm(edge.side)
        basis = (oracle.svd[0] if edge.side == "dest" else oracle.svd[2])[:, list(edge.channels)]
        projection = (basis @ (basis.T @ vector))[:-1]
        cut = edge_cut(circuit, edge)
        np.testing.assert_allclose(
            residual_delta(circuit.run, cut, head_delta(circuit.run, cut))[0], projection, atol=1e-8
        )
        np.testing.assert_allclose(edge_vector(circuit, number), projection, atol=1e-8)
        np.testing.assert_allclose(shown, projection / oracle.norm(edge.side), atol=1e-5)


def test_what_is_named_reads_the_stream_and_not_the_biases() -> None:
    model = tiny_model("gpt2", dtype=torch.float64)
    run = model.run(prompts_of(model, 16)[0])
    circuit = circuit_of(run)
    subjects = {int(one.about["edge"]): one for one in signal_subjects(circuit)}
    edges = [i for i, edge in enumerate(circuit.edges) if edge.side in SIDES]
    assert sorted(subjects) == edges and all(one.about["basis"] == "homogeneous" for one in subjects.values())
    for number in edges:
        edge, one = circuit.edges[number], subjects[number]
        oracle = oracle_of(circuit, edge)
        U, sigma, V = oracle.svd
        source, ks = circuit.nodes[edge.sender], sorted(edge.channels)
        vector = oracle.written(edge.side)["head", source.layer, source.head]
        if edge.side == "dest":
            query = U[:, ks] @ (U[:, ks].T @ vector)
            key = V @ (sigma * (U.T @ query))
        else:
            key = V[:, ks] @ (V[:, ks].T @ vector)
            query = U @ (sigma * (V.T @ key))
        record = run.attention_run(oracle.layer)
        for direction, offset, states, value, length in (
            (one.query, one.query_offset, record.q[oracle.head], query, np.linalg.norm(query)),
            (one.key, one.key_offset, record.k[record.kv(oracle.head)], key, np.linalg.norm(key)),
        ):
            for token in (3, 9):
                x = run.layers[oracle.layer].resid[token].numpy() / float(record.norm_scale[token])
                ours = float(states[token] @ direction) + offset
                assert ours == pytest.approx(float(x @ value[:-1]) / length, abs=1e-8)
    control = random_subjects(model, list(subjects.values()))[0]
    b = model.folded(control.head[0]).b_Q[control.head[1]]
    assert control.query_offset == pytest.approx(-float(b @ control.query)) and control.query_offset != 0


def test_names_of_one_basis_are_not_put_on_signals_of_the_other(organism: Model) -> None:
    one = About(channels=(4,), coordinates=(1.0,), side="dest")
    assert alike(one, one) == 1.0 and alike({**one, "basis": "homogeneous"}, one) == 0.0


def test_controls_are_drawn_among_channels_of_the_same_basis() -> None:
    model = tiny_model(DEFICIENT)
    circuit = circuit_of(model.run(prompts_of(model, 16)[0]), 0.2)
    edge = min(signals(circuit), key=lambda one: len(one.channels))
    cut = edge_cut(circuit, edge)
    drawn = random_cut(circuit.run, cut, torch.Generator().manual_seed(0))
    rank = int(omega(model, cut.layer, "homogeneous").rank[cut.head])
    assert drawn.basis == "homogeneous" and not set(drawn.signals[0].channels) & set(edge.channels)
    assert max(drawn.signals[0].channels) < rank


def test_one_cut_has_one_basis() -> None:
    writer = Writer("head", 0, 0, 3, 1)
    pair = (Signal(writer, "dest", (0,)), Signal(writer, "dest", (1,), basis="homogeneous"))
    with pytest.raises(KeyholeError, match="one side and basis"):
        Cut(2, 0, 3, 1, pair)


def test_edges_are_cut_alike_where_they_are_placed_in_other_prompts(organism: Model) -> None:
    run = organism.run(IOI)
    circuit = run.trace("Mary", against="John", method="svt")
    names = tuple(f"token {i}" for i in range(len(run)))
    member = Member(circuit, names)
    placed = [head_delta(run, cut) for edge in placed_edges(member) if (cut := cut_in(edge, names)) is not None]
    own = [head_delta(run, edge_cut(circuit, edge)) for edge in signals(circuit)]
    assert len(own) == 7 and all(torch.equal(a, b) for a, b in zip(placed, own, strict=True))


def test_a_circuit_in_a_file_is_verified_from_the_command_line(organism: Model, tmp_path) -> None:
    path = tmp_path / "svt.json"
    circuit = organism.run(IOI).trace("Mary", against="John", method="svt")
    circuit.save(path)
    result = command("verify", str(path))
    n = sum(
        bool([e for e in circuit.edges if (e.receiver, e.side) == (t.node, s)]) for t in circuit.firings for s in SIDES
    )
    assert f"{n} whole sides of firings: " in result.stdout
    total = n + len(signals(circuit))
    assert f"{total} of {total} measured values equal the predicted ones" in result.stdout
    refused = command("verify", str(path), "--mode", "chain")
    assert refused.returncode == 2 and "through" in refused.stderr
