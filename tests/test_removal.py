"""What a removal takes, where, and from whom: read back by the head, seen by the next layer, measured at the answer."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import keyhole
from conftest import prompts_of, rich_circuit, tiny_model
from keyhole import KeyholeError, Model, Run
from keyhole.circuits.records import Signal, Writer
from keyhole.faithfulness.removals import Row, Verification
from keyhole.faithfulness.verification import verify
from keyhole.intervene.cuts import side_cut
from keyhole.intervene.removal import Cut, Metric, Outcome, edits_of, head_delta, intervene, predicted, residual_delta
from keyhole.intervene.rerun import rerun
from keyhole.qk.omega import omega
from keyhole.tracing.writers import written_by
from tiny import tiny

CHANNELS = (0, 2, 5)
OUTPUTS = ("c_proj", "down_proj", "fc2", "dense_4h_to_h", "o_proj", "out_proj", "self_attention.dense")


def a_cut(side: str, *writers: Writer, keys: str = "all") -> Cut:
    signals = tuple(Signal(writer, side, CHANNELS) for writer in writers)  # type: ignore[arg-type]
    return Cut(2, 1, dest=9, src=4, signals=signals, keys=keys)  # type: ignore[arg-type]


def a_writer(kind: str, layer: int = 1) -> Writer:
    return Writer(kind, layer, 2 if kind == "head" else None, 9, 3)  # type: ignore[arg-type]


def run_of(model: Model, n: int = 12) -> Run:
    return model.run(prompts_of(model, n)[0])


def silenced(model: Model, layer: int, *, attention: bool) -> Model:
    """One layer's MLP, and perhaps its attention, write nothing: the next layer reads what else is written."""
    for name, parameter in model.blocks[layer].named_parameters():
        if any(f"{out}." in name for out in OUTPUTS) and (attention or name.startswith(("mlp.", "fc2"))):
            parameter.zero_()
    return model


# -- in residual space ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["dest", "src"])
@pytest.mark.parametrize("variant", ["gpt2", "llama", "llama-yarn", "gpt_neox", "qwen3", "gemma2", "opt"])
def test_a_head_reads_the_residual_change_as_the_change_of_its_query_or_keys(variant: str, side: str) -> None:
    model = tiny_model(variant)
    run = run_of(model)
    cut = a_cut(side, a_writer("head"), a_writer("mlp"))
    at, record, w = cut.tokens(run), run.attention_run(2), model.folded(2)
    W, scale = (w.W_Q[1], record.q_scale[1]) if side == "dest" else (w.W_K[w.kv(1)], record.k_scale[w.kv(1)])
    lost = head_delta(run, cut)
    read = (residual_delta(run, cut, lost) / record.norm_scale[at][:, None]) @ W * scale[at][:, None]
    read = read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)
    assert float(lost.abs().max()) > 1e-3
    torch.testing.assert_close(read, lost, rtol=1e-3, atol=1e-4 * float(lost.abs().max()))


def test_the_way_back_from_a_head_is_found_once_until_weights_change(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cut, calls, pinv = keyhole.load((tiny("gpt2"), None)), a_cut("dest", a_writer("mlp")), [], torch.linalg.pinv
    monkeypatch.setattr(torch.linalg, "pinv", lambda *given, **options: calls.append(1) or pinv(*given, **options))
    run, change = run_of(model), torch.ones(1, model.dims.d_head)
    once, again = residual_delta(run, cut, change), residual_delta(run, cut, change)
    assert len(calls) == 1 and torch.equal(once, again)
    with torch.no_grad():
        model.hf.transformer.h[2].attn.c_attn.weight.mul_(2)
    torch.testing.assert_close(residual_delta(run_of(model), cut, change), once / 2)


def projected(run: Run, cut: Cut) -> torch.Tensor:
    """What was written, projected onto the channels' directions; the same through the head where there is RoPE."""
    if run.attention_run(cut.layer).rotary is not None:
        return residual_delta(run, cut, head_delta(run, cut))
    (signal,) = cut.signals
    om = omega(run.model, cut.layer)
    basis = (om.u if cut.side == "dest" else om.v)(cut.head)[:, list(signal.channels)]
    return written_by(run, signal.writer, cut.tokens(run)) @ basis @ basis.T


@pytest.mark.parametrize("kind", ["embedding", "head", "bias", "mlp"])
@pytest.mark.parametrize("variant", ["gpt2", "llama-bias", "gemma2", "opt", "bloom", "granite", "olmo2"])
def test_global_removal_takes_just_the_projection_where_it_was_written(variant: str, kind: str) -> None:
    """The next layer reads the residual stream without it, at these tokens and no others."""
    layer = 0 if kind == "embedding" else 1
    model = tiny_model(variant)
    model = model if kind == "mlp" else silenced(model, layer, attention=kind == "embedding")
    run = run_of(model)
    for side, keys in (("dest", "all"), ("src", "all"), ("src", "source")):
        token = 9 if side == "dest" else 4
        source = int(run.pattern(layer)[2, token].argmax())  # a head's source that matters
        cut = a_cut(side, replace(a_writer(kind, layer), src=source), keys=keys)
        want = torch.zeros_like(run.layers[1].resid)
        want[cut.tokens(run)] = projected(run, cut)
        result = rerun(run, [edits_of(run, (cut,), "global")])
        resid = result.captured.layers[layer + 1].resid
        assert resid is not None and float(want.abs().max()) > 1e-3
        taken = run.layers[layer + 1].resid - resid[0].view_as(want)
        torch.testing.assert_close(taken, want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))


def test_outcomes_say_how_far_the_residual_stream_moves(gpt2: Model) -> None:
    run = run_of(gpt2)
    for side, token in (("dest", 9), ("src", 4)):
        cut = a_cut(side, a_writer("mlp"))
        (outcome,) = intervene(run, [cut], Metric(11, (1,)))
        before = run.layers[2].resid[token]
        after = before - projected(run, cut)[cut.tokens(run).index(token)]
        assert outcome.norm_ratio == pytest.approx(float(after.norm() / before.norm()), rel=1e-4) != 1
        assert outcome.cosine == pytest.approx(float(before @ after / before.norm() / after.norm()), rel=1e-4)


def test_an_offset_cannot_be_removed_globally(gpt2: Model) -> None:
    cut = Cut(1, 0, 7, 3, (Signal(Writer("offset", 1, 0, 7, 7), "dest", (0,)),))
    with pytest.raises(KeyholeError, match="written nowhere"):
        intervene(run_of(gpt2), [cut], Metric(7, (1,)), mode="global")


# -- sizes and answers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["dest", "src"])
def test_boosting_changes_scores_by_what_removing_takes(gpt2: Model, side: str) -> None:
    run, cut = run_of(gpt2), a_cut(side, a_writer("head"), a_writer("mlp"))
    delta = head_delta(run, cut)
    for boost, factor in ((False, -1.0), (True, 1.0)):
        for mode in ("exact", "local"):
            (outcome,) = intervene(run, [cut], Metric(11, (1,)), mode=mode, boost=boost)
            assert outcome.after == pytest.approx(predicted(run, cut, delta, factor), abs=1e-5) != outcome.before


@pytest.mark.parametrize("mode", ["exact", "local", "global"])
def test_copies_in_one_batch_do_not_meet(gpt2: Model, mode: str) -> None:
    run, metric = run_of(gpt2), Metric(9, (1,))
    cuts = [
        a_cut("dest", a_writer("head")),
        a_cut("src", a_writer("mlp")),
        replace(a_cut("src", a_writer("head")), head=3),
    ]
    together = intervene(run, cuts, metric, mode=mode)
    apart = [intervene(run, [cut], metric, mode=mode)[0] for cut in cuts]

    def measured(outcomes: Sequence[Outcome]) -> list[float]:
        return [number for o in outcomes for number in (o.before, o.after, o.metric_after)]

    assert measured(together) == pytest.approx(measured(apart), abs=1e-5)
    assert len({round(o.metric_after, 6) for o in together}) == 3


@pytest.mark.parametrize("mode", ["exact", "local", "global"])
def test_the_answer_is_measured_where_it_is_given(gpt2: Model, mode: str) -> None:
    """A removal at token 9 cannot change what is said before it."""
    run = run_of(gpt2)
    cut = a_cut("dest", a_writer("mlp"))
    early, late = (intervene(run, [cut], Metric(end, (1,)), mode=mode)[0] for end in (5, 9))
    assert early.metric_after == pytest.approx(early.metric_before, abs=1e-5)
    assert early.metric_before == pytest.approx(float(run.logits[5].log_softmax(-1)[1]), abs=1e-5)
    assert abs(late.metric_after - late.metric_before) > 1e-4


def test_metrics_are_what_they_are_called() -> None:
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1])
    logits = shares.log() + 5.0
    assert Metric(0, (0,), (1, 2)).of(logits) == pytest.approx(float(shares[0].log() - shares[1:3].log().mean()))
    assert Metric(0, (0, 3)).of(logits) == pytest.approx(float(torch.tensor(0.5).log()))
    assert Metric(0).of(logits) != Metric(0).of(logits)  # nothing asked, nothing measured


# -- what verification says ----------------------------------------------------------------------------------------


def test_a_prediction_that_is_off_is_told(gpt2: Model) -> None:
    circuit = rich_circuit(run_of(gpt2))
    assert verify(circuit, draws=0).agrees
    first, *others = circuit.firings
    last = first.dest[-1]
    off = replace(first, dest=(*first.dest[:-1], replace(last, after=last.after + 1e-3)))
    result = verify(replace(circuit, firings=(off, *others)), draws=0)
    assert [row.agrees for row in result.rows].count(False) == 1 and not result.agrees
    assert f"{len(result.rows) - 1} of {len(result.rows)} measured values equal" in str(result)


def test_ratios_compare_with_the_size_of_controls() -> None:
    """Controls that move attention up as often as down are no smaller for that."""

    def row(drop: float, *controls: float) -> Row:
        return Row(0, "dest", None, 0.9, 0.9 - drop, 0.9 - drop, True, 0.0, 0.0, controls, controls, 1.0, 1.0)

    rows = row(0.4, 0.1, -0.1), row(0.5, 0.2, -0.2), row(0.8, 0.1, -0.1)
    assert [r.control for r in rows] == pytest.approx([0.1, 0.2, 0.1])
    assert Verification("exact", 2, rows).ratio() == pytest.approx(5.0)
    said = "median drops (controls): attention without whole sides of firings 0.500 (0.1000)"
    assert said in str(Verification("exact", 2, rows))


def test_a_whole_side_is_all_that_the_search_removed(gpt2: Model) -> None:
    """Its measured weight is the search's last; without its last removal the weight is the one before that."""
    circuit = rich_circuit(run_of(gpt2))
    traced = next(t for t in circuit.firings if len(t.dest) > 1)
    whole, shorter = side_cut(circuit, traced, "dest"), replace(traced, dest=traced.dest[:-1])
    outcomes = intervene(circuit.run, [whole, side_cut(circuit, shorter, "dest")], Metric(11, (1,)))  # type: ignore[arg-type]
    assert [o.after for o in outcomes] == pytest.approx([r.after for r in traced.dest[:-3:-1]], abs=1e-4)
