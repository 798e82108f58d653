"""How are published results on IOI prompts repeated on a model? Its heads by role, shared by many figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, MissingModelError, NothingToTraceError
from keyhole.lab.emergence import metric_of as metric_of
from keyhole.lab.head_summary import unrelated_text
from keyhole.lab.roles import IOI_ROLES, RULE, find_roles
from keyhole.lab.sparse import SparseStudy, sparse_study
from keyhole.models.model import Model
from keyhole.models.run import Run
from keyhole.stats import wilson
from keyhole.tasks.catalogue import PromptSet, prompts_for
from keyhole.tasks.example import Example
from keyhole_papers.experiment import Asked, Job, loaded
from keyhole_papers.finding import Provenance

_GPT2: dict[str, tuple[Head, ...]] = {  # the heads of the paper's figures
    "S-inhibition": ((8, 6),),
    "name mover": ((9, 9), (10, 0), (9, 6)),
    "duplicate token": ((3, 0),),
    "previous token": ((4, 11),),
}
_COUNTS = {1: "one", 2: "two of them", 3: "the third of them"}
_ROLE_PROMPTS = 32  # by which heads are given roles
_SELECTION = 1_000_000  # added to the seed of these, which are not the prompts that measure heads
_LEAST_ATTENTION = 0.2  # of a head with a role
LEAST = 8  # prompts without which nothing is judged
_LISTED = "Heads of a role are those that the paper names."
_FOUND = (
    f"{RULE} Decided on {_ROLE_PROMPTS} other prompts of the same wordings, for heads that give {_LEAST_ATTENTION:.0%} "
    "of their attention or more."
)


@dataclass(frozen=True)
class Measured:
    """IOI prompts on one model: its heads by role, and every head's slices there."""

    asked: Asked
    model: Model
    prompts: PromptSet
    roles: dict[str, tuple[Head, ...]]
    ioi: SparseStudy

    @property
    def of(self) -> Provenance:
        """What a result says of the model, its prompts and roles."""
        return of_gpt2(self.asked.model, self.prompts.about, roles=True)

    @property
    def examples(self) -> tuple[Example, ...]:
        """Of its prompts."""
        return self.prompts.examples

    def heads(self, most: int = 4) -> list[Head]:
        """Heads of different roles first, then their seconds."""
        ranks = range(max(map(len, self.roles.values()), default=0))
        found = dict.fromkeys(heads[i] for i in ranks for heads in self.roles.values() if i < len(heads))
        return [head for head in found if len(self.ioi.of(head)) >= 2][:most]


@dataclass(frozen=True)
class Subject:
    """A model with prompts and heads to trace. Equal if made for the same settings, so that it can stand for them."""

    asked: Asked  # of the job that is watching
    model: Model = field(compare=False)
    prompts: PromptSet = field(compare=False)
    roles: dict[str, tuple[Head, ...]] = field(compare=False)
    threshold: float = field(compare=False)  # a weight that fires
    solved: int = field(compare=False)  # prompts in which IO is preferred to S

    @property
    def of(self) -> Provenance:
        """What a result says of the model, its prompts and roles."""
        return of_gpt2(self.asked.model, self.prompts.about, roles=True)

    @property
    def examples(self) -> tuple[Example, ...]:
        """Of its prompts."""
        return self.prompts.examples

    def progress(self, done: int, total: int) -> None:
        """Tell who is watching now."""
        self.asked.progress(done, total)

    def runs(self, most: int | None = None) -> Iterator[tuple[Example, Run]]:
        """The prompts, or the first of them, each with what happens in it; who is watching is told."""
        chosen = self.examples[:most]
        for number, example in enumerate(chosen):
            yield example, self.model.run(example.text)
            self.progress(number + 1, len(chosen))

    def role(self, name: str, least: int = 1) -> tuple[Head, ...]:
        """The heads of a role, of which there must be so many."""
        heads = self.roles.get(name, ())
        if len(heads) >= least:
            return heads
        kind = name if name == "name mover" else f"{name} head"
        many = f"no {kind}" if not heads else f"no {kind} but {listed(heads)}"
        raise MissingModelError(
            f"{_named(self.asked.model)} has {many}, and this figure is about {_COUNTS[least]}: no other head is "
            "measured in its place."
        )

    def one(self, name: str, number: int) -> Head:
        """A role's first, second or third head; none stands for two."""
        return self.role(name, number + 1)[number]


def is_gpt2(model: str | None) -> bool:
    """Is this the published model?"""
    return model is not None and model.rstrip("/").rpartition("/")[2].lower() in ("gpt2", "gpt2-small")


def of_gpt2(model: str | None, prompts: str = "", *, roles: bool = False) -> Provenance:
    """Of a model where GPT-2 was published, on these prompts; with `roles`, how its heads were given them."""
    return Provenance(model, is_gpt2(model), prompts=prompts, heads=role_rule(model) if roles else "")


def role_rule(model: str | None) -> str:
    """How heads were given their roles."""
    return _LISTED if is_gpt2(model) else _FOUND


def listed(heads: Sequence[Head]) -> str:
    """Heads as in the paper.

    >>> listed([(9, 9), (10, 0)])
    '9.9, 10.0'
    """
    return ", ".join(map(head_name, heads))


def _named(source: str | None) -> str:
    return source or "the built-in organism"


def heads_by_role(source: str | None, model: Model, examples: Sequence[Example]) -> dict[str, tuple[Head, ...]]:
    """The published heads of GPT-2; of any other model, those that play a role by attention and effect, if any."""
    if is_gpt2(source):
        return dict(_GPT2)
    found: dict[str, tuple[Head, ...]] = {}
    for one in find_roles(model, examples, IOI_ROLES, heads=3, threshold=_LEAST_ATTENTION, required=False):
        found[one.place.role] = (*found.get(one.place.role, ()), one.place.head)
    return found


def roles_of(asked: Asked, model: Model) -> dict[str, tuple[Head, ...]]:
    """Heads by role, on other prompts than those that measure them."""
    shown = prompts_for("ioi", model, _ROLE_PROMPTS, asked.seed + _SELECTION)
    return heads_by_role(asked.model, model, shown.examples)


def measured(job: Job) -> Measured:
    """The study of a job's model, made once for all figures."""
    return _measured(job.asked)


@lru_cache(maxsize=1)
def _measured(asked: Asked) -> Measured:
    model = loaded(asked.model, asked.device, asked.choices.dtype)
    prompts = _prompts(asked, model)
    texts = [one.text for one in prompts.examples]
    study = sparse_study(model, texts, name="IOI", draws=_draws(asked), progress=asked.progress)
    return Measured(asked, model, prompts, roles_of(asked, model), study)


def _prompts(asked: Asked, model: Model) -> PromptSet:
    return prompts_for("ioi", model, LEAST if asked.quick else None, asked.seed)


def unrelated(job: Job) -> tuple[SparseStudy, str]:
    """Every head's slices in text that has nothing to do with these prompts, and what that text is."""
    return _unrelated(job.asked)


@lru_cache(maxsize=1)
def _unrelated(asked: Asked) -> tuple[SparseStudy, str]:
    seen = _measured(asked)
    texts, what = unrelated_text(seen.model, [one.text for one in seen.examples], asked.seed + 1)
    study = sparse_study(seen.model, texts, name="unrelated text", draws=_draws(asked), progress=asked.progress)
    return study, f"The unrelated text is of {what}."


def _draws(asked: Asked) -> int:
    return 2 if asked.quick else 8


def subject(job: Job) -> Subject:
    """The model of a job with its prompts, loaded once for all figures."""
    seen = replace(_subject(job.asked), asked=job.asked)
    _require_solved(seen)
    return seen


@lru_cache(maxsize=1)
def _subject(asked: Asked) -> Subject:
    model = loaded(asked.model, asked.device, asked.choices.dtype)
    prompts = _prompts(asked, model)
    threshold = 0.5 if is_gpt2(asked.model) else 0.25  # few name movers of small models give half of their attention
    solved = _solved(model, prompts.examples)
    return Subject(asked, model, prompts, roles_of(asked, model), threshold, solved)


def trace_answer(run: Run, target: int, **options: Any) -> Circuit | None:
    """The circuit of heads behind an answer; None where no writer pushes towards it, so that there is none."""
    try:
        return run.trace(target, through="heads", **options)
    except NothingToTraceError:
        return None


def _solved(model: Model, examples: Sequence[Example]) -> int:
    """In how many prompts is IO preferred to S?"""
    runs = ((example, model.run(example.text)) for example in examples)
    return sum(metric_of(example, run).of(run.logits[-1]) > 0 for example, run in runs)


def _require_solved(seen: Subject) -> None:
    require_solved(seen.asked.model, seen.solved, len(seen.examples))


def require_solved(source: str | None, solved: int, of: int, *, real: Callable[[str | None], bool] = is_gpt2) -> None:
    """What makes a model prefer IO to S can be asked only of one that does: in more prompts than coins would show."""
    if wilson(solved, of)[1] > 0.5:
        return
    said = f"{_named(source)} prefers IO to S in {solved} of {of} IOI prompts, no more than by chance"
    if real(source):
        raise KeyholeError(f"{said}: these are not the published weights, so that nothing is judged. Give those.")
    raise MissingModelError(f"{said}: choose a model that solves them.")
