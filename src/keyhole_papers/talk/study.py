"""Which circuits are the slides on families about? Those of the published prompts, traced once for all of them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from keyhole.comparison.members import Member, draw, member
from keyhole.errors import KeyholeError, MissingModelError
from keyhole.family import Agreement, Families, families
from keyhole.family.clusters import LEVEL
from keyhole.family.families import RIGHT
from keyhole.many.driver import bulk
from keyhole.many.settings import Tracing
from keyhole.models.model import Model
from keyhole.progress import Progress
from keyhole.store.chosen import traced_prompts
from keyhole.store.reading import Where
from keyhole.store.store import Store
from keyhole.tasks.prompt_sets import IOI, prompts_for
from keyhole_papers.job import Asked, Job, loaded
from keyhole_papers.provenance import Provenance
from keyhole_papers.svt.ioi import require_solved
from keyhole_papers.talk.signals import published_name

ORDERS = ("ABBA", "BABA")
_QUICK = 60
_MEMBERS = 40  # prompts of each order that are run again for signals and removals
_FEWEST = 30  # right answers, below which there is nothing to cut
TRACING = Tracing(through="heads", wrong="skip")  # as published
_WHERE: Where = RIGHT
Record = TypeVar("Record")


@dataclass(frozen=True)
class Prompts:
    """What was asked of which model."""

    model: str | None  # as it was asked for
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


@dataclass(frozen=True)
class Study:
    """The circuits of a model's right answers: their families, and both orders' representatives with other prompts.

    Equal if made for the same settings, so that it can stand for them.
    """

    asked: Asked
    of: Prompts = field(compare=False)
    families: Families = field(compare=False)
    pair: tuple[Member, Member] = field(compare=False)  # the representatives of ABBA and BABA
    others: tuple[Sequence[Member], Sequence[Member]] = field(compare=False)  # of either order
    model: Model = field(compare=False)

    @property
    def order(self) -> Agreement:
        """How far the order of names sets circuits apart."""
        return next(one for one in self.families.levels[0].agreement if one.label == "order")


def of_study(make: Callable[[Study], Record], job: Job) -> Record:
    """What is made of the study of a job's model: `partial(of_study, make)` measures."""
    return make(study(job))


def study(job: Job) -> Study:
    """Made once for all slides."""
    return _study(job.asked)


def sets_apart(order: Agreement) -> bool:
    """Are circuits of one order more alike than those of different orders? Otherwise both orders are one family."""
    return order.explained.p <= LEVEL and order.nearest.p <= LEVEL


@contextmanager
def traced_store(asked: Asked, n: int, progress: Progress) -> Iterator[tuple[Model, Store, Prompts]]:
    """A model with its circuits for so many prompts of both orders, as long as they are looked at.

    Refused if too few prompts are answered right to say anything.
    """
    model = loaded(asked.model, asked.device, asked.choices.dtype)
    prompts = prompts_for("ioi", model, n, asked.seed, design="balanced")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "ioi.store"
        store = bulk(prompts.examples, model, out=out, tracing=TRACING, progress=progress)
        yield model, store, _prompts_of(asked.model, store, prompts.about)


def _prompts_of(source: str | None, store: Store, about: str) -> Prompts:
    table = store.table("prompts", columns=["difference"])["difference"].to_pylist()
    solved = sum(one is not None and one > 0 for one in table)
    require_solved(source, solved, len(table), real=lambda model: published_name(model) is not None)
    of = Prompts(source, len(table), solved, len(traced_prompts(store, _WHERE)), about)
    _require_enough(of, of.right >= _FEWEST)
    return of


@lru_cache(maxsize=1)
def _study(asked: Asked) -> Study:
    n = _QUICK if asked.quick else IOI["balanced"]
    with traced_store(asked, n, asked.progress) as (model, store, of):
        found = families(store, where=_WHERE, seed=asked.seed, progress=asked.progress)
        numbers = {order: _with_order(found, order) for order in ORDERS}
        _require_enough(of, min(map(len, numbers.values())) >= 2)
        stands = {one.group: one.prompt for one in found.representatives}
        chosen = [stands[f"order={order}"] for order in ORDERS]
        count = 6 if asked.quick else _MEMBERS
        others = [draw(store, numbers[order], count, seed=asked.seed, but=chosen) for order in ORDERS]
        pair = (member(store, chosen[0]), member(store, chosen[1]))
    return Study(asked, of, found, pair, (others[0], others[1]), model)


def _require_enough(of: Prompts, enough: bool) -> None:
    if enough:
        return
    said = (
        f"{of.model or 'the built-in organism'} answers {of.right} of {of.prompts} prompts right with heads in their "
        f"circuits: families of circuits in both orders of names need {_FEWEST} or more."
    )
    raise KeyholeError(said) if published_name(of.model) else MissingModelError(f"{said} Choose a model that does.")


def _with_order(found: Families, order: str) -> list[int]:
    """The prompts of the sample in one order of names."""
    values = found.values.get("order", ())
    return [int(prompt) for prompt, value in zip(found.sample, values, strict=False) if value == order]
