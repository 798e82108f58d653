"""Does one circuit stand for a family? The representative of one half of it beside the circuits of the other half."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from keyhole.family import Families, medoid
from keyhole.figures.style import BLUE, GREY
from keyhole_papers.experiment import Experiment
from keyhole_papers.finding import Finding, Findings, Interval, of_part
from keyhole_papers.job import Attempt
from keyhole_papers.svt.ioi import LEAST
from keyhole_papers.svt.panels import spreads
from keyhole_papers.talk.study import ORDERS, Prompts, Study, of_study

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


def findings(record: Representatives) -> Findings:
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


def _draw(record: Representatives) -> Mapping[str, Figure]:
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


RUNS: dict[str, Attempt] = {"talk-16": Experiment(partial(of_study, representatives_of), findings, _draw)}
