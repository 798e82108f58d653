"""Why are circuits traced prompt by prompt? What an average over prompts mixes, beside averages within families."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from keyhole.family import Average
from keyhole.figures.style import BLUE, GREY
from keyhole_papers.job import Attempt
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.svt.panels import panels
from keyhole_papers.talk.study import Prompts, Study, of_study
from keyhole_papers.told import Experiment, Told, judged, stood_in


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


def judge(record: Mixed) -> Verdict:
    """Is the average no prompt's circuit? If it is denser than families, and less like its circuits.

    These two alone show nothing: families are cut so that their circuits are alike.
    """
    own = record.families
    dense = all(density(family) < density(random) for family, random in own)
    mixes = all(family.typical > random.typical for family, random in own)
    holds = [record.whole.nearest < 1 and record.whole.held < 1]
    return judged(record.of, holds, first=record.believed and len(own) > 1 and dense and mixes)


def _tell(record: Mixed) -> Told:
    whole, own = record.whole, record.families
    lines = [
        f"{whole.circuits} circuits of {whole.mean_size:.0f} edges with channels have {whole.union:,} of them in all, "
        f"{density(whole):.0f} times as many as one; {whole.size} are in at least half of them. That average shares "
        f"{whole.typical:.0%} with a circuit and {whole.nearest:.0%} with the nearest; {whole.whole:.0%} of circuits "
        f"have all of it, and it lacks {whole.missed:.0%} of a circuit."
    ]
    numbers: Numbers = {"circuits": whole.circuits, "union": whole.union, "mean size": whole.mean_size}
    numbers |= {"in half of them": whole.size, "shared with a circuit": whole.typical, "shared at most": whole.nearest}
    numbers |= {"have all of it": whole.whole, "lacks of a circuit": whole.missed, "families": len(own)}
    for family, random in own:
        lines.append(
            f"{family.group} ({family.circuits}): {density(family):.1f} times a circuit (as many at random "
            f"{density(random):.1f}), its average shares {family.typical:.0%} with a circuit ({random.typical:.0%})."
        )
        numbers |= {f"{family.group}: density": [density(family), density(random)]}
        numbers |= {f"{family.group}: shared with a circuit": [family.typical, random.typical]}
    if not record.believed:
        lines.append("No cut into families is believed: what differs between prompts is no mix of a few mechanisms.")
    note = (
        "The slide is a drawing; asked is what it says. There are families, by a cut that is believed, and for each of "
        "them: all that its circuits have is less, measured in circuits, than what as many random circuits have (the "
        "average of all is denser); its average is more like its circuits than theirs is (the average of all mixes). "
        "Families are cut to be so; what decides is whether any prompt's circuit has all of the average of all, which "
        f"is what at least half of the circuits have. {record.of.note} {stood_in(record.of)}"
    )
    return Told("\n".join(lines), numbers, note)


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


RUNS: dict[str, Attempt] = {"talk-13": Experiment(partial(of_study, mixed_of), judge, _tell, _draw)}
