"""Which circuit stands for many? The medoid: the one whose summed distance to all others of its group is least."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

MOST_VALUES = 40  # of a label whose values are represented: names have as many as there are


@dataclass(frozen=True)
class Representative:
    """One circuit of a group."""

    group: str  # "all", or a label with its value: order=ABBA
    prompt: int
    circuits: int
    mean_distance: float  # from the others of the group


def medoid(distances: Float[np.ndarray, "circuits circuits"], members: Int[np.ndarray, "members"]) -> tuple[int, float]:
    """The member nearest to all members, the first of several; with its mean distance from the others.

    >>> medoid(np.array([[0.0, 1, 1], [1, 0, 0.5], [1, 0.5, 0]]), np.array([0, 1, 2]))
    (1, 0.75)
    """
    total = distances[np.ix_(members, members)].sum(1, dtype=np.float64)
    best = int(total.argmin())
    return int(members[best]), float(total[best] / max(len(members) - 1, 1))


def representatives(
    distances: Float[np.ndarray, "circuits circuits"],
    prompts: Int[np.ndarray, "circuits"],
    labels: Mapping[str, Sequence[str | None]],
) -> tuple[Representative, ...]:
    """Those of all circuits, and of each value of every label that has few."""
    groups: dict[str, np.ndarray] = {"all": np.arange(len(prompts))}
    for name, values in labels.items():
        own = sorted({value for value in values if value is not None})
        if len(own) <= MOST_VALUES:
            groups |= {f"{name}={value}": np.flatnonzero([one == value for one in values]) for value in own}
    found = []
    for group, members in groups.items():
        at, mean = medoid(distances, members)
        found.append(Representative(group, int(prompts[at]), len(members), mean))
    return tuple(found)
