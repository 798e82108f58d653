"""How long will it take, and what does it need? Measured on a few batches of the run itself, spread over it."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

from keyhole.cache import readable
from keyhole.errors import KeyholeError
from keyhole.models.mlps import MlpWeights
from keyhole.models.model import Model
from keyhole.models.tokens import encode
from keyhole.progress import Progress, duration
from keyhole.settings.tracing import Method
from keyhole.store.batches import Batch, Block, BlockFailedError, batch_of
from keyhole.store.cost import Load, Memory, Rates, Shape, fit, measuring_bytes, memory, seconds
from keyhole.store.manifest import Manifest, Outcome, manifest_of
from keyhole.store.parts import make_part
from keyhole.store.settings import Tracing
from keyhole.store.workers import torch_threads

_PILOTS = 3  # batches; the first also warms the model up
_PATIENCE = 30.0  # seconds after which no further batch of a run is waited for before its needs are noted
_SECONDS = 12.0  # that an estimate alone may take: what it traces is thrown away
_SAMPLED = (1, 2, None)  # prompts of its batches; None: as many as there is time for


@dataclass(frozen=True)
class Estimate:
    """What a run, or what is left of it, will need; per worker where it says so."""

    prompts: int  # how many
    seconds: float  # of the whole, what was measured included
    memory: Memory  # of one worker
    batch: int  # prompts traced together
    workers: int  # how many
    disk: int  # bytes
    load: Load  # an average circuit
    rates: Rates  # that the pilot showed

    def __str__(self) -> str:
        rate = self.prompts / self.seconds if self.seconds else float("inf")
        each_prompt = self.memory.at(2) - self.memory.at(1)
        each = "" if self.workers == 1 else f" for each of {self.workers} workers"
        return (
            f"about {duration(self.seconds)} for {self.prompts:,} prompts ({rate:.3g} a second), "
            f"{readable(self.memory.at(self.batch))} of memory{each} ({readable(each_prompt)} for each prompt "
            f"of a batch of {self.batch}), {readable(self.disk)} on disk"
        )


def pilot(model: Model, blocks: Sequence[Block], tracing: Tracing) -> tuple[list[Block], list[Batch]]:
    """Trace a few batches, spread over the run, and time them; the blocks come back with these batches done.

    A batch that fails is left to its block, which fails in its turn when all others may be finished.
    """
    began = time.monotonic()
    batches = [(i, first, batch) for i, block in enumerate(blocks) for first, batch in block.batches(tracing.batch)]
    count = min(_PILOTS, max(1, len(batches) // 2))
    begun, found = list(blocks), list[Batch]()
    with torch_threads(tracing.threads):
        for number in range(count):
            i, first, examples = batches[number * (len(batches) - 1) // max(1, count - 1)]
            with suppress(BlockFailedError):
                found.append(batch_of(model, blocks[i], first, examples, tracing=tracing))
                begun[i] = replace(begun[i], begun={**begun[i].begun, first: found[-1].outcomes})
            if time.monotonic() - began > _PATIENCE:
                break
    return begun, found


def sample(model: Model, blocks: Sequence[Block], tracing: Tracing, progress: Progress) -> list[Batch]:
    """Time a few prompts, spread over the run, within seconds; none of them is kept.

    One warms the model up, two show what a prompt takes, and the third batch has as many as there is time for. That is
    a whole batch where prompts are quick. Where they are slow it is smaller, and fair all the same: computing takes the
    time then, and not what is done once per batch.
    """
    every = [example for block in blocks for example in block.examples]
    found, began, each = list[Batch](), time.monotonic(), 0.0
    with torch_threads(tracing.threads):
        for number, size in enumerate(_SAMPLED):
            progress(number, len(_SAMPLED))
            left = _SECONDS - (time.monotonic() - began)
            size = size if size is not None else int(left / each) if each else 1  # all failed so far
            size = min(size, len(every), tracing.batch)
            if size < 1 or (number and left < 0):
                break
            picked = [every[i * (len(every) - 1) // max(1, size - 1)] for i in range(size)]
            with suppress(BlockFailedError):
                found.append(batch_of(model, blocks[0], blocks[0].first, picked, tracing=tracing))
                each = (found[-1].forward + found[-1].trace) / size
    progress(len(_SAMPLED), len(_SAMPLED))
    return found


def estimate_of(
    model: Model,
    blocks: Sequence[Block],
    tracing: Tracing,
    *,
    manifest: Manifest,
    workers: int,
    measured: Sequence[Batch],
    kept: bool = True,
) -> Estimate:
    """From what was measured to the whole: by the cost model, for prompts as long as they are.

    `kept`: what was measured is part of the run, and not traced again.
    """
    warm = measured[1:] or measured
    outcomes = [one for batch in warm for one in batch.outcomes]
    circuits = [one.circuit for one in outcomes if one.circuit is not None]
    firings, places = (sum(len(getattr(c, name)) for c in circuits) / len(outcomes) for name in ("firings", "mlps"))
    method: Method = "accpp" if tracing.svt is None else "svt"
    shape, load = shape_of(model), Load(mean(batch.tokens for batch in warm), firings, places, method)
    forward, trace = (sum(getattr(batch, name) for batch in warm) / len(outcomes) for name in ("forward", "trace"))
    rates = fit(shape, load, forward, trace) if load.tokens else Rates(float("inf"), 0.0)
    lengths = [(done, n) for block in blocks for done, n in _lengths(model, block, tracing)]
    rest = sum(seconds(shape, replace(load, tokens=n), rates) for done, n in lengths if not done)
    cores = max(1, (os.cpu_count() or 1) // tracing.threads)  # more workers than these take turns
    left = rest / min(workers, len(blocks), cores)
    spent = sum(batch.forward + batch.trace for batch in measured)
    first, usual = ((batch.forward + batch.trace) / len(batch.outcomes) for batch in (measured[0], measured[-1]))
    warming = max(0.0, first - usual) * len(measured[0].outcomes)
    weight = model.hf.dtype.itemsize
    longest = max((n for _, n in lengths), default=0)
    needs = memory(shape, replace(load, tokens=longest), weight, accelerator=model.hf.device.type != "cpu")
    if tracing.measured is not None:
        needs = replace(needs, fixed=needs.fixed + measuring_bytes(shape, longest))
    return Estimate(
        prompts=sum(len(block.examples) for block in blocks),
        seconds=(spent if kept else warming) + left + (warming if workers > 1 else 0.0),  # each worker warms up once
        memory=needs,
        batch=min(tracing.batch, max(len(block.examples) for block in blocks)),  # a batch lies within its part
        workers=workers,
        disk=_disk(manifest, blocks, outcomes),
        load=load,
        rates=rates,
    )


def shape_of(model: Model) -> Shape:
    """The sizes of a model; experts count as one wide MLP."""
    dims, found = model.dims, [model.mlp(layer) for layer in range(model.dims.layers)]
    readable = [mlp for mlp in found if isinstance(mlp, MlpWeights)]
    width = max((sum(n.W_u.shape[1] for n in mlp.neurons) for mlp in readable), default=4 * dims.d_model)
    gated = not readable or readable[0].neurons[0].W_g is not None
    heads = (dims.heads, dims.kv_heads, dims.d_head)
    return Shape(dims.layers, *heads, dims.d_model, width, dims.vocab, 3 if gated else 2)


def _lengths(model: Model, block: Block, tracing: Tracing) -> Iterator[tuple[bool, int]]:
    """Of every prompt, whether it is done, and its tokens; one that cannot be encoded takes no time."""
    for first, examples in block.batches(tracing.batch):
        for example in examples:
            with suppress(KeyholeError):
                yield first in block.begun, len(encode(model, example.text, tracing.bos).ids)


def _disk(manifest: Manifest, blocks: Sequence[Block], outcomes: Sequence[Outcome]) -> int:
    """Bytes of all parts: each has some of its own, and so many for every prompt, as parts of the pilot's show."""
    n, half = len(outcomes), len(outcomes) // 2
    whole = _bytes(manifest, outcomes)
    each = (whole - _bytes(manifest, outcomes[:half])) / (n - half) if half else whole / n
    own = max(0.0, whole - each * n)
    return round(len(blocks) * own + each * sum(len(block.examples) for block in blocks))


def _bytes(manifest: Manifest, outcomes: Sequence[Outcome]) -> int:
    """Of a part with these outcomes."""
    told: Any = {name: getattr(manifest, name) for name in ("model", "settings", "task", "versions", "signals")}
    alike = manifest_of([one.example for one in outcomes], **told, part=len(outcomes))
    part = make_part(alike, 0, [replace(one, index=index) for index, one in enumerate(outcomes)])
    return sum(len(content) for content in part.files.values())
