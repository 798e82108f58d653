"""In which prompts are edges cut, and what stands in for them? Prompts of one kind are run together.

Prompts are of one kind if they have the same template, as many tokens, and their roles at the same tokens. A mean is
taken over prompts of the same template and length, token by token; the prompt itself is among them. A counterfactual is
drawn for each prompt by its task.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import ids_like, resting
from keyhole.faithfulness.masked import FLOATS, Masked, masked
from keyhole.intervene.cuts import metric_of
from keyhole.intervene.removal import Metric, Question
from keyhole.models.numbers import exact_matmul
from keyhole.models.weights import Dims
from keyhole.store.manifest import by_template, spread
from keyhole.studies.curves.attribution import prompts_of
from keyhole.studies.curves.settings import Baseline
from keyhole.tasks.answers import answer_ids
from keyhole.tasks.catalogue import counterfactual
from keyhole.tasks.example import Example
from keyhole.tasks.variants import COUNTERFACTUALS

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.store.store import Store

T = TypeVar("T")
Alike = tuple[str, int]  # a template, and the number of tokens
Kind = tuple[str, int, tuple[tuple[int, ...], ...]]  # the same, and the tokens of all roles
Means = Mapping[Alike, Float[Tensor, "writer pos d_model"]]
LEAST = 8  # fewest prompts of a template and length that a mean is taken over
MOST = 32  # and most


@dataclass(frozen=True)
class CohortQuestion(Question):
    """A prompt with its answer, and with what is needed to run it together with others."""

    circuit: Circuit | None = None  # that a store has of it
    template: str = ""
    places: tuple[tuple[int, ...], ...] = ()  # the tokens of each role
    counterfactual: tuple[int, ...] | None = None  # token ids

    def __post_init__(self) -> None:
        if self.metric.end != len(self.run) - 1:
            raise KeyholeError("an answer is predicted before the last token, and edges are cut for the last one only.")
        if self.counterfactual is not None and len(self.counterfactual) != len(self.run):
            raise KeyholeError(
                f"a counterfactual has {len(self.counterfactual)} tokens and its prompt {len(self.run)}: writers are "
                "matched token by token, so give one of equal length."
            )

    @property
    def alike(self) -> Alike:
        """What prompts have in common over which its mean is taken."""
        return self.template, len(self.run)

    @property
    def kind(self) -> Kind:
        """What prompts have in common whose token-level edges are the same."""
        return self.template, len(self.run), self.places


@dataclass(frozen=True)
class StandIn:
    """What stands in for writers whose edges are cut."""

    baseline: Baseline = "zero"
    means: Means = field(default_factory=dict)  # for the baseline "mean"

    def __contains__(self, question: CohortQuestion) -> bool:
        """Is there anything for this question?"""
        if self.baseline == "mean":
            return question.alike in self.means
        return self.baseline != "counterfactual" or question.counterfactual is not None

    def writes(self, questions: Sequence[CohortQuestion]) -> Float[Tensor, "writer *prompt pos d_model"] | None:
        """For questions of one kind: one for all, or one each; None: nothing."""
        run = questions[0].run
        if self.baseline == "mean":
            return self.means[questions[0].alike]
        if self.baseline == "resting":
            return resting(run).writes
        if self.baseline == "zero":
            return None
        prompts = [list(question.counterfactual or ()) for question in questions]
        with exact_matmul(), torch.no_grad():
            return masked(run.model.run_many(prompts, bos=False), check=False).written()


@dataclass(frozen=True, eq=False)
class Group:
    """Questions of one kind."""

    masked: Masked
    metrics: tuple[Metric, ...]
    numbers: tuple[int, ...]  # which questions these are
    kind: Kind = ("", 0, ())

    def answers(self, mask: Float[Tensor, "writer reader"]) -> Float[Tensor, "prompt"]:
        """What is left of each answer."""
        return self.measured(self.masked.logits(mask))

    def measured(self, logits: Float[Tensor, "prompt vocab"]) -> Float[Tensor, "prompt"]:
        """The answers' measure, to take gradients of."""
        return torch.stack([metric.value(row) for metric, row in zip(self.metrics, logits, strict=True)])

    def parts(self, size: int) -> Iterator["Group"]:
        """The same, so many prompts at a time."""
        for start in range(0, len(self.metrics), size):
            some = slice(start, start + size)
            yield Group(prompts_of(self.masked, some), self.metrics[some], self.numbers[some], self.kind)


def groups_of(questions: Sequence[CohortQuestion], stand_in: StandIn | None = None) -> list[Group]:
    """Questions by their kind, as many together as fit into memory; those without a stand-in are left out."""
    stand_in = stand_in or StandIn()
    kinds = defaultdict(list)
    for i, question in enumerate(questions):
        if question in stand_in:
            kinds[question.kind].append(i)
    groups = []
    for kind, numbers in sorted(kinds.items()):
        for part in _chunks(numbers, questions[0].run.model.dims, kind[1]):
            some = [questions[i] for i in part]
            whole = replace(masked([question.run for question in some]), baseline=stand_in.writes(some))
            groups.append(Group(whole, tuple(question.metric for question in some), tuple(part), kind))
    return groups


def means_of(
    model: "Model", prompts: Iterable[tuple[str, Sequence[int]]]
) -> dict[Alike, Float[Tensor, "writer pos d_model"]]:
    """What every component writes on average at each token, by template and length of prompts (token ids).

    The mean is over some prompts of each; with too few of them there is no mean.
    """
    kinds = defaultdict(list)
    for template, ids in prompts:
        kinds[template, len(ids)].append(list(ids))
    means = {}
    with exact_matmul():
        for kind, alike in sorted(kinds.items()):
            if len(alike) < LEAST:
                continue
            chosen = spread(alike, MOST)
            parts = _chunks(chosen, model.dims, kind[1])
            sums = [masked(model.run_many(part, bos=False), check=False).written().sum(1) for part in parts]
            means[kind] = torch.stack(sums).sum(0) / len(chosen)
    return means


def _chunks(items: Sequence[T], dims: Dims, length: int) -> Iterator[Sequence[T]]:
    """As many at a time as fit into memory, with what all components write in prompts of this length."""
    size = max(1, FLOATS // (dims.layers * (dims.heads + 1) * dims.d_model * length))
    return (items[start : start + size] for start in range(0, len(items), size))


def questions_of(
    store: "Store", model: "Model", numbers: Sequence[int], *, counterfactuals: bool = False
) -> list[CohortQuestion]:
    """Prompts of a store, run again, with their circuits and, if asked for, their counterfactuals."""
    where = {"prompt": list(numbers)}
    outcomes = {outcome.index: outcome for outcome in store.outcomes(where) if outcome.circuit is not None}
    circuits = {i: outcome.circuit for i, outcome in outcomes.items() if outcome.circuit is not None}
    runs = model.run_many([list(circuits[i].token_ids) for i in numbers], bos=False)
    return [
        _question(run, metric_of(circuits[i]), outcomes[i].example, counterfactuals, circuit=circuits[i])
        for run, i in zip(runs, numbers, strict=True)
    ]


def questions_from(
    model: "Model", examples: Sequence[Example], *, counterfactuals: bool = False, bos: bool | None = None
) -> list[CohortQuestion]:
    """Examples of a task that the model gets right, as questions; circuits are traced when they are asked for."""
    questions = []
    for run, example in zip(model.run_many([example.text for example in examples], bos=bos), examples, strict=True):
        answers = answer_ids(model, example)
        metric = Metric(len(run) - 1, answers.answers, answers.against)
        if metric.of(run.logits[-1]) > 0:
            questions.append(_question(run, metric, example, counterfactuals))
    return questions


def require_counterfactuals(task: str) -> None:
    """Refuse prompts that no counterfactuals can be drawn for."""
    if task not in COUNTERFACTUALS:
        raise KeyholeError(
            f"no counterfactuals can be drawn for prompts of {task!r}, only for those of {', '.join(COUNTERFACTUALS)}: "
            "take the baseline mean or resting."
        )


def _question(
    run: "Run", metric: Metric, example: Example, counterfactuals: bool, circuit: Circuit | None = None
) -> CohortQuestion:
    """A question; it has no counterfactual where none of the same length differs from the prompt."""
    places = tuple(sorted(tuple(tokens) for tokens in example.tokens(run.model).values()))
    other = None
    if counterfactuals:
        require_counterfactuals(example.task)
        try:
            other = ids_like(run, counterfactual(example, run.model))
        except KeyholeError:
            other = None
        other = other if other is not None and len(other) == len(run) else None
    return CohortQuestion(run, metric, circuit, example.template, places, other)


def usable(store: "Store") -> dict[int, tuple[str, list[int]]]:
    """Template and token ids of each prompt that has a circuit and whose right answer the model prefers.

    Prompts are ordered by template, so that a sample at even steps has all of them.
    """
    table = store.table("prompts", columns=["prompt", "difference", "correct", "template"])
    columns = (table[name].to_pylist() for name in ("prompt", "difference", "correct"))
    good = {i for i, apart, correct in zip(*columns, strict=True) if (correct if apart is None else apart > 0)}
    templates = dict(zip(table["prompt"].to_pylist(), table["template"].to_pylist(), strict=True))
    table = store.table("circuits", columns=["prompt", "token_ids"])
    ids = dict(zip(table["prompt"].to_pylist(), table["token_ids"].to_pylist(), strict=True))
    return {prompt: (templates[prompt] or "", ids[prompt]) for prompt in by_template(store, sorted(good & set(ids)))}
