"""Do circuits heap up in two places along their longest direction? Hartigan's dip test for more than one mode (1985).

The longest direction is the first principal coordinate of the distances: it knows of no cut and no label. The dip is
the distance from the nearest distribution that first rises and then falls in density; that of as many uniform values is
the largest that one mode gives, whatever its shape. This is evidence of another kind than a cut's: a gradient whose
ends fill up has two modes and no border between them.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

MOST = 500  # circuits that are looked at


@dataclass(frozen=True)
class Modes:
    """Is one mode enough?"""

    share: float  # of all variance that the longest direction has
    dip: float
    p: float  # of one mode
    draws: int


def modes_of(distances: Float[np.ndarray, "circuits circuits"], *, draws: int, rng: np.random.Generator) -> Modes:
    """The test along the first principal coordinate of some circuits."""
    some = np.sort(rng.permutation(len(distances))[:MOST])
    along, share = first_coordinate(distances[np.ix_(some, some)])
    own = dip(along)
    uniform = [dip(rng.uniform(size=len(some))) for _ in range(draws)]
    return Modes(share, own, (1 + sum(one >= own for one in uniform)) / (draws + 1), draws)


def first_coordinate(distances: Float[np.ndarray, "circuits circuits"]) -> tuple[Float[np.ndarray, "circuits"], float]:
    """Where circuits lie along the direction in which they differ most, and its share of their variance."""
    from scipy.sparse.linalg import eigsh

    similar = 1 - distances.astype(np.float64)
    centred = similar - similar.mean(0) - similar.mean(1)[:, None] + similar.mean()
    value, vector = eigsh(centred, k=1, v0=np.linspace(-1, 1, len(centred)))
    return vector[:, 0], float(value[0] / max(np.trace(centred), np.finfo(float).tiny))


def dip(values: Float[np.ndarray, "circuits"]) -> float:
    """How far are values from having one mode? From 1 / 2n to 1/4, which two heaps of equal size approach.

    A distribution function with one mode is convex before it and concave after it. So the greatest convex function
    below the steps of the values and the least concave one above are drawn over an interval that holds the mode; where
    they are farthest apart lies a narrower one, and what that leaves out is as far from its bound as it is.

    >>> dip(np.array([0.0, 1, 2, 3])), round(dip(np.array([0.0, 0.1, 0.2, 5, 5.1, 5.2])), 3)
    (0.125, 0.24)
    """
    x, counts = np.unique(values, return_counts=True)
    after = counts.cumsum() / len(values)  # the steps: from each value on, and just before it
    before = after - counts / len(values)
    low, high, far = 0, len(x) - 1, 1 / len(values)
    while low < high:
        own = slice(low, high + 1)
        rising, rise_at = _hull(x[own], before[own])
        falling, fall_at = _hull(-x[own][::-1], -after[own][::-1])
        falling, fall_at = -falling[::-1], high - low - fall_at[::-1]
        apart = falling - rising
        left, right = _widest(apart, rise_at, fall_at)
        if max(apart[left], apart[right]) <= far:
            break
        outside = (after[own] - rising)[: left + 1].max(), (falling - before[own])[right:].max()
        far = max(far, *outside)
        low, high = low + left, low + right
    return float(far / 2)


def _widest(
    apart: Float[np.ndarray, "values"], rise_at: Int[np.ndarray, "rise"], fall_at: Int[np.ndarray, "fall"]
) -> tuple[int, int]:
    """Between which corners of the two bounds are they farthest apart? The left one is the convex bound's."""
    rise, fall = rise_at[apart[rise_at].argmax()], fall_at[apart[fall_at].argmax()]
    if apart[fall] > apart[rise]:
        return int(rise_at[rise_at <= fall].max()), int(fall)
    return int(rise), int(fall_at[fall_at >= rise].min())


def _hull(
    x: Float[np.ndarray, "values"], y: Float[np.ndarray, "values"]
) -> tuple[Float[np.ndarray, "values"], Int[np.ndarray, "corners"]]:
    """The greatest convex function below points, at each of them; and its corners."""
    corners: list[int] = []
    for i in range(len(x)):
        while len(corners) > 1 and _passes_below(x, y, (corners[-2], corners[-1], i)):
            corners.pop()
        corners.append(i)
    at = np.array(corners)
    return np.interp(x, x[at], y[at]), at


def _passes_below(x: Float[np.ndarray, "values"], y: Float[np.ndarray, "values"], at: tuple[int, int, int]) -> bool:
    """Does the way from the first to the third pass below the second?"""
    a, b, c = at
    return bool((y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a]))
