"""How do queries and keys look in a feature's plane?

How are labelled queries and keys drawn in one space? Colour is the label, the marker says query or key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.figures.style import GREY, blank, colours, heading, legend, plain, tidy
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option, require_choices

Label = str | int
View = Literal["planes", "solid"]
_MARKERS = {"keys": "o", "queries": "^"}
_PANES = {"x": "#f4f4f1", "y": "#eeeeea", "z": "#e8e8e3"}  # shades in place of a grid show the corner
_ONE_COLUMN = 14  # entries that fit beside a panel


@dataclass(frozen=True)
class Cloud:
    """Queries and keys in the same components, with a label for each."""

    queries: Float[Tensor, "queries components"]
    keys: Float[Tensor, "keys components"]
    query_labels: list[Label]
    key_labels: list[Label]

    @property
    def sides(self) -> list[tuple[str, Float[Tensor, "points components"], list[Label]]]:
        """The sides that have points; keys first: queries are outlines, through which the keys below are seen."""
        both = [("keys", self.keys, self.key_labels), ("queries", self.queries, self.query_labels)]
        return [side for side in both if len(side[1])]

    @property
    def labels(self) -> list[Label]:
        """Every label once; sorted, so that figures of several heads give a label the same colour."""
        return sorted({*self.query_labels, *self.key_labels}, key=lambda label: (isinstance(label, str), label))


@dataclass(frozen=True, kw_only=True)
class CloudSettings:
    """How queries and keys are drawn together."""

    title: str = option("", "Above the figure; default: what it shows.")
    ordered: bool = option(False, "Colour labels along a ramp, for those that have an order.")
    view: View = option("planes", "planes: each pair of three components; solid: one panel in three dimensions.")
    points: int = option(2000, "Points that are drawn at most.")
    seed: int = option(0, "Seed of which points these are.")


class CloudOptions(TypedDict, total=False):
    """The fields of `CloudSettings`, as keywords."""

    title: str
    ordered: bool
    view: View
    points: int
    seed: int


def draw(cloud: Cloud, names: list[str], title: str, how: CloudSettings) -> Figure:
    """Where does each label lie? Each pair of components as a plane, or three components as one solid."""
    require_choices(how)
    colour = dict(zip(cloud.labels, colours(len(cloud.labels), ordered=how.ordered), strict=True))
    solid = how.view == "solid" and len(names) == 3
    pairs = {1: [(0, 0)], 2: [(0, 1)]}.get(len(names), [(0, 1), (1, 2), (0, 2)])
    figure = blank(6.4, 4.8) if solid or len(pairs) == 1 else blank(11.5, 3.7)
    heading(figure, title)
    if solid:
        _solid(figure.add_subplot(projection="3d"), cloud, colour, names)
    elif len(names) == 1:
        _strip(figure.subplots(), cloud, colour, names[0])
    else:
        for axis, (i, j) in zip(figure.subplots(1, len(pairs), squeeze=False)[0], pairs, strict=True):
            for side, points, labels in cloud.sides:
                axis.scatter(*points[:, [i, j]].T.tolist(), **_look(cloud, side, [colour[label] for label in labels]))
            tidy(axis, x=names[i], y=names[j])
    _legend(figure, cloud, colour)
    return figure


def _strip(axis: Any, cloud: Cloud, colour: dict[Label, str], name: str) -> None:
    """One component: queries and keys as two rows, spread a little so that equal points stay visible."""
    generator = torch.Generator().manual_seed(0)
    for row, (side, points, labels) in enumerate(cloud.sides):
        height = row + 0.5 * (torch.rand(len(points), generator=generator) - 0.5)
        shades = [colour[label] for label in labels]
        axis.scatter(points[:, 0].tolist(), height.tolist(), **_look(cloud, side, shades))
    tidy(axis, x=name)
    axis.set_yticks(range(len(cloud.sides)), [side for side, _, _ in cloud.sides])
    axis.set_ylim(-0.6, len(cloud.sides) - 0.4)


def _solid(axis: Any, cloud: Cloud, colour: dict[Label, str], names: list[str]) -> None:
    axis.computed_zorder = False  # queries stay on top, as in the planes
    for side, points, labels in cloud.sides:
        shades = [colour[label] for label in labels]
        axis.scatter(*points.T.tolist(), depthshade=False, **_look(cloud, side, shades))
    for which, name in zip("xyz", names, strict=True):
        getattr(axis, f"set_{which}label")(name, fontsize=9, labelpad=-6)
        getattr(axis, f"{which}axis").set_pane_color(_PANES[which])
        getattr(axis, f"set_{which}ticklabels")([])  # numbers on three slanted axes cannot be read off anyway
    axis.grid(False)
    axis.set_box_aspect((1, 1, 0.9), zoom=0.92)


def _look(cloud: Cloud, side: str, shades: list[str]) -> dict[str, Any]:
    n = len(cloud.queries) + len(cloud.keys)
    size = min(44.0, max(12.0, 9000 / n))
    if side == "queries":
        return {"marker": _MARKERS[side], "s": size, "facecolors": "none", "edgecolors": shades, "linewidths": 0.9}
    return {
        "marker": _MARKERS[side],
        "s": size,
        "facecolors": shades,
        "edgecolors": "white",
        "linewidths": 0.35,
        "alpha": 0.8,
    }


def _legend(figure: Figure, cloud: Cloud, colour: dict[Label, str]) -> None:
    """Labels by colour, then the two markers in grey."""
    shared: dict[str, Any] = {"linestyle": "", "markeredgecolor": "none", "markersize": 7}
    handles = [Line2D([], [], color=colour[label], marker="s", label=plain(str(label)), **shared) for label in colour]
    for side, _, _ in reversed(cloud.sides):
        look = {"markeredgecolor": GREY, "markerfacecolor": "none"} if side == "queries" else {}
        handles.append(Line2D([], [], color=GREY, marker=_MARKERS[side], label=side, **shared | look))
    legend(figure, handles, columns=1 + (len(handles) - 1) // (_ONE_COLUMN + len(cloud.sides)))


# Do queries and keys of one feature lie in the same places? Joint PCA and UMAP of their coordinates.
#
# With a contrast's singular pairs (u_k, v_k), the coordinates are q U_r and k V_r: pair k is one axis for both, so
# that queries and keys may be drawn together.

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
    settings: CloudSettings | None = None,
    **options: Unpack[CloudOptions],
) -> Figure:
    """Do queries and keys of one label share a place in the feature's subspace? PCA fitted on both together.

    Components come from all points, whichever are drawn.

    Args:
        queries: Queries in the feature's coordinates.
        keys: Keys, in the same coordinates.
        query_labels: A label for each query.
        key_labels: A label for each key.
        settings: How they are drawn. Default: those of `CloudSettings`.
        **options: Fields of `CloudSettings`, such as view="solid".

    >>> figure = pca_figure(torch.eye(3), 2 * torch.eye(3), ["a", "b", "c"], ["a", "b", "c"], title="Letters")
    >>> figure.get_suptitle()
    'Letters'
    """
    how = settings_with(settings, CloudSettings, options)
    _check(queries, keys, query_labels, key_labels)
    pca = joint_pca(queries, keys)
    names = [f"PC {i + 1} ({100 * share:.0f} % of variance)" for i, share in enumerate(pca.shares.tolist())]
    q, k = _sample(len(queries), len(keys), how)
    labels = [query_labels[i] for i in q.tolist()], [key_labels[i] for i in k.tolist()]
    title = how.title or "Queries and keys in their joint principal components"
    return draw(Cloud(pca.queries[q], pca.keys[k], *labels), names, title, how)


@dataclass(frozen=True, kw_only=True)
class UmapSettings(CloudSettings):
    """How queries and keys are placed by UMAP, and drawn."""

    dims: Literal[2, 3] = option(2, "Dimensions that points are placed in.")
    seed: int = option(99, "Seed of which points are drawn, and of UMAP.")


class UmapOptions(CloudOptions, total=False):
    """The fields of `UmapSettings`, as keywords."""

    dims: Literal[2, 3]


def umap_figure(
    queries: Float[Tensor, "queries d"],
    keys: Float[Tensor, "keys d"],
    query_labels: Sequence[Label],
    key_labels: Sequence[Label],
    *,
    settings: UmapSettings | None = None,
    **options: Unpack[UmapOptions],
) -> Figure:
    """Do labels form clusters in a subspace of more than three dimensions? UMAP (cosine) of queries and keys together.

    Distances between clusters, and so between queries and keys, mean little here; those of `pca_figure` do. Fitted on
    the points that are drawn, with min(500, n / 4) neighbours.

    Args:
        queries: Queries in the feature's coordinates.
        keys: Keys, in the same coordinates.
        query_labels: A label for each query.
        key_labels: A label for each key.
        settings: How they are placed and drawn. Default: those of `UmapSettings`.
        **options: Fields of `UmapSettings`, such as dims=3.

    >>> umap_figure(torch.eye(3), torch.eye(3), [1, 2, 3], [1, 2, 3])
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: UMAP needs 10 points, but there are 6: use pca_figure.
    """
    how = settings_with(settings, UmapSettings, options)
    _check(queries, keys, query_labels, key_labels)
    q, k = _sample(len(queries), len(keys), how)
    picked = torch.cat([queries[q], keys[k]]).float()
    if len(picked) < _LEAST_FOR_UMAP:
        raise KeyholeError(f"UMAP needs {_LEAST_FOR_UMAP} points, but there are {len(picked)}: use pca_figure.")
    try:
        from umap import UMAP
    except ImportError as error:
        raise KeyholeError("umap-learn, which draws this, is missing: pip install 'keyhole[cluster]'") from error
    neighbours = max(2, min(500, len(picked) // 4))
    fit = UMAP(
        n_components=how.dims,
        n_neighbors=neighbours,
        min_dist=0.7,
        metric="cosine",
        random_state=how.seed,
        n_jobs=1,  # UMAP is reproducible only then
    )
    placed = torch.from_numpy(fit.fit_transform(picked.numpy())).double()
    labels = [query_labels[i] for i in q.tolist()], [key_labels[i] for i in k.tolist()]
    names, title = [f"UMAP {i + 1}" for i in range(how.dims)], how.title or "Queries and keys in a joint UMAP"
    return draw(Cloud(placed[: len(q)], placed[len(q) :], *labels), names, title, how)


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


def _sample(queries: int, keys: int, how: CloudSettings) -> tuple[Int[Tensor, "q"], Int[Tensor, "k"]]:
    """Which points are drawn? Half of each side; a side with fewer leaves its room to the other. In random order."""
    points = how.points
    if points < 1:
        raise KeyholeError(f"points is {points}, but a figure needs at least one point.")
    take_q = min(queries, max(points // 2, points - keys))
    take_k = min(keys, points - take_q)
    generator = torch.Generator().manual_seed(how.seed)
    chosen_q = torch.randperm(queries, generator=generator)[:take_q]
    return chosen_q, torch.randperm(keys, generator=generator)[:take_k]
