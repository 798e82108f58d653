"""Is the average of circuits any prompt's circuit? What most prompts share, beside what each of them has.

The averaged circuit has the terms that at least half of the prompts have. A term's share is a mean over prompts, so
its variance under bootstrap is that of one prompt over their number; whether the average as a whole is the same for
other prompts is drawn. Groups of random circuits, as large as each family, say what size alone does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from keyhole.family.distances import between, in_common

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SHARE = 0.5  # of the prompts: a term of the averaged circuit is had by as many
_DRAWS = 100
_CONTROLS = 10


@dataclass(frozen=True)
class Average:
    """The averaged circuit of a group of circuits, beside the circuits themselves."""

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


_NUMBERS = tuple(one.name for one in fields(Average) if one.name != "group")
_WHOLE = ("circuits", "union", "size")


def averages(
    matrix: "csr_array", groups: Sequence[tuple[str, Int[np.ndarray, "members"]]], *, seed: int = 0
) -> tuple[Average, ...]:
    """Of all circuits and of each group; after each group, of random circuits as many."""
    rng, n = np.random.default_rng(seed), matrix.shape[0]
    binary = matrix.copy()
    binary.data = np.ones_like(binary.data)
    found = [average(binary, np.arange(n), "all", rng=rng)]
    for name, members in groups:
        found.append(average(binary, members, name, rng=rng))
        random = [rng.choice(n, len(members), replace=False) for _ in range(_CONTROLS)]
        found.append(_mean([average(binary, np.sort(one), f"as many at random ({name})", rng=rng) for one in random]))
    return tuple(found)


def average(
    matrix: "csr_array", members: Int[np.ndarray, "members"], group: str, *, rng: np.random.Generator
) -> Average:
    """The averaged circuit of these circuits (a binary matrix)."""
    from scipy.sparse import csr_array

    own = matrix[members]
    n, sizes = len(members), np.diff(own.indptr)
    shares = np.asarray(own.sum(0)).ravel() / n
    kept = shares >= SHARE
    size = int(kept.sum())
    inside = np.asarray(own @ kept.astype(np.float64)).ravel()  # of the average's terms, how many each has
    alike = 1 - between(own, csr_array(kept[None, :].astype(np.float64)))[:, 0]
    drawn = _resampled(own, rng)
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


def _resampled(own: "csr_array", rng: np.random.Generator) -> Float[np.ndarray, "draws terms"]:
    """The share of prompts that have each term, in resamples of the prompts."""
    n = own.shape[0]
    counts = rng.multinomial(n, np.full(n, 1 / n), size=_DRAWS).astype(np.float64)
    return np.asarray((own.T @ counts.T).T / n)


def _mean_over(values: Float[np.ndarray, "terms"], kept: Bool[np.ndarray, "terms"]) -> float:
    return float(values[kept].mean()) if kept.any() else 0.0


def _mean(found: Sequence[Average]) -> Average:
    """Several groups as one, number by number."""
    means = {name: float(np.mean([getattr(one, name) for one in found])) for name in _NUMBERS}
    told: dict[str, Any] = {name: round(mean) if name in _WHOLE else mean for name, mean in means.items()}
    return Average(group=found[0].group, **told)
