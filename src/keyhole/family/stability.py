"""Would other prompts give the same families? Each family's best match in resampled circuits (Hennig 2007).

Circuits are drawn with replacement and taken once each, as is usual: two copies at distance 0 would be a cluster of
their own. Every resample is cut into the same number of families.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

from keyhole.family.cuts import Cut, cuts_of, tree_of

MOST = 1500  # circuits that are drawn: the time grows with their square
STABLE = 0.75  # mean Jaccard from which on a family is usually called stable


def stabilities(
    distances: Float[np.ndarray, "circuits circuits"],
    cuts: Mapping[int, Cut],
    *,
    least: int,
    draws: int,
    rng: np.random.Generator,
) -> dict[int, Float[np.ndarray, "families"]]:
    """For every cut: the mean Jaccard of each family with the nearest one of a resample. No such cut there: 0."""
    n = len(distances)
    found = {families: np.zeros(families) for families in cuts}
    for _ in range(draws):
        drawn = np.unique(rng.integers(n, size=min(n, MOST)))
        own = distances[np.ix_(drawn, drawn)]
        fewest = max(2, round(least * len(drawn) / n))
        again = cuts_of(own, tree_of(own), least=fewest, most=max(cuts, default=2))
        for families, cut in cuts.items():
            if families in again:
                found[families] += matches(cut.labels[drawn], again[families].labels, families)
    return {families: total / draws for families, total in found.items()}


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
