"""How long will it take, and what does it need? A few prompts are traced, and the others count by their lengths.

Seconds grow by a power of a prompt's length, memory and bytes in proportion to it. All three are measured, not counted
from the model's sizes: a pilot's factor of 1.5 is what `benchmarks/bulk.py` asks of them.
"""

import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import mean, median_low
from typing import Any

import torch

from keyhole.cache import readable
from keyhole.errors import KeyholeError
from keyhole.models.model import Model
from keyhole.models.tokens import encode
from keyhole.progress import Progress, duration
from keyhole.settings.tracing import Method
from keyhole.store.batches import Batch, Block, BlockFailedError, batch_of
from keyhole.store.manifest import Manifest, Outcome, manifest_of
from keyhole.store.parts import make_part
from keyhole.store.settings import Tracing
from keyhole.store.workers import torch_threads
from keyhole.tasks.example import Example

_PILOTS = 3  # batches; the first also warms the model up
_PATIENCE = 30.0  # seconds after which no further batch of a run is waited for before its needs are noted
_SECONDS = 12.0  # that an estimate alone may take: what it traces is thrown away
_SAMPLED = (1, 2, None)  # prompts of its batches; None: as many as there is time for
_USUAL = 0.02  # how much the usual power of 1 weighs: as batches whose lengths differ by some 15 %


@dataclass(frozen=True)
class Load:
    """An average circuit of the pilot."""

    tokens: float
    firings: float
    places: float  # MLPs that are explained
    method: Method


@dataclass(frozen=True)
class Rates:
    """How long a prompt takes by its length: `seconds` where it has one token, and with more by a power of them."""

    seconds: float
    power: float

    def at(self, tokens: float) -> float:
        """Seconds of one prompt of so many tokens.

        Args:
            tokens: How many tokens the prompt has.

        >>> Rates(seconds=0.5, power=1.0).at(4)
        2.0
        """
        return self.seconds * math.pow(max(1.0, tokens), self.power)


@dataclass(frozen=True)
class Memory:
    """Bytes that tracing holds at the most: of the accelerator if the model is there, else of the whole process."""

    fixed: int  # whatever is traced
    prompt: int  # more for every prompt of the batch that has most tokens, its shorter prompts filled up

    def at(self, batch: int) -> int:
        """Of one worker, with so many prompts traced together.

        Args:
            batch: How many prompts are traced together.

        >>> Memory(fixed=100, prompt=10).at(4)
        140
        """
        return self.fixed + batch * self.prompt


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
        each = "" if self.workers == 1 else f" for each of {self.workers} workers"
        return (
            f"about {duration(self.seconds)} for {self.prompts:,} prompts ({rate:.3g} a second), "
            f"{readable(self.memory.at(self.batch))} of memory{each} ({readable(self.memory.prompt)} for each prompt "
            f"of a batch of {self.batch}), {readable(self.disk)} on disk"
        )


def pilot(model: Model, blocks: Sequence[Block], tracing: Tracing) -> tuple[list[Block], list[Batch]]:
    """Trace a few batches, spread over the run, and time them; the blocks come back with these batches done.

    A batch that fails is left to its block, which fails in its turn when all others may be finished.
    """
    began = time.monotonic()
    batches = [(i, first, batch) for i, block in enumerate(blocks) for first, batch in block.batches(tracing.batch)]
    count = min(_PILOTS, max(1, len(batches) // 2))
    begun, measured = list(blocks), list[Batch]()
    with torch_threads(tracing.threads):
        for number in range(count):
            i, first, examples = batches[number * (len(batches) - 1) // max(1, count - 1)]
            with suppress(BlockFailedError):
                measured.append(_traced(model, blocks[i], first, examples, tracing))
                begun[i] = replace(begun[i], begun={**begun[i].begun, first: measured[-1].outcomes})
            if time.monotonic() - began > _PATIENCE:
                break
    return begun, measured


def sample(model: Model, blocks: Sequence[Block], tracing: Tracing, progress: Progress) -> list[Batch]:
    """Time a few prompts of usual length within seconds; none of them is kept.

    One warms the model up, two show what a prompt takes, and the third batch has as many as there is time for. That is
    a whole batch where prompts are quick. Where they are slow it is smaller, and fair all the same: computing takes the
    time then, and not what is done once per batch.
    """
    every = [example for block in blocks for example in block.examples]
    lengths = [_length(model, example, tracing) for example in every]
    middle = lengths.index(median_low(lengths))
    measured, began, each = list[Batch](), time.monotonic(), 0.0
    with torch_threads(tracing.threads):
        for number, size in enumerate(_SAMPLED):
            progress(number, len(_SAMPLED))
            left = _SECONDS - (time.monotonic() - began)
            size = size if size is not None else int(left / each) if each else 1  # all failed so far
            size = min(size, len(every), tracing.batch)
            if size < 1 or (number and left < 0):
                break
            start = min(middle, len(every) - size)  # neighbours, as the run has them: a batch is padded to its longest
            picked = every[start : start + size]
            with suppress(BlockFailedError):
                measured.append(_traced(model, blocks[0], blocks[0].first, picked, tracing))
                each = (measured[-1].forward + measured[-1].trace) / size
    progress(len(_SAMPLED), len(_SAMPLED))
    return [*measured[:1], *sorted(measured[1:], key=lambda batch: len(batch.outcomes))[-1:]]


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
    """From what was measured to the whole: by the lengths of its prompts.

    `kept`: what was measured is part of the run, and not traced again.
    """
    warm = measured[1:] or measured
    outcomes = [outcome for batch in warm for outcome in batch.outcomes]
    rates = rates_of(warm)
    batches = [(block, first, examples) for block in blocks for first, examples in block.batches(tracing.batch)]
    lengths = [[_length(model, example, tracing) for example in examples] for _, _, examples in batches]
    rest = [
        n for (block, first, _), some in zip(batches, lengths, strict=True) if first not in block.begun for n in some
    ]
    cores = max(1, (os.cpu_count() or 1) // tracing.threads)  # more workers than these take turns
    left = sum(map(rates.at, rest)) / min(workers, len(blocks), cores)
    spent = sum(batch.forward + batch.trace for batch in measured)
    first = measured[0]
    warming = max(0.0, first.forward + first.trace - len(first.outcomes) * rates.at(first.tokens))
    together = max(map(len, lengths))
    return Estimate(
        prompts=sum(map(len, lengths)),
        seconds=(spent if kept else warming) + left + (warming if workers > 1 else 0.0),  # each worker warms up once
        memory=memory_of(warm, max(len(some) * max(some) for some in lengths), together),
        batch=together,
        workers=workers,
        disk=_disk(manifest, blocks, outcomes),
        load=_load(warm, outcomes, "accpp" if tracing.svt is None else "svt"),
        rates=rates,
    )


def rates_of(batches: Sequence[Batch]) -> Rates:
    """The power of their lengths by which batches differ, and seconds by which prompts of such lengths take their sum.

    A line through logarithms, by least squares. Batches of equal lengths show no power, and those of almost equal ones
    a random one: it is drawn towards 1.
    """
    sizes, took = [len(batch.outcomes) for batch in batches], [batch.forward + batch.trace for batch in batches]
    tokens = [max(1.0, batch.tokens) for batch in batches]
    if min(took) <= 0:
        return Rates(sum(took) / sum(sizes), 0.0)
    points = [(n, math.log(t), math.log(s / n)) for n, t, s in zip(sizes, tokens, took, strict=True)]
    x, y = (sum(point[0] * point[i] for point in points) / sum(sizes) for i in (1, 2))
    spread = sum(n * (t - x) ** 2 for n, t, _ in points) / sum(sizes)
    shared = sum(n * (t - x) * (s - y) for n, t, s in points) / sum(sizes)
    power = max(0.0, (shared + _USUAL) / (spread + _USUAL))
    return Rates(sum(took) / sum(n * t**power for n, t in zip(sizes, tokens, strict=True)), power)


def memory_of(batches: Sequence[Batch], padded: int, together: int) -> Memory:
    """What the largest batch held and added, were there `padded` tokens in its `together` prompts."""
    largest = max(batches, key=lambda batch: batch.padded)
    added = (largest.peak - largest.held) / max(1, largest.padded)
    return Memory(largest.held, round(added * padded / together))


def _load(batches: Sequence[Batch], outcomes: Sequence[Outcome], method: Method) -> Load:
    circuits = [outcome.circuit for outcome in outcomes if outcome.circuit is not None]
    firings, places = (sum(len(getattr(c, name)) for c in circuits) / len(outcomes) for name in ("firings", "mlps"))
    return Load(mean(batch.tokens for batch in batches), firings, places, method)


def _traced(model: Model, block: Block, first: int, examples: Sequence[Example], tracing: Tracing) -> Batch:
    """A batch with the memory that it took."""
    import_module("pyarrow.parquet")  # so that what a run holds anyway does not count as the batch's
    before = _forget_peak(model)
    batch = batch_of(model, block, first, examples, tracing=tracing)
    return replace(batch, held=before, peak=_bytes(model, peak=True))


def _forget_peak(model: Model) -> int:
    """Bytes that are held now; the most that are held is counted anew from here, where the system can do that."""
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _bytes(model, peak=False)


def _bytes(model: Model, *, peak: bool) -> int:
    """Bytes that are held now, or at the most; 0 where the system does not say."""
    if model.device.type == "cuda":
        of_device = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
        return int(of_device(model.device))
    with suppress(OSError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return 1024 * int(status.split("VmHWM:" if peak else "VmRSS:")[1].split()[0])
    with suppress(ImportError):  # without /proc there is the most so far alone
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return 0


def _length(model: Model, example: Example, tracing: Tracing) -> int:
    """Tokens of a prompt; one that cannot be encoded takes no time."""
    with suppress(KeyholeError):
        return len(encode(model, example.text, tracing.bos).ids)
    return 0


def _disk(manifest: Manifest, blocks: Sequence[Block], outcomes: Sequence[Outcome]) -> int:
    """Bytes of all parts: each has some of its own, and so many for every prompt, as parts of the pilot's show."""
    n, half = len(outcomes), len(outcomes) // 2
    whole = _part_bytes(manifest, outcomes)
    each = (whole - _part_bytes(manifest, outcomes[:half])) / (n - half) if half else whole / n
    fixed = max(0.0, whole - each * n)
    return round(len(blocks) * fixed + each * sum(len(block.examples) for block in blocks))


def _part_bytes(manifest: Manifest, outcomes: Sequence[Outcome]) -> int:
    """Of a part with these outcomes."""
    about: Any = {name: getattr(manifest, name) for name in ("model", "settings", "task", "versions", "signals")}
    alike = manifest_of([outcome.example for outcome in outcomes], **about, part=len(outcomes))
    part = make_part(alike, 0, [replace(outcome, index=index) for index, outcome in enumerate(outcomes)])
    return sum(len(content) for content in part.files.values())
