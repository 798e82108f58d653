"""Does one circuit stand for a group of circuits, and how does each order's representative find IO?

A way is seen by what its signals follow when the two names change places.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, GREY, panels
from keyhole.naming.cues import BREAKS, Break
from keyhole.naming.naming import Namers
from keyhole.naming.subjects.subject import same_direction
from keyhole.stats import Interval
from keyhole.studies.families.agreement import medoid
from keyhole.studies.families.record import Families
from keyhole_papers.experiment import NAMERS, Attempt, Experiment, Job, spreads
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, of_part, rows_of
from keyhole_papers.svt import LEAST
from keyhole_papers.talk import ORDERS, Prompts, Study, of_study
from keyhole_papers.talk.names import NameStudy, Way, of_names

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


def representatives_of(study: Study, job: Job) -> Representatives:
    """All groups of circuits that a representative is said to stand for."""
    of, rng = study.families, np.random.default_rng(study.families.about.seed)
    groups = [stood_for(of.distances, members, name, of.sample, rng=rng) for name, members in _groups(of)]
    return Representatives(study.of, tuple(groups))


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
    within = distances[np.ix_(members, members)]
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
        typical=float(within.sum(dtype=np.float64) / max(n * (n - 1), 1)),
        held_out=_spread(held),
        member=_spread(others),
        nearer=float(np.mean(np.array(held) < np.array(others))),
        again=float(np.mean(again)),
        same=float(np.mean(same)),
    )


def found_representatives(record: Representatives) -> Findings:
    """Does it stand for circuits that it was not chosen among, and is it nearly the same for other prompts?"""
    rows, holds = [Finding("groups", len(record.groups))], list[bool]()
    for group in record.groups:
        nearer, same = group.nearer >= _MOST, group.again < group.typical
        holds.append(nearer and same)
        rows += of_part(
            group.group,
            Finding("circuits", group.circuits),
            Finding("prompt of the representative", group.prompt),
            Finding("distance from the others", group.mean),
            Finding("distance of two", group.typical),
            Finding("distance held out", group.held_out),
            Finding("distance of others held out", group.member),
            Finding("nearer", group.nearer, f"{_MOST:.0%} of {_SPLITS} splits or more", nearer, percent=True),
            Finding("distance of halves' representatives", group.again, "less than that of two circuits", same),
            Finding("same", group.same, percent=True),
        )
    remark = (
        "A representative is nearest to all others of its group by definition, which tells nothing of a model. The "
        "claims are not: chosen in a random half of the group, is it nearer to the other half than that half's "
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
    rows = {f"{of.group} ({of.circuits})": ((of.held_out, BLUE), (of.member, GREY)) for of in record.groups}
    figure, _ = spreads(rows, title, (7.5, 0.45), "mean Jaccard distance (95 % of splits)")
    return {"representatives": figure}


def _groups(families: Families) -> list[tuple[str, np.ndarray]]:
    """Both orders; and families, if there are several. Those with too few circuits for two halves are left out."""
    values = families.values.get("order", ())
    groups = [(order, np.flatnonzero([value == order for value in values])) for order in ORDERS]
    if len(families.families) > 1:
        for family in families.families:
            groups.append((f"family {family.number}", np.flatnonzero(np.isin(families.sample, family.members))))
    return [(name, members) for name, members in groups if len(members) >= 2 * LEAST]


def _spread(values: list[float]) -> Interval:
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(np.mean(values)), float(low), float(high))


_KINDS = ("place", "person", "anywhere", "extra")  # what a signal may follow
_SHOWN = 4  # signals of which it is said where they fire
_MORE = "more of the signals than of random directions (Fisher's exact test, 0.05)"
_WORDS: dict[str, tuple[str, ...]] = {  # what a name would say
    "BABA": ("second",),
    "ABBA": ("first", "second", "latest", "tokens before dest"),
}


@dataclass(frozen=True)
class Solved:
    """One order's way, and the other's."""

    of: Prompts
    way: Way
    other: Way
    by: Namers = field(default_factory=Namers)

    @property
    def named(self) -> list[str]:
        """Signals whose name, above chance, speaks of a place."""
        words = _WORDS[self.way.order]
        return [key for key, name in self.way.names.items() if any(word in name for word in words)]

    @property
    def shared(self) -> int:
        """Signals that follow a place and are among those of the other order's representative."""
        placed = {follows.signal for follows in self.way.signals if follows.place}
        directions = [follows for follows in self.way.directions if follows.id in placed]
        return sum(any(a.head == b.head and same_direction(a, b) for b in self.other.directions) for a in directions)


def solved_of(order: str, names: NameStudy) -> Solved:
    """One of the two."""
    way, other = sorted(names.ways, key=lambda way: way.order != order)
    return Solved(names.of, way, other, names.by)


def found_baba(record: Solved) -> Findings:
    """Is IO marked by its place, do S-inhibition heads tell name movers, and do these write the answer?"""
    way = record.way
    claims: dict[str, Claim] = {
        "name movers": ("one that writes the answer", bool(way.movers)),
        "S-inhibition heads": ("one that looks at S2 and tells a name mover where to look", bool(way.inhibition)),
    }
    return _findings(record, "second", claims)


def found_abba(record: Solved) -> Findings:
    """Is IO found by its place here, too, and by other signals than in the other order?"""
    placed = sum(follows.place for follows in record.way.signals)
    claim = "less than half of the signals that follow a place"
    return _findings(record, "first", {"shared with the other order": (claim, 2 * record.shared < placed)})


def _findings(record: Solved, place: str, claims: Mapping[str, Claim]) -> Findings:
    """What the signals follow, and claims about other numbers by their names."""
    way, placed = record.way, record.way.beyond("place")
    counts = {
        "names above chance": len(way.names),
        "names of a place": len(record.named),
        "shared with the other order": record.shared,
        "name movers": len(way.movers),
        "S-inhibition heads": len(way.inhibition),
    }
    rows = rows_of(counts, claims)
    for group, signals in (("signals", way.signals), ("random", way.random)):
        rows.append(Finding(group, len(signals)))
        claim = (_MORE, placed) if group == "signals" else NO_CLAIM
        kinds = {kind: sum(getattr(signal, kind) for signal in signals) for kind in _KINDS}
        rows += rows_of(kinds, {"place": claim}, part=group)
    for signal in way.signals[:_SHOWN]:
        shown = {
            f"fires in {how}": f"{signal.at(how, 'IO'):.0%} at IO and {signal.at(how, 'S1'):.0%} at S" for how in BREAKS
        }
        if signal.signal in way.names:
            shown["is named"] = way.names[signal.signal]
        rows += rows_of(shown, part=signal.signal)
    remark = (
        f"Of {way.order}, prompt {way.prompt}: signals into heads that look from the end at IO, and random directions "
        f"of the same heads. Name movers: {', '.join(way.movers) or 'none'}; heads that look at S2 and tell them where "
        f"to look: {', '.join(way.inhibition) or 'none'}. A signal fires with half of its usual value or more. It "
        f"follows a place (IO's is the {place} of the two names) if it fires at IO in intact prompts, and at S where "
        "the two names changed places, in half of the prompts more than the other way round; a person, if at IO in "
        f"both. {record.by}"
    )
    unless = "more of the signals follow a place than of random directions"
    return Findings(rows, record.of.provenance(), first=placed, unless=unless, remark=remark)


def _draw(record: Solved) -> Mapping[str, Figure]:
    if not record.way.signals:
        return {}
    names: dict[Break, str] = {"intact": "intact", "order": "names in the other order"}
    title = f"{record.way.order}: where do signals fire?"
    figure, axes = panels(names.values(), title, (8.5, 3.6), x="share of prompts, at IO")
    for axis, how in zip(axes, names, strict=True):
        for group, shade, size in ((record.way.random, GREY, 16), (record.way.signals, BLUE, 30)):
            x, y = ([signal.at(how, role) for signal in group] for role in ("IO", "S1"))
            axis.scatter(x, y, s=size, color=shade, alpha=0.7, linewidths=0)
        axis.set_xlim(-0.05, 1.05)
        axis.set_ylim(-0.05, 1.05)
    axes[0].set_ylabel("at S (signals blue, random directions grey)")
    return {"cues": figure}


RUNS: dict[str, Attempt] = {
    "talk-16": Experiment(partial(of_study, representatives_of), found_representatives, _draw_representatives),
    "talk-20": Experiment(partial(of_names, partial(solved_of, "BABA")), found_baba, _draw, heeds=NAMERS),
    "talk-21": Experiment(partial(of_names, partial(solved_of, "ABBA")), found_abba, _draw, heeds=NAMERS),
}
