"""How are the slides measured that show what no paper does? The circuits of published prompts are traced once for all.

signals.py, single.py    what single circuits and heads show
families.py              families of circuits, and what averages over them mix
orders.py                both orders of names: the signals of the same heads, and what edges do
names.py                 signals, named
representatives.py       does one circuit stand for a family, and how does each order find IO?
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from keyhole.models.model import Model
from keyhole.progress import Progress
from keyhole.store.driver import bulk
from keyhole.store.manifest import traced_prompts
from keyhole.store.settings import Tracing
from keyhole.store.store import Store, Where
from keyhole.studies.comparison.signals import Member, draw, member
from keyhole.studies.families.agreement import Agreement
from keyhole.studies.families.clusters import LEVEL
from keyhole.studies.families.families import RIGHT
from keyhole.studies.families.families import families as find_families  # a module of this package has its name
from keyhole.studies.families.record import Families
from keyhole.tasks.catalogue import prompts_for
from keyhole_papers.experiment import Job, loaded
from keyhole_papers.finding import Provenance, last_name, refuse
from keyhole_papers.svt import require_solved

ORDERS = ("ABBA", "BABA")
_QUICK = 60
_MEMBERS = 40  # prompts of each order that are run again for signals and removals
_FEWEST = 30  # right answers, below which there is nothing to cut
TRACING = Tracing(through="heads", wrong="skip")  # as published
_WHERE: Where = RIGHT
_MODELS = {  # the published ones
    "gpt2": "GPT-2 small",
    "gpt2-small": "GPT-2 small",
    "pythia-160m": "Pythia-160M",
    "gemma-2-2b": "Gemma-2-2B",
}
Record = TypeVar("Record")


def published_name(source: str | None) -> str | None:
    """The name of a published model, if it is one."""
    return _MODELS.get(last_name(source))


@dataclass(frozen=True)
class Prompts:
    """The prompts of a model, and how many it solves."""

    model: str | None  # as it was given
    prompts: int
    solved: int  # IO is preferred to S
    right: int  # IO is the likeliest next token, and a head is in the circuit: these circuits are compared
    about: str  # which prompts

    def provenance(self, *published: str) -> Provenance:
        """What a result says of them, where it was published of these models; of GPT-2, unless they are named."""
        models = published or ("GPT-2 small",)
        name = models[0] if len(models) == 1 else "the published models"
        compared = f"{self.right:,} are answered right with heads in their circuit: these are compared"
        prompts = f"{self.about}. IO is preferred to S in {self.solved:,}, and {compared}"
        return Provenance(self.model, published_name(self.model) in models, name, prompts)


@dataclass(frozen=True, eq=False)
class Study:
    """The circuits of a model's right answers: their families, and both orders' representatives with other prompts."""

    of: Prompts
    families: Families
    pair: tuple[Member, Member]  # the representatives of ABBA and BABA
    others: tuple[Sequence[Member], Sequence[Member]]  # of either order
    model: Model

    @property
    def order(self) -> Agreement:
        """How far the order of names sets circuits apart."""
        return next(agreement for agreement in self.families.levels[0].agreement if agreement.label == "order")


def of_study(make: Callable[[Study, Job], Record], job: Job) -> Record:
    """A record of the study of a job's model; in processes, all `partial(of_study, make)` share one, and the study."""
    return make(study(job), job)


def sets_apart(order: Agreement) -> bool:
    """Are circuits of one order more alike than those of different orders? Otherwise both orders are one family."""
    return order.explained.p <= LEVEL and order.nearest.p <= LEVEL


@contextmanager
def traced_store(job: Job, n: int | None, progress: Progress) -> Iterator[tuple[Model, Store, Prompts]]:
    """A model with its circuits for so many prompts of both orders, as long as they are looked at.

    Refused if too few prompts are answered right to say anything.
    """
    model = loaded(job.model, job.device, job.dtype)
    prompts = prompts_for("ioi", model, n, job.seed, design="balanced")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "ioi.store"
        store = bulk(prompts.examples, model, out=out, tracing=TRACING, progress=progress)
        yield model, store, _prompts_of(job.model, store, prompts.about)


def _prompts_of(source: str | None, store: Store, about: str) -> Prompts:
    table = store.table("prompts", columns=["difference"])["difference"].to_pylist()
    solved = sum(difference is not None and difference > 0 for difference in table)
    require_solved(source, solved, len(table), real=lambda model: published_name(model) is not None)
    of = Prompts(source, len(table), solved, len(traced_prompts(store, _WHERE)), about)
    _require_enough(of, of.right >= _FEWEST)
    return of


@lru_cache(maxsize=1)
def study(job: Job) -> Study:
    """Made once for all slides."""
    with traced_store(job, _QUICK if job.quick else None, job.progress) as (model, store, of):
        groups = find_families(store, where=_WHERE, seed=job.seed, progress=job.progress)
        sample = list(zip(map(int, groups.sample), groups.values.get("order", ()), strict=False))
        numbers = {order: [prompt for prompt, value in sample if value == order] for order in ORDERS}
        _require_enough(of, min(map(len, numbers.values())) >= 2)
        stands = {representative.group: representative.prompt for representative in groups.representatives}
        chosen = [stands[f"order={order}"] for order in ORDERS]
        count = 6 if job.quick else _MEMBERS
        others = [draw(store, numbers[order], count, seed=job.seed, but=chosen) for order in ORDERS]
        pair = (member(store, chosen[0]), member(store, chosen[1]))
    return Study(of, groups, pair, (others[0], others[1]), model)


def _require_enough(of: Prompts, enough: bool) -> None:
    if not enough:
        problem = (
            f"answers {of.right} of {of.prompts} prompts right with heads in their circuits: families of circuits in "
            f"both orders of names need {_FEWEST} or more"
        )
        refuse(of.model, problem, "choose a model that does", published=published_name(of.model) is not None)
