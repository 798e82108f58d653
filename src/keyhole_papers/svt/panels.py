"""How do pictures of papers look alike? Panels under a heading, bars and dots with whiskers, clouds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from keyhole.figures.style import BLUE, INK, blank, heading, tidy
from keyhole.stats import Interval


def panels(
    names: Iterable[str], title: str, size: tuple[float, float], *, x: str = "", y: str = "", sharey: bool = True
) -> tuple[Figure, list[Any]]:
    """A figure with a panel for each name, side by side; the first names the vertical axis."""
    named, figure = list(names), blank(*size)
    heading(figure, title)
    axes = list(figure.subplots(1, len(named), sharey=sharey, squeeze=False)[0])
    for axis, name in zip(axes, named, strict=True):
        tidy(axis, name, x=x, y=y if axis is axes[0] else "")
    return figure, axes


def whiskers(axis: Any, means: Mapping[str, Interval], shades: Sequence[str], width: float) -> None:
    """A bar for each mean, with its interval."""
    for at, (one, shade) in enumerate(zip(means.values(), shades, strict=True)):
        axis.bar([at], [one.mean], color=shade, width=width)
        axis.plot([at, at], [one.low, one.high], color=INK, linewidth=1.2)
    axis.axhline(0, color=INK, linewidth=0.8)


def spreads(
    rows: Mapping[str, Sequence[tuple[Interval, str]]], title: str, size: tuple[float, float], x: str
) -> tuple[Figure, Any]:
    """A line of dots with their intervals for each name, from above, each dot in its shade."""
    figure, (axis,) = panels([""], title, (size[0], size[1] * len(rows) + 1.8), x=x)
    for at, dots in enumerate(rows.values()):
        for number, (spread, shade) in enumerate(dots):
            height = at + 0.24 * (number - (len(dots) - 1) / 2)
            axis.plot([spread.low, spread.high], [height] * 2, color=INK, linewidth=1)
            axis.plot([spread.mean], [height], "o", color=shade, markersize=7)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set_ylim(len(rows) - 0.5, -0.5)
    return figure, axis


def cloud(axis: Any, x: Sequence[float], y: Sequence[float]) -> None:
    """A point for each observation."""
    axis.scatter(x, y, s=14, color=BLUE, alpha=0.5, linewidths=0)
