"""Explaining one firing: thresholds, the first layer, the first token, and what a firing says about itself."""

import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError
from keyhole.qk.firings import find_firings
from keyhole.qk.omega import omega
from keyhole.tracing.candidates import ig_vectors
from keyhole.tracing.why import explain
from keyhole.tracing.writers import written_by
from tiny import tiny

PROMPT = "When Mary and John went to the store, John gave a drink to"


def test_a_head_at_layer_0_reads_embeddings_and_its_offset(organism: keyhole.Model) -> None:
    firing = organism.run(PROMPT).explain((0, 4), -1, 10)
    assert firing.attention > firing.tau
    kinds = {s.writer.kind for side in firing.sides for s in side.signals}
    assert kinds and kinds <= {"embedding", "offset"}


def test_the_first_token_sees_only_itself(organism: keyhole.Model) -> None:
    firing = organism.run(PROMPT).explain((2, 1), 0, 0)
    assert firing.attention == 1 and firing.visible == 1
    assert all(not side.reached and not side.signals for side in firing.sides)
    assert "not below tau" in str(firing)


def test_a_firing_below_tau_is_not_searched(organism: keyhole.Model) -> None:
    firing = organism.run(PROMPT).explain((3, 6), -1, "Mary")
    assert firing.attention < firing.tau and firing.sides == ()
    assert "below tau (--tau 0.1 searches it; " in str(firing) and "--why-not: what keeps it there)" in str(firing)
    with pytest.raises(KeyholeError, match="below tau"):
        firing.side("dest")


def test_weights_telescope_and_stop_at_the_first_below_tau(organism: keyhole.Model) -> None:
    firing = organism.run(PROMPT).explain((3, 6), -1, "gave")
    assert len(firing.sides) == 2
    for side in firing.sides:
        steps = [r.after for r in side.removed]
        assert side.reached and steps[-1] == side.after < firing.tau <= min(steps[:-1], default=1.0)
        assert sum(s.weight for s in side.signals) == pytest.approx(firing.attention - side.after)
        assert [r.ig for r in side.removed] == sorted((r.ig for r in side.removed), reverse=True)
        for signal in side.signals:
            assert firing.vector(signal).shape == (128,)
            if signal.writer.kind == "offset":
                with pytest.raises(KeyholeError, match="written nowhere"):
                    firing.vector(signal, flavour="raw")


@pytest.mark.parametrize("side", ["dest", "src"])
def test_a_signal_is_what_was_written_projected_onto_its_channels(side: str, gpt2: keyhole.Model) -> None:
    """Without RoPE what the head compares is what was written, divided by the norm's scale."""
    run = gpt2.run(prompts_of(gpt2, 12)[0])
    checked = 0
    for site in [s for s in find_firings(run) if s.layer == 2][:4]:
        firing = run.explain((2, site.head), site.dest, site.src, tau=0.05)
        directions = (omega(gpt2, 2).u if side == "dest" else omega(gpt2, 2).v)(site.head)
        for signal in [s for s in firing.side(side).signals if s.writer.kind != "offset"]:
            basis, who = directions[:, list(signal.channels)], signal.writer
            want = basis @ (basis.T @ written_by(run, who, [who.dest])[0])
            close = {"rtol": 1e-3, "atol": 1e-4 * float(want.abs().max())}
            torch.testing.assert_close(firing.vector(signal, flavour="raw"), want, **close)
            scale = run.attention_run(2).norm_scale[who.dest]
            torch.testing.assert_close(firing.vector(signal) * scale, want, **close)
            checked += 1
    assert checked > 3


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "gpt_oss", "mistral", "bloom"])
def test_attributions_are_complete(variant: str) -> None:
    """S . w = p(S) - p(0), with softcap, sinks, windows and ALiBi."""
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 14)[0])
    sites = find_firings(run)[:5]
    assert len(sites) == 5
    for site in sites:
        record = run.attention_run(site.layer)
        keys = torch.arange(len(run))
        visible = ((keys >= record.first[site.dest]) & (keys <= site.dest))[None]
        scores = record.scores([site.head], [site.dest])[0].double()
        w = ig_vectors(scores, visible, torch.tensor([site.src]), record.rule, heads=torch.tensor([site.head]))
        nothing = record.rule.of_head(torch.zeros_like(scores), visible, site.head)[0, site.src]
        whole = record.rule.of_head(scores, visible, site.head)[0, site.src]
        assert float((scores * w).sum()) == pytest.approx(float(whole - nothing), abs=5e-3)


def test_a_softer_threshold_needs_no_more_signals(organism: keyhole.Model) -> None:
    run = organism.run(PROMPT)
    counts = [len(explain(run, (3, 1), -1, "gave", tau=tau).side("src").removed) for tau in (0.8, 0.5, 0.2)]
    assert counts == sorted(counts)


def test_a_head_without_channels_says_so() -> None:
    hf = tiny("gpt2")
    with torch.no_grad():
        hf.transformer.h[1].attn.c_attn.weight[:, :8] = 0.0  # the queries of its first head
    model = keyhole.load((hf, None))
    run = model.run(prompts_of(model, 12)[0])
    told, other = (str(run.explain((1, head), 11, tau=1e-3)) for head in (0, 1))
    assert "no channel of this head can be told" in told and "no channel" not in other
