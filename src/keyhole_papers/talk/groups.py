"""What stands for a group of circuits? Averages mix mechanisms within it; a representative is one of its circuits."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY
from keyhole.stats import Interval
from keyhole.studies.families.agreement import medoid
from keyhole.studies.families.record import Average, Families
from keyhole_papers.experiment import Attempt, Experiment
from keyhole_papers.finding import Finding, Findings, of_part
from keyhole_papers.svt import LEAST
from keyhole_papers.svt.answers import panels, spreads
from keyhole_papers.talk.families import ORDERS, Prompts, Study, of_study


@dataclass(frozen=True)
class Mixed:
    """The average over all circuits, those of families, and those of as many random circuits."""

    of: Prompts
    believed: bool  # are there families?
    averages: tuple[Average, ...]  # of all; then each family's and that of as many circuits at random

    @property
    def whole(self) -> Average:
        """Of all circuits."""
        return self.averages[0]

    @property
    def families(self) -> tuple[tuple[Average, Average], ...]:
        """Each family beside random circuits."""
        return tuple(zip(self.averages[1::2], self.averages[2::2], strict=True))


def mixed_of(seen: Study) -> Mixed:
    """Averages of circuits as sets of edges with channels."""
    return Mixed(seen.of, seen.families.clustering.separate, seen.families.averages)


def density(one: Average) -> float:
    """How many times a circuit is all that any circuit of a group has?"""
    return one.union / max(one.mean_size, 1e-9)


def _typical(one: Average) -> float:
    return one.typical


def found_average(record: Mixed) -> Findings:
    """Is the average no prompt's circuit? If it is denser than families, and less like its circuits.

    These two alone show nothing: families are cut so that their circuits are alike.
    """
    whole, families = record.whole, record.families
    dense = all(density(family) < density(random) for family, random in families)
    mixes = all(family.typical > random.typical for family, random in families)
    asked = "below 100 %, and no circuit has all of what at least half of them have"
    rows = [
        Finding("circuits", whole.circuits),
        Finding("union", whole.union),
        Finding("mean size", whole.mean_size, digits=1),
        Finding("density", density(whole), digits=1),
        Finding("in half of them", whole.size),
        Finding("shared with a circuit", whole.typical, percent=True),
        Finding("shared at most", whole.nearest, asked, whole.nearest < 1 and whole.held < 1, percent=True),
        Finding("have all of it", whole.whole, percent=True),
        Finding("lacks of a circuit", whole.missed, percent=True),
        Finding("families", len(families)),
        Finding("cut into families", "is believed" if record.believed else "is not believed"),
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
        "The slide is a drawing; asked is what it says. Union: the edges with channels that any circuit of a group "
        "has; density: how many times it is one circuit. The average has what at least half of the circuits have. "
        "Families are cut to be alike; what decides is whether any prompt's circuit has all of the average of all. "
        "Random: as many circuits, whatever their family."
    )
    unless = (
        "a cut into several families is believed, and each of them is less dense than as many random circuits, with "
        "an average that is more like its circuits"
    )
    first = record.believed and len(families) > 1 and dense and mixes
    return Findings(rows, record.of.provenance(), first=first, unless=unless, remark=remark)


def _draw_averages(record: Mixed) -> Mapping[str, Figure]:
    groups = [(record.whole, None), *record.families]
    title = "Averages over all circuits and within families (blue), and over as many random circuits (grey)"
    names = ["what any circuit has, in circuits", "shared by the average and a circuit"]
    size = (max(7.0, 0.9 * len(groups) + 4.5), 3.6)
    figure, axes = panels(names, title, size, sharey=False)
    for axis, measure in zip(axes, (density, _typical), strict=True):
        for at, (own, random) in enumerate(groups):
            axis.bar([at - 0.2], [measure(own)], width=0.38, color=BLUE)
            if random is not None:
                axis.bar([at + 0.2], [measure(random)], width=0.38, color=GREY)
        labels = [own.group.replace("family ", "") for own, _ in groups]
        axis.set_xticks(range(len(groups)), labels)
        axis.set_xlim(-0.8, max(len(groups), 4) - 0.4)  # a single bar would fill the panel
        axis.set_xlabel("family")
    return {"averages": figure}


_SPLITS = 100
_MOST = 0.95  # share of the splits


@dataclass(frozen=True)
class Stood:
    """One group's representative, and those of random halves of it; all distances are Jaccard's."""

    group: str
    prompt: int
    circuits: int
    mean: float  # distance of the representative from the others
    typical: float  # distance of two circuits of the group
    held_out: Interval  # of a half's representative from the other half; with 95 % of the splits
    member: Interval  # of the half's other circuits from the other half
    nearer: float  # share of splits in which the representative is nearer than the mean of the others
    again: float  # distance of a half's representative from the whole's, the mean
    same: float  # share of splits whose representative has the same terms


@dataclass(frozen=True)
class Representatives:
    """Of both orders, and of families where there are some."""

    of: Prompts
    groups: tuple[Stood, ...]


def representatives_of(seen: Study) -> Representatives:
    """All groups of circuits that a representative is said to stand for."""
    found = seen.families
    rng = np.random.default_rng(found.about.seed)
    return Representatives(
        seen.of,
        tuple(stood_for(found.distances, members, name, found.sample, rng=rng) for name, members in _groups(found)),
    )


def stood_for(
    distances: Float[np.ndarray, "circuits circuits"],
    members: Int[np.ndarray, "members"],
    group: str,
    prompts: Int[np.ndarray, "circuits"],
    *,
    rng: np.random.Generator,
    splits: int = _SPLITS,
) -> Stood:
    """A group's representative beside those of random halves, each measured on the half it was not chosen from."""
    at, mean = medoid(distances, members)
    n = len(members)
    own = distances[np.ix_(members, members)]
    held, others, again, same = [], [], [], []
    for _ in range(splits):
        order = rng.permutation(members)
        half, rest = order[: n // 2], order[n // 2 :]
        chosen, _ = medoid(distances, half)
        apart = distances[np.ix_(half, rest)].mean(1, dtype=np.float64)
        held.append(float(apart[half == chosen][0]))
        others.append(float(apart[half != chosen].mean()))
        again.append(float(distances[chosen, at]))
        same.append(distances[chosen, at] == 0)
    return Stood(
        group=group,
        prompt=int(prompts[at]),
        circuits=n,
        mean=mean,
        typical=float(own.sum(dtype=np.float64) / max(n * (n - 1), 1)),
        held_out=_spread(held),
        member=_spread(others),
        nearer=float(np.mean(np.array(held) < np.array(others))),
        again=float(np.mean(again)),
        same=float(np.mean(same)),
    )


def found_representatives(record: Representatives) -> Findings:
    """Does it stand for circuits that it was not chosen among, and is it nearly the same for other prompts?"""
    rows, holds = [Finding("groups", len(record.groups))], list[bool]()
    for one in record.groups:
        nearer, same = one.nearer >= _MOST, one.again < one.typical
        holds.append(nearer and same)
        rows += of_part(
            one.group,
            Finding("circuits", one.circuits),
            Finding("prompt of the representative", one.prompt),
            Finding("distance from the others", one.mean),
            Finding("distance of two", one.typical),
            Finding("distance held out", one.held_out),
            Finding("distance of others held out", one.member),
            Finding("nearer", one.nearer, f"{_MOST:.0%} of {_SPLITS} splits or more", nearer, percent=True),
            Finding("distance of halves' representatives", one.again, "less than that of two circuits", same),
            Finding("same", one.same, percent=True),
        )
    remark = (
        "A representative is nearest to all others of its group by definition, which tells nothing of a model. What "
        "is asked is not so: chosen in a random half of the group, is it nearer to the other half than that half's "
        "circuits are on average (distances held out), and how far is it from the whole group's representative? Both "
        "claims are to be expected of two groups or more wherever some circuits are more central than others: so this "
        "decides nothing about the published models. Intervals hold 95 % of the splits. Groups of circuits are left "
        "out that are too small for two halves."
    )
    of = record.of.provenance()
    judged = "untold" if len(holds) >= 2 and all(holds) else of.verdict([])
    return Findings(rows, of, remark=remark, judged=judged)


def _draw_representatives(record: Representatives) -> Mapping[str, Figure]:
    if not record.groups:
        return {}
    title = "Distance from the half that was not chosen from: the representative (blue), other circuits (grey)"
    rows = {f"{one.group} ({one.circuits})": ((one.held_out, BLUE), (one.member, GREY)) for one in record.groups}
    figure, _ = spreads(rows, title, (7.5, 0.45), "mean Jaccard distance (95 % of splits)")
    return {"representatives": figure}


def _groups(found: Families) -> list[tuple[str, np.ndarray]]:
    """Both orders; and families, if there are several. Those with too few circuits for two halves are left out."""
    values = found.values.get("order", ())
    groups = [(order, np.flatnonzero([value == order for value in values])) for order in ORDERS]
    if len(found.families) > 1:
        for family in found.families:
            groups.append((f"family {family.number}", np.flatnonzero(np.isin(found.sample, family.members))))
    return [(name, members) for name, members in groups if len(members) >= 2 * LEAST]


def _spread(values: list[float]) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(np.mean(values)), float(low), float(high))


RUNS: dict[str, Attempt] = {
    "talk-13": Experiment(partial(of_study, mixed_of), found_average, _draw_averages),
    "talk-16": Experiment(partial(of_study, representatives_of), found_representatives, _draw_representatives),
}
