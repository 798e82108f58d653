"""How are published results on IOI prompts repeated on a model? Its heads by role, shared by many figures."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.errors import MissingModelError, NothingToTraceError
from keyhole.lab.emergence import metric_of as metric_of
from keyhole.lab.head_summary import unrelated_text
from keyhole.lab.roles import IOI_ROLES, RULE, find_roles
from keyhole.lab.sparse import SparseStudy, sparse_study
from keyhole.models.model import Model
from keyhole.models.run import Run
from keyhole.progress import Progress, silent
from keyhole.stats import Interval, wilson
from keyhole.tasks.catalogue import PromptSet, prompts_for
from keyhole.tasks.example import Example
from keyhole_papers.experiment import Job, loaded
from keyhole_papers.finding import Provenance, last_name, refuse

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
ADDS = ".5 to 1.5 of the sum"
_LISTED = "Heads of a role are those that the paper names."
_DECIDED = (
    f"{RULE} Decided on {_ROLE_PROMPTS} other prompts of the same wordings, for heads that give {_LEAST_ATTENTION:.0%} "
    "of their attention or more."
)


@dataclass(frozen=True, eq=False)
class Subject:
    """IOI prompts on one model, and its heads by role."""

    source: str | None  # the model as it was given
    model: Model
    prompts: PromptSet
    roles: dict[str, tuple[Head, ...]]
    threshold: float  # a weight that fires

    @property
    def of(self) -> Provenance:
        """What a result says of the model, its prompts and roles."""
        return of_gpt2(self.source, self.prompts.about, roles=True)

    @property
    def examples(self) -> tuple[Example, ...]:
        """Of its prompts."""
        return self.prompts.examples

    @cached_property
    def solved(self) -> int:
        """In how many prompts is IO preferred to S?"""
        return sum(metric_of(example, run).of(run.logits[-1]) > 0 for example, run in self.runs())

    def runs(self, most: int | None = None, progress: Progress = silent) -> Iterator[tuple[Example, Run]]:
        """The prompts, or the first of them, each with its run."""
        chosen = self.examples[:most]
        for number, example in enumerate(chosen):
            yield example, self.model.run(example.text)
            progress(number + 1, len(chosen))

    def role(self, name: str, least: int = 1) -> tuple[Head, ...]:
        """The heads of a role, of which there must be so many."""
        heads = self.roles.get(name, ())
        if len(heads) >= least:
            return heads
        kind = name if name == "name mover" else f"{name} head"
        many = f"no {kind}" if not heads else f"no {kind} but {listed(heads)}"
        raise MissingModelError(
            f"{self.source or 'the built-in organism'} has {many}, and this figure is about {_COUNTS[least]}: no other "
            "head is measured in its place."
        )

    def head(self, role: str, number: int) -> Head:
        """A role's first, second or third head; none stands for two."""
        return self.role(role, number + 1)[number]

    def looking(self, study: SparseStudy, most: int = 4) -> list[Head]:
        """Heads of different roles first, then their seconds: those that fire in the study."""
        ranks = range(max(map(len, self.roles.values()), default=0))
        ordered = dict.fromkeys(heads[i] for i in ranks for heads in self.roles.values() if i < len(heads))
        firing = [head for head in ordered if len(study.of(head)) >= 2][:most]
        if not firing:
            raise MissingModelError(
                f"no head of {self.model.name} that looks clearly where a role of IOI prompts needs it fires there: "
                "give another model."
            )
        return firing


def is_gpt2(model: str | None) -> bool:
    """Is this the published model?"""
    return last_name(model) in ("gpt2", "gpt2-small")


def of_gpt2(model: str | None, prompts: str = "", *, roles: bool = False) -> Provenance:
    """Of a model where GPT-2 was published, on these prompts; with `roles`, how its heads were given them."""
    return Provenance(model, is_gpt2(model), prompts=prompts, heads=role_rule(model) if roles else "")


def role_rule(model: str | None) -> str:
    """How heads were given their roles."""
    return _LISTED if is_gpt2(model) else _DECIDED


def listed(heads: Sequence[Head]) -> str:
    """Heads as in the paper.

    >>> listed([(9, 9), (10, 0)])
    '9.9, 10.0'
    """
    return ", ".join(map(head_name, heads))


def heads_by_role(source: str | None, model: Model, examples: Sequence[Example]) -> dict[str, tuple[Head, ...]]:
    """The published heads of GPT-2; of any other model, those that play a role by attention and effect, if any."""
    if is_gpt2(source):
        return dict(_GPT2)
    heads: dict[str, tuple[Head, ...]] = {}
    for played in find_roles(model, examples, IOI_ROLES, heads=3, threshold=_LEAST_ATTENTION, required=False):
        heads[played.place.role] = (*heads.get(played.place.role, ()), played.place.head)
    return heads


def roles_of(job: Job, model: Model) -> dict[str, tuple[Head, ...]]:
    """Heads by role, on other prompts than those that measure them."""
    shown = prompts_for("ioi", model, _ROLE_PROMPTS, job.seed + _SELECTION)
    return heads_by_role(job.model, model, shown.examples)


@lru_cache(maxsize=1)
def prompted(job: Job) -> Subject:
    """The model of a job with its prompts, loaded once for all figures, whatever it answers."""
    model = loaded(job.model, job.device, job.dtype)
    prompts = prompts_for("ioi", model, LEAST if job.quick else None, job.seed)
    threshold = 0.5 if is_gpt2(job.model) else 0.25  # few name movers of small models give half of their attention
    return Subject(job.model, model, prompts, roles_of(job, model), threshold)


def subject(job: Job) -> Subject:
    """The same, if it prefers IO to S."""
    of_job = prompted(job)
    require_solved(of_job.source, of_job.solved, len(of_job.examples))
    return of_job


def require_solved(source: str | None, solved: int, of: int, *, real: Callable[[str | None], bool] = is_gpt2) -> None:
    """What makes a model prefer IO to S can be said only of one that does: in more prompts than coins would show."""
    if wilson(solved, of)[1] <= 0.5:
        problem = f"prefers IO to S in {solved} of {of} IOI prompts, no more than by chance"
        if real(source):
            problem += ": these are not the published weights, so that nothing is judged. Give those"
        refuse(source, problem, "choose a model that solves them", published=real(source))


def _slices(job: Job, texts: Sequence[Any], name: str) -> SparseStudy:
    model, draws = prompted(job).model, 2 if job.quick else 8
    return sparse_study(model, texts, name=name, draws=draws, progress=job.progress)


@lru_cache(maxsize=1)
def measured(job: Job) -> SparseStudy:
    """Every head's slices on the prompts of a job's model, made once for all figures."""
    return _slices(job, [example.text for example in prompted(job).examples], "IOI")


@lru_cache(maxsize=1)
def unrelated(job: Job) -> tuple[SparseStudy, str]:
    """Every head's slices in text that has nothing to do with these prompts, and what that text is."""
    of_job = prompted(job)
    texts, kind = unrelated_text(of_job.model, [example.text for example in of_job.examples], job.seed + 1)
    return _slices(job, texts, "unrelated text"), f"The unrelated text is of {kind}."


def trace_answer(run: Run, target: int, **options: Any) -> Circuit | None:
    """The circuit of heads behind an answer; None where no writer pushes towards it, so that there is none."""
    try:
        return run.trace(target, through="heads", **options)
    except NothingToTraceError:
        return None


class Pair(NamedTuple):
    """Changes of the logit difference in one prompt, by a set of signals."""

    summed: float  # of single removals
    together: float


@dataclass(frozen=True)
class Sums:
    """The same over prompts."""

    summed: Interval
    together: Interval
    spared: Interval  # by which, in size, the change together falls short of the sum

    @property
    def share(self) -> float:
        """The change together, of the sum."""
        return self.together.mean / self.summed.mean if self.summed.mean else 0.0

    @property
    def adds(self) -> bool:
        """Do they add up?"""
        return 0.5 <= self.share <= 1.5


def sums_of(pairs: Sequence[Pair]) -> Sums:
    """The means over prompts."""
    spared = Interval.over(abs(pair.summed) - abs(pair.together) for pair in pairs)
    return Sums(Interval.over(pair.summed for pair in pairs), Interval.over(pair.together for pair in pairs), spared)
