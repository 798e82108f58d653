"""How are thousands of prompts traced? Block by block, each written when it is done, so that any stop loses little."""

import logging
import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
import transformers

from keyhole.errors import KeyholeError
from keyhole.models.load import Source, load
from keyhole.models.model import Model
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.store.batches import Block, BlockFailedError
from keyhole.store.engines import Engine, EngineName, engine_of
from keyhole.store.manifest import Manifest, manifest_of
from keyhole.store.parts import Part
from keyhole.store.pilot import Estimate, estimate_of, pilot, sample
from keyhole.store.settings import BulkOptions, BulkSettings, Tracing, alike_in, drawn
from keyhole.store.store import Store, make_store
from keyhole.store.workers import Job, source_of
from keyhole.tasks.catalogue import CATALOGUE
from keyhole.tasks.catalogue import examples as examples_of
from keyhole.tasks.example import Example
from keyhole.tracing.assemble import model_facts
from keyhole.version import __version__

_LOG = logging.getLogger("keyhole")
_FAILURES = 3  # blocks that may fail before the rest is not even tried

What = str | Path | Sequence[Example]


def bulk(
    what: What,
    model: Model | Source | None = None,
    *,
    out: Path | str,
    settings: BulkSettings | None = None,
    tracing: Tracing | None = None,
    engine: EngineName | Engine = "local",
    progress: Progress = silent,
    **options: Unpack[BulkOptions],
) -> Store:
    """Trace many prompts into a store, and go on where an earlier call stopped.

    Args:
        what: The prompts: a task's name such as "ioi", a JSON Lines file, or examples.
        model: A loaded model, or what `keyhole.load` takes. Default: the organism.
        out: The store: a folder, which is made or gone on with.
        settings: Which prompts, and how many are written together: a `keyhole.store.BulkSettings`, whose fields are the
            choices below.
        tracing: A `keyhole.store.Tracing`: by which method and how to trace, what to do with prompts that the model
            gets wrong, and how many prompts to trace together (`batch`), which bounds memory. With `effects`, circuits
            are measured against prompts like theirs: a task draws these, and of a file they are others of the same
            template and length. With `sufficient`, circuits that suffice are searched for instead.
        engine: "local" or "ray", or one with settings: `keyhole.store.Local(workers=4)`, `keyhole.store.Ray(...)`.
        progress: Called with the number of prompts done and their total.
        **options: Choices by name; beside a record they change it:
            - `n`: How many prompts. Default: as many as the task usually has; of a file, all.
            - `seed`: Of a task's prompts.
            - `choices`: Of a task, such as {"design": "mixed"}.
            - `part`: Prompts that are written together, and lost together if the work is interrupted.

    Returns:
        A `Store`, whose tables any tool that knows Parquet reads.

    A prompt that cannot be traced is kept with its error. The same call goes on after any stop. What it needs (time,
    memory, disk) is noted before it starts, by the logger "keyhole".

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     store = bulk("ioi", n=2, out=f"{folder}/ioi.store")
    ...     print(store.counts())
    {'circuit': 2, 'headless': 0, 'empty': 0, 'failed': 0, 'skipped': 0}
    """
    by, which = engine_of(engine), chosen(settings, BulkSettings, options)
    planned = _plan(what, model, which, tracing or Tracing())
    store = make_store(out, planned.manifest)
    with store.writing():
        left = _left(store, planned.blocks)
        if left:
            _trace(store, planned, left, by, progress)
    return store


def estimate(
    what: What,
    model: Model | Source | None = None,
    *,
    settings: BulkSettings | None = None,
    tracing: Tracing | None = None,
    engine: EngineName | Engine = "local",
    progress: Progress = silent,
    **options: Unpack[BulkOptions],
) -> Estimate:
    """What would `bulk` need, with the same arguments? Times a few prompts on this machine, and writes nothing.

    Args:
        what: The prompts, as `bulk` takes them.
        model: A loaded model, or what `keyhole.load` takes. Default: the organism.
        settings: Which prompts: a `BulkSettings`.
        tracing: How they are traced: a `Tracing`.
        engine: "local" or "ray", or an engine with settings.
        progress: Called with the number of prompts timed and their total.
        **options: The fields of `settings` by name.

    >>> estimate("ioi", n=4).prompts
    4
    """
    workers = engine_of(engine).workers or os.cpu_count() or 1
    planned = _plan(what, model, chosen(settings, BulkSettings, options), tracing or Tracing())
    loaded, blocks = planned.model, planned.blocks
    measured = sample(loaded, blocks, planned.tracing, progress)
    if not measured:
        raise KeyholeError("no prompt of the sample could be traced: run it without --estimate, which says why.")
    given: Any = {"manifest": planned.manifest, "workers": workers, "measured": measured, "kept": False}
    return estimate_of(loaded, blocks, planned.tracing, **given)


@dataclass(frozen=True)
class _Plan:
    """What is to be done, whoever does it."""

    model: Model
    tracing: Tracing
    blocks: tuple[Block, ...]
    manifest: Manifest


def _plan(what: What, model: Model | Source | None, settings: BulkSettings, tracing: Tracing) -> _Plan:
    loaded = model if isinstance(model, Model) else load(model)
    _require_starts(loaded, tracing)
    examples, task = _examples(what, loaded, settings)
    manifest = manifest_of(
        examples,
        model=model_facts(loaded),
        settings=tracing.plain(),
        task=task,
        versions={"keyhole": __version__, "torch": torch.__version__, "transformers": transformers.__version__},
        part=settings.part,
        signals=loaded.dims.d_model if tracing.signals else None,
    )
    spans = [manifest.span(number) for number in range(manifest.parts)]
    from_file = isinstance(what, Path) or (isinstance(what, str) and task["name"] not in CATALOGUE)
    measured = tracing.measured is not None and (from_file or not drawn(examples))
    alike = alike_in(loaded, examples, tracing.bos) if measured else None
    blocks = [
        Block(i, span.start, tuple(examples[span.start : span.stop]), alike=alike) for i, span in enumerate(spans)
    ]
    return _Plan(loaded, tracing, tuple(blocks), manifest)


def _require_starts(model: Model, tracing: Tracing) -> None:
    """Refuse heads that the model has not before any prompt is traced: each would fail by itself."""
    for layer, head, *_ in (tracing.svt and tracing.svt.start) or ():
        if layer not in model.attention_layers or not 0 <= head < model.dims.heads:
            layers = f"{model.attention_layers[0]} to {model.attention_layers[-1]}"
            raise KeyholeError(
                f"start names head {layer}.{head}, and {model.name} has none: its attention layers are {layers}, with "
                f"heads 0 to {model.dims.heads - 1}."
            )


def _examples(what: What, model: Model, settings: BulkSettings) -> tuple[list[Example], dict[str, Any]]:
    """The prompts, and how a store calls them. A seed and choices are a task's; a file is known by what it says."""
    n, seed, choices = settings.n, settings.seed, settings.choices or {}
    if not isinstance(what, str | Path):
        if choices or not 0 <= (n or 0) <= len(what):
            raise KeyholeError(f"{len(what)} examples are given: n takes the first of them, and choices are a task's.")
        tasks = sorted({example.task for example in what})
        return list(what[:n]), {"name": ", ".join(tasks), "seed": None, "choices": {}}
    examples, name = examples_of(what, model, n, seed, **choices), str(what).replace("-", "_")
    if isinstance(what, str) and name in CATALOGUE:
        return examples, {"name": name, "seed": seed, "choices": dict(choices)}
    return examples, {"name": Path(what).name, "seed": None, "choices": {}}


def _left(store: Store, blocks: Sequence[Block]) -> list[Block]:
    """What is still to be done; what is there already, and what of it is damaged, is logged."""
    check = store.check()
    for damaged in check.damaged:
        _LOG.info(f"{damaged} It is traced again." if damaged.number is not None else str(damaged))
    if check.done:
        _LOG.info(f"{len(check.done)} of {len(blocks)} parts are in {store.path} already.")
    return [block for block in blocks if block.number not in check.done]


def _estimated(
    plan: _Plan, blocks: Sequence[Block], manifest: Manifest, engine: Engine
) -> tuple[list[Block], Estimate | None]:
    """What these blocks will need; those that the pilot began come back with what it traced."""
    workers = engine.workers or os.cpu_count() or 1
    begun, measured = pilot(plan.model, blocks, plan.tracing)
    if not measured:
        return begun, None
    return begun, estimate_of(plan.model, begun, plan.tracing, manifest=manifest, workers=workers, measured=measured)


def _trace(store: Store, plan: _Plan, left: Sequence[Block], engine: Engine, progress: Progress) -> None:
    """Trace what is left and write it; blocks that fail are reported at the end, when all others are there."""
    if engine.here:
        left, expected = _estimated(plan, left, store.manifest, engine)
        if expected is not None:
            _LOG.info(str(expected))
    job = Job(plan.tracing, store.manifest, source_of(plan.model))
    total, failed = store.manifest.n, list[BlockFailedError]()
    done = total - sum(len(block.examples) for block in left)
    progress(done, total)
    with closing(engine.trace(plan.model, job, left)) as parts:
        for block, part in parts:
            if isinstance(part, Part):
                store.keep(part)
                done += len(block.examples)
                progress(done, total)
            elif not isinstance(part, BlockFailedError):
                raise part
            elif len(failed := [*failed, part]) == _FAILURES:
                break
    if failed:
        reasons = " ".join(str(error) for error in failed)
        raise KeyholeError(
            f"{reasons} All that was finished is in {store.path} ({done} of {total} prompts). The same command tries "
            "the rest again; if memory did not suffice, begin anew with a smaller batch."
        )
