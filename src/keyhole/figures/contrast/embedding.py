"""Do queries and keys of one feature lie in the same places? Joint PCA and UMAP of their coordinates.

With a contrast's singular pairs (u_k, v_k), the coordinates are q U_r and k V_r: pair k is one axis for both, so that
queries and keys may be drawn together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.figures.contrast.clouds import Cloud, Label, View, draw

_NEGLIGIBLE = 1e-10  # variances below this share of the largest are rounding
_LEAST_FOR_UMAP = 10  # its spectral start needs more points than dimensions


@dataclass(frozen=True)
class JointPCA:
    """Queries and keys in principal components of their union, and the share of variance of each component."""

    queries: Float[Tensor, "queries components"]
    keys: Float[Tensor, "keys components"]
    shares: Float[Tensor, "components"]


def joint_pca(queries: Float[Tensor, "queries d"], keys: Float[Tensor, "keys d"], n: int = 3) -> JointPCA:
    """Which directions vary most among queries and keys together? At most n, fewer when the points span fewer.

    The mean and the components are those of the union; the largest entry of every component is positive.

    >>> flat = joint_pca(torch.tensor([[0.0, 0.0], [4.0, 0.0]]), torch.tensor([[8.0, 0.0]]))
    >>> flat.queries.T.tolist(), flat.keys.tolist(), flat.shares.tolist()
    ([[-4.0, 0.0]], [[4.0]], [1.0])
    """
    points = torch.cat([queries, keys]).double()
    if len(points) == 0 or n < 1:
        raise KeyholeError("there is nothing to place: give at least one query or key, and ask for n >= 1 components.")
    if not bool(points.isfinite().all()):
        raise KeyholeError("some coordinates are not finite, and PCA would spread them everywhere: leave them out.")
    centred = points - points.mean(0)
    _, S, Vh = torch.linalg.svd(centred, full_matrices=False)
    variance = S**2
    scale = float((points**2).sum())  # constant points leave rounding, which must not count as variance
    kept = min(n, int((variance > _NEGLIGIBLE * max(float(variance[0]), _NEGLIGIBLE * scale)).sum())) if scale else 0
    if kept == 0:
        raise KeyholeError("all points are equal, so no direction varies: give points that differ.")
    largest = Vh.gather(1, Vh.abs().argmax(1, keepdim=True))
    components = (Vh * torch.where(largest < 0, -1.0, 1.0))[:kept]
    placed = centred @ components.T
    return JointPCA(placed[: len(queries)], placed[len(queries) :], (variance / variance.sum())[:kept])


def pca_figure(
    queries: Float[Tensor, "queries d"],
    keys: Float[Tensor, "keys d"],
    query_labels: Sequence[Label],
    key_labels: Sequence[Label],
    *,
    title: str = "Queries and keys in their joint principal components",
    ordered: bool = False,
    view: View = "planes",
    points: int = 2000,
    seed: int = 0,
) -> Figure:
    """Do queries and keys of one label share a place in the feature's subspace? PCA fitted on both together.

    Components come from all points, at most `points` are drawn. `ordered` colours labels along a ramp. `view` is
    "planes" (each pair of three components) or "solid" (one panel in three dimensions).
    """
    _check(queries, keys, query_labels, key_labels)
    pca = joint_pca(queries, keys)
    names = [f"PC {i + 1} ({100 * share:.0f} % of variance)" for i, share in enumerate(pca.shares.tolist())]
    chosen_q, chosen_k = _sample(len(queries), len(keys), points, seed)
    cloud = Cloud(
        pca.queries[chosen_q],
        pca.keys[chosen_k],
        [query_labels[i] for i in chosen_q.tolist()],
        [key_labels[i] for i in chosen_k.tolist()],
    )
    return draw(cloud, names, title=title, ordered=ordered, view=view)


def umap_figure(
    queries: Float[Tensor, "queries d"],
    keys: Float[Tensor, "keys d"],
    query_labels: Sequence[Label],
    key_labels: Sequence[Label],
    *,
    title: str = "Queries and keys in a joint UMAP",
    ordered: bool = False,
    view: View = "planes",
    dims: Literal[2, 3] = 2,
    points: int = 2000,
    seed: int = 99,
) -> Figure:
    """Do labels form clusters in a subspace of more than three dimensions? UMAP (cosine) of queries and keys together.

    Distances between clusters, and so between queries and keys, mean little here; those of `pca_figure` do. Fitted on
    the at most `points` points that are drawn, with min(500, n / 4) neighbours.
    """
    _check(queries, keys, query_labels, key_labels)
    chosen_q, chosen_k = _sample(len(queries), len(keys), points, seed)
    picked = torch.cat([queries[chosen_q], keys[chosen_k]]).float()
    if len(picked) < _LEAST_FOR_UMAP:
        raise KeyholeError(f"UMAP needs {_LEAST_FOR_UMAP} points, but there are {len(picked)}: use pca_figure.")
    try:
        from umap import UMAP
    except ImportError as error:
        raise KeyholeError("umap-learn, which draws this, is missing: pip install 'keyhole[cluster]'") from error
    neighbours = max(2, min(500, len(picked) // 4))
    # one job: UMAP is reproducible only then
    fit = UMAP(n_components=dims, n_neighbors=neighbours, min_dist=0.7, metric="cosine", random_state=seed, n_jobs=1)
    placed = torch.from_numpy(fit.fit_transform(picked.numpy())).double()
    cloud = Cloud(
        placed[: len(chosen_q)],
        placed[len(chosen_q) :],
        [query_labels[i] for i in chosen_q.tolist()],
        [key_labels[i] for i in chosen_k.tolist()],
    )
    return draw(cloud, [f"UMAP {i + 1}" for i in range(dims)], title=title, ordered=ordered, view=view)


def _check(
    queries: Float[Tensor, "queries d"],
    keys: Float[Tensor, "keys d"],
    query_labels: Sequence[Label],
    key_labels: Sequence[Label],
) -> None:
    if len(queries) + len(keys) == 0:
        raise KeyholeError("there are no points to draw: give at least one query or key.")
    if (len(queries), len(keys)) != (len(query_labels), len(key_labels)):
        raise KeyholeError(
            f"{len(queries)} queries have {len(query_labels)} labels and {len(keys)} keys have {len(key_labels)}: "
            "give one label for each point."
        )


def _sample(queries: int, keys: int, points: int, seed: int) -> tuple[Int[Tensor, "q"], Int[Tensor, "k"]]:
    """Which points are drawn? Half of each side; a side with fewer leaves its room to the other. In random order."""
    if points < 1:
        raise KeyholeError(f"points is {points}, but a figure needs at least one point.")
    take_q = min(queries, max(points // 2, points - keys))
    take_k = min(keys, points - take_q)
    generator = torch.Generator().manual_seed(seed)
    chosen_q = torch.randperm(queries, generator=generator)[:take_q]
    return chosen_q, torch.randperm(keys, generator=generator)[:take_k]
