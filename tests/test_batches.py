"""Runs side by side are what each is alone, whatever their lengths: what stands beyond a run counts for nothing."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import keyhole
from alike import NUMBERS, assert_alike
from conftest import prompts_of, rich_circuit, tiny_model
from keyhole import Model, Run
from keyhole.circuits.records import Writer
from keyhole.models.stacks import cut_layer, stack_layer
from keyhole.tracing import mlp_causes, search, seeds, upstream, why
from keyhole.tracing import writers as patterns
from keyhole.tracing.batch import Untraced
from keyhole.tracing.exactness import Check, check_run, check_runs
from keyhole.tracing.firing import Firing
from keyhole.tracing.mlp_directions import Directions, Through
from keyhole.tracing.seeds import Probability
from keyhole.tracing.upstream import Writes
from keyhole.tracing.why import explain_sites
from tiny import Sizes

# Lengths on both sides of d_head, which is 8, and of where W_O W_Q is composed first: each has its own way to a number.
SHORT, LONG = (5, 8, 7), (7, 14, 13)
VARIANTS = {  # what is odd about each
    "gpt2": SHORT,  # biases everywhere, no RoPE
    "bloom": LONG,  # ALiBi
    "mistral": LONG,  # a sliding window, grouped keys
    "gemma2": LONG,  # caps, a window in every other layer, norms after blocks
    "gpt_oss": LONG,  # sinks, experts
    "mixtral": SHORT,  # experts
    "qwen3": SHORT,  # QK-norm
    "phi": LONG,  # partial RoPE, parallel blocks
    "gptj": SHORT,  # RoPE on neighbouring dimensions
    "llama4_text": LONG,  # chunks, layers without RoPE, a temperature that depends on the position
    "lfm2": SHORT,  # layers without attention
}
OFTEN = {"seeds": "linear", "tau": 0.1, "through": Through(eps=0.001, cover=0.95)}  # circuits of many firings and MLPs


def runs_of(model: Model, lengths: Sequence[int]) -> list[Run]:
    return [model.run(ids) for ids in prompts_of(model, *lengths)]


def places_of(runs: Sequence[Run], layer: int) -> list[tuple[int, int, int, int]]:
    """Where each head looks most, from two tokens of every run."""
    found = []
    for row, run in enumerate(runs):
        for dest in (len(run) - 3, len(run) - 1):
            weights = run.attention_run(layer).weights(run.attention_run(layer).heads, [dest])[:, 0]
            found += [(row, head, dest, src) for head, src in enumerate(weights.argmax(-1).tolist())]
    return found


def numbers_of(firing: Firing) -> list[float]:
    removed = [(r.ig, r.after) for side in firing.sides for r in side.removed]
    signals = [(s.weight, s.ig, s.alone) for side in firing.sides for s in side.signals]
    return [firing.attention, *(x for row in (*removed, *signals) for x in row)]


def named_in(firing: Firing) -> list[Any]:
    sides = [([(r.writer, r.channel) for r in side.removed], side.reached) for side in firing.sides]
    signals = [[(s.writer, s.channels) for s in side.signals] for side in firing.sides]
    return [firing.head, firing.dest, firing.src, firing.tau, firing.visible, sides, signals]


def composed(run: Run) -> int:
    """A likely token that heads and MLPs raise most: of random models the likeliest is that of the embedding alone."""
    W_U = run.model.head_out().W_U
    z, added = (x[-1] / run.final_scale[-1] @ W_U for x in (run.final_resid, run.final_resid - run.layers[0].resid))
    return int(added.masked_fill(z < z.mean() + z.std(), -torch.inf).argmax())


def fired(runs: Sequence[Run], layer: int) -> list[Firing]:
    return list(explain_sites(Writes(runs), layer, places_of(runs, layer), 0.05).firings())


def same_firings(together: Sequence[Firing], alone: Sequence[Firing]) -> None:
    assert len(together) == len(alone) and sum(len(side.removed) > 1 for f in together for side in f.sides) > 9
    for mine, its in zip(together, alone, strict=True):
        assert named_in(mine) == named_in(its)
        assert all(side.reached == (side.after < mine.tau) for side in mine.sides)
        assert numbers_of(mine) == pytest.approx(numbers_of(its), **NUMBERS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_firings_together_as_alone(variant: str) -> None:
    """All firings of a layer, of all heads and runs, in one search."""
    runs = runs_of(tiny_model(variant, dtype=torch.float64), VARIANTS[variant])
    top = runs[0].model.attention_layers[-1]
    same_firings(fired(runs, top), [firing for run in runs for firing in fired([run], top)])


@pytest.mark.parametrize("variant", ["mistral", "gemma2", "gpt_oss", "bloom"])
def test_firings_of_prompts_that_are_too_long_for_short_cuts(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pattern is kept, one head and one firing at a time, W_O composed with what reads."""
    runs = runs_of(tiny_model(variant, dtype=torch.float64), SHORT)
    top = runs[0].model.attention_layers[-1]
    alone = [firing for run in runs for firing in fired([run], top)]
    monkeypatch.setattr(patterns, "_KEPT_FLOATS", 0)
    monkeypatch.setattr(why, "_COORD_FLOATS", 1)
    monkeypatch.setattr(why, "PROJECTED_FLOATS", 1)
    monkeypatch.setattr(upstream, "composing_is_cheaper", lambda *sizes: True)
    same_firings(fired(runs, top), alone)


class Largest(TorchDispatchMode):
    """How many numbers has the largest tensor that is made?"""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        stored = [
            one.untyped_storage().nbytes() // one.element_size() for one in (made,) if isinstance(made, torch.Tensor)
        ]
        self.numbers = max([self.numbers, *stored])
        return made


@pytest.mark.parametrize("variant", ["gpt2", "llama"])
def test_memory_does_not_grow_with_what_is_removed(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny tau thousands of candidates go: their rows are built in blocks, and no two are compared at once."""
    model, room = tiny_model(variant, Sizes(heads=8)), 60_000
    run = model.run(prompts_of(model, 24)[0])
    monkeypatch.setattr(why, "_COORD_FLOATS", room)
    monkeypatch.setattr(search, "_ROW_FLOATS", room)
    writes = Writes([run])
    candidates = (writes.moved_below(2) + 6 * 24) * model.dims.d_head
    with Largest() as largest:
        found = explain_sites(writes, 2, [(0, 0, 23, 5)], 1e-30)
    assert max(len(side.removed.firing) for side in found.sides) > 1000
    assert largest.numbers <= max(room, 4 * candidates), (largest.numbers, candidates)


def test_a_stop_is_heard_inside_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("gpt2")
    run, calls = model.run(prompts_of(model, 12)[0]), list[tuple[int, int]]()
    monkeypatch.setattr(search, "_ROW_FLOATS", 1000)

    def stop(done: int, total: int) -> None:
        calls.append((done, total))
        if calls.count((done, total)) > 3:  # inside a layer, and not only after it
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rich_circuit(run, tau=0.001, progress=stop)
    assert calls[-1][0] < calls[-1][1] == len(run.layers)


@pytest.mark.parametrize("variant", ["mistral", "gemma2", "gpt_oss", "bloom"])
def test_attention_of_long_prompts(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single weights, rows, columns and weighted sums are the same whether all attention is kept or none."""
    runs = runs_of(tiny_model(variant, dtype=torch.float64), LONG)
    records = [Writes(runs).record(layer) for layer in (0, 2)]
    kept = patterns.Patterns(records)
    monkeypatch.setattr(patterns, "_KEPT_FLOATS", 0)
    long, (most, stream) = patterns.Patterns(records), (max(LONG), torch.Generator().manual_seed(0))
    assert kept.small and not long.small
    layers, rows, heads, dest, src = (torch.randint(n, (200,), generator=stream) for n in (2, 3, 4, most, most))
    u = torch.randn(200, 2, most, generator=stream, dtype=torch.float64)
    for one, other in (
        (of.weights(layers, rows, heads, dest=dest, src=src) for of in (kept, long)),
        (of.rows(2, rows, dest) for of in (kept, long)),
        (of.columns(layers, rows, heads, src) for of in (kept, long)),
        (of.push(2, u, rows.sort().values) for of in (kept, long)),
    ):
        assert one.abs().sum() > 1
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("variant", "lengths"),
    [("gpt2", SHORT), ("llama-bias", LONG), ("gemma2", SHORT), ("gpt_oss", LONG), ("phi", SHORT), ("lfm2", LONG)],
)
def test_circuits_together_as_alone(variant: str, lengths: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graph, numbers to rounding, although firings and MLPs of a layer are explained together, or in parts."""
    runs = runs_of(tiny_model(variant), lengths)
    targets = [composed(run) for run in runs]
    alone = [run.trace(target, **OFTEN) for run, target in zip(runs, targets, strict=True)]
    assert sum(len(circuit.firings) for circuit in alone) > 3 and sum(len(circuit.mlps) for circuit in alone) > 4
    for found, its in zip(keyhole.trace_many(runs, targets, errors="raise", **OFTEN), alone, strict=True):
        assert_alike(found, its)
    monkeypatch.setattr(mlp_causes, "_NEURON_FLOATS", 1)
    module = import_module("keyhole.tracing.trace")
    monkeypatch.setattr(module, "_MOVED_FLOATS", 2**16)  # two of them at a time, or three
    for found, its in zip(keyhole.trace_many(runs, targets, errors="raise", **OFTEN), alone, strict=True):
        assert_alike(found, its)


@pytest.mark.parametrize("variant", ["gpt2", "gemma2"])
def test_likelihoods_together_as_alone(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds of several tokens' probability, whether the paths of all runs are walked at once or one by one."""
    runs = runs_of(tiny_model(variant), SHORT)
    targets = [run.logits[-1].topk(2 + i).indices.tolist() for i, run in enumerate(runs)]
    options: Any = {"tau": 0.1, "through": "heads", "seeds": Probability(1.0)}
    alone = [run.trace(target, **options) for run, target in zip(runs, targets, strict=True)]
    assert sum(edge.side == "target" for circuit in alone for edge in circuit.edges) > 4
    for states in (seeds._STATES, 1):
        monkeypatch.setattr(seeds, "_STATES", states)
        for found, its in zip(keyhole.trace_many(runs, targets, errors="raise", **options), alone, strict=True):
            assert_alike(found, its)


def test_rope_that_depends_on_the_length_keeps_lengths_apart() -> None:
    model = tiny_model("llama-dynamic")
    runs = runs_of(model, (14, 20, 24))  # the scaling sets in at 16
    assert not torch.equal(runs[0].attention_run(0).rotary.cos, runs[2].attention_run(0).rotary.cos[:14])
    for run, found in zip(runs, keyhole.trace_many(runs, [None] * 3, errors="raise"), strict=True):
        assert_alike(found, run.trace())


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "qwen3", "gpt_oss", "bloom", "lfm2"])
def test_layers_put_side_by_side_and_cut_out_again(variant: str) -> None:
    """Every number of every run is where it was."""
    runs = runs_of(tiny_model(variant), (5, 9, 7))
    for layer in range(len(runs[0].layers)):
        stacked = stack_layer(runs, layer)
        for row, run in enumerate(runs):
            same_record(cut_layer(stacked, row, len(run)), run.layers[layer])


def same_record(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for name in (field.name for field in fields(one)):
        mine, its = getattr(one, name), getattr(other, name)
        if isinstance(its, torch.Tensor):
            assert torch.equal(mine, its), name
        elif is_dataclass(its):
            same_record(mine, its)
        else:
            assert mine == its, name


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "qwen3", "gpt_oss", "phi-qknorm"])
def test_checks_together_as_alone(variant: str) -> None:
    """Each run is as exact as it is alone: nothing beyond its end is compared, and no other run's error is its own."""
    runs = runs_of(tiny_model(variant), (5, 12, 7))
    spoilt = replace(runs[1], final_resid=runs[1].final_resid.clone())
    spoilt.final_resid[3, 0] += 5.0
    bad = replace(runs[2], logits=runs[2].logits + torch.arange(len(runs[2]))[:, None])
    for every in (runs, [runs[0], spoilt, bad]):
        together, alone = check_runs(Writes(every)), [check_run(run) for run in every]
        for mine, its in zip(together, alone, strict=True):
            assert errors_of(mine) == pytest.approx(errors_of(its), rel=1e-3, abs=3e-6)
            assert mine.n_tokens == its.n_tokens and mine.exact == its.exact
        assert [check.exact for check in together] == [run in runs for run in every]
    at_the_end = check_runs(Writes([runs[0], spoilt, bad]), logits_at=[[4], [0], [6]])
    assert [check.logits < check.tolerance for check in at_the_end] == [True, True, False]


def errors_of(check: Check) -> list[float]:
    told = ("scores", "values", "residual", "deficient_heads", "largest_term")
    return [check.logits, *(getattr(layer, name) or 0.0 for layer in check.layers for name in told)]


def test_writers_of_several_runs() -> None:
    """What each writes is what it writes in its run alone; beyond the end of a run nothing is moved."""
    runs = runs_of(tiny_model("gpt2"), (5, 9))
    writes, last = Writes(runs), [len(run) - 1 for run in runs]
    writers = [
        [Writer("embedding", 0, None, t, t), Writer("mlp", 1, None, t, t), Writer("head", 2, 3, t, t - 2)] for t in last
    ]
    alone = [Writes([run]).written([0] * 3, own) for run, own in zip(runs, writers, strict=True)]
    torch.testing.assert_close(writes.written([0] * 3 + [1] * 3, writers[0] + writers[1]), torch.cat(alone))
    assert writes.moved[0, :, :, :5].any() and not writes.moved[0, :, :, 5:].any()
    torch.testing.assert_close(writes.written([0] * 3 + [1] * 3, writers[0] + writers[1]), torch.cat(alone))


def test_directions_of_many_writers() -> None:
    """Each has its own, however many there are, and what its readers read is added up."""
    writers = [(run, Writer("mlp", layer, None, 1, 1)) for run in range(3) for layer in range(200)]
    directions = Directions(2, torch.device("cpu"))
    vectors = torch.arange(1200, dtype=torch.float64).view(600, 2)
    directions.add([(*key, 2.0, 4.0) for key in writers[:200]], vectors[:200])
    directions.add([(*key, 2.0, 4.0) for key in writers[200:]], vectors[200:])
    directions.add([(*key, 1.0, 1.0) for key in writers[:2]], vectors, rows=[5, 5])
    directions.add([(*writers[3], 1.0, -1.0), (0, Writer("embedding", 0, None, 1, 1), 1.0, 1.0)], vectors[:2])
    expected = vectors / 2
    expected[:2] += vectors[5]
    assert torch.equal(directions.of(writers), expected)
    assert (0, Writer("embedding", 0, None, 1, 1)) not in directions


def test_a_threshold_that_fails_refuses_its_prompt_alone() -> None:
    """And where it fails for all of them, all are told, each with its reason."""
    runs = runs_of(tiny_model("gpt2"), (5, 8))
    targets = [composed(run) for run in runs]

    def fails_from(limit: int) -> Any:
        return lambda dest: 0.1 if dest < limit else 2.0

    good, bad = keyhole.trace_many(runs, targets, **{**OFTEN, "tau": fails_from(6)})
    assert isinstance(bad, Untraced) and bad.index == 1 and "tau" in str(bad)
    assert isinstance(good, keyhole.Circuit)
    assert_alike(good, runs[0].trace(targets[0], **{**OFTEN, "tau": fails_from(6)}))
    found = keyhole.trace_many(runs, targets, **{**OFTEN, "tau": fails_from(0)})
    assert [type(one) for one in found] == [Untraced] * 2
    found = keyhole.trace_many(runs, ["no such token"] * 2)
    assert [type(one) for one in found] == [Untraced] * 2


def test_a_run_that_cannot_be_rebuilt_is_refused_alone() -> None:
    """For its answer's logits: those are checked where it is predicted."""
    runs = runs_of(tiny_model("gpt2"), (5, 8, 7))
    spoilt = replace(runs[1], logits=runs[1].logits.clone())
    spoilt.logits[-1, 3] += 5.0
    found = keyhole.trace_many([runs[0], spoilt, runs[2]], [composed(run) for run in runs], **OFTEN)
    assert [type(one) for one in found] == [keyhole.Circuit, Untraced, keyhole.Circuit]
    assert "logits of this run" in str(found[1])
