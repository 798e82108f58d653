"""Could one family look like several? Two worlds without families, each cut in the same way.

- *shuffled*: every circuit keeps its size and every term its frequency, and nothing else is kept (curveball trades).
  Circuits of different sizes lie at different distances without any families, which only such a null allows for.
- *one cloud*: a single Gaussian with the covariance that the circuits have. Terms of a circuit hang together, since an
  edge needs its head; so one family is no ball, and the shuffled world alone would find families in any elongated one.
  Jaccard's similarity is a kernel: 1 - J is half a squared distance between vectors, whose covariance is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from keyhole.family.distances import jaccard

if TYPE_CHECKING:
    from scipy.sparse import csc_array, csr_array

_FIRST, _SWEEPS = 20, 4  # in which every circuit trades once: before the first draw, and between two


@dataclass(frozen=True)
class Trades:
    """Circuits that trade terms: every circuit keeps its size, every term its frequency (Strona et al. 2014)."""

    has: Bool[np.ndarray, "circuits terms"]

    def sweep(self, rng: np.random.Generator) -> None:
        """Pairs of circuits put what only one of them has together, and draw anew as many as each had."""
        order = rng.permutation(len(self.has))
        for one, other in zip(order[::2], order[1::2], strict=False):
            mine, theirs = self.has[one], self.has[other]
            pool = np.flatnonzero(mine != theirs)
            drawn = rng.permutation(pool)[: int(mine[pool].sum())]
            mine[pool], theirs[pool] = False, True
            mine[drawn], theirs[drawn] = True, False


def shuffled_distances(matrix: "csr_array") -> Callable[[np.random.Generator], np.ndarray]:
    """What draws distances of circuits that have traded; each draw goes on from the one before.

    Weights stay with their terms: those of each are dealt anew to the circuits that have it.
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


def one_cloud(distances: Float[np.ndarray, "circuits circuits"]) -> Callable[[np.random.Generator], np.ndarray]:
    """What draws distances between as many points of one Gaussian whose covariance is that of the circuits."""
    similar = 1 - distances.astype(np.float64)
    centred = similar - similar.mean(0) - similar.mean(1)[:, None] + similar.mean()
    variance = np.linalg.eigvalsh(centred).clip(0) / max(len(distances) - 1, 1)
    spread = np.sqrt(variance[variance > 1e-9 * variance.max(initial=1e-300)])

    def draw(rng: np.random.Generator) -> Float[np.ndarray, "circuits circuits"]:
        points = rng.standard_normal((len(distances), len(spread))) * spread
        norms = (points**2).sum(1)
        apart = (norms[:, None] + norms[None, :] - 2 * points @ points.T) / 2
        np.fill_diagonal(apart, 0)
        return np.asarray(apart.clip(0), np.float32)

    return draw
