"""Do circuits fall into families, and what do these follow: the order of names, or the wording?

The circuits are those of the published prompts, traced once for all slides on families.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.models.model import Model
from keyhole.progress import Progress
from keyhole.store.driver import bulk
from keyhole.store.manifest import traced_prompts
from keyhole.store.settings import Tracing
from keyhole.store.store import Store, Where
from keyhole.studies.comparison.signals import Member, draw, member
from keyhole.studies.families.agreement import Agreement, Beside
from keyhole.studies.families.clusters import LEVEL
from keyhole.studies.families.families import RIGHT, families
from keyhole.studies.families.record import Families, Level
from keyhole.tasks.catalogue import prompts_for
from keyhole_papers.experiment import Asked, Attempt, Experiment, Job, loaded
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, Provenance, of_part
from keyhole_papers.svt import require_solved
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
def traced_store(asked: Asked, n: int | None, progress: Progress) -> Iterator[tuple[Model, Store, Prompts]]:
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
    n = _QUICK if asked.quick else None
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


LABELS = ("order", "wording")
_CLEAR = 0.5  # of an agreement that is 0 by chance and 1 at most: what families follow, they follow for the most part
_DRAWS = 199


@dataclass(frozen=True)
class Split:
    """Families of circuits at all granularities, and how well labels tell to which a circuit belongs."""

    of: Prompts
    levels: tuple[Level, ...]  # edges with channels first, as published
    tells: Mapping[str, Beside]  # by label, of the first level's cut; empty: there is none
    found: Families | None = None  # to be drawn

    @property
    def believed(self) -> bool:
        """Are there families at all?"""
        return self.levels[0].clustering.separate

    def agreement(self, label: str) -> Agreement | None:
        """None: the right answers have one value of it alone."""
        return next((one for one in self.levels[0].agreement if one.label == label), None)


def split_of(seen: Study) -> Split:
    """The cut beside order and wording."""
    found = seen.families
    cut = found.clustering.cut
    tells = {} if cut is None else {name: tells_of(found.values[name], cut.labels) for name in _known(found.values)}
    return Split(seen.of, found.levels, tells, found)


def tells_of(
    values: tuple[str | None, ...], labels: Int[np.ndarray, "circuits"], *, draws: int = _DRAWS, seed: int = 0
) -> Beside:
    """How well do a label and the cut tell each other? Of both, the one with more groups tells the other.

    The share of circuits that are in the commonest group of the other one, above that of shuffled labels: 0 by chance,
    1 if groups of the finer one lie within those of the other. So families may be few wordings each, or an order may
    have two families, and labels of 2 and of 15 values can be held against each other, as by ARI they cannot.

    >>> told = tells_of(("a", "a", "b", "b", "c", "c") * 5, np.array([1, 1, 2, 2, 2, 2] * 5))
    >>> told.value, told.p
    (1.0, 0.005)
    """
    rng = np.random.default_rng(seed)
    inside = np.array([value is not None for value in values]) & (labels > 0)
    codes = np.unique(np.array([str(value) for value in values])[inside], return_inverse=True)[1]
    own = np.unique(labels[inside], return_inverse=True)[1]
    if len(np.unique(own)) > len(np.unique(codes)):
        codes, own = own, codes
    share = _purity(codes, own)
    null = np.array([_purity(rng.permutation(codes), own) for _ in range(draws)])
    room = 1 - float(null.mean())
    if room <= 0:
        return Beside(0.0, 0.0, 0.0, 1.0)
    above = (null - null.mean()) / room
    p = (1 + int((null >= share - 1e-12).sum())) / (draws + 1)
    return Beside((share - float(null.mean())) / room, 0.0, float(np.quantile(above, 0.95)), p)


def found_order(record: Split) -> Findings:
    """Do families follow the order of names? More families than two orders are a part of it."""
    agreement = record.agreement("order")
    ari = None if agreement is None else agreement.ari
    two = ari is not None and ari.p <= LEVEL and ari.value >= _CLEAR
    asked = f"{_CLEAR:g} or more, beyond shuffled labels: families are the two orders"
    return _findings(record, "order", "wording", record.of.provenance(), ari=(asked, two))


def found_wording(record: Split) -> Findings:
    """Do families follow the wording?"""
    return _findings(record, "wording", "order", record.of.provenance("Pythia-160M"))


def _follows(record: Split, label: str, other: str) -> bool:
    """There are families; a label tells them, for the most part and better than another; and sets circuits apart."""
    one, tells, its = record.agreement(label), record.tells.get(label), record.tells.get(other)
    if not record.believed or one is None or tells is None:
        return False
    clear = tells.p <= LEVEL and tells.value >= _CLEAR
    return clear and (its is None or tells.value > its.value) and sets_apart(one)


def _findings(record: Split, label: str, other: str, of: Provenance, ari: Claim = NO_CLAIM) -> Findings:
    """What the cut is like, and what labels say of it; `ari` is asked of the label, too."""
    follows = _follows(record, label, other)
    asked = (
        f"{_CLEAR:g} or more, and more than of {other}, with circuits of the same {label} nearer than others, and so "
        "the nearest one"
    )
    rows = [Finding("circuits", record.of.right), *_cut(record.levels[0])]
    for level in record.levels:
        first = level is record.levels[0]
        rows += of_part(level.granularity, *_of_level(level, {label: ari} if first else {}, shuffled=first))
    for name, tells in record.tells.items():
        claim = (asked, follows) if name == label else NO_CLAIM
        rows.append(Finding(f"{name} and families", tells.value, *claim, digits=2))
        rows.append(Finding(f"{name} and families, shuffled", tells.high, digits=2))
    remark = (
        "The cut is by average linkage on sets of edges with channels. A label and families tell each other, the finer "
        f"the coarser, on a scale where chance is 0 and certainty 1. All against shuffled labels, p {LEVEL:g}; of "
        "these, what 95 % are below."
    )
    unless = (
        f"{label} and families do, and the cut is believed: stable under resampling, and better than cuts of two "
        "worlds without families"
    )
    return Findings(rows, of, first=follows, unless=unless, remark=remark)


def _cut(level: Level) -> list[Finding]:
    """How good is the cut of the published circuits?"""
    clustering = level.clustering
    rows = [Finding("believed", int(clustering.separate))]
    if clustering.cut is not None:
        worst = max((null.p for null in clustering.nulls), default=1.0)
        rows.append(Finding("stability", float(clustering.stability[clustering.best or 0].mean()), digits=2))
        rows.append(Finding("p of the cut, in worlds without families", worst))
    return rows


def _of_level(level: Level, asked: Mapping[str, Claim], *, shuffled: bool) -> list[Finding]:
    """Families of circuits as sets of something, and what labels say of them; what is asked of an ARI, by label."""
    cut, rows = level.clustering.cut, [Finding("mean distance", level.mean_distance)]
    if cut is None:
        return [*rows, Finding("families", "no cut leaves two")]
    rows += [Finding("families", cut.families), Finding("silhouette", cut.silhouette)]
    rows.append(Finding("believed", int(level.clustering.separate)))
    for agreement in level.agreement:
        label, ari = agreement.label, agreement.ari
        if label not in LABELS or ari is None:
            continue
        measured = {"ARI with": ari, "explained by": agreement.explained, "nearest alike in": agreement.nearest}
        for name, beside in measured.items():
            claim = asked.get(label, NO_CLAIM) if beside is ari else NO_CLAIM
            rows.append(Finding(f"{name} {label}", beside.value, *claim))
            if shuffled:
                rows.append(Finding(f"{name} {label}, shuffled", beside.high))
    return rows


def _draw(record: Split) -> Mapping[str, Figure]:
    return {} if record.found is None else {"families": record.found.plot()}


def _known(values: Mapping[str, object]) -> list[str]:
    return [label for label in LABELS if label in values]


def _purity(codes: Int[np.ndarray, "circuits"], told: Int[np.ndarray, "circuits"]) -> float:
    table = np.zeros((int(codes.max(initial=0)) + 1, int(told.max(initial=0)) + 1))
    np.add.at(table, (codes, told), 1)
    return float(table.max(1).sum() / max(len(codes), 1))


RUNS: dict[str, Attempt] = {
    "talk-14": Experiment(partial(of_study, split_of), found_order, _draw),
    "talk-15": Experiment(partial(of_study, split_of), found_wording, _draw),
}
