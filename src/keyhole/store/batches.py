"""What becomes of prompts? Traced a batch at a time, and written a block at a time.

What becomes of a batch of prompts? They run together and are traced together, and each has an outcome of its own.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, NothingToTraceError
from keyhole.faithfulness.sufficient import SearchRequest, ask, sufficient_together
from keyhole.models.model import Model
from keyhole.models.run import Run
from keyhole.settings.measuring import SufficientSettings
from keyhole.store.manifest import Outcome, Status
from keyhole.store.settings import Alike, Tracing, like_of
from keyhole.store.store import signal_vectors
from keyhole.tasks.answers import Answered, AnswerIds, answer_ids, answered
from keyhole.tasks.example import Example
from keyhole.tracing.batch import Untraced
from keyhole.tracing.settings import Start, SvtSettings
from keyhole.tracing.svt import trace_svt
from keyhole.tracing.trace import trace_many

_TOGETHER = 8  # prompts whose circuits are searched at once


@dataclass(frozen=True)
class Batch:
    """What became of a batch, how long it took, and what it held if that was measured."""

    outcomes: tuple[Outcome, ...]
    tokens: float  # of a prompt, on average over those that ran
    forward: float  # seconds
    trace: float
    padded: int = 0  # tokens of all, were each as long as the longest
    held: int = 0  # bytes of memory before it
    peak: int = 0  # and at the most


@dataclass(frozen=True)
class _Ran:
    """A prompt that ran: what it is traced for, and what the model made of it."""

    index: int
    example: Example
    run: Run
    ids: AnswerIds
    said: Answered

    def outcome(self, result: Circuit | KeyholeError, tracing: Tracing, why: str | None = None) -> Outcome:
        """As it is kept; the run and directions of MLPs are not: memory would grow. `why` it was not measured."""
        about: Any = {"index": self.index, "example": self.example, **asdict(self.said)}
        if isinstance(result, KeyholeError):
            status: Status = "empty" if isinstance(result, NothingToTraceError) else "failed"
            return Outcome(status=status, error=str(result), **about)
        vectors = signal_vectors(result) if tracing.signals else None
        status, kept = "circuit" if result.has_heads else "headless", replace(result, run=None, directions={})
        return Outcome(status=status, circuit=kept, signals=vectors, error=why, **about)

    @property
    def targets(self) -> list[int]:
        """The answers that are traced."""
        return list(self.ids.answers)

    def against(self, tracing: Tracing) -> list[int] | None:
        """The wrong answers that they are held against, if they are."""
        return list(self.ids.against) if tracing.against and self.ids.against else None

    def skipped(self) -> Outcome:
        """Not traced, because the model is wrong."""
        return Outcome(index=self.index, example=self.example, status="skipped", **asdict(self.said))


def trace_batch(
    model: Model, first: int, examples: Sequence[Example], tracing: Tracing, alike: Alike | None = None
) -> Batch:
    """What became of each prompt? One that is refused loses no other; what the model gets wrong may be skipped."""
    start = _now(model)
    ran = _run(model, first, examples, tracing)
    between = _now(model)
    wanted = [prompt for prompt in ran if isinstance(prompt, _Ran) and (tracing.wrong == "keep" or prompt.said.correct)]
    traced: dict[int, Outcome] = {}
    for prompt, result in zip(wanted, _searched(wanted, tracing, alike), strict=True):
        circuit, why = _measured(prompt, result, tracing, alike) if tracing.measured == "effects" else (result, None)
        traced[prompt.index] = prompt.outcome(circuit, tracing, why)
    outcomes = [each if isinstance(each, Outcome) else traced.get(each.index) or each.skipped() for each in ran]
    lengths = [len(prompt.run) for prompt in ran if isinstance(prompt, _Ran)] or [0]
    took = (between - start, _now(model) - between)
    return Batch(tuple(outcomes), fmean(lengths), *took, padded=len(lengths) * max(lengths))


def _run(model: Model, first: int, examples: Sequence[Example], tracing: Tracing) -> list[_Ran | Outcome]:
    """Run the prompts and look at the answers; what cannot be run has failed."""
    runs = _runs(model, [example.text for example in examples], tracing.bos)
    return [_ran(index, *pair) for index, pair in enumerate(zip(examples, runs, strict=True), first)]


def _ran(index: int, example: Example, run: Run | KeyholeError) -> _Ran | Outcome:
    """One prompt: what the model made of it, or why it was refused."""
    try:
        if not isinstance(run, KeyholeError):
            ids = answer_ids(run.model, example)
            return _Ran(index, example, run, ids, answered(run, example, ids))
        message = str(run)
    except KeyholeError as error:
        message = str(error)
    return Outcome(index=index, example=example, status="failed", error=message)


def _runs(model: Model, texts: Sequence[str], bos: bool | None) -> list[Run | KeyholeError]:
    """Runs of a batch; where a prompt is refused, each alone, so that none is refused with it."""
    try:
        return list(model.run_many(texts, bos=bos))
    except KeyholeError as error:
        return [_bare(error)] if len(texts) == 1 else [_runs(model, [text], bos)[0] for text in texts]


def _searched(ran: Sequence[_Ran], tracing: Tracing, alike: Alike | None) -> list[Circuit | KeyholeError]:
    """Circuits that were traced, or that suffice."""
    if tracing.measured != "sufficient":
        return _circuits(ran, tracing)
    in_order = sorted(range(len(ran)), key=lambda i: len(ran[i].run))  # equally long prompts share passes
    circuits: dict[int, Circuit | KeyholeError] = {}
    for start in range(0, len(ran), _TOGETHER):
        some = in_order[start : start + _TOGETHER]
        circuits |= zip(some, _sufficient([ran[i] for i in some], tracing, alike), strict=True)
    return [circuits[i] for i in range(len(ran))]


def _sufficient(ran: Sequence[_Ran], tracing: Tracing, alike: Alike | None) -> list[Circuit | KeyholeError]:
    """The circuits that suffice for some prompts, or why there are none."""
    requests = [_request(prompt, tracing, alike) for prompt in ran]
    possible = [request for request in requests if isinstance(request, SearchRequest)]
    results = iter(sufficient_together(possible, SufficientSettings(tracing.level, tracing.both_signs)))
    circuits = [next(results) if isinstance(request, SearchRequest) else request for request in requests]
    return [_bare(circuit) if isinstance(circuit, KeyholeError) else circuit for circuit in circuits]


def _request(prompt: _Ran, tracing: Tracing, alike: Alike | None) -> SearchRequest | KeyholeError:
    """Which circuit is searched for in one prompt, or why that cannot be."""
    try:
        others = like_of(prompt.run.model, prompt.example, alike, tracing.bos)
        return ask(prompt.run, prompt.targets, against=prompt.against(tracing), like=others)
    except KeyholeError as error:
        return error


def _measured(
    prompt: _Ran, result: Circuit | KeyholeError, tracing: Tracing, alike: Alike | None
) -> tuple[Circuit | KeyholeError, str | None]:
    """A circuit with its effects; where they cannot be measured it is kept without them, and why."""
    if isinstance(result, KeyholeError):
        return result, None
    try:
        return result.effects(like=like_of(prompt.run.model, prompt.example, alike, tracing.bos)), None
    except KeyholeError as error:
        return result, f"effects were not measured: {error}"


def _circuits(ran: Sequence[_Ran], tracing: Tracing) -> list[Circuit | KeyholeError]:
    """Circuits of a batch, or why there are none."""
    if not ran:
        return []
    if tracing.svt is not None:
        return [_svt_circuit(prompt, tracing, tracing.svt) for prompt in ran]
    targets, against = [prompt.targets for prompt in ran], [prompt.against(tracing) for prompt in ran]
    try:
        circuits = trace_many([prompt.run for prompt in ran], targets, against=against, settings=tracing)
    except KeyholeError as error:
        return [_bare(error)] if len(ran) == 1 else [_circuits([prompt], tracing)[0] for prompt in ran]
    return [_bare(circuit.error) if isinstance(circuit, Untraced) else circuit for circuit in circuits]


def _svt_circuit(prompt: _Ran, tracing: Tracing, settings: SvtSettings) -> Circuit | KeyholeError:
    """The circuit of one prompt by svt, or why there is none; tokens of a start may be called by their roles."""

    def token(where: int | str) -> int | str:
        if not isinstance(where, str):
            return where
        if where in prompt.example.roles:
            return prompt.example.position(prompt.run, where)
        if all(text.strip() != where.strip() for text in prompt.run.tokens):
            roles = ", ".join(prompt.example.roles)
            raise KeyholeError(
                f"start names {where!r}, which is no token of this prompt and none of its roles ({roles})."
            )
        return where

    try:
        starts: list[Start] = [
            each if len(each) == 2 else (*each[:2], token(each[2]), token(each[3])) for each in settings.start or ()
        ]
        placed = replace(settings, start=starts or None)
        against = prompt.against(tracing)
        return trace_svt(prompt.run, prompt.targets, against=against, settings=placed, metric=tracing.metric)
    except KeyholeError as error:
        return _bare(error)


def _bare(error: KeyholeError) -> KeyholeError:
    """What it says: a traceback holds all frames on its way, and so every run of the batch until garbage is sought."""
    error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def _now(model: Model) -> float:
    """The time, once all work on an accelerator is done."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


# What becomes of a block of prompts? The one function that traces it, whichever engine calls.
#
# A block depends on nothing but its prompts and the settings: batches begin where it begins, so that what was done
# before it, where, and in which order, changes no digit of it.


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
    outcomes: list[Outcome] = []
    for first, examples in block.batches(tracing.batch):
        done = block.begun.get(first)
        outcomes += done if done is not None else batch_of(model, block, first, examples, tracing=tracing).outcomes
    return outcomes


def batch_of(model: Model, block: Block, first: int, examples: Sequence[Example], *, tracing: Tracing) -> Batch:
    """One batch of a block; whatever stops it says at which prompt it was."""
    try:
        return trace_batch(model, first, examples, tracing, block.alike)
    except Exception as error:  # refusals are outcomes: this is a bug, or memory that did not suffice
        place, cause = _culprit(model, first, examples, tracing, block.alike) or (_together(first, examples), error)
        raise BlockFailedError(f"part {block.number} stopped at {place}: {_in_one_line(cause)}") from error


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


def _in_one_line(error: Exception) -> str:
    """An unexpected error in one line, and where it was raised."""
    message, frame = str(error).strip().splitlines(), error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    place = f" ({Path(frame.tb_frame.f_code.co_filename).name}, line {frame.tb_lineno})" if frame is not None else ""
    return f"{type(error).__name__}: {message[0] if message else 'no more is known'}{place}."
