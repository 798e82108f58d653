"""Why are circuits traced prompt by prompt? What an average over prompts mixes, beside averages within families."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from keyhole.family import Average
from keyhole.figures.style import BLUE, GREY
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, of_part
from keyhole_papers.job import Attempt
from keyhole_papers.svt.panels import panels
from keyhole_papers.talk.study import Prompts, Study, of_study


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


def findings(record: Mixed) -> Findings:
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


def _draw(record: Mixed) -> Mapping[str, Figure]:
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


RUNS: dict[str, Attempt] = {"talk-13": Experiment(partial(of_study, mixed_of), findings, _draw)}
