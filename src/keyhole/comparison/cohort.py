"""On which prompts are edges cut, and what stands in for what is cut? Prompts of one length go through together."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.comparison.masked import Masked, masked, mean_writes
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.store.store import Store

T = TypeVar("T")
Baseline = Literal["mean", "zero"]
LEAST = 8  # prompts that a mean is taken over, of each length
MOST = 32
_FLOATS = 1 << 25  # of what all components write, held at once


@dataclass(frozen=True)
class Question:
    """A prompt, and what its answer is measured by."""

    run: "Run"
    metric: Metric
    circuit: Circuit | None = None  # that a store has of it

    def __post_init__(self) -> None:
        if self.metric.end != len(self.run) - 1:
            raise KeyholeError("an answer is predicted before the last token, and edges are cut for the last one only.")


@dataclass(frozen=True, eq=False)
class Group:
    """Questions of one length."""

    masked: Masked
    metrics: tuple[Metric, ...]
    numbers: tuple[int, ...]  # which questions these are

    def answers(self, mask: Float[Tensor, "writer reader"]) -> Float[Tensor, "prompt"]:
        """What is left of each answer."""
        return self.measured(self.masked.logits(mask))

    def measured(self, logits: Float[Tensor, "prompt vocab"]) -> Float[Tensor, "prompt"]:
        """The answers' measure, to take gradients of."""
        return torch.stack([metric.value(row) for metric, row in zip(self.metrics, logits, strict=True)])

    def parts(self, size: int) -> Iterator["Group"]:
        """The same, so many prompts at a time."""
        for start in range(0, len(self.metrics), size):
            own = slice(start, start + size)
            part = replace(self.masked, words=self.masked.words[own])
            yield Group(part, self.metrics[own], self.numbers[own])


def groups_of(questions: Sequence[Question], pool: Sequence["Run"] | None = None) -> list[Group]:
    """Questions by their length, as many together as fit.

    What is cut writes nothing or, with a `pool` of runs, what it writes on average in those of the same length; lengths
    that the pool has too few of are left out.
    """
    lengths = defaultdict(list)
    for i, question in enumerate(questions):
        lengths[len(question.run)].append(i)
    found = []
    for length, numbers in sorted(lengths.items()):
        alike = None if pool is None else [run for run in pool if len(run) == length][:MOST]
        if alike is not None and len(alike) < LEAST:
            continue
        mean = None if alike is None else mean_writes([masked(part) for part in _chunks(alike, alike[0])])
        for part in _chunks(numbers, questions[numbers[0]].run):
            own = [questions[i] for i in part]
            made = replace(masked([one.run for one in own]), baseline=mean)
            found.append(Group(made, tuple(one.metric for one in own), tuple(part)))
    return found


def _chunks(items: Sequence[T], like: "Run") -> Iterator[Sequence[T]]:
    """As many at a time as there is room for what all components write in prompts like this one."""
    dims = like.model.dims
    size = max(1, _FLOATS // (dims.layers * (dims.heads + 1) * dims.d_model * len(like)))
    return (items[start : start + size] for start in range(0, len(items), size))


def questions_of(store: "Store", model: "Model", numbers: Sequence[int]) -> list[Question]:
    """Prompts of a store, run again, with their circuits."""
    where = {"prompt": list(numbers)}
    circuits = {outcome.index: outcome.circuit for outcome in store.outcomes(where) if outcome.circuit is not None}
    runs = model.run_many([list(circuits[i].token_ids) for i in numbers], bos=False)
    found = []
    for run, i in zip(runs, numbers, strict=True):
        told = circuits[i].parameters
        metric = Metric(told.end, told.target_ids, told.against_ids)
        found.append(Question(run, metric, circuits[i]))
    return found


def lengths_of(store: "Store") -> dict[int, int]:
    """How many tokens has each prompt that a store has a circuit of, and that the model tells from the wrong answer?"""
    table = store.table("prompts", columns=["prompt", "difference", "correct"])
    columns = (table[name].to_pylist() for name in ("prompt", "difference", "correct"))
    good = {i for i, apart, correct in zip(*columns, strict=True) if (correct if apart is None else apart > 0)}
    table = store.table("circuits", columns=["prompt", "token_ids"])
    ids = zip(table["prompt"].to_pylist(), table["token_ids"].to_pylist(), strict=True)
    return {prompt: len(tokens) for prompt, tokens in ids if prompt in good}


def spread(items: Sequence[T], n: int) -> list[T]:
    """N of these from all over: stores are often sorted by wording.

    >>> spread(range(10), 3), spread("ab", 5)
    ([0, 3, 6], ['a', 'b'])
    """
    n = min(n, len(items))
    return [items[i * len(items) // n] for i in range(n)]
