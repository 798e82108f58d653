"""Which families are significant? The tree's cuts, compared with circuits without families, and a test for two modes.

First: do circuits have more than one mode along their longest direction? Hartigan's dip test (1985).

The longest direction is the first principal coordinate of the distances, which depends on no cut and no label. The dip
is the distance of the values' distribution from the nearest one whose density first rises and then falls. Of all such
distributions the uniform one has the largest dip, so the dip is compared with uniform values. This is another kind of
evidence than a cut: a gradient with many circuits at both ends has two modes, but no border between them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.progress import Progress, silent
from keyhole.stats import p_of_draws
from keyhole.studies.families.cuts import (
    STABLE,
    Cut,
    centred_kernel,
    cuts_of,
    least_size,
    one_cloud,
    shuffled_distances,
    silhouettes,
    stabilities,
    summed,
    tree_of,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST = 500  # circuits of the test: a sample, where there are more


@dataclass(frozen=True)
class Modes:
    """The test for more than one mode."""

    share: float  # of all variance, that lies along the longest direction
    dip: float
    p: float  # of so large a dip, if there is one mode
    draws: int


def modes_of(distances: Float[np.ndarray, "circuits circuits"], *, draws: int, rng: np.random.Generator) -> Modes:
    """The test along the first principal coordinate of some circuits."""
    some = np.sort(rng.permutation(len(distances))[:MOST])
    along, share = first_coordinate(distances[np.ix_(some, some)])
    observed = dip(along)
    uniform = [dip(rng.uniform(size=len(some))) for _ in range(draws)]
    return Modes(share, observed, p_of_draws(uniform, observed), draws)


def first_coordinate(distances: Float[np.ndarray, "circuits circuits"]) -> tuple[Float[np.ndarray, "circuits"], float]:
    """Where circuits lie along the direction in which they differ most, and its share of their variance."""
    from scipy.sparse.linalg import eigsh

    centred = centred_kernel(distances)
    value, vector = eigsh(centred, k=1, v0=np.linspace(-1, 1, len(centred)))
    return vector[:, 0], float(value[0] / max(np.trace(centred), np.finfo(float).tiny))


def dip(values: Float[np.ndarray, "circuits"]) -> float:
    """How far are values from having one mode? From 1 / 2n to 1/4, which two clumps of equal size approach.

    A distribution function with one mode is convex before the mode and concave after it. So over an interval that holds
    the mode we take the greatest convex function below the steps of the values, and the least concave one above them.
    Where these two bounds are farthest apart the interval is narrowed. The dip is half the largest distance between the
    steps and their bound in the parts that were left out.

    >>> dip(np.array([0.0, 1, 2, 3])), round(dip(np.array([0.0, 0.1, 0.2, 5, 5.1, 5.2])), 3)
    (0.125, 0.24)
    """
    x, counts = np.unique(values, return_counts=True)
    after = counts.cumsum() / len(values)  # height of the steps from each value on; `before`: just before it
    before = after - counts / len(values)
    low, high, far = 0, len(x) - 1, 1 / len(values)
    while low < high:
        span = slice(low, high + 1)
        rising, rise_at = _hull(x[span], before[span])
        falling, fall_at = _hull(-x[span][::-1], -after[span][::-1])
        falling, fall_at = -falling[::-1], high - low - fall_at[::-1]
        apart = falling - rising
        left, right = _widest(apart, rise_at, fall_at)
        if max(apart[left], apart[right]) <= far:
            break
        outside = (after[span] - rising)[: left + 1].max(), (falling - before[span])[right:].max()
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
    """Does the line from the first point to the third pass below the second?"""
    a, b, c = at
    return bool((y[b] - y[a]) * (x[c] - x[a]) >= (y[c] - y[a]) * (x[b] - x[a]))


# Are there families, and how many? The cut with the best silhouette among the stable ones, compared with two null
# models without families (`keyhole.studies.families.cuts`).
#
# A cut is significant if its families are stable under resampling, and if it is better than 95 % of the cuts of either
# null model, by two measures. The *margin* is the silhouette that four of five circuits exceed. What the cut *explains*
# is the share of all squared distances that lies between families. Without a significant cut there is one family. A
# wide and even gradient between two extremes may still pass for two families.
#
# Silhouettes are small where circuits differ in hundreds of ways, and there a single cloud is hard to exclude. So a
# *split* is reported as well: a stable cut that sizes of circuits and frequencies of terms do not explain, of circuits
# with more than one mode. There may be no border between its parts.

MOST_FAMILIES = 40
WORLDS = 300  # circuits of a null model: a sample, where there are more
LEVEL = 0.05
MEASURES = ("margin", "explained")
SHUFFLED = "shuffled"
_MODES = 199  # draws
_MARGIN = 0.2  # the silhouette that all but this share of circuits exceed


@dataclass(frozen=True)
class Null:
    """One measure of a cut, compared with the cuts of circuits without families."""

    name: str  # of the null model
    measure: str  # margin, or explained
    value: float  # of the circuits themselves
    mean: float
    high: float  # 95 % are below
    p: float
    draws: int


@dataclass(frozen=True, repr=False)
class Clustering:
    """The tree of circuits, its cuts, and how significant the best of them is."""

    tree: Float[np.ndarray, "merges 4"]
    least: int  # circuits of the smallest family
    cuts: tuple[Cut, ...]  # the best for each number of families
    stability: tuple[Float[np.ndarray, "families"], ...]  # of every cut's families
    best: int | None  # which of the cuts is the best; None: no cut leaves two families
    given: bool  # was the number of families given?
    nulls: tuple[Null, ...]  # both measures against both null models
    modes: Modes | None  # None: there is no cut

    __repr__ = brief

    @property
    def cut(self) -> Cut | None:
        """The best cut, whether it is significant or not."""
        return None if self.best is None else self.cuts[self.best]

    @property
    def stable(self) -> bool:
        """Would other prompts give the same families?"""
        return self.best is not None and float(self.stability[self.best].mean()) >= STABLE

    @property
    def separate(self) -> bool:
        """Is the best cut significant: stable, and better than cuts of circuits without families?"""
        return self.stable and bool(self.nulls) and all(null.p <= LEVEL for null in self.nulls)

    @property
    def split(self) -> bool:
        """Do circuits have more than one mode, in a stable way that sizes and frequencies do not explain?"""
        chance = [null for null in self.nulls if null.name == SHUFFLED]
        several = self.modes is not None and self.modes.p <= LEVEL
        return self.stable and several and all(null.p <= LEVEL for null in chance)


def clusters(
    matrix: "csr_array",
    distances: Float[np.ndarray, "circuits circuits"],
    *,
    k: int | None = None,
    draws: int = 49,
    resamples: int = 50,
    seed: int = 0,
    progress: Progress = silent,
) -> Clustering:
    """Cut circuits into families: the stable cut with the best silhouette, or `k` families.

    Args:
        matrix: Circuits as rows, terms as columns: the matrix of a `Sets`.
        distances: Of all pairs: `jaccard(matrix)`.
        k: The number of families. Default: as many as the best cut has.
        draws: How many times each null model is drawn.
        resamples: How many times circuits are resampled, for the stability of families.
        seed: Seed of both.
        progress: Called with the number of draws done and their total: these take longest.

    Returns:
        The tree, its cuts with their stability, and the tests of the best cut.

    >>> from scipy.sparse import csr_array
    >>> from keyhole.studies.families import jaccard
    >>> matrix = csr_array(np.kron(np.eye(2), np.ones((6, 3))))  # two families of six circuits, which share nothing
    >>> result = clusters(matrix, jaccard(matrix), draws=19, resamples=9)
    >>> result.cut.labels.tolist(), result.stable
    ([1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2], True)
    """
    n, rng = len(distances), np.random.default_rng(seed)
    least = least_size(n)
    if k is not None and not 2 <= k <= n:
        raise KeyholeError(f"{n} circuits cannot be cut into {k} families: ask for 2 to {n}.")
    tree = tree_of(distances) if n > 1 else np.zeros((0, 4))
    cuts = cuts_of(distances, tree, least=least, most=max(MOST_FAMILIES, k or 0)) if n > 1 else {}
    if k is not None and k not in cuts:
        known = ", ".join(map(str, sorted(cuts))) or "none"
        raise KeyholeError(f"no cut has {k} families of {least} circuits or more; there are cuts into {known}.")
    steady = stabilities(distances, cuts, least=least, draws=resamples, rng=rng)
    best = k if k is not None else _best(cuts, steady)
    order = sorted(cuts)
    nulls: tuple[Null, ...] = ()
    if best is not None:
        nulls = _beside_nulls(matrix, distances, cuts[best], draws=draws, rng=rng, progress=progress)
    modes = None if best is None else modes_of(distances, draws=_MODES, rng=rng)
    return Clustering(
        tree=tree,
        least=least,
        cuts=tuple(cuts[number] for number in order),
        stability=tuple(steady[number] for number in order),
        best=None if best is None else order.index(best),
        given=k is not None,
        nulls=nulls,
        modes=modes,
    )


def margin_of(distances: Float[np.ndarray, "circuits circuits"], labels: Int[np.ndarray, "circuits"]) -> float:
    """The silhouette that four of five circuits exceed."""
    return float(np.quantile(silhouettes(summed(distances, labels), labels), _MARGIN))


def explained(distances: Float[np.ndarray, "circuits circuits"], labels: Int[np.ndarray, "circuits"]) -> float:
    """The share of squared distances between families. 1 - J is itself half a squared distance: see `one_cloud`."""
    sizes = np.bincount(labels)
    within = [
        float(distances[np.ix_(m, m)].sum(dtype=np.float64)) / max(len(m), 1) for m in _members(labels, len(sizes))
    ]
    whole = float(distances.sum(dtype=np.float64)) / len(labels)
    return 1 - sum(within) / whole if whole > 0 else 0.0


def _members(labels: Int[np.ndarray, "circuits"], groups: int) -> list[np.ndarray]:
    return [np.flatnonzero(labels == group) for group in range(groups)]


def _best(cuts: dict[int, Cut], steady: dict[int, np.ndarray]) -> int | None:
    stable = [number for number in cuts if steady[number].mean() >= STABLE]
    return max(stable or cuts, key=lambda number: cuts[number].silhouette, default=None)


def _beside_nulls(
    matrix: "csr_array",
    distances: Float[np.ndarray, "circuits circuits"],
    cut: Cut,
    *,
    draws: int,
    rng: np.random.Generator,
    progress: Progress = silent,
) -> tuple[Null, ...]:
    """Both measures of a cut, and of the cuts of both null models, for a sample of circuits."""
    some = np.sort(rng.permutation(len(distances))[:WORLDS])
    sampled, labels = distances[np.ix_(some, some)], cut.labels[some]
    values = margin_of(sampled, labels), explained(sampled, labels)
    nulls = []
    for number, (name, draw) in enumerate(
        ((SHUFFLED, shuffled_distances(matrix[some])), ("one cloud", one_cloud(sampled)))
    ):
        measured = []
        for done in range(draws):
            progress(number * draws + done, 2 * draws)
            measured.append(_measures(draw(rng), cut.families))
        for measure, observed, drawn in zip(MEASURES, values, np.array(measured).T, strict=True):
            mean, high = float(drawn.mean()), float(np.quantile(drawn, 0.95))
            nulls.append(Null(name, measure, observed, mean, high, p_of_draws(drawn, observed), draws))
    return tuple(nulls)


def _measures(distances: Float[np.ndarray, "circuits circuits"], families: int) -> tuple[float, float]:
    """The margin of the best cut of a null model, and what its cut into as many families explains, or the next more."""
    cuts = cuts_of(distances, tree_of(distances), least=least_size(len(distances)), most=MOST_FAMILIES)
    if not cuts:
        return 0.0, 0.0
    best = max(cuts.values(), key=lambda cut: cut.silhouette)
    as_many = min((number for number in cuts if number >= families), default=max(cuts))  # more families explain more
    return margin_of(distances, best.labels), explained(distances, cuts[as_many].labels)
