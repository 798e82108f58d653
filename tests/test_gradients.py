"""First-order estimates are what small changes do; writers that are silent are silent, whatever they read."""

import pytest
import torch
from torch import Tensor

from conftest import tiny_model
from keyhole import KeyholeError, Model, Run
from keyhole.circuits.records import Writer
from keyhole.intervene import Metric, all_but, answers_without, estimate, mean_writes, places
from keyhole.models.weights import optional
from keyhole.tracing.answers import token_ids
from keyhole.tracing.writers import written_by

VARIANTS = ["gpt2", "llama", "gemma2", "gptj", "granite", "lfm2", "falcon"]
ROUNDED = ["llama", "gemma2", "gptj", "granite", "lfm2"]  # norms or scores in float32, whatever the weights are
METRIC = Metric(6, (3,), (5,))


def runs_of(variant: str, n: int = 2, dtype: torch.dtype = torch.float64) -> list[Run]:
    model = tiny_model(variant, dtype=dtype)
    return [model.run([(7 * i + 11 * seed) % 61 for i in range(1, 8)], bos=False) for seed in range(n)]


def some_of(run: Run) -> list[Writer]:
    """An embedding, and one writer of each kind in each layer; a head that looks back."""
    chosen = {(w.kind, w.layer): w for w in places(run) if w.dest == 5 and w.src in (2, 5)}
    chosen |= {(w.kind, w.layer): w for w in places(run) if w.kind == "head" and (w.dest, w.src) == (5, 4)}
    biases = [Writer("bias", layer, None, 4, 4) for layer in run.model.attention_layers]
    return [Writer("embedding", 0, None, 3, 3), *chosen.values(), *biases]


def slopes(run: Run, metric: Metric, along: dict[Writer, Tensor], h: float) -> list[float]:
    """How the metric changes along a change of each write: a difference of five points."""
    sets, own = [[writer] for writer in along], {w: written_by(run, w, [w.dest])[0] for w in along}
    a, b, c, d = (
        answers_without(run, sets, metric, instead={w: own[w] + k * h * change for w, change in along.items()})
        for k in (-2, -1, 1, 2)
    )
    return [(8 * (c[i] - b[i]) - (d[i] - a[i])) / (12 * h) for i in range(len(sets))]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("patched", [False, True])
def test_estimates_are_the_slope_of_what_is_taken_away(variant: str, patched: bool) -> None:
    run, other = runs_of(variant)
    found = estimate(run, METRIC, other if patched else None)
    along = {w: written_by(run, w, [w.dest])[0] for w in some_of(run)}
    assert {writer.kind for writer in along} >= {"embedding", "head", "bias", "mlp"}
    if patched:
        along = {w: own - written_by(other, w, [w.dest])[0] for w, own in along.items()}
    estimates = [found.of(writer) for writer in along]
    h, error = (0.01, 2e-4) if variant in ROUNDED else (1e-3, 1e-7)
    assert estimates == pytest.approx(slopes(run, METRIC, along, h), abs=error)
    assert max(map(abs, estimates)) > 20 * error


def test_an_answer_without_rivals_has_a_slope_too() -> None:
    (run,) = runs_of("gpt2", 1)
    metric, writer = Metric(6, (3, 4)), Writer("mlp", 1, None, 6, 6)
    (expected,) = slopes(run, metric, {writer: written_by(run, writer, [6])[0]}, 1e-3)
    assert estimate(run, metric).of(writer) == pytest.approx(expected, abs=1e-7) != 0


def test_nothing_is_lost_by_writing_the_same() -> None:
    (run,) = runs_of("gpt2", 1)
    same = estimate(run, METRIC, run)
    assert float(same.heads.abs().max()) == float(same.local.abs().max()) == 0
    with torch.inference_mode():
        assert torch.equal(estimate(run, METRIC).local, estimate(run, METRIC).local)


def test_estimates_need_an_answer_and_equal_lengths() -> None:
    (run,) = runs_of("gpt2", 1)
    with pytest.raises(KeyholeError, match="name some"):
        estimate(run, Metric(6))
    with pytest.raises(KeyholeError, match="7 and 5 tokens"):
        estimate(run, METRIC, run.model.run([1, 2, 3, 4, 5], bos=False))
    with pytest.raises(KeyholeError, match="no mixer"):
        estimate(run, METRIC).of(Writer("mixer", 0, None, 1, 1))
    with pytest.raises(KeyholeError, match="equal ones"):
        mean_writes([run, run.model.run([1, 2, 3, 4, 5], bos=False)])


def zeroed(run: Run, kind: str) -> float:
    """The answer of a model whose blocks of one kind give out nothing, by hooks of its own."""
    family, hooks = run.model.family, []
    path = {"mlp": family.mlp, "attention": family.post_attn_norm or family.attn, "mixer": family.mixer}[kind]
    for block in run.model.blocks:
        module = optional(block, path)
        if module is not None:
            nothing = lambda _, args, out: (out[0] * 0, *out[1:]) if isinstance(out, tuple) else out * 0  # noqa: E731
            hooks.append(module.register_forward_hook(nothing))
    try:
        with torch.no_grad():
            logits = run.model.hf(input_ids=torch.tensor([list(run.token_ids)]), use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return METRIC.of(logits[0, METRIC.end])


@pytest.mark.parametrize("variant", [*VARIANTS, "gpt_oss"])
def test_silent_writers_of_several_layers_are_blocks_that_give_out_nothing(variant: str) -> None:
    """Were only the writes of the first pass taken away, what they write on changed inputs would be left."""
    (run,) = runs_of(variant, 1)
    every = places(run)
    biases = [Writer("bias", layer, None, t, t) for layer in run.model.attention_layers for t in range(7)]
    sets = [[w for w in every if w.kind == "mlp"], [w for w in every if w.kind == "head"] + biases]
    got = answers_without(run, sets, METRIC)
    assert got == pytest.approx([zeroed(run, "mlp"), zeroed(run, "attention")], abs=1e-5)  # norms round to float32
    assert min(abs(one - METRIC.of(run.logits[6])) for one in got) > 1e-3


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "lfm2"])
def test_with_all_places_the_answer_is_the_same_and_with_none_it_is_that_of_constants(variant: str) -> None:
    (run,) = runs_of(variant, 1)
    every = places(run)
    whole, nothing = answers_without(run, [all_but(run, every), all_but(run, [])], METRIC)
    assert whole == pytest.approx(METRIC.of(run.logits[6]), abs=1e-9)
    assert nothing == pytest.approx(answers_without(run, [every], METRIC)[0], abs=1e-12)
    assert nothing != pytest.approx(whole, abs=1e-3)


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "lfm2"])
def test_mean_writes_are_means_of_writes(variant: str) -> None:
    runs = runs_of(variant, 3)
    means = mean_writes(runs)
    assert set(means) == set(places(runs[0]))
    for writer in some_of(runs[0]):
        if writer in means:
            own = torch.stack([written_by(run, writer, [writer.dest])[0] for run in runs])
            torch.testing.assert_close(means[writer], own.mean(0))
    (run, *_), metric = runs, METRIC
    mine = answers_without(run, [places(run)], metric, instead=mean_writes([run]))
    assert mine == pytest.approx([metric.of(run.logits[6])], abs=1e-9)


def test_the_places_of_the_largest_estimates_cost_the_organism_its_answer(organism: Model) -> None:
    run = organism.run("When Mary and John went to the store, John gave a drink to")
    metric = Metric(len(run) - 1, *(tuple(token_ids(run, name, -1)) for name in ("Mary", "John")))
    found, every = estimate(run, metric), places(run)
    ranked = sorted(every, key=found.of, reverse=True)
    chosen = [*ranked[:10], *every[:: len(every) // 10]]
    lost = [metric.of(run.logits[-1]) - value for value in answers_without(run, [[w] for w in chosen], metric)]
    assert sum(lost[:10]) > 10 * sum(map(abs, lost[10:]))
