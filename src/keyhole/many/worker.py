"""What does a worker do? It loads the model once, and turns blocks of prompts into parts of a store."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from keyhole.errors import KeyholeError
from keyhole.many.blocks import Block, BlockFailedError, trace_block
from keyhole.many.settings import Tracing
from keyhole.many.source import ModelSource, load_again
from keyhole.models.model import Model
from keyhole.store import Manifest, Part, make_part


@dataclass(frozen=True)
class Job:
    """All that a worker is told."""

    tracing: Tracing
    manifest: Manifest
    source: ModelSource


Done = Part | KeyholeError  # errors travel as values: engines differ in what they make of one that is raised
Parts = Generator[tuple[Block, Done], None, None]  # as they are done, in any order; closing it ends the work


def work(job: Job, block: Block) -> Done:
    """A block as a part, in a process of its own."""
    try:
        return made(load_again(job.source), job, block)
    except KeyholeError as error:
        return type(error)(str(error))  # without what caused it, which may not travel


def made(model: Model, job: Job, block: Block) -> Part:
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
