"""What bulk runs will take: estimates against what was measured, and the page that counts what was not."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bulk_runs import BATCH, PART, TASK, N, files_of
from conftest import ROOT, tiny_model
from keyhole import Model
from keyhole.models.mlps import MlpWeights
from keyhole.store import Manifest, Outcome, Tracing, batches, bulk, estimate, open_store
from keyhole.store.batches import Batch, Block, trace_block
from keyhole.store.pilot import estimate_of, memory_of, pilot, rates_of
from keyhole.tasks import examples, ioi
from keyhole.tracing.upstream import Writes

scale: Any = SimpleNamespace(**run_path(str(ROOT / "benchmarks" / "scale.py")))
GPT2, Load = scale.GPT2, scale.Load
pytestmark = pytest.mark.xdist_group("bulk")  # one of them reads the store that is made once


def measured(*batches: tuple[int, float, float]) -> list[Batch]:
    """Batches of so many prompts, with so many tokens each, that took so many seconds."""
    failed = Outcome(0, ioi(1)[0], "failed", error="not traced")
    return [Batch((failed,) * n, tokens, 0.1 * took, 0.9 * took) for n, tokens, took in batches]


@given(st.lists(st.tuples(st.integers(1, 9), st.floats(1, 1000), st.floats(0.001, 1000)), min_size=1, max_size=4))
def test_rates_give_back_what_was_measured(pilots: list[tuple[int, float, float]]) -> None:
    rates = rates_of(measured(*pilots))
    expected = sum(n * rates.at(tokens) for n, tokens, _ in pilots)
    assert expected == pytest.approx(sum(took for _, _, took in pilots)) and rates.power >= 0


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_the_power_of_lengths_is_that_of_the_pilot(power: float) -> None:
    """Where lengths differ; those that hardly do show the usual power, whatever they took."""
    different = rates_of(measured(*((8, tokens, 8 * tokens**power) for tokens in (10, 100, 1000))))
    assert different.power == pytest.approx(power, abs=0.01)
    assert different.at(100) == pytest.approx(100**power, rel=0.01)
    assert rates_of(measured((8, 16.0, 1.0), (8, 16.1, 1.3))).power == pytest.approx(1.0, abs=0.1)
    assert rates_of(measured((8, 16.0, 1.0), (8, 16.0, 1.3))).power == 1.0


def test_memory_is_that_of_the_largest_batch_by_its_tokens() -> None:
    small, large = measured((2, 10.0, 1.0), (8, 20.0, 1.0))
    small, large = replace(small, padded=20, held=900, peak=990), replace(large, padded=160, held=1000, peak=1640)
    told = memory_of([small, large], padded=320, together=8)
    assert (told.fixed, told.prompt) == (1000, 160), "twice as many tokens, twice as much"
    assert told.at(8) == 1000 + 2 * 640


def test_memory_that_is_told_is_what_it_takes() -> None:
    """Of a process that traces more than the pilot did."""
    measuring = "import sys; sys.path.insert(0, 'benchmarks'); import bulk; bulk.print_peaks(None, 64, [32])"
    telling = "from keyhole.store import estimate; print(estimate('ioi', n=64).memory.at(32))"
    took, told = (
        int(subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True).stdout)
        for script in (measuring, telling)
    )
    assert 1 / 1.5 < told / took < 1.5


def test_more_to_do_takes_longer() -> None:
    rates, load = scale.Speed(1e10, 1e-3), Load(20, 100, 30)
    times = [scale.seconds(GPT2, load, rates)]
    for more in ({"tokens": 40}, {"firings": 200}, {"places": 60}):
        times.append(scale.seconds(GPT2, replace(load, **more), rates))
    assert min(times[1:]) > times[0]
    long = [scale.trace_operations(GPT2, Load(tokens, 100)) for tokens in (10_000, 20_000)]
    assert 1.9 < long[1] / long[0] < 2.0, "tracing is linear in the length of prompts"


def shape_of(model: Model) -> Any:
    """The sizes of a model; experts count as one wide MLP."""
    dims, found = model.dims, [model.mlp(layer) for layer in range(model.dims.layers)]
    readable = [mlp for mlp in found if isinstance(mlp, MlpWeights)]
    width = max((sum(n.W_u.shape[1] for n in mlp.neurons) for mlp in readable), default=4 * dims.d_model)
    gated = not readable or readable[0].neurons[0].W_g is not None
    heads = (dims.heads, dims.kv_heads, dims.d_head)
    return scale.Shape(dims.layers, *heads, dims.d_model, width, dims.vocab, 3 if gated else 2)


@pytest.mark.parametrize("variant", ["gpt2", "llama", "qwen2", "gemma2"])
def test_shapes_are_the_models(variant: str) -> None:
    """All weights but norms, biases and learned positions; and every number that a run and its writers are."""
    model = tiny_model(variant)
    shape, run = shape_of(model), model.run([3, 1, 4, 1, 5])
    matrices = {id(p): p for name, p in model.hf.named_parameters() if p.dim() == 2 and "wpe" not in name}
    tied = model.hf.get_input_embeddings().weight is model.hf.get_output_embeddings().weight
    extra = 0 if tied else shape.vocab * shape.d_model
    assert shape.weights + extra == sum(p.numel() for p in matrices.values())
    held = [run.final_resid, run.logits, *(t for layer in run.layers for t in (layer.resid, layer.mlp))]
    held += [
        t
        for i in model.attention_layers
        for t in (run.attention_run(i).q, run.attention_run(i).k, run.attention_run(i).v)
    ]
    assert len(run) * scale.run_floats(shape) == sum(tensor.numel() for tensor in held)
    writes = Writes([run])
    written = [writes.values, writes.moved, writes.local, *(writes.attention(i) for i in model.attention_layers)]
    assert len(run) * scale.writer_floats(shape) == sum(tensor.numel() for tensor in written)


def test_memory_is_told_for_each_prompt_of_a_batch() -> None:
    told = scale.memory(GPT2, Load(20, 40))
    assert told.prompt == 20 * 4 * (2 * scale.run_floats(GPT2) - GPT2.vocab + scale.writer_floats(GPT2))
    assert told.at(8) - told.at(2) == 6 * (told.prompt + told.working), "few firings are explained at once"
    assert told.at(1002) - told.at(1000) == 2 * told.prompt, "many a few at a time"
    assert scale.memory(GPT2, Load(20, 80)).working == 2 * told.working > 0
    assert scale.memory(GPT2, Load(20, 40), bytes_per_weight=2).fixed == told.fixed - 2 * GPT2.weights


def test_batches_of_the_pilot_are_spread_and_not_traced_again(
    organism: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, traced, real = ioi(11, seed=3), list[str](), batches.trace_batch

    def counted(model: Model, first: int, some: Any, tracing: Tracing, alike: Any) -> Batch:
        traced.extend(example.text for example in some)
        return real(model, first, some, tracing, alike)

    monkeypatch.setattr("keyhole.store.batches.trace_batch", counted)
    store = bulk(prompts, organism, out=tmp_path / "store", part=4, tracing=Tracing(batch=2))
    assert sorted(traced) == sorted(example.text for example in prompts), "each once"
    first = [traced.index(prompts[i].text) for i in (0, 4, 10)]
    assert max(first) < 6, "the first batch, one in the middle and the last come first"
    whole = trace_block(organism, Block(1, 4, tuple(prompts[4:8])), Tracing(batch=2))
    assert [outcome.circuit for outcome in store][4:8] == [one.circuit for one in whole]


def told(organism: Model, whole: Path, times: list[tuple[float, float]], workers: int = 1, n: int = N) -> Any:
    """An estimate of a run over the prompts of a store, with batches that took so long."""
    kept, tracing = open_store(whole), Tracing(batch=BATCH)
    some = examples(TASK, organism, N, 7)[:n]
    blocks = [Block(i // PART, i, tuple(some[i : i + PART])) for i in range(0, n, PART)]
    outcomes = [kept[i] for i in range(2 * len(times))]
    length = len(outcomes[0].circuit.token_ids) if outcomes[0].circuit else 0
    held: Any = {"padded": 2 * length, "held": 1 << 30, "peak": (1 << 30) + (1 << 20)}
    timed = [Batch(tuple(outcomes[2 * i : 2 * i + 2]), length, *both, **held) for i, both in enumerate(times)]
    manifest: Manifest = kept.manifest
    return estimate_of(organism, blocks, tracing, manifest=manifest, workers=workers, measured=timed)


def test_an_estimate_is_the_pilot_and_the_rest_at_its_pace(
    organism: Model, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch warms the model up, which counts once; every worker does so for itself."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    found = told(organism, whole, [(1.0, 9.0), (0.2, 1.8), (0.2, 1.8)])
    assert found.prompts == N and found.load.firings > 0 and found.load.places > 0
    assert found.seconds == pytest.approx(14.0 + N * 1.0, rel=0.1), "prompts are about as long as the first ones"
    two = told(organism, whole, [(1.0, 9.0), (0.2, 1.8), (0.2, 1.8)], workers=2)
    assert two.seconds == pytest.approx(14.0 + N / 2 * 1.0 + 8.0, rel=0.1)
    many = told(organism, whole, [(1.0, 9.0), (0.2, 1.8), (0.2, 1.8)], workers=20)
    assert many.seconds == two.seconds and many.workers == 20, "workers share the cores"
    twice = told(organism, whole, [(1.0, 9.0), (0.4, 3.6), (0.4, 3.6)])
    assert twice.seconds - 18.0 == pytest.approx(2 * (found.seconds - 14.0))
    longest = max(len(organism.run(one.text)) for one in examples(TASK, organism, N, 7))
    assert found.memory.fixed == 1 << 30 and found.memory.at(found.batch) == pytest.approx(
        (1 << 30) + (1 << 20) * longest / found.load.tokens, rel=0.01
    ), "the batch with most tokens"
    assert "60 prompts" in str(found) and "of a batch of 2" in str(found)


def test_the_disk_that_is_told_is_what_it_takes(organism: Model, whole: Path) -> None:
    """Of parts as small as these, most is each part's own; and half of the parts take half of it."""
    there = sum(len(content) for content in files_of(whole).values())
    found = told(organism, whole, [(1.0, 9.0), (0.2, 1.8), (0.2, 1.8)])
    assert found.disk == pytest.approx(there, rel=0.2)
    half = told(organism, whole, [(1.0, 9.0), (0.2, 1.8), (0.2, 1.8)], n=N // 2)
    assert half.disk == pytest.approx(found.disk / 2, rel=0.01)


@pytest.mark.parametrize(("pace", "traced_at_most", "whole_batch"), [(1.0, 12, False), (0.001, 35, True)])
def test_an_estimate_alone_takes_seconds_and_is_fair(
    pace: float, traced_at_most: int, whole_batch: bool, organism: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of a second each: a dozen of 200 are traced, not three batches of 32; quick ones fill a batch."""
    clock, sizes, real, shown = [0.0], list[int](), batches.trace_batch, list[tuple[int, int]]()
    begun = list[int]()

    def slow(model: Model, first: int, some: Any, tracing: Tracing, alike: Any) -> Batch:
        begun.append(len(shown))
        sizes.append(len(some))
        clock[0] += pace * len(some)
        return replace(
            real(model, first, some, tracing, alike), forward=0.1 * pace * len(some), trace=0.9 * pace * len(some)
        )

    monkeypatch.setattr("keyhole.store.batches.trace_batch", slow)
    monkeypatch.setattr("keyhole.store.pilot.time", SimpleNamespace(monotonic=lambda: clock[0]))
    found = estimate("ioi", organism, n=200, progress=lambda *far: shown.append(far))
    assert sum(sizes) <= traced_at_most and (sizes[-1] == 32) == whole_batch and sizes[:2] == [1, 2]
    assert found.prompts == 200 and found.seconds == pytest.approx(200 * pace, rel=0.15)
    assert begun[0] == 1 and shown == [(0, 3), (1, 3), (2, 3), (3, 3)], "progress before the first prompt is traced"


def test_a_pilot_leaves_what_it_did_with_its_blocks(organism: Model) -> None:
    prompts = ioi(9, seed=3)
    blocks = [Block(i, 3 * i, tuple(prompts[3 * i : 3 * i + 3])) for i in range(3)]
    begun, timed = pilot(organism, blocks, Tracing(batch=2))
    assert [sorted(block.begun) for block in begun] == [[0], [3], [8]] and len(timed) == 3
    assert all(batch.forward > 0 and batch.trace > 0 and batch.tokens > 10 for batch in timed)
    assert all(batch.peak >= batch.held > 0 for batch in timed)


def test_the_page_on_scale_says_what_the_cost_model_says() -> None:
    """docs/scale.md shows the tables of benchmarks/scale.py as they are."""
    printed = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "scale.py"], capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    tables = printed.strip().split("\n\n")
    assert len(tables) == 2 and all(table in page for table in tables)
