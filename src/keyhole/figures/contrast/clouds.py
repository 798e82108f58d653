"""How are labelled queries and keys drawn in one space? Colour is the label, the marker says query or key."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.figures.style import GREY, blank, colours, heading, legend, plain, tidy

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


def draw(cloud: Cloud, names: list[str], *, title: str, ordered: bool, view: View) -> Figure:
    """Where does each label lie? Each pair of components as a plane, or three components as one solid."""
    if view not in ("planes", "solid"):
        raise KeyholeError(f"there is no view {view!r}: choose 'planes' or 'solid'.")
    colour = dict(zip(cloud.labels, colours(len(cloud.labels), ordered=ordered), strict=True))
    solid = view == "solid" and len(names) == 3
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
        own = {"markeredgecolor": GREY, "markerfacecolor": "none"} if side == "queries" else {}
        handles.append(Line2D([], [], color=GREY, marker=_MARKERS[side], label=side, **shared | own))
    legend(figure, handles, columns=1 + (len(handles) - 1) // (_ONE_COLUMN + len(cloud.sides)))
