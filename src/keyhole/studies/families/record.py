"""What is known of a store's families? Their record, the averaged circuits, and the circuits beyond the sample.

Is the averaged circuit the circuit of any prompt? It has the terms that at least half of the circuits have, and is
compared with each of these circuits. A term's share is a mean over prompts, so its variance under bootstrap is that of
one prompt over their number. Whether other prompts would give the same average is measured by resampling prompts.
Random groups, as large as each family, show what the size of a group does alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from keyhole.brief import brief
from keyhole.report import Report, Reported
from keyhole.studies.families.agreement import Agreement, Representative, adjusted_rand
from keyhole.studies.families.clusters import Clustering
from keyhole.studies.families.cuts import OUTSIDE, cuts_of, least_size, tree_of
from keyhole.studies.families.distances import Granularity, between, between_blocks, in_common

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from keyhole.studies.families.sets import Sets

SHARE = 0.5  # of the prompts: a term of the averaged circuit is had by as many
_DRAWS = 100
_CONTROLS = 10


@dataclass(frozen=True)
class Average:
    """The averaged circuit of a group of circuits, compared with these circuits."""

    group: str
    circuits: int
    union: int  # terms that any circuit has
    mean_size: float  # terms of one circuit
    size: int  # terms of the averaged circuit
    variance: float  # of the presence of its terms, from prompt to prompt: mean of share (1 - share); 0.25 at most
    deviation: float  # of the shares under bootstrap, the mean over its terms
    again: float  # Jaccard of it with the averaged circuits of resampled prompts
    nearest: float  # Jaccard with the most similar circuit of the group
    typical: float  # Jaccard with a circuit of the group, the mean
    held: float  # share of its terms that the circuit which has most of them has
    whole: float  # share of circuits that have all of its terms
    missed: float  # share of a circuit's own terms that it lacks, the mean


_NUMBERS = tuple(number.name for number in fields(Average) if number.name != "group")
_WHOLE = ("circuits", "union", "size")


def averages(
    matrix: "csr_array", groups: Sequence[tuple[str, Int[np.ndarray, "members"]]], *, seed: int = 0
) -> tuple[Average, ...]:
    """How much of the averaged circuit do circuits have? For all circuits, for each group, and for random groups.

    Args:
        matrix: Circuits as rows, terms as columns: the matrix of a `Sets`.
        groups: The name and the rows of each group.
        seed: Seed of resamples and of the random groups.

    Returns:
        The average of all circuits, then that of each group, followed by the mean of random groups of the same size.

    >>> from scipy.sparse import csr_array
    >>> everyone, = averages(csr_array([[1.0, 1, 0], [1, 0, 1], [1, 1, 0]]), [])
    >>> everyone.size, everyone.union, round(everyone.whole, 2)
    (2, 3, 0.67)
    """
    rng, n = np.random.default_rng(seed), matrix.shape[0]
    binary = matrix.copy()
    binary.data = np.ones_like(binary.data)
    results = [average(binary, np.arange(n), "all", rng=rng)]
    for name, members in groups:
        results.append(average(binary, members, name, rng=rng))
        random = [rng.choice(n, len(members), replace=False) for _ in range(_CONTROLS)]
        results.append(
            _mean([average(binary, np.sort(drawn), f"as many at random ({name})", rng=rng) for drawn in random])
        )
    return tuple(results)


def average(
    matrix: "csr_array", members: Int[np.ndarray, "members"], group: str, *, rng: np.random.Generator
) -> Average:
    """The averaged circuit of these rows of a binary matrix."""
    from scipy.sparse import csr_array

    rows = matrix[members]
    n, sizes = len(members), np.diff(rows.indptr)
    shares = np.asarray(rows.sum(0)).ravel() / n
    kept = shares >= SHARE
    size = int(kept.sum())
    inside = np.asarray(rows @ kept.astype(np.float64)).ravel()  # how many of the average's terms each circuit has
    alike = 1 - between(rows, csr_array(kept[None, :].astype(np.float64)))[:, 0]
    drawn = _resampled(rows, rng)
    return Average(
        group=group,
        circuits=n,
        union=int((shares > 0).sum()),
        mean_size=float(sizes.mean()),
        size=size,
        variance=_mean_over(shares * (1 - shares), kept),
        deviation=_mean_over(drawn.std(0), kept),
        again=float(in_common(drawn >= SHARE, kept).mean()),
        nearest=float(alike.max()),
        typical=float(alike.mean()),
        held=float(inside.max() / max(size, 1)),
        whole=float((inside == size).mean()),
        missed=float(np.mean(1 - inside / np.maximum(sizes, 1))),
    )


def _resampled(rows: "csr_array", rng: np.random.Generator) -> Float[np.ndarray, "draws terms"]:
    """The share of prompts that have each term, in resamples of the prompts."""
    n = rows.shape[0]
    counts = rng.multinomial(n, np.full(n, 1 / n), size=_DRAWS).astype(np.float64)
    return np.asarray((rows.T @ counts.T).T / n)


def _mean_over(values: Float[np.ndarray, "terms"], kept: Bool[np.ndarray, "terms"]) -> float:
    return float(values[kept].mean()) if kept.any() else 0.0


def _mean(group: Sequence[Average]) -> Average:
    """The mean of every number over several groups."""
    means = {name: float(np.mean([getattr(each, name) for each in group])) for name in _NUMBERS}
    rounded: dict[str, Any] = {name: round(mean) if name in _WHOLE else mean for name, mean in means.items()}
    return Average(group=group[0].group, **rounded)


# The record of a study of families, which has its text, figure, page and files.


@dataclass(frozen=True, repr=False)
class Family:
    """Circuits that belong together."""

    number: int  # 1 for the largest
    members: tuple[int, ...]  # prompts
    representative: int  # the prompt whose circuit is nearest to all others
    stability: float  # mean Jaccard with the nearest family of resampled circuits; NaN: there is but one
    silhouette: float  # mean over its members in the sample
    mean_distance: float  # of two members
    mean_size: float  # terms of a member
    common: Mapping[str, tuple[str, float]]  # by label: the most frequent value, and its share of the members

    __repr__ = brief

    @property
    def size(self) -> int:
        """How many circuits belong to it."""
        return len(self.members)


@dataclass(frozen=True, repr=False)
class Level:
    """The result at one granularity."""

    granularity: Granularity
    terms: int
    mean_size: float  # terms of a circuit
    mean_distance: float
    clustering: Clustering
    agreement: tuple[Agreement, ...]

    __repr__ = brief


@dataclass(frozen=True)
class Rest:
    """Circuits beyond the sample: each was assigned to the family of least mean distance, if near enough."""

    circuits: int
    outside: int  # too far from every family
    held_out: int  # circuits of the sample that were left out of a cut, and then assigned in the same way
    agreement: float  # ARI of their families with those they have in the cut of the whole sample


@dataclass(frozen=True)
class About:
    """The store, the settings, and how many circuits there were."""

    store: str
    model: str
    task: str
    granularity: Granularity
    side: bool
    role: bool
    weighted: bool
    where: str
    seed: int
    prompts: int  # in the store
    circuits: int  # that have a circuit
    matching: int  # of these, that are as `where` says
    sampled: int  # of these, that were cut


@dataclass(frozen=True, repr=False)
class Families(Reported):
    """Families of circuits; `str()` reads as a report."""

    about: About
    prompts: Int[np.ndarray, "circuits"]  # numbers of the prompts whose circuits these are
    labels: Int[np.ndarray, "circuits"]  # which family each is of; 0: outside of all
    families: tuple[Family, ...]
    levels: tuple[Level, ...]  # the granularity that was cut comes first
    representatives: tuple[Representative, ...]  # of each family
    averages: tuple[Average, ...]  # of all circuits and of each family
    rest: Rest | None
    sample: Int[np.ndarray, "sampled"] = field(repr=False)  # prompts that were cut
    distances: Float[np.ndarray, "sampled sampled"] = field(repr=False)  # between the circuits that were cut
    values: Mapping[str, tuple[str | None, ...]] = field(repr=False)  # labels of the sample's prompts

    __repr__ = brief

    @property
    def clustering(self) -> Clustering:
        """Tree, cuts and nulls at the granularity that was cut."""
        return self.levels[0].clustering

    def report(self) -> Report:
        """What was cut, which families there are, and how significant they are."""
        from keyhole.studies.families.report import report

        return report(self)

    def record(self) -> dict[str, Any]:
        """All of it as plain values, without distances and trees."""
        from keyhole.studies.families.report import record

        return record(self)


# Which family does a circuit beyond the sample belong to? The nearest, if its mean distance is below the height of the
# cut: average linkage joins circuits to clusters by the same rule.

_COMPARED = 200  # members of a family with which a circuit is compared
_HELD_OUT = 0.2  # share of the sample


def assign_rest(
    sets: "Sets",
    sample: Int[np.ndarray, "sampled"],
    cut: tuple[Int[np.ndarray, "sampled"], Clustering],
    *,
    distances: Float[np.ndarray, "sampled sampled"],
    seed: int,
) -> tuple[Int[np.ndarray, "circuits"], Rest]:
    """The family of every circuit of `sets`, when a sample of them was cut; and how well held-out ones are assigned."""
    labels, clustering = cut
    rng = np.random.default_rng(seed)
    inside = np.isin(sets.prompts, sample)
    assigned = np.full(len(sets), OUTSIDE)
    assigned[inside] = labels
    rest = np.flatnonzero(~inside)
    if labels.max() < 2:
        assigned[rest] = 1
        return assigned, Rest(len(rest), 0, 0, float("nan"))
    assert clustering.cut is not None
    chosen = np.flatnonzero(inside)[_some_of_each(labels, rng)]
    chosen_labels = assigned[chosen]
    for here, block in between_blocks(sets.matrix[rest], sets.matrix[chosen]):
        assigned[rest[here]] = _nearest(block, chosen_labels, clustering.cut.height)
    held_out, agreement = _held_out(distances, labels, rng)
    return assigned, Rest(len(rest), int((assigned[rest] == OUTSIDE).sum()), held_out, agreement)


def _nearest(
    distances: Float[np.ndarray, "rows chosen"], labels: Int[np.ndarray, "chosen"], height: float
) -> Int[np.ndarray, "rows"]:
    means = np.stack([distances[:, labels == family].mean(1) for family in range(1, int(labels.max()) + 1)], 1)
    return np.where(means.min(1) < height, means.argmin(1) + 1, OUTSIDE)


def _some_of_each(labels: Int[np.ndarray, "sampled"], rng: np.random.Generator) -> Int[np.ndarray, "chosen"]:
    families = range(1, int(labels.max()) + 1)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == family))[:_COMPARED] for family in families])


def _held_out(
    distances: Float[np.ndarray, "sampled sampled"], labels: Int[np.ndarray, "sampled"], rng: np.random.Generator
) -> tuple[int, float]:
    """Cut the sample without a part of it, and assign that part: how many circuits, and the ARI with the whole cut."""
    order = rng.permutation(len(labels))
    held_out, others = np.sort(order[: int(_HELD_OUT * len(order))]), np.sort(order[int(_HELD_OUT * len(order)) :])
    apart = distances[np.ix_(others, others)]
    families = int(labels.max())
    cuts = cuts_of(apart, tree_of(apart), least=least_size(len(others)), most=families)
    if families not in cuts:
        return len(held_out), float("nan")
    cut = cuts[families]
    inside = np.flatnonzero(cut.labels)
    assigned = _nearest(distances[np.ix_(held_out, others[inside])], cut.labels[inside], cut.height)
    return len(held_out), adjusted_rand(labels[held_out], assigned)
