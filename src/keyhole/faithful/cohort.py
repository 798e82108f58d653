"""On which prompts are edges cut, and what stands in for what is cut? Prompts of one length go through together."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithful.attribution import prompts_of
from keyhole.faithfulness.masked import FLOATS, Masked, masked
from keyhole.intervene.remove import Metric
from keyhole.intervene.verification import metric_of
from keyhole.models.architecture.weights import Dims
from keyhole.models.numbers.precision import exact_matmul
from keyhole.store.chosen import by_template, spread

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.store.store import Store

T = TypeVar("T")
Baseline = Literal["mean", "zero"]
Means = Mapping[int, Float[Tensor, "writer pos d_model"]]  # by the length of prompts
LEAST = 8  # prompts that a mean is taken over, of each length
MOST = 32


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
            yield Group(prompts_of(self.masked, own), self.metrics[own], self.numbers[own])


def groups_of(questions: Sequence[Question], means: Means | None = None) -> list[Group]:
    """Questions by their length, as many together as fit.

    What is cut is replaced by nothing or, with `means`, by those of prompts of the same length; a question of a length
    that has none is left out.
    """
    lengths = defaultdict(list)
    for i, question in enumerate(questions):
        if means is None or len(question.run) in means:
            lengths[len(question.run)].append(i)
    found = []
    for length, numbers in sorted(lengths.items()):
        for part in _chunks(numbers, questions[0].run.model.dims, length):
            own = [questions[i] for i in part]
            made = replace(masked([one.run for one in own]), baseline=None if means is None else means[length])
            found.append(Group(made, tuple(one.metric for one in own), tuple(part)))
    return found


def means_of(model: "Model", prompts: Iterable[Sequence[int]]) -> dict[int, Float[Tensor, "writer pos d_model"]]:
    """What every component writes on average at each token, by the length of prompts (token ids).

    Over some of each length, from all over; lengths that there are too few of have no mean.
    """
    lengths = defaultdict(list)
    for ids in prompts:
        lengths[len(ids)].append(list(ids))
    found = {}
    with exact_matmul():
        for length, alike in sorted(lengths.items()):
            if len(alike) < LEAST:
                continue
            chosen = spread(alike, MOST)
            parts = _chunks(chosen, model.dims, length)
            sums = [masked(model.run_many(part, bos=False), check=False).written().sum(1) for part in parts]
            found[length] = torch.stack(sums).sum(0) / len(chosen)
    return found


def _chunks(items: Sequence[T], dims: Dims, length: int) -> Iterator[Sequence[T]]:
    """As many at a time as there is room for what all components write in prompts so long."""
    size = max(1, FLOATS // (dims.layers * (dims.heads + 1) * dims.d_model * length))
    return (items[start : start + size] for start in range(0, len(items), size))


def questions_of(store: "Store", model: "Model", numbers: Sequence[int]) -> list[Question]:
    """Prompts of a store, run again, with their circuits."""
    where = {"prompt": list(numbers)}
    circuits = {outcome.index: outcome.circuit for outcome in store.outcomes(where) if outcome.circuit is not None}
    runs = model.run_many([list(circuits[i].token_ids) for i in numbers], bos=False)
    found = []
    for run, i in zip(runs, numbers, strict=True):
        found.append(Question(run, metric_of(circuits[i]), circuits[i]))
    return found


def usable(store: "Store") -> dict[int, list[int]]:
    """The token ids of each prompt that a store has a circuit of, and that the model tells from the wrong answer.

    Prompts of one template stand together, so that some taken evenly are of all.
    """
    table = store.table("prompts", columns=["prompt", "difference", "correct"])
    columns = (table[name].to_pylist() for name in ("prompt", "difference", "correct"))
    good = {i for i, apart, correct in zip(*columns, strict=True) if (correct if apart is None else apart > 0)}
    table = store.table("circuits", columns=["prompt", "token_ids"])
    ids = dict(zip(table["prompt"].to_pylist(), table["token_ids"].to_pylist(), strict=True))
    return {prompt: ids[prompt] for prompt in by_template(store, sorted(good & set(ids)))}
