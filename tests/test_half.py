"""Half precision: what was rounded away is a writer, everything adds up, and a wrong fact does not hide behind it."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import Circuit, KeyholeError, Model, Run
from keyhole.circuits.columns import Mlps
from keyhole.circuits.files import from_json, to_json
from keyhole.circuits.records import Signal, Writer
from keyhole.circuits.text import circuit_text, ends_of
from keyhole.faithfulness.masked import masked
from keyhole.intervene.cuts import claim_of
from keyhole.intervene.removal import Metric
from keyhole.intervene.writers import answers_without
from keyhole.models import facts
from keyhole.models.widened import widened_run
from keyhole.tracing import mlp_influence
from keyhole.tracing.candidates import Places, Sites
from keyhole.tracing.exactness import check_run, facts_of
from keyhole.tracing.linear import Probe
from keyhole.tracing.mlp_influence import read_mlps
from keyhole.tracing.rounding import layer_rounding, rounding_at
from keyhole.tracing.sides import dest_candidates, src_candidates
from keyhole.tracing.upstream import Writes, reads_of
from keyhole.tracing.writers import read_of, read_vectors, written_by
from test_exact import SUPPORTED
from tiny import Sizes

IOI = "When Mary and John went to the store, John gave a drink to"


@cache
def half(variant: str, dtype: torch.dtype = torch.bfloat16) -> tuple[Model, Run]:
    model = tiny_model(variant, Sizes(layers=2), dtype)
    return model, model.run(prompts_of(model, 14)[0])


def with_facts(model: Model, **wrong: object) -> Model:
    """A model that Keyhole believes something else of."""
    return dataclasses.replace(model, family=dataclasses.replace(model.family, **wrong), _cache={})


@pytest.mark.parametrize("variant", SUPPORTED)
def test_every_architecture_adds_up_in_bfloat16_and_a_wrong_fact_is_refused(variant: str) -> None:
    model, run = half(variant)
    circuit = run.trace()
    assert circuit.run is run and max(circuit.errors[name] for name in ("scores", "residuals", "logits")) < 1e-5
    assert 1e-4 < circuit.errors["rounding"] < 2e-2
    assert from_json(to_json(circuit)) == circuit
    if "-" in variant:  # the same row once more
        return
    # A row that is wrong about the norm's gain; OLMo's norm has none, so there about the pairs that turn.
    wrong = {"rotary": "pairs"} if variant == "olmo" else {"norm_adds_one": not model.family.norm_adds_one}
    with pytest.raises(KeyholeError, match=r"computed in float32, cannot be reconstructed.*does not know"):
        dataclasses.replace(run, model=with_facts(model, **wrong), _rounded={}, _rounding=[]).trace()


@pytest.mark.parametrize(
    ("variant", "fact", "value"),
    [
        ("llama", "rotary", "pairs"),
        ("cohere", "logit_scale", lambda config: 1.01 * config.logit_scale),
        ("granite", "residual_multiplier", None),
        ("opt", "q_factor", None),
        ("bloom", "alibi_factor", lambda attn: 1.01 * attn.beta),
        ("gpt_neo", "window", lambda attn: None),
    ],
)
def test_single_facts_that_are_wrong_are_refused(variant: str, fact: str, value: object) -> None:
    model, run = half(variant)
    wrong = with_facts(model, **{fact: value})
    assert not check_run(wrong.run(run.token_ids, bos=False)).exact
    with pytest.raises(KeyholeError, match="computed in float32"):
        wrong.run(run.token_ids, bos=False).explain((1, 0))


def test_a_wrong_fact_about_mlps_explains_none(monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = dataclasses.replace(facts.MLPS["llama"], gate="up_proj", up="gate_proj")
    monkeypatch.setitem(facts.MLPS, "llama", swapped)
    model = tiny_model("llama", dtype=torch.bfloat16)
    run = model.run(prompts_of(model, 14)[0])
    assert not check_run(run).exact and (check_run(run).mlps or 0.0) > 1e-3
    circuit = run.trace(metric=Probe(run.layers[2].mlp[-1].float(), 3))
    assert not len(circuit.mlps) and "not rebuilt" in circuit.leaves
    with pytest.raises(KeyholeError, match="where rounding in bfloat16 explains"):
        run.explain_mlp(2, -1, run.layers[2].mlp[-1].float())


def test_a_wrong_fact_that_rounding_would_hide_explains_none(mary: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    run, facts_now = mary.run, facts_of(mary.run.model) if mary.run is not None else None
    assert run is not None and facts_now is not None and len(mary.mlps)
    wrong = tuple(dataclasses.replace(layer, mlp=2e-3) for layer in facts_now.layers)
    monkeypatch.setattr(mlp_influence, "facts_of", lambda model: dataclasses.replace(facts_now, layers=wrong))
    circuit = run.trace("Mary")
    assert not len(circuit.mlps) and "not rebuilt" in circuit.leaves


@pytest.mark.parametrize("layer", [0, 1])
def test_what_rounding_does_not_explain_is_refused_with_both_numbers(layer: int) -> None:
    _, run = half("llama")
    assert max(layer_rounding(run, i).share for i in range(2)) < 0.5
    moved = run.layers[layer].mlp.clone()
    moved[5, 3] += 0.2  # of a write of about 1
    layers = list(run.layers)
    layers[layer] = dataclasses.replace(layers[layer], mlp=moved)
    other = dataclasses.replace(run, layers=tuple(layers), _rounded={}, _rounding=[])
    with pytest.raises(KeyholeError, match=rf"stream after layer {layer} .*2\.\de-01 apart where rounding in bf"):
        other.trace()
    assert check_run(run).exact and not check_run(other).exact


@pytest.mark.parametrize("variant", ["gpt2", "qwen2"])  # without RoPE and with it, both with biases
def test_candidates_add_up_to_the_scores_of_rounded_queries_and_keys(variant: str) -> None:
    _, run = half(variant)
    writes, record = Writes([run]), run.attention_run(1)
    sites, w = Sites.of([(0, 3, 9, 4)], writes.device), torch.linspace(-1, 1, len(run))[None]
    places = Places(writes, 1, sites, w, reads_of(writes, 1, [(0, 3)], torch.tensor([9])), torch.tensor([0]))
    expected = float(record.scores([3], [9])[0, 0] @ w[0])
    for found in (dest_candidates(places), src_candidates(places)):
        moved = (found.factor[..., None] * found.coord).sum(1) + found.local.sum(1)
        assert float((moved * found.gain).sum()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("side", ["dest", "src"])
def test_queries_and_keys_are_all_that_was_written_and_their_offset(side: str) -> None:
    _, run = half("qwen2")
    record = run.attention_run(1)
    total = sum(
        read_vectors(run, (1, 1), written_by(run, writer, [9], whole=True), [9], side=side)
        for writer in _writers(run, 1, 9)
    )
    offset = read_of(run, (1, 1), Signal(Writer("offset", 1, 1, 9, 9), side, ()), [9])
    expected = record.q[1, 9] if side == "dest" else record.k[record.kv(1), 9]
    torch.testing.assert_close((total + offset)[0], expected.float(), rtol=0, atol=2e-5 * float(expected.abs().max()))


def _writers(run: Run, layer: int, token: int) -> list[Writer]:
    writers = [Writer("embedding", 0, None, token, token)]
    for below in range(layer):
        writers += [Writer("head", below, h, token, token) for h in run.attention_run(below).heads]
        writers += [Writer(kind, below, None, token, token) for kind in ("bias", "mlp", "rounding")]
    return writers


def test_streams_and_logits_are_sums_of_writers_with_what_was_rounded() -> None:
    model, run = half("gemma2")
    split = run.writers(2, -1)
    rounded = [i for i, writer in enumerate(split.writers) if writer.kind == "rounding"]
    assert len(rounded) == 2 and split.error < 1e-6
    without = split.vectors.sum(0) - split.vectors[rounded].sum(0) - split.residual
    assert float(without.abs().max() / split.residual.abs().max()) > 1e-3
    assert float(split.vectors[rounded].sum(0).norm() / split.residual.norm()) == pytest.approx(
        float(rounding_at(run)[-1]), rel=1e-2
    )
    out = model.head_out()
    state = split.vectors.sum(0) / run.final_scale[-1]
    assert run.logits.dtype == torch.float32
    torch.testing.assert_close(out.logits(state @ out.W_U), run.logits[-1], rtol=0, atol=1e-4)


def test_a_model_is_left_as_it_was() -> None:
    model, run = half("falcon")
    before = model._stamp()
    wide = widened_run(model, run)
    assert wide.dtype == torch.float32 and not wide.is_rounded and wide.logits.dtype == torch.float32
    assert model._stamp() == before and not any("forward" in module.__dict__ for module in model.hf.modules())
    assert model.run(run.token_ids, bos=False).logits.equal(run.logits)
    assert facts_of(model) is facts_of(model)


@pytest.fixture(scope="module")
def rounding_circuit() -> Circuit:
    """The circuit of what a layer rounded away."""
    _, run = half("llama")
    return run.trace(metric=Probe(run.rounded(1).stream[-1], 2, only=Writer("rounding", 1, None, 13, 13)))


def test_rounding_is_a_leaf_of_circuits_and_their_files(rounding_circuit: Circuit, tmp_path: Path) -> None:
    circuit = rounding_circuit
    named = [i for i, node in enumerate(circuit.nodes) if node.kind == "rounding"]
    assert named and all(circuit.leaves[i] == "rounding" for i in named)
    assert ends_of(circuit)["rounding"] == pytest.approx(sum(circuit.influence[i] for i in named))
    assert "rounding 1 (13:" in circuit_text(circuit) and f"rounding {circuit.errors['rounding']:.0e}" in str(circuit)
    again = from_json(to_json(circuit))
    assert again == circuit and again.errors["rounding"] == circuit.errors["rounding"]
    for name in ("c.html", "c.graphml", "c.neuronpedia.json"):
        circuit.save(tmp_path / name)
    assert "rounding" in (tmp_path / "c.html").read_text()
    older = to_json(circuit).replace(f'"rounding": {circuit.errors["rounding"]!r}', '"other": 0.0')
    assert from_json(older).errors["other"] == 0.0  # files of full precision, and older ones, have none


def test_rounding_cannot_be_edited_or_taken_away(rounding_circuit: Circuit) -> None:
    circuit, run = rounding_circuit, rounding_circuit.run
    assert run is not None
    node = next(node for node in circuit.nodes if node.kind == "rounding")
    with pytest.raises(KeyholeError, match="rounding writes nothing that can be edited"):
        circuit.edit(node)
    with pytest.raises(KeyholeError, match="rounding is written by no block"):
        answers_without(run, [[node.writer]], Metric(13))


@pytest.fixture(scope="module")
def mary() -> Circuit:
    return keyhole.load(dtype=torch.bfloat16).run(IOI).trace("Mary")


def test_removals_are_as_predicted_within_what_rounding_allows(mary: Circuit) -> None:
    result = mary.verify(draws=1)
    assert result.agrees and len(result.sides) > 5 and len(result.mlps) > 5
    attention = [row for row in result.rows if row.what in ("side", "signal")]
    assert max(abs(row.after - row.predicted) for row in attention) < 1e-4  # which nothing below has rounded anew
    assert 1e-4 < max(row.tolerance for row in result.mlps) < 0.2
    wrong = Mlps.of([dataclasses.replace(mlp, left=mlp.left + 0.3) for mlp in mary.mlps])
    assert not any(row.agrees for row in dataclasses.replace(mary, mlps=wrong).verify(draws=0, edges=False).mlps)


def test_what_rounding_allows_is_a_little_more_than_it_does(mary: Circuit) -> None:
    assert mary.run is not None
    off, allowed = [], []
    for read in read_mlps(mary, mary.run).values():
        write = mary.run.explain_mlp(read.place.layer, read.place.spots[0][1], read.direction)
        claim = claim_of(write)
        wrote = claim.share(read.place.wrote[0])
        off.append(abs(wrote - 1))
        allowed.append(claim.tolerance(1.0, torch.zeros_like(claim.removed)) - 1e-4)
    assert len(off) > 5 and all(a < b for a, b in zip(off, allowed, strict=True))
    assert 2 < np.median(allowed) / np.median(off) < 60


def test_effects_are_measured_in_float32(mary: Circuit) -> None:
    run = mary.run
    assert run is not None
    assert masked([run]).error < 1e-4
    assert "Half precision rounded away 0." in str(mary.story())


def test_half_precision_and_float32_have_most_influence_in_common(mary: Circuit) -> None:
    full = keyhole.load().run(IOI).trace("Mary")
    shares = [dict(zip(c.nodes, c.influence, strict=True)) for c in (mary, full)]
    nodes = [node for node in {**shares[0], **shares[1]} if node.kind in ("head", "mlp")]
    least, most = (sum(f(s.get(node, 0.0) for s in shares) for node in nodes) for f in (min, max))
    assert least / most > 0.9
