"""Do circuits fall into families, what do these follow, and what do averages over them mix?

Families may follow the order of names, or the wording.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np
from jaxtyping import Int
from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY, panels
from keyhole.studies.families.agreement import Agreement, Beside
from keyhole.studies.families.clusters import LEVEL
from keyhole.studies.families.record import Average, Families, Level
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, Provenance, of_part, rows_of
from keyhole_papers.talk import Prompts, Study, of_study, sets_apart

LABELS = ("order", "wording")
_CLEAR = 0.5  # of an agreement that is 0 by chance and 1 at most: what families follow, they follow for the most part
_DRAWS = 199


@dataclass(frozen=True)
class Split:
    """Families of circuits at all granularities, and how well labels tell to which a circuit belongs."""

    of: Prompts
    levels: tuple[Level, ...]  # edges with channels first, as published
    tells: Mapping[str, Beside]  # by label, of the first level's cut; empty: there is none
    families: Families | None = None  # to be drawn

    @property
    def separate(self) -> bool:
        """Are there families at all?"""
        return self.levels[0].clustering.separate

    def agreement(self, label: str) -> Agreement | None:
        """None: the right answers have one value of it alone."""
        return next((agreement for agreement in self.levels[0].agreement if agreement.label == label), None)


def split_of(study: Study, job: Job) -> Split:
    """The cut beside order and wording."""
    values, cut = study.families.values, study.families.clustering.cut
    known = [label for label in LABELS if label in values]
    tells = {} if cut is None else {label: tells_of(values[label], cut.labels) for label in known}
    return Split(study.of, study.families.levels, tells, study.families)


def tells_of(
    values: tuple[str | None, ...], labels: Int[np.ndarray, "circuits"], *, draws: int = _DRAWS, seed: int = 0
) -> Beside:
    """How well do a label and the cut tell each other? Of both, the one with more groups tells the other.

    The share of circuits that are in the commonest group of the other one, above that of shuffled labels: 0 by chance,
    1 if groups of the finer one lie within those of the other. So families may be few wordings each, or an order may
    have two families, and labels of 2 and of 15 values can be held against each other, as by ARI they cannot.

    >>> agreement = tells_of(("a", "a", "b", "b", "c", "c") * 5, np.array([1, 1, 2, 2, 2, 2] * 5))
    >>> agreement.value, agreement.p
    (1.0, 0.005)
    """
    rng = np.random.default_rng(seed)
    inside = np.array([value is not None for value in values]) & (labels > 0)
    codes = np.unique(np.array([str(value) for value in values])[inside], return_inverse=True)[1]
    groups = np.unique(labels[inside], return_inverse=True)[1]
    if len(np.unique(groups)) > len(np.unique(codes)):
        codes, groups = groups, codes
    share = _purity(codes, groups)
    null = np.array([_purity(rng.permutation(codes), groups) for _ in range(draws)])
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
    claim = f"{_CLEAR:g} or more, beyond shuffled labels: families are the two orders"
    return _findings(record, "order", "wording", record.of.provenance(), ari=(claim, two))


def found_wording(record: Split) -> Findings:
    """Do families follow the wording?"""
    return _findings(record, "wording", "order", record.of.provenance("Pythia-160M"))


def _follows(record: Split, label: str, other: str) -> bool:
    """There are families; a label tells them, for the most part and better than another; and sets circuits apart."""
    agreement, tells, other_tells = record.agreement(label), record.tells.get(label), record.tells.get(other)
    if not record.separate or agreement is None or tells is None:
        return False
    clear = tells.p <= LEVEL and tells.value >= _CLEAR
    return clear and (other_tells is None or tells.value > other_tells.value) and sets_apart(agreement)


def _findings(record: Split, label: str, other: str, of: Provenance, ari: Claim = NO_CLAIM) -> Findings:
    """What the cut is like, and what labels say of it; `ari` is a claim about the label, too."""
    follows = _follows(record, label, other)
    claim: Claim = (
        f"{_CLEAR:g} or more, and more than of {other}, with circuits of the same {label} nearer than others, and so "
        "the nearest one",
        follows,
    )
    rows = [Finding("circuits", record.of.right), *_cut(record.levels[0])]
    for level in record.levels:
        first = level is record.levels[0]
        rows += of_part(level.granularity, *_of_level(level, {label: ari} if first else {}, shuffled=first))
    for name, tells in record.tells.items():
        key = f"{name} and families"
        rows += rows_of({key: tells.value, f"{key}, shuffled": tells.high}, {f"{label} and families": claim}, digits=2)
    remark = (
        "The cut is by average linkage on sets of edges with channels. A label and families tell each other, the finer "
        f"the coarser, on a scale where chance is 0 and certainty 1. All against shuffled labels, p {LEVEL:g}; of "
        "these, what 95 % are below."
    )
    unless = (
        f"{label} and families do, and the cut is a real one: stable under resampling, and better than cuts of two "
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


def _of_level(level: Level, claims: Mapping[str, Claim], *, shuffled: bool) -> list[Finding]:
    """Families of circuits as sets of something, and what labels say of them; claims about an ARI, by label."""
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
            claim = claims.get(label, NO_CLAIM) if beside is ari else NO_CLAIM
            rows.append(Finding(f"{name} {label}", beside.value, *claim))
            if shuffled:
                rows.append(Finding(f"{name} {label}, shuffled", beside.high))
    return rows


def _draw(record: Split) -> Mapping[str, Figure]:
    return {} if record.families is None else {"families": record.families.plot()}


def _purity(codes: Int[np.ndarray, "circuits"], groups: Int[np.ndarray, "circuits"]) -> float:
    table = np.zeros((int(codes.max(initial=0)) + 1, int(groups.max(initial=0)) + 1))
    np.add.at(table, (codes, groups), 1)
    return float(table.max(1).sum() / max(len(codes), 1))


@dataclass(frozen=True)
class Mixed:
    """The average over all circuits, those of families, and those of as many random circuits."""

    of: Prompts
    separate: bool  # are there families?
    averages: tuple[Average, ...]  # of all; then each family's and that of as many circuits at random

    @property
    def whole(self) -> Average:
        """Of all circuits."""
        return self.averages[0]

    @property
    def families(self) -> tuple[tuple[Average, Average], ...]:
        """Each family beside random circuits."""
        return tuple(zip(self.averages[1::2], self.averages[2::2], strict=True))


def mixed_of(study: Study, job: Job) -> Mixed:
    """Averages of circuits as sets of edges with channels."""
    return Mixed(study.of, study.families.clustering.separate, study.families.averages)


def density(average: Average) -> float:
    """How many times a circuit is all that any circuit of a group has?"""
    return average.union / max(average.mean_size, 1e-9)


def found_average(record: Mixed) -> Findings:
    """Is the average no prompt's circuit? If it is denser than families, and less like its circuits.

    These two alone show nothing: families are cut so that their circuits are alike.
    """
    whole, families = record.whole, record.families
    dense = all(density(family) < density(random) for family, random in families)
    mixes = all(family.typical > random.typical for family, random in families)
    claim = "below 100 %, and no circuit has all of what at least half of them have"
    rows = [
        Finding("circuits", whole.circuits),
        Finding("union", whole.union),
        Finding("mean size", whole.mean_size, digits=1),
        Finding("density", density(whole), digits=1),
        Finding("in half of them", whole.size),
        Finding("shared with a circuit", whole.typical, percent=True),
        Finding("shared at most", whole.nearest, claim, whole.nearest < 1 and whole.held < 1, percent=True),
        Finding("have all of it", whole.whole, percent=True),
        Finding("lacks of a circuit", whole.missed, percent=True),
        Finding("families", len(families)),
        Finding("cut into families", "is believed" if record.separate else "is not believed"),
    ]
    for family, random in families:
        rows += of_part(
            family.group,
            Finding("circuits", family.circuits),
            Finding("density", density(family), digits=1),
            Finding("density, random", density(random), digits=1),
            Finding("shared with a circuit", family.typical, percent=True),
            Finding("shared with a circuit, random", random.typical, percent=True),
        )
    remark = (
        "The slide is a drawing; claims are what it says. Union: the edges with channels that any circuit of a group "
        "has; density: how many times it is one circuit. The average has what at least half of the circuits have. "
        "Families are cut to be alike; what decides is whether any prompt's circuit has all of the average of all. "
        "Random: as many circuits, whatever their family."
    )
    unless = (
        "a cut into several families is stable and better than chance, and each of them is less dense than as many "
        "random circuits, with an average that is more like its circuits"
    )
    first = record.separate and len(families) > 1 and dense and mixes
    return Findings(rows, record.of.provenance(), first=first, unless=unless, remark=remark)


def _draw_averages(record: Mixed) -> Mapping[str, Figure]:
    groups = [(record.whole,), *record.families]
    title = "Averages over all circuits and within families (blue), and over as many random circuits (grey)"
    shared: Callable[[Average], float] = attrgetter("typical")
    names = ["what any circuit has, in circuits", "shared by the average and a circuit"]
    size = (max(7.0, 0.9 * len(groups) + 4.5), 3.6)
    figure, axes = panels(names, title, size, sharey=False)
    for axis, measure in zip(axes, (density, shared), strict=True):
        for at, pair in enumerate(groups):
            for shift, average, shade in zip((-0.2, 0.2), pair, (BLUE, GREY), strict=False):
                axis.bar([at + shift], [measure(average)], width=0.38, color=shade)
        axis.set_xticks(range(len(groups)), [group.group.replace("family ", "") for group, *_ in groups])
        axis.set_xlim(-0.8, max(len(groups), 4) - 0.4)  # a single bar would fill the panel
        axis.set_xlabel("family")
    return {"averages": figure}


RUNS: dict[str, Attempt] = {
    "talk-13": Experiment(partial(of_study, mixed_of), found_average, _draw_averages),
    "talk-14": Experiment(partial(of_study, split_of), found_order, _draw),
    "talk-15": Experiment(partial(of_study, split_of), found_wording, _draw),
}
