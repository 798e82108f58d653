"""What becomes of a block of prompts? The one function that traces it, whichever engine calls.

A block depends on nothing but its prompts and the settings: batches begin where it begins, so that what was done before
it, where, and in which order, changes no digit of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.many.batches import Batch, trace_batch
from keyhole.many.likes import Alike
from keyhole.many.settings import Tracing
from keyhole.models.model import Model
from keyhole.store import Outcome
from keyhole.tasks.example import Example


class BlockFailedError(KeyholeError):
    """A block stopped at something that is no refusal of a prompt: a bug, too little memory, a number that is none."""


@dataclass(frozen=True)
class Block:
    """Prompts that are traced, written and, if need be, made again together: a part of a store."""

    number: int
    first: int  # its first prompt, among all
    examples: tuple[Example, ...]
    begun: Mapping[int, Sequence[Outcome]] = field(default_factory=dict)  # batches that are done, by their first prompt
    alike: Alike | None = None  # prompts that others are measured against; None: they are drawn, or not needed

    def batches(self, size: int) -> list[tuple[int, Sequence[Example]]]:
        """(first prompt, examples) of each batch."""
        starts = range(0, len(self.examples), size)
        return [(self.first + start, self.examples[start : start + size]) for start in starts]


def trace_block(model: Model, block: Block, tracing: Tracing) -> list[Outcome]:
    """What became of each prompt of a block."""
    found: list[Outcome] = []
    for first, examples in block.batches(tracing.batch):
        done = block.begun.get(first)
        found += done if done is not None else batch_of(model, block, first, examples, tracing=tracing).outcomes
    return found


def batch_of(model: Model, block: Block, first: int, examples: Sequence[Example], *, tracing: Tracing) -> Batch:
    """One batch of a block; whatever stops it says at which prompt it was."""
    try:
        return trace_batch(model, first, examples, tracing, block.alike)
    except Exception as error:  # refusals are outcomes: this is a bug, or memory that did not suffice
        where, what = _culprit(model, first, examples, tracing, block.alike) or (_together(first, examples), error)
        raise BlockFailedError(f"part {block.number} stopped at {where}: {_told(what)}") from error


def _culprit(
    model: Model, first: int, examples: Sequence[Example], tracing: Tracing, alike: Alike | None
) -> tuple[str, Exception] | None:
    """Which prompt was it? The first that fails alone, too, if there is one."""
    for index, example in enumerate(examples, first):
        try:
            trace_batch(model, index, [example], tracing, alike)
        except Exception as error:  # as above
            return f"prompt {index} ({example.text!r})", error
    return None


def _together(first: int, examples: Sequence[Example]) -> str:
    return f"prompts {first} to {first + len(examples) - 1} together"


def _told(error: Exception) -> str:
    """An unexpected error in one line, and where it was raised."""
    said, at = str(error).strip().splitlines(), error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" ({Path(at.tb_frame.f_code.co_filename).name}, line {at.tb_lineno})" if at is not None else ""
    return f"{type(error).__name__}: {said[0] if said else 'no more is known'}{place}."
