"""What do families of circuits look like? Their tree, bars for labels, and the map of distances in the tree's order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib import colormaps
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.brief import model_label
from keyhole.figures import style
from keyhole.studies.families.distances import WHAT

if TYPE_CHECKING:
    from keyhole.studies.families.record import Families

_CELLS = 1200  # of the map, along a side: more cannot be seen
_STUB = 0.03  # length of the line to a single circuit, as a share of the tree's height: lines to 0 would hide the tree
_FEW = len(style.PALETTE)  # values of a label that have a colour each
_MOST_VALUES = 40  # labels with more values have no bar: names have hundreds
_BARS, _SHOWN = 5, 4  # bars at most, and values of each in the legend
_RAMPS = ("Greens", "Oranges", "Purples")
_NEAR = LinearSegmentedColormap.from_list("near", ["#16335c", style.BLUE, "#a9c1de", "#f6f5f1"])


def families_figure(result: "Families") -> Figure:
    """Dendrogram, labels, and the map of distances, in the tree's order."""
    from scipy.cluster.hierarchy import leaves_list

    tree = result.clustering.tree
    order = leaves_list(tree)
    bars = _bars(result)
    figure = style.blank(10.5, 8.2)
    widths = [2.2, *[0.24] * len(bars), 6.2]
    axes = figure.subplots(1, len(bars) + 2, width_ratios=widths)
    _draw_tree(axes[0], result, order)
    for axis, (name, codes, colours, _) in zip(axes[1:-1], bars, strict=True):
        _draw_bar(axis, name, codes[order], colours)
    image = _draw_map(axes[-1], result, order)
    style.scale(figure, axes[-1], image, "Jaccard distance")
    style.heading(figure, _title(result))
    if bars:
        style.legend(figure, _in_columns([entries for _, _, _, entries in bars]), columns=len(bars), beneath=True)
    return figure


Bar = tuple[str, np.ndarray, list[str], list[Patch]]


def _bars(result: "Families") -> list[Bar]:
    """The bars between tree and map, with their legends: families, and labels of few values."""
    sample = _sample_labels(result)
    bars: list[Bar] = []
    if len(result.families) > 1:
        colours = [style.FAINT, *_colours(int(sample.max()))]
        names = [f"{i} ({family.size:,})" for i, family in enumerate(result.families, 1)]
        outside = [Patch(color=style.FAINT, label="outside of all")] if (sample == 0).any() else []
        bars.append(("family", sample, colours, _legend("family", names, colours[1:]) + outside))
    for name, values in result.values.items():
        known = sorted({value for value in values if value is not None}, key=_natural)
        if len(known) <= _MOST_VALUES and len(bars) < _BARS:
            codes = np.array([len(known) if value is None else known.index(value) for value in values])
            colours = [*_of_values(known, first=not bars), style.FAINT]
            bars.append((name, codes, colours, _legend(name, known, colours)))
    return bars


def _legend(name: str, known: Sequence[str], colours: Sequence[str]) -> list[Patch]:
    """Each value; of many, the first, some in between and the last."""
    shown = np.unique(np.linspace(0, len(known) - 1, min(len(known), _SHOWN)).round().astype(int))
    return [Patch(color=colours[i], label=style.plain(f"{name} {known[i]}")) for i in shown]


def _in_columns(legends: Sequence[list[Patch]]) -> list[Patch]:
    """Entries of a legend that is filled column by column, a column for each bar."""
    long = max(map(len, legends))
    return [patch for legend in legends for patch in legend + [Patch(alpha=0, label=" ")] * (long - len(legend))]


def _colours(n: int) -> list[str]:
    return style.colours(n, ordered=n > _FEW)


def _of_values(known: Sequence[str], *, first: bool) -> list[str]:
    """A colour for each value of a label. Few values have colours far from those of families, many have a ramp.

    Values such as ABBA-3 have a ramp for each text before the dash.
    """
    if len(known) <= _SHOWN:
        return list(style.PALETTE[: len(known)] if first else style.PALETTE[-len(known) :])
    heads = sorted({value.rpartition("-")[0] for value in known})
    if not 1 < len(heads) <= len(_RAMPS):
        return style.colours(len(known), ordered=True)
    colours: dict[str, str] = {}
    for head, ramp in zip(heads, _RAMPS, strict=False):
        values = [value for value in known if value.rpartition("-")[0] == head]
        colours |= {
            value: to_hex(colormaps[ramp](0.95 - 0.7 * i / max(len(values) - 1, 1))) for i, value in enumerate(values)
        }
    return [colours[value] for value in known]


def _draw_tree(axis: Any, result: "Families", order: Int[np.ndarray, "circuits"]) -> None:
    """Merges as brackets, in the colour of their family below the cut."""
    tree, labels = result.clustering.tree, _sample_labels(result)
    lines, owners = _brackets(tree, order, labels)
    colours = [style.INK, *_colours(max(int(labels.max()), 1))] if len(result.families) > 1 else [style.INK, style.INK]
    wide = 0.9 if len(order) <= 1000 else 0.5
    axis.add_collection(LineCollection(lines, colors=[colours[owner] for owner in owners], linewidths=wide))
    top, low = float(tree[:, 2].max()), float(tree[:, 2].min())
    axis.set_xlim(top + 0.03 * (top - low), max(0.0, low - 0.06 * top))
    axis.set_ylim(len(order) - 0.5, -0.5)
    style.tidy(axis, x="mean distance")
    axis.spines["left"].set_visible(False)
    axis.set_yticks([])
    cut = result.clustering.cut
    if cut is not None and len(result.families) > 1:
        axis.axvline(cut.height, color=style.GREY, linewidth=0.8, linestyle=(0, (4, 3)))


def _brackets(
    tree: Float[np.ndarray, "merges 4"], order: Int[np.ndarray, "circuits"], labels: Int[np.ndarray, "circuits"]
) -> tuple[list[np.ndarray], list[int]]:
    n, top = len(order), float(tree[:, 2].max())
    place, height = np.empty(2 * n - 1), np.zeros(2 * n - 1)
    owner = np.concatenate([labels, np.zeros(n - 1, np.int64)])
    place[order] = np.arange(n)
    lines, owners = [], []
    for at, (left, right, joined, _) in enumerate(tree):
        left, right = int(left), int(right)
        place[n + at], height[n + at] = (place[left] + place[right]) / 2, joined
        owner[n + at] = owner[left] if owner[left] == owner[right] else 0
        stubs = [height[child] if child >= n else max(0.0, joined - _STUB * top) for child in (left, right)]
        corners = [(stubs[0], place[left]), (joined, place[left]), (joined, place[right]), (stubs[1], place[right])]
        lines.append(np.array(corners))
        owners.append(int(owner[n + at]))
    return lines, owners


def _draw_bar(axis: Any, name: str, codes: Int[np.ndarray, "circuits"], colours: Sequence[str]) -> None:
    picture = np.array([to_rgb(colour) for colour in colours])[codes][:, None, :]
    axis.imshow(picture, aspect="auto", interpolation="nearest", extent=(0, 1, len(codes) - 0.5, -0.5))
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel(style.plain(name), rotation=90, fontsize=9, va="top", ha="center")
    for spine in axis.spines.values():
        spine.set_visible(False)


def _draw_map(axis: Any, result: "Families", order: Int[np.ndarray, "circuits"]) -> Any:
    n = len(order)
    shown = _coarse(result.distances[np.ix_(order, order)])
    off = shown[~np.eye(len(shown), dtype=bool)]
    low, high = (float(np.quantile(off, q)) for q in (0.005, 0.995))
    image = axis.imshow(
        shown, cmap=_NEAR, vmin=low, vmax=max(high, low + 1e-6), interpolation="nearest", aspect="auto",
        extent=(-0.5, n - 0.5, n - 0.5, -0.5),
    )  # fmt: skip
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_xlabel(f"{n:,} circuits", fontsize=10)
    for spine in axis.spines.values():
        spine.set_visible(False)
    return image


def _coarse(distances: Float[np.ndarray, "circuits circuits"]) -> Float[np.ndarray, "cells cells"]:
    """Means over neighbours, where there are more circuits than can be seen."""
    step = -(-len(distances) // _CELLS)
    if step == 1:
        return distances
    starts = np.arange(0, len(distances), step)
    sizes = np.diff([*starts, len(distances)])
    rows = np.add.reduceat(distances, starts, 0)
    return np.asarray(np.add.reduceat(rows, starts, 1) / sizes[:, None] / sizes[None, :])


def _sample_labels(result: "Families") -> Int[np.ndarray, "circuits"]:
    place = np.searchsorted(result.prompts, result.sample)
    return np.asarray(result.labels[place])


def _title(result: "Families") -> str:
    about, many = result.about, len(result.families)
    count = "one family" if many == 1 else f"{many} families"
    return f"{about.task} on {model_label(about.model)}: {count} of circuits, as sets of {WHAT[about.granularity]}" + (
        " with the roles of tokens" if about.role else ""
    )


def _natural(text: str) -> tuple[Any, ...]:
    """A key that sorts numbers in texts by their value: ABBA-2 before ABBA-10."""
    import re

    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part)
