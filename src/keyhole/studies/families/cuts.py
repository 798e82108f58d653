"""At which height is the tree of circuits cut? Every cut from the top, its stability, and null models without families.

Average linkage first splits off outliers, one by one. So a family has a least size, and circuits in smaller clusters
lie outside. They count as 0 in the mean silhouette, so that no cut gains by leaving many circuits out.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int

from keyhole.studies.families.distances import condensed, jaccard

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

OUTSIDE = 0  # the number of circuits in no family; families count from 1
COVERED = 0.5  # least share of circuits that are in a family of a cut


@dataclass(frozen=True)
class Cut:
    """A tree, cut at one height."""

    families: int
    silhouette: float  # mean over all circuits; those outside count as 0
    outside: int  # circuits
    height: float  # clusters with a mean distance below it were joined
    labels: Int[np.ndarray, "circuits"]  # 1 for the largest family; 0 outside


def tree_of(distances: Float[np.ndarray, "circuits circuits"]) -> Float[np.ndarray, "merges 4"]:
    """Average linkage, as scipy has it."""
    from scipy.cluster.hierarchy import linkage

    return np.asarray(linkage(condensed(distances), "average"))


def least_size(circuits: int) -> int:
    """The fewest circuits that are called a family: 2 %, at least 5.

    >>> least_size(100), least_size(600), least_size(10_000)
    (5, 12, 200)
    """
    return max(5, round(0.02 * circuits))


def summed(
    distances: Float[np.ndarray, "circuits circuits"], labels: Int[np.ndarray, "circuits"]
) -> Float[np.ndarray, "circuits families"]:
    """Each circuit's summed distance from the members of each family."""
    return np.stack([distances[labels == family].sum(0, dtype=np.float64) for family in range(1, labels.max() + 1)], 1)


def cuts_of(
    distances: Float[np.ndarray, "circuits circuits"], tree: Float[np.ndarray, "merges 4"], *, least: int, most: int
) -> dict[int, Cut]:
    """The best cut for every number of families, from 2 to `most`, that leaves no more than half of all outside."""
    cuts: dict[int, Cut] = {}
    for height, clusters, sums in _from_the_top(distances, tree, least):
        families = sorted(clusters, key=lambda cluster: -len(clusters[cluster]))
        inside = sum(len(clusters[cluster]) for cluster in families)
        if inside < COVERED * len(distances):
            break
        if not 2 <= len(families) <= most:
            continue
        labels = np.full(len(distances), OUTSIDE)
        for number, cluster in enumerate(families, 1):
            labels[clusters[cluster]] = number
        mean = float(silhouettes(np.stack([sums[cluster] for cluster in families], 1), labels).mean())
        if len(families) not in cuts or mean > cuts[len(families)].silhouette:
            cuts[len(families)] = Cut(len(families), mean, len(distances) - inside, height, labels)
    return cuts


def silhouettes(
    sums: Float[np.ndarray, "circuits families"], labels: Int[np.ndarray, "circuits"]
) -> Float[np.ndarray, "circuits"]:
    """How much nearer is each circuit to its own family than to the next? From summed distances to each family."""
    sizes = np.bincount(labels, minlength=sums.shape[1] + 1)[1:]
    values = np.zeros(len(labels))
    inside = np.flatnonzero(labels != OUTSIDE)
    family = labels[inside] - 1
    means = sums[inside] / sizes
    within = sums[inside, family] / np.maximum(sizes[family] - 1, 1)  # the mean over the other members
    means[np.arange(len(inside)), family] = np.inf
    other = means.min(1)
    values[inside] = (other - within) / np.maximum(np.maximum(other, within), np.finfo(float).tiny)
    return values


def _from_the_top(
    distances: Float[np.ndarray, "circuits circuits"], tree: Float[np.ndarray, "merges 4"], least: int
) -> Iterator[tuple[float, dict[int, np.ndarray], dict[int, np.ndarray]]]:
    """(height, members, summed distances) of all clusters of at least this size after each split, the highest first.

    After a split only the distances to the smaller part are summed; those to the larger one are the difference from the
    sums before. Clusters below the least size are not followed.
    """
    n = len(distances)
    leaves = _members(tree, n)
    clusters = {2 * n - 2: leaves(2 * n - 2)}
    sums = {2 * n - 2: distances.sum(1, dtype=np.float64)}
    for at in range(n - 2, -1, -1):
        if at + n not in clusters:
            continue
        del clusters[at + n]
        whole = sums.pop(at + n)
        parts = [(leaves(int(child)), int(child)) for child in tree[at, :2]]
        (few, small), (many, large) = sorted(parts, key=lambda part: len(part[0]))
        to_few = distances[few].sum(0, dtype=np.float64)  # by rows, which are contiguous in memory
        for members, child, total in ((few, small, to_few), (many, large, whole - to_few)):
            if len(members) >= least:
                clusters[child], sums[child] = members, total
        yield float(tree[at, 2]), clusters, sums


def _members(tree: Float[np.ndarray, "merges 4"], n: int) -> Callable[[int], np.ndarray]:
    """Which circuits a cluster has: a slice of the leaves in the tree's order."""
    from scipy.cluster.hierarchy import leaves_list

    order = leaves_list(tree)
    start = np.zeros(2 * n - 1, np.int64)
    size = np.concatenate([np.ones(n, np.int64), tree[:, 3].astype(np.int64)])
    for at in range(n - 2, -1, -1):
        left, right = int(tree[at, 0]), int(tree[at, 1])
        start[left], start[right] = start[at + n], start[at + n] + size[left]

    def leaves(cluster: int) -> Int[np.ndarray, "members"]:
        return np.asarray(order[start[cluster] : start[cluster] + size[cluster]])

    return leaves


# Would other prompts give the same families? The Jaccard of each family with its best match in a resample (Hennig
# 2007).
#
# Circuits are drawn with replacement, and each is taken once, as is usual: two copies at distance 0 would be a cluster
# of their own. Every resample is cut into the same number of families.

MOST = 1500  # circuits of a resample: the time grows with their square
STABLE = 0.75  # mean Jaccard from which on a family is usually called stable


def stabilities(
    distances: Float[np.ndarray, "circuits circuits"],
    cuts: Mapping[int, Cut],
    *,
    least: int,
    draws: int,
    rng: np.random.Generator,
) -> dict[int, Float[np.ndarray, "families"]]:
    """For every cut, the mean Jaccard of each family with the nearest family of a resample; 0 without such a cut."""
    n = len(distances)
    totals = {families: np.zeros(families) for families in cuts}
    for _ in range(draws):
        drawn = np.unique(rng.integers(n, size=min(n, MOST)))
        apart = distances[np.ix_(drawn, drawn)]
        fewest = max(2, round(least * len(drawn) / n))
        again = cuts_of(apart, tree_of(apart), least=fewest, most=max(cuts, default=2))
        for families, cut in cuts.items():
            if families in again:
                totals[families] += matches(cut.labels[drawn], again[families].labels, families)
    return {families: total / draws for families, total in totals.items()}


def matches(
    labels: Int[np.ndarray, "drawn"], others: Int[np.ndarray, "drawn"], families: int
) -> Float[np.ndarray, "families"]:
    """Jaccard of each family's members with those of the most similar family of another cut; 0 is no family.

    >>> matches(np.array([1, 1, 1, 2, 0]), np.array([2, 2, 1, 1, 1]), 2).round(2).tolist()
    [0.67, 0.33]
    """
    table = np.zeros((families + 1, max(int(others.max(initial=0)), 1) + 1))
    np.add.at(table, (labels, others), 1)
    union = table.sum(1)[1:, None] + table.sum(0)[None, 1:] - table[1:, 1:]
    return np.asarray((table[1:, 1:] / np.maximum(union, 1)).max(1))


# Could one family look like several? Two null models without families, each cut in the same way.
#
# - *shuffled*: every circuit keeps its size, every term its frequency, and nothing else is kept (curveball trades).
#   Circuits of different sizes have different distances without any families, and only this null model allows for it.
# - *one cloud*: a single Gaussian with the covariance of the circuits. Terms depend on each other, since an edge needs
#   its heads. So one family is elongated and no ball, and against shuffled circuits alone it would count as several.
#   Jaccard's similarity is a kernel: 1 - J is half a squared distance between vectors, and their covariance is used.

_FIRST, _SWEEPS = 20, 4  # sweeps before the first draw, and between two draws


@dataclass(frozen=True)
class Trades:
    """Circuits that trade terms: every circuit keeps its size, every term its frequency (Strona et al. 2014)."""

    has: Bool[np.ndarray, "circuits terms"]

    def sweep(self, rng: np.random.Generator) -> None:
        """In random pairs, circuits pool the terms that only one of them has, and deal them out in the same numbers."""
        order = rng.permutation(len(self.has))
        for first, second in zip(order[::2], order[1::2], strict=False):
            has, others = self.has[first], self.has[second]
            pool = np.flatnonzero(has != others)
            drawn = rng.permutation(pool)[: int(has[pool].sum())]
            has[pool], others[pool] = False, True
            has[drawn], others[drawn] = True, False


def shuffled_distances(matrix: "csr_array") -> Callable[[np.random.Generator], np.ndarray]:
    """A function that draws distances of shuffled circuits; each draw continues from the one before.

    The weights of a term stay with it, and are dealt anew to the circuits that have it.
    """
    trades = Trades(matrix.toarray() != 0)
    by_term = matrix.tocsc()
    waiting = [_FIRST]

    def draw(rng: np.random.Generator) -> Float[np.ndarray, "circuits circuits"]:
        for _ in range(waiting[0]):
            trades.sweep(rng)
        waiting[0] = _SWEEPS
        return jaccard(_dealt(trades.has, by_term, rng))

    return draw


def _dealt(has: Bool[np.ndarray, "circuits terms"], by_term: "csc_array", rng: np.random.Generator) -> "csr_array":
    from scipy.sparse import csc_array, csr_array

    if (by_term.data == 1).all():
        return csr_array(has.astype(np.float64))
    term, circuit = np.nonzero(has.T)
    values = by_term.data[np.lexsort((rng.random(len(term)), term))]  # both are sorted by term, as many of each
    return csc_array((values, circuit, by_term.indptr), shape=has.shape).tocsr()


def centred_kernel(distances: Float[np.ndarray, "circuits circuits"]) -> Float[np.ndarray, "circuits circuits"]:
    """Inner products of circuits around their mean: Jaccard's similarity is a kernel."""
    similar = 1 - distances.astype(np.float64)
    return np.asarray(similar - similar.mean(0) - similar.mean(1)[:, None] + similar.mean())


def one_cloud(distances: Float[np.ndarray, "circuits circuits"]) -> Callable[[np.random.Generator], np.ndarray]:
    """A function that draws distances between as many points of one Gaussian with the covariance of the circuits."""
    variance = np.linalg.eigvalsh(centred_kernel(distances)).clip(0) / max(len(distances) - 1, 1)
    spread = np.sqrt(variance[variance > 1e-9 * variance.max(initial=1e-300)])

    def draw(rng: np.random.Generator) -> Float[np.ndarray, "circuits circuits"]:
        points = rng.standard_normal((len(distances), len(spread))) * spread
        norms = (points**2).sum(1)
        apart = (norms[:, None] + norms[None, :] - 2 * points @ points.T) / 2
        np.fill_diagonal(apart, 0)
        return np.asarray(apart.clip(0), np.float32)

    return draw
