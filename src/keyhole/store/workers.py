"""What does a worker need to know, and where does it find the model?

Where do workers get the model from? By its name, as the driver did; its fingerprint says whether it is the same.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from keyhole.errors import KeyholeError
from keyhole.files import user_path
from keyhole.models.load import load
from keyhole.models.model import Model
from keyhole.models.numbers import require_same_weights
from keyhole.models.organism import source_named
from keyhole.store.batches import Block, BlockFailedError, trace_block
from keyhole.store.manifest import Manifest
from keyhole.store.parts import Part, make_part
from keyhole.store.settings import Tracing


@dataclass(frozen=True)
class ModelSource:
    """All that a worker needs to load a model, and to know it again."""

    name: str  # what the model is called here, and so in its circuits
    path: str | None  # as `keyhole.load` takes it
    revision: str | None
    dtype: str
    device: str
    spread: bool  # over several devices
    fingerprint: str


def source_of(model: Model) -> ModelSource:
    """Where another process finds this model. Paths are made absolute: workers may stand elsewhere."""
    path = user_path(model.name)
    organism, here = source_named(model.name) is None, os.path.exists(path)
    return ModelSource(
        name=model.name,
        path=None if organism else str(path.resolve()) if here else model.name,
        revision=None if organism or here else getattr(model.hf.config, "_commit_hash", None),
        dtype=str(model.hf.dtype).removeprefix("torch."),
        device=model.device.type,
        spread=len(getattr(model.hf, "hf_device_map", {})) > 1,
        fingerprint=model.fingerprint(),
    )


@lru_cache(maxsize=1)
def load_again(source: ModelSource) -> Model:
    """The same model in another process, kept there; one that cannot be loaded, or is another, is refused."""
    where: dict[str, Any] = {"device_map": "auto"} if source.spread else {"device": source.device}
    try:
        model = load(source.path, revision=source.revision, dtype=getattr(torch, source.dtype), **where)
    except KeyholeError as error:
        raise KeyholeError(
            f"a worker cannot load the model: {error} Workers load it by its name or path: save a model in hand "
            "(save_pretrained) where every worker finds it and load that folder, or trace with one local worker."
        ) from error
    require_same_weights(
        model.fingerprint(),
        source.fingerprint,
        f"a worker found other weights under {source.name} than this process has ({model.fingerprint()[:12]}, not "
        f"{source.fingerprint[:12]}): give every worker the same files, or trace with one local worker.",
    )
    return replace(model, name=source.name)


# What does a worker do? It loads the model once, and turns blocks of prompts into parts of a store.


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know."""

    tracing: Tracing
    manifest: Manifest
    source: ModelSource


Done = Part | KeyholeError  # errors travel as values: engines differ in what they make of one that is raised
Parts = Generator[tuple[Block, Done], None, None]  # as they are done, in any order; closing it ends the work


def work(job: Job, block: Block) -> Done:
    """A block as a part, in a process of its own."""
    try:
        return part_by(load_again(job.source), job, block)
    except KeyholeError as error:
        return type(error)(str(error))  # without what caused it, which may not travel


def part_by(model: Model, job: Job, block: Block) -> Part:
    """A block as a part, by a model that is here."""
    with torch_threads(job.tracing.threads):
        outcomes = trace_block(model, block, job.tracing)
    try:
        return make_part(job.manifest, block.number, outcomes)
    except KeyholeError as error:  # what no column can hold: the other parts can be finished
        raise BlockFailedError(f"part {block.number} cannot be kept: {error}") from error


@contextmanager
def torch_threads(n: int) -> Iterator[None]:
    """So many threads meanwhile: sums that are shared out otherwise are added up in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
