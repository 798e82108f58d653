"""What becomes of a block of prompts? The one function that traces it, whichever engine calls.

A block depends on nothing but its prompts and the settings: batches begin where it begins, so that what was done before
it, where, and in which order, changes no digit of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, NothingToTraceError
from keyhole.many.settings import Tracing
from keyhole.models.model import Model
from keyhole.models.run import Run
from keyhole.store import Outcome, Status
from keyhole.tasks.answers import Answered, AnswerIds, answer_ids, answered
from keyhole.tasks.example import Example
from keyhole.tracing.levels import Untraced, trace_many


class BlockFailedError(KeyholeError):
    """A block stopped at something that is no refusal of a prompt: a bug, or memory that did not suffice."""


@dataclass(frozen=True)
class Block:
    """Prompts that are traced, written and, if need be, made again together: a part of a store."""

    number: int
    first: int  # its first prompt, among all
    examples: tuple[Example, ...]
    begun: Mapping[int, Sequence[Outcome]] = field(default_factory=dict)  # batches that are done, by their first prompt

    def batches(self, size: int) -> list[tuple[int, Sequence[Example]]]:
        """(first prompt, examples) of each batch."""
        starts = range(0, len(self.examples), size)
        return [(self.first + start, self.examples[start : start + size]) for start in starts]


@dataclass(frozen=True)
class Ran:
    """A prompt that ran: what it is traced for, and what the model made of it."""

    index: int
    example: Example
    run: Run
    ids: AnswerIds
    said: Answered

    def outcome(self, circuit: Circuit | None, error: KeyholeError | None = None) -> Outcome:
        """As it is kept; the run itself is not, for a block's would not fit into memory."""
        about: Any = {"index": self.index, "example": self.example, **asdict(self.said)}
        if circuit is not None:
            kept = replace(circuit, run=None)
            return Outcome(status="circuit" if circuit.heads else "headless", circuit=kept, **about)
        status: Status = "empty" if isinstance(error, NothingToTraceError) else "failed"
        return Outcome(status=status, error=str(error), **about)

    def skipped(self) -> Outcome:
        """Not traced, because the model is wrong."""
        return Outcome(index=self.index, example=self.example, status="skipped", **asdict(self.said))


def trace_block(model: Model, block: Block, tracing: Tracing) -> list[Outcome]:
    """What became of each prompt of a block. A prompt that is refused loses no other."""
    found: list[Outcome] = []
    for first, examples in block.batches(tracing.batch):
        if first in block.begun:
            found += block.begun[first]
            continue
        try:
            found += trace_ran(run_prompts(model, first, examples, tracing), tracing)
        except Exception as error:  # whatever it is: it should say where it was
            raise _failed(model, block, (first, examples), tracing, error=error) from error
    return found


def run_prompts(model: Model, first: int, examples: Sequence[Example], tracing: Tracing) -> list[Ran | Outcome]:
    """Run a batch of prompts and look at the answers; what cannot be run has failed."""
    runs = _runs(model, [example.text for example in examples], tracing.bos)
    found: list[Ran | Outcome] = []
    for index, (example, run) in enumerate(zip(examples, runs, strict=True), first):
        try:
            if isinstance(run, KeyholeError):
                raise run
            found.append(_ran(index, example, run))
        except KeyholeError as error:
            found.append(Outcome(index=index, example=example, status="failed", error=str(error)))
    return found


def trace_ran(ran: Sequence[Ran | Outcome], tracing: Tracing) -> list[Outcome]:
    """Trace a batch of prompts that ran; those the model got wrong are left out if that was asked for."""
    wanted = [one for one in ran if isinstance(one, Ran) and (tracing.wrong == "keep" or one.said.correct)]
    traced = {one.index: one.outcome(*made) for one, made in zip(wanted, _circuits(wanted, tracing), strict=True)}
    return [one if isinstance(one, Outcome) else traced.get(one.index) or one.skipped() for one in ran]


def _runs(model: Model, texts: Sequence[str], bos: bool | None) -> list[Run | KeyholeError]:
    """Runs of a batch; where a prompt is refused, each alone, so that none is refused with it."""
    try:
        return list(model.run_many(texts, bos=bos))
    except KeyholeError as error:
        return [error] if len(texts) == 1 else [_runs(model, [text], bos)[0] for text in texts]


def _ran(index: int, example: Example, run: Run) -> Ran:
    """What a prompt is traced for, and what the model says to it."""
    ids = answer_ids(run.model, example)
    return Ran(index, example, run, ids, answered(run, example, ids))


def _circuits(ran: Sequence[Ran], tracing: Tracing) -> list[tuple[Circuit | None, KeyholeError | None]]:
    """Circuits of a batch, or why there are none."""
    if not ran:
        return []
    targets = [list(one.ids.answers) for one in ran]
    against = [list(one.ids.against) if tracing.against and one.ids.against else None for one in ran]
    try:
        found = trace_many([one.run for one in ran], targets, against=against, **tracing.options())
    except KeyholeError as error:
        return [(None, error)] if len(ran) == 1 else [_circuits([one], tracing)[0] for one in ran]
    return [(None, one.error) if isinstance(one, Untraced) else (one, None) for one in found]


def _failed(
    model: Model, block: Block, batch: tuple[int, Sequence[Example]], tracing: Tracing, *, error: Exception
) -> BlockFailedError:
    """Which prompt was it? The first that fails alone, too; else the batch as a whole."""
    first, examples = batch
    last = first + len(examples) - 1
    where, what = f"prompts {first} to {last} together", error
    for index, example in enumerate(examples, first):
        try:
            trace_ran(run_prompts(model, index, [example], tracing), tracing)
        except Exception as own:  # as above
            where, what = f"prompt {index} ({example.text!r})", own
            break
    return BlockFailedError(f"part {block.number} stopped at {where}: {_told(what)}")


def _told(error: Exception) -> str:
    """An unexpected error in one line, and where it was raised."""
    said, at = str(error).strip().splitlines(), error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    place = f" ({at.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}, line {at.tb_lineno})" if at is not None else ""
    return f"{type(error).__name__}: {said[0] if said else 'no more is known'}{place}."
