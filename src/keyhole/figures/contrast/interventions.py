"""Does attention follow a feature that is swapped between two keys? Attention and normalised effects, head by head."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from keyhole.contrast.edits.moves import Effect
from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, heading, legend, plain, tidy

_COLUMNS = 4  # heads side by side
_BAR = 0.38
_THIN = 0.35  # of a bar: that of random subspaces
_RANDOM: dict[str, Any] = {"facecolor": "white", "edgecolor": GREY, "hatch": "//////", "linewidth": 0.8}


def intervention_figure(
    heads: Mapping[str, Sequence[Effect]], *, title: str = "Attention after swapping features between two keys"
) -> Figure:
    """Does the swap move attention from the original to the target token, and more than a random one?

    For each head: mean attention on both tokens after every edit, beside it (hatched) after the same edit of random
    subspaces of the same rank, and the normalised effects (0: random subspaces, 1: the full swap) with their 95 %
    intervals. Conditions without random controls have no such bars and no such effect.
    """
    _check(heads)
    effects = [effect for row in heads.values() for effect in row]
    conditions = list(dict.fromkeys(effect.name for effect in effects))
    measured = list(dict.fromkeys(effect.name for effect in effects if _has_controls(effect)))
    figure = _layout(len(heads), len(conditions), len(measured))
    heading(figure, title)
    rows = conditions if len(heads) == 1 else measured  # one head: panels side by side share their rows
    cells = _cells(figure, len(heads), len(conditions), len(measured))
    for (name, row), (above, below, first) in zip(heads.items(), cells, strict=True):
        _attention(above, row, conditions)
        tidy(above, plain(name), x="mean attention")
        _name_rows(above, conditions, effects, shown=first)
        if below is not None:
            _effects(below, row, rows)
            tidy(below, x="normalised effect")
            below.spines["left"].set_visible(False)  # the line at zero is there for it
            _name_rows(below, rows, effects, shown=first and len(heads) > 1)
    handles: list[Any] = [Patch(color=GREY, label="original token"), Patch(color=BLUE, label="target token")]
    if any(_has_random_bars(effect) for effect in effects):
        handles.append(Patch(**_RANDOM, label="the same for random subspaces"))
    if measured:
        point: dict[str, Any] = {"marker": "o", "markersize": 5, "linewidth": 1.6}
        handles.append(Line2D([], [], color=RED, label="effect: 0 = random, 1 = full swap (95 % interval)", **point))
    legend(figure, handles, columns=2 if len(heads) != 2 else 1, beneath=True)
    return figure


def _layout(heads: int, conditions: int, measured: int) -> Figure:
    if heads == 1:
        return blank(9.0 if measured else 5.5, 0.36 * conditions + 1.5)
    bands = math.ceil(heads / _COLUMNS)
    band = 0.3 * conditions + 0.75 + (0.24 * measured + 0.75 if measured else 0)
    return blank(2.3 * min(heads, _COLUMNS) + 1.6, band * bands + 0.8)


def _cells(figure: Figure, heads: int, conditions: int, measured: int) -> list[tuple[Any, Any, bool]]:
    """For each head: the panel of attention, the one of effects (or None), and whether it names the conditions."""
    if heads == 1:
        axes = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
        return [(axes[0], axes[1] if measured else None, True)]
    bands = math.ceil(heads / _COLUMNS)
    columns = min(heads, _COLUMNS)
    ratios = ([conditions + 1.5, measured + 1.5] if measured else [1.0]) * bands
    grid = figure.subplots(len(ratios), columns, squeeze=False, gridspec_kw={"height_ratios": ratios})
    each = 2 if measured else 1
    cells = []
    for h in range(bands * columns):
        band, column = divmod(h, columns)
        panels = grid[band * each : band * each + each, column]
        if h < heads:
            cells.append((panels[0], panels[1] if measured else None, column == 0))
        else:
            for panel in panels:
                panel.remove()
    return cells


def _attention(axis: Any, row: Sequence[Effect], conditions: list[str]) -> None:
    """Two bars for each condition; above each, thin and hatched, that of random subspaces where there are some."""
    thin = {effect.name: _BAR * _THIN if _has_random_bars(effect) else 0.0 for effect in row}
    beside = [effect for effect in row if thin[effect.name]]
    for offset, of, shade in ((-_BAR / 2, "orig", GREY), (_BAR / 2, "target", BLUE)):
        places = [conditions.index(effect.name) + offset + thin[effect.name] / 2 for effect in row]
        heights = [_BAR - thin[effect.name] for effect in row]
        axis.barh(places, [getattr(effect, of) for effect in row], height=heights, color=shade)
        if beside:
            above = [conditions.index(effect.name) + offset - _BAR * (1 - _THIN) / 2 for effect in beside]
            widths = [getattr(effect, f"random_{of}") for effect in beside]
            axis.barh(above, widths, height=_BAR * _THIN, **_RANDOM | {"edgecolor": shade})
    axis.set_xlim(0, 1)
    axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])


def _effects(axis: Any, row: Sequence[Effect], rows: list[str]) -> None:
    for edge in (0, 1):
        axis.axvline(edge, color=INK if edge == 0 else GREY, linewidth=0.8, linestyle="-" if edge == 0 else "--")
    for effect in filter(_has_controls, row):
        place = rows.index(effect.name)
        low, high = effect.interval
        if math.isfinite(low) and math.isfinite(high):
            axis.plot([low, high], [place, place], color=RED, linewidth=1.6, solid_capstyle="butt")
        axis.plot([effect.normalised], [place], "o", color=RED, markersize=5)
    left, right = axis.get_xlim()
    axis.set_xlim(min(left, -0.12), max(right, 1.12))
    axis.set_xticks([0, 0.5, 1], ["0", ".5", "1"])  # where random subspaces and the full swap are


def _name_rows(axis: Any, names: list[str], effects: list[Effect], *, shown: bool) -> None:
    labels = [_label(name, sorted({e.rank for e in effects if e.name == name})) for name in names]
    axis.set_yticks(range(len(names)), labels if shown else [])
    axis.set_ylim(len(names) - 0.4, -0.6)  # the first condition is on top
    axis.tick_params(axis="y", length=0)


def _label(name: str, ranks: list[int]) -> str:
    if ranks[-1] == 0:
        return plain(name)
    span = f"{ranks[0]}" if ranks[0] == ranks[-1] else f"{ranks[0]}-{ranks[-1]}"
    return f"{plain(name)} (rank {span})"


def _has_controls(effect: Effect) -> bool:
    """An effect without random subspaces is normalised to zero movement, which is another scale."""
    return effect.rank > 0 and math.isfinite(effect.random) and math.isfinite(effect.normalised)


def _has_random_bars(effect: Effect) -> bool:
    return math.isfinite(effect.random_orig) and math.isfinite(effect.random_target)


def _check(heads: Mapping[str, Sequence[Effect]]) -> None:
    if not heads or not all(heads.values()):
        raise KeyholeError("there is nothing to draw: give at least one head, and at least one Effect for each.")
    for head, row in heads.items():
        names = [effect.name for effect in row]
        if len(set(names)) < len(names):
            raise KeyholeError(f"head {head!r} has two effects of one name among {names}: rename one of them.")
