"""Signals that keep a head from attending: the fewest whose removal lifts the weight to tau, in a real forward pass."""

import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model
from keyhole.circuits.records import Signal, Writer
from keyhole.intervene.removal import Cut, Metric, intervene, random_cut
from keyhole.tracing.firing import Firing, Side

PROMPT = "When Mary and John went to the store, John gave a drink to"


def removed(side: Side) -> tuple[Signal, ...]:
    """All that the search took away, writer by writer."""
    channels: dict[Writer, list[int]] = {}
    for removal in side.removed:
        channels.setdefault(removal.writer, []).append(removal.channel)
    return tuple(Signal(who, side.side, tuple(ks)) for who, ks in channels.items())


def not_here(run: keyhole.Run, layer: int = 2) -> list[Firing]:
    """Explained places that the heads of a layer do not attend to."""
    record, dest = run.attention_run(layer), len(run) - 1
    found = []
    for head in range(2):
        weights, first = record.weights([head], [dest])[0, 0], max(2, int(record.first[dest]))
        src = int(weights[first:dest].argmin()) + first
        found.append(run.explain((layer, head), dest, src, tau=min(0.2, 3 * float(weights[src]) + 0.02), why_not=True))
    return found


@pytest.mark.parametrize("variant", ["gpt2", "llama-bias", "qwen3", "gemma2", "gpt_oss", "bloom"])
def test_removal_lifts_the_weight_as_predicted(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 12)[0])
    lifted = 0
    for firing in not_here(run):
        assert firing.why == "not" and firing.attention < firing.tau
        for side in [side for side in firing.sides if side.removed]:
            assert side.reached == (side.after >= firing.tau) and side.after > firing.attention
            assert all(removal.after < firing.tau for removal in side.removed[:-1])  # no shorter list would do
            assert all(removal.ig > 0 for removal in side.removed)
            cut = Cut(firing.layer, firing.head, firing.dest, firing.src, removed(side))
            (outcome,) = intervene(run, [cut], Metric(firing.dest, (1,)))
            assert outcome.after == pytest.approx(side.after, abs=1e-4)
            lifted += side.reached
    assert lifted


def test_what_signals_take_adds_up(organism: Model) -> None:
    run = organism.run(PROMPT)
    firing = run.explain((1, 6), -1, "store", why_not=True)
    side = firing.side("dest")
    assert side.reached and sum(s.weight for s in side.signals) == pytest.approx(
        side.after - firing.attention, abs=1e-6
    )
    assert all(s.ig > 0 for s in side.signals)
    told = str(firing)
    assert "which keep it from attending here" in told and "weaker ones" in told and told.count("\n") < 40


def test_random_channels_lift_it_less(organism: Model) -> None:
    run = organism.run(PROMPT)
    firing = run.explain((1, 6), -1, "store", why_not=True)
    cut = Cut(1, 6, firing.dest, firing.src, removed(firing.side("dest")))
    generator = torch.Generator().manual_seed(0)
    controls = [random_cut(run, cut, generator) for _ in range(5)]
    real, *others = intervene(run, [cut, *controls], Metric(firing.dest, (1,)))
    rise = real.after - real.before
    assert rise > 0.1 and sum(o.after - o.before for o in others) / 5 < rise / 2


def test_a_head_that_attends_needs_no_reason_not_to(organism: Model) -> None:
    run = organism.run(PROMPT)
    with pytest.raises(KeyholeError, match=r"attends here already.*Leave why_not \(--why-not\) out"):
        run.explain((1, 6), -1, "Mary", why_not=True)
    with pytest.raises(KeyholeError, match="say which token"):
        run.explain((1, 6), -1, why_not=True)


def test_a_tau_of_one_is_refused(organism: Model) -> None:
    run = organism.run(PROMPT)
    with pytest.raises(KeyholeError, match="tau is 1"):
        run.explain((1, 6), 1, 0, why_not=True)
