"""To which family does a circuit belong that was not cut? To the nearest, if it is near enough.

Average linkage joins a circuit to a cluster whose mean distance is below the height of the cut, and so does this.
"""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from keyhole.family.agreement import adjusted_rand
from keyhole.family.clusters import Clustering
from keyhole.family.cuts import OUTSIDE, cuts_of, least_size, tree_of
from keyhole.family.distances import between_blocks
from keyhole.family.record import Rest

if TYPE_CHECKING:
    from keyhole.family.sets import Sets

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
    """The family of every circuit of `sets`, of which a sample was cut; and how well held-out circuits are assigned."""
    labels, clustering = cut
    rng = np.random.default_rng(seed)
    inside = np.isin(sets.prompts, sample)
    found = np.full(len(sets), OUTSIDE)
    found[inside] = labels
    rest = np.flatnonzero(~inside)
    if labels.max() < 2:
        found[rest] = 1
        return found, Rest(len(rest), 0, 0, float("nan"))
    assert clustering.cut is not None
    chosen = np.flatnonzero(inside)[_some_of_each(labels, rng)]
    own = found[chosen]
    for here, block in between_blocks(sets.matrix[rest], sets.matrix[chosen]):
        found[rest[here]] = _nearest(block, own, clustering.cut.height)
    held, agreement = _held_out(distances, labels, rng)
    return found, Rest(len(rest), int((found[rest] == OUTSIDE).sum()), held, agreement)


def _nearest(
    distances: Float[np.ndarray, "rows chosen"], labels: Int[np.ndarray, "chosen"], height: float
) -> Int[np.ndarray, "rows"]:
    means = np.stack([distances[:, labels == one].mean(1) for one in range(1, int(labels.max()) + 1)], 1)
    return np.where(means.min(1) < height, means.argmin(1) + 1, OUTSIDE)


def _some_of_each(labels: Int[np.ndarray, "sampled"], rng: np.random.Generator) -> Int[np.ndarray, "chosen"]:
    families = range(1, int(labels.max()) + 1)
    return np.concatenate([rng.permutation(np.flatnonzero(labels == one))[:_COMPARED] for one in families])


def _held_out(
    distances: Float[np.ndarray, "sampled sampled"], labels: Int[np.ndarray, "sampled"], rng: np.random.Generator
) -> tuple[int, float]:
    """A part of the sample is assigned to families that the others make alone: does it get where it was?"""
    order = rng.permutation(len(labels))
    held, others = np.sort(order[: int(_HELD_OUT * len(order))]), np.sort(order[int(_HELD_OUT * len(order)) :])
    own = distances[np.ix_(others, others)]
    families = int(labels.max())
    found = cuts_of(own, tree_of(own), least=least_size(len(others)), most=families)
    if families not in found:
        return len(held), float("nan")
    cut = found[families]
    inside = np.flatnonzero(cut.labels)
    assigned = _nearest(distances[np.ix_(held, others[inside])], cut.labels[inside], cut.height)
    return len(held), adjusted_rand(labels[held], assigned)
