"""How far are circuits apart? Jaccard of their sets, or of their weights: 1 - sum of minima / sum of maxima, exactly.

All pairs share the work by terms. Terms that many circuits have go through dense products, a block of circuits at a
time; rare ones, which are most, through sparse products, which only meet circuits that have them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from keyhole.progress import Progress, silent

if TYPE_CHECKING:
    from scipy.sparse import csr_array

FREQUENT = 0.05  # share of circuits from which on a term is cheaper in a dense product
_ROWS = 1024  # circuits of a block


def jaccard(matrix: "csr_array", *, progress: Progress = silent) -> Float[np.ndarray, "circuits circuits"]:
    """Distances of all pairs, float32: 0 for equal sets, 1 where nothing is shared. Two empty sets are equal.

    >>> from scipy.sparse import csr_array
    >>> jaccard(csr_array([[1.0, 1, 0], [0, 1, 1], [0, 0, 1]])).round(3).tolist()
    [[0.0, 0.6669999957084656, 1.0], [0.6669999957084656, 0.0, 0.5], [1.0, 0.5, 0.0]]
    """
    found = between(matrix, matrix, progress=progress)
    np.fill_diagonal(found, 0)
    return found


def between(
    rows: "csr_array", columns: "csr_array", *, progress: Progress = silent
) -> Float[np.ndarray, "rows columns"]:
    """Distances of every circuit of one matrix from every one of another, over the same terms."""
    found = np.empty((rows.shape[0], columns.shape[0]), np.float32)
    for here, block in between_blocks(rows, columns):
        found[here] = block
        progress(here.stop, rows.shape[0])
    return found


def between_blocks(
    rows: "csr_array", columns: "csr_array"
) -> Iterator[tuple[slice, Float[np.ndarray, "block columns"]]]:
    """The same, some rows at a time."""
    often, rare = _by_frequency(columns)
    binary = _is_binary(rows) and _is_binary(columns)
    dense = columns[:, often].astype(np.float32).toarray()
    sparse = columns[:, rare].T.tocsr()
    sums, others = _sums(rows), _sums(columns)
    for start in range(0, rows.shape[0], _ROWS):
        here = slice(start, min(start + _ROWS, rows.shape[0]))
        own = rows[here]
        own_dense, own_rare = own[:, often].astype(np.float32).toarray(), own[:, rare].tocsr()
        if binary:
            shared = own_dense @ dense.T + (own_rare @ sparse).astype(np.float32).toarray()
        else:
            shared = _dense_minima(own_dense, dense)
            _add_rare_minima(shared, own_rare, sparse)
        total = sums[here, None] + others[None, :] - shared
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(total > 0, 1 - shared / total, 0)
        yield here, np.clip(distance, 0, 1, dtype=np.float32)


def in_common(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """What both rows have (terms last) over what any has, with its weight; 0 where neither has anything.

    >>> float(in_common(np.array([1.0, 0.5, 0.0]), np.array([1.0, 0.0, 0.5])))
    0.5
    """
    both, any_of = np.minimum(one, other).sum(-1), np.maximum(one, other).sum(-1)
    return np.asarray(both / np.maximum(any_of, 1e-12))


def condensed(distances: Float[np.ndarray, "circuits circuits"]) -> Float[np.ndarray, "pairs"]:
    """The upper triangle, row by row, as scipy's linkage takes it (and as it works: in double precision)."""
    n = len(distances)
    found, at = np.empty(n * (n - 1) // 2, np.float64), 0
    for i in range(n - 1):
        found[at : at + n - 1 - i] = distances[i, i + 1 :]
        at += n - 1 - i
    return found


def _by_frequency(matrix: "csr_array") -> tuple[Int[np.ndarray, "often"], Int[np.ndarray, "rare"]]:
    counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    often = counts > FREQUENT * matrix.shape[0]
    return np.flatnonzero(often), np.flatnonzero(~often & (counts > 0))


def _is_binary(matrix: "csr_array") -> bool:
    return bool((matrix.data == 1).all())


def _sums(matrix: "csr_array") -> Float[np.ndarray, "circuits"]:
    return np.asarray(matrix.sum(axis=1), np.float32).ravel()


def _dense_minima(
    own: Float[np.ndarray, "rows terms"], others: Float[np.ndarray, "columns terms"]
) -> Float[np.ndarray, "rows columns"]:
    """Sums of minima: (a + b - |a - b|) / 2, whose last part is a distance that torch has fast."""
    import torch

    apart = torch.cdist(torch.from_numpy(own), torch.from_numpy(others), p=1).numpy()
    return np.asarray((own.sum(1)[:, None] + others.sum(1)[None, :] - apart) / 2, np.float32)


def _add_rare_minima(shared: Float[np.ndarray, "rows columns"], own: "csr_array", others: "csr_array") -> None:
    """Add the minima of rare terms where both have them. `others` has terms as rows."""
    by_term = own.T.tocsr()
    for term in np.flatnonzero(np.diff(by_term.indptr)):
        mine, theirs = (slice(*one.indptr[term : term + 2]) for one in (by_term, others))
        both = np.minimum.outer(by_term.data[mine], others.data[theirs])
        shared[np.ix_(by_term.indices[mine], others.indices[theirs])] += both
