"""Into how many families does a tree of circuits fall? Every cut from the top, and how good it is.

Average linkage first splits off outliers, one by one. So a family has at least a least size, and what a cut leaves in
smaller clusters lies outside: it counts as 0 in the mean silhouette, so that no cut gains by putting much aside.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from keyhole.family.distances import condensed

OUTSIDE = 0  # the number of circuits in no family; families count from 1
COVERED = 0.5  # share of circuits that the families of a cut hold at least


@dataclass(frozen=True)
class Cut:
    """One way to cut a tree."""

    families: int
    silhouette: float  # mean over all circuits; those outside count as 0
    outside: int  # circuits
    height: float  # circuits whose mean distance is below were joined
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
    return np.stack([distances[labels == one].sum(0, dtype=np.float64) for one in range(1, labels.max() + 1)], 1)


def cuts_of(
    distances: Float[np.ndarray, "circuits circuits"], tree: Float[np.ndarray, "merges 4"], *, least: int, most: int
) -> dict[int, Cut]:
    """The best cut for every number of families, from 2 to `most`, that leaves no more than half of all outside."""
    found: dict[int, Cut] = {}
    for height, clusters, sums in _from_the_top(distances, tree, least):
        families = sorted(clusters, key=lambda one: -len(clusters[one]))
        inside = sum(len(clusters[one]) for one in families)
        if inside < COVERED * len(distances):
            break
        if not 2 <= len(families) <= most:
            continue
        labels = np.full(len(distances), OUTSIDE)
        for number, one in enumerate(families, 1):
            labels[clusters[one]] = number
        mean = float(silhouettes(np.stack([sums[one] for one in families], 1), labels).mean())
        if len(families) not in found or mean > found[len(families)].silhouette:
            found[len(families)] = Cut(len(families), mean, len(distances) - inside, height, labels)
    return found


def silhouettes(
    sums: Float[np.ndarray, "circuits families"], labels: Int[np.ndarray, "circuits"]
) -> Float[np.ndarray, "circuits"]:
    """How much nearer is each circuit to its own family than to the next? From summed distances to each family."""
    sizes = np.bincount(labels, minlength=sums.shape[1] + 1)[1:]
    found = np.zeros(len(labels))
    inside = np.flatnonzero(labels != OUTSIDE)
    own = labels[inside] - 1
    means = sums[inside] / sizes
    within = sums[inside, own] / np.maximum(sizes[own] - 1, 1)  # a circuit's distance from itself is no part of it
    means[np.arange(len(inside)), own] = np.inf
    other = means.min(1)
    found[inside] = (other - within) / np.maximum(np.maximum(other, within), np.finfo(float).tiny)
    return found


def _from_the_top(
    distances: Float[np.ndarray, "circuits circuits"], tree: Float[np.ndarray, "merges 4"], least: int
) -> Iterator[tuple[float, dict[int, np.ndarray], dict[int, np.ndarray]]]:
    """(height, members, summed distances) of all clusters of the least size after each split, the highest first.

    A split sums anew only the distances to its smaller part; what became of small clusters is not followed.
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
        own = distances[few].sum(0, dtype=np.float64)  # rows: they lie together in memory
        for members, child, total in ((few, small, own), (many, large, whole - own)):
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
