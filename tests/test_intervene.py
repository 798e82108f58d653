"""Removal in the model's own forward pass gives the predicted attention on every family; controls; sets of edges."""

from dataclasses import replace

import pytest
import torch

import keyhole
from conftest import prompts_of, rich_circuit, tiny_model
from keyhole import KeyholeError
from keyhole.circuits.records import Signal, Writer
from keyhole.faithfulness.verification import verify
from keyhole.intervene.cuts import parallel, serial, side_cut
from keyhole.intervene.removal import Cut, Metric, head_delta, intervene, random_cut, residual_delta
from keyhole.intervene.rerun import Edits, HeadEdit, rerun
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import omega
from keyhole.tracing.writers import written_by
from test_exact import SUPPORTED

PROMPT = "When Mary and John went to the store, John gave a drink to"


@pytest.mark.parametrize("keys", ["all", "source"])
@pytest.mark.parametrize("variant", SUPPORTED)
def test_every_side_and_edge_of_a_circuit_falls_as_predicted(variant: str, keys: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 12)[0])
    circuit = rich_circuit(run, keys=keys)
    assert circuit.firings
    exact, local = (verify(circuit, mode=mode, draws=0) for mode in ("exact", "local"))
    for result in (exact, local):
        assert result.agrees and len(result.sides) and len(result.edges)
        assert max(abs(row.after - row.predicted) for row in result.rows) < 1e-4
    edges = dict(enumerate(circuit.edges))
    for row in exact.edges:
        assert row.before - row.predicted == pytest.approx(edges[row.edge].alone, abs=1e-4)


def firing_of(run: keyhole.Run, layer: int = 2) -> keyhole.tracing.firing.Firing:
    site = next(s for s in find_firings(run) if s.layer == layer and s.src > 0)
    return run.explain((site.layer, site.head), site.dest, site.src)


def cut_of(firing: keyhole.tracing.firing.Firing, side: str) -> Cut:
    signal = next(s for s in firing.side(side).signals if s.writer.kind != "offset")
    return Cut(firing.layer, firing.head, firing.dest, firing.src, (signal,))


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gemma2"])
def test_local_edits_leave_gqa_siblings_alone(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 12)[0])
    firing = firing_of(run)
    cut = cut_of(firing, "src")
    delta = torch.zeros(len(run), model.dims.d_head)
    delta[cut.tokens(run)] = -head_delta(run, cut)
    result = rerun(run, [Edits(heads=(HeadEdit(firing.layer, firing.head, keys=delta),))])
    clean = run.pattern(firing.layer)
    for head in range(model.dims.heads):
        weights = result.weights(run, 0, firing.layer, head)
        same = torch.allclose(weights, clean[head], atol=1e-5)
        assert same == (head != firing.head)


def test_a_rerun_without_edits_is_the_run() -> None:
    for variant in ("gpt2", "mistral", "bloom", "gptj", "granite"):
        model = tiny_model(variant)
        run = model.run(prompts_of(model, 12)[0])
        idle = HeadEdit(1, 0, row=(3, torch.zeros(len(run))))
        result = rerun(run, [Edits(heads=(idle,)), Edits(heads=(idle,))])
        for copy in range(2):
            torch.testing.assert_close(result.captured.logits[copy], run.logits, rtol=1e-4, atol=1e-4)
        assert result.captured.layers[0].bypassed and not result.captured.layers[1].bypassed
        assert model.run(list(run.token_ids)).logits.equal(run.logits)  # the bypass is undone


def test_global_removal_takes_the_projection_from_the_writer(gpt2: keyhole.Model) -> None:
    """Without RoPE the change of the residual stream is the writer's vector projected onto the channels."""
    run = gpt2.run(prompts_of(gpt2, 12)[0])
    firing = firing_of(run)
    cut = cut_of(firing, "dest")
    delta = residual_delta(run, cut, head_delta(run, cut))[0]
    u = omega(gpt2, firing.layer).u(firing.head)[:, list(cut.signals[0].channels)]
    wrote = written_by(run, cut.signals[0].writer, [firing.dest])[0]
    torch.testing.assert_close(delta, u @ (u.T @ wrote), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        firing.vector(next(s for s in firing.side("dest").signals if s.writer.kind != "offset"), flavour="raw"),
        delta,
        rtol=1e-3,
        atol=1e-4,
    )


def test_controls_take_other_channels_of_the_same_writers(gpt2: keyhole.Model) -> None:
    run = gpt2.run(prompts_of(gpt2, 12)[0])
    circuit = rich_circuit(run)
    generator = torch.Generator().manual_seed(0)
    few = side_cut(circuit, circuit.firings[0], "dest")
    mlp, head = Writer("mlp", 1, None, 3, 3), Writer("head", 0, 2, 3, 3)
    many = (Signal(mlp, "dest", (0, 1, 2)), Signal(head, "dest", (1, 2, 4, 6, 7)))  # of eight channels
    for cut in (few, *[replace(few, signals=many)] * 5):
        control = random_cut(run, cut, generator)
        for ours, theirs in zip(cut.signals, control.signals, strict=True):
            assert (ours.writer, ours.side) == (theirs.writer, theirs.side)
            assert not set(ours.channels) & set(theirs.channels)
            assert len(theirs.channels) == min(len(ours.channels), 8 - len(ours.channels))


def test_boosting_is_the_opposite_of_removing(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    circuit = run.trace("Mary", against="John", metric="linear", through="heads")
    cut = side_cut(circuit, circuit.firings[0], "src")
    metric = Metric(len(run) - 1, circuit.parameters.target_ids)
    (removed,), (boosted,) = (intervene(run, [cut], metric, boost=boost) for boost in (False, True))
    assert removed.after < removed.before < boosted.after
    assert boosted.after == pytest.approx(boosted.predicted, abs=1e-4)
    assert 0.5 < removed.norm_ratio < 1.5 and 0.5 < removed.cosine <= 1.0


def test_the_organisms_circuit_holds_and_controls_do_not(organism: keyhole.Model) -> None:
    circuit = organism.run(PROMPT).trace("Mary", against="John", metric="linear", through="heads")
    result = circuit.verify(draws=5)
    assert result.agrees and result.ratio() > 5
    again = verify(circuit, organism, draws=5)
    assert [row.drop for row in again.rows] == pytest.approx([row.drop for row in result.rows], abs=1e-6)


def test_sets_of_edges_are_removed_together(organism: keyhole.Model) -> None:
    circuit = organism.run(PROMPT).trace("Mary", against="John", metric="linear", through="heads")
    by_source: dict[int, int] = {}
    for edge in circuit.edges:
        if edge.side != "target":
            by_source[edge.sender] = by_source.get(edge.sender, 0) + 1
    busiest = max(by_source, key=lambda node: by_source[node])
    cuts = parallel(circuit, busiest)
    assert len(cuts) == by_source[busiest] > 1
    edge = next(
        e
        for e in circuit.edges
        if e.side != "target" and circuit.nodes[e.sender].kind == "head" and circuit.edges_into(e.sender)
    )
    below = circuit.edges_into(edge.sender)[0]
    path = [below.sender, edge.sender, edge.receiver]
    run, metric = circuit.run, Metric(len(circuit.tokens) - 1, circuit.parameters.target_ids)
    together, one_by_one = intervene(run, [cuts, serial(circuit, path)], metric, mode="local")
    assert len(together.cuts) == len(cuts) and len(one_by_one.cuts) >= 2
    with pytest.raises(KeyholeError, match="not joined"):
        serial(circuit, [edge.receiver, edge.sender])
