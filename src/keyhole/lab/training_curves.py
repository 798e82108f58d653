"""How does something change over a training, with intervals and breakpoints, and how is that drawn?

What do the rows of a training say, step by step? Means over heads with 95 % intervals, and changes between steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from torch import Tensor

from keyhole.brief import Head
from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, colours, heading, legend, tidy
from keyhole.lab.emergence import Emergence
from keyhole.stats import Interval, interval

Over = Literal["places", "sources"]
_Where = tuple[str, str, Head]  # source, role, head
_Rows = dict[tuple[_Where, int], list[float]]  # of a place in a prompt, step by step
MEASURES = (
    *("sparsity", "ambient", "refactor", "attention", "relative_attention"),
    *("n_recon", "n_recon_refactor", "n_recon_tolerant", "n_recon_tolerant_refactor"),
)


@dataclass(frozen=True)
class Point:
    """A mean with its 95 % interval (Student's t) over `count` places; `dropped` rows had no value."""

    interval: Interval
    count: int
    dropped: int

    @property
    def mean(self) -> float:
        """The mean."""
        return self.interval.mean

    @property
    def low(self) -> float:
        """Where its interval begins."""
        return self.interval.low

    @property
    def high(self) -> float:
        """Where it ends."""
        return self.interval.high


def together(several: Sequence[Emergence]) -> Emergence:
    """Several trainings as one: their rows, step by step. Each must have a `source` of its own."""
    if not several or any(training.steps != several[0].steps for training in several):
        raise KeyholeError("trainings go together step by step: give at least one, all with the same steps.")
    sources = [{row.source for rows in training.rows for row in rows} for training in several]
    if len(set().union(*sources)) != sum(map(len, sources)):
        raise KeyholeError("two trainings have the same source, so their heads would be mixed: name each differently.")
    return Emergence(
        several[0].steps,
        tuple(tuple(row for training in several for row in training.rows[i]) for i in range(len(several[0].steps))),
    )


def curve(
    emerged: Emergence, name: str = "sparsity", *, role: str | None = None, window: int = 1, over: Over = "places"
) -> list[Point]:
    """What is the mean of a measure at every step, and how sure is it?

    Prompts are averaged first. The interval is over heads at their places, or over trainings (`over="sources"`), which
    counts heads of one training as one observation. `window` averages each over that many neighbouring checkpoints
    (the paper: 8), fewer at the ends.

    Args:
        emerged: A measured training.
        name: What is averaged, such as sparsity.
        role: Heads of one role. Default: of all.
        window: Neighbouring checkpoints of an average.
        over: Whether places or sources are the observations.

    >>> from keyhole.lab.emergence import EmergenceRow
    >>> rows = [EmergenceRow("mover", (1, 0), 0, 5, 2, 8, 6, 0.9, 3.0, S, *(0.5,) * 6) for S in (0.6, 0.2)]
    >>> [point.mean for point in curve(Emergence((0, 100), tuple((row,) for row in rows)))]
    [0.6, 0.2]
    """
    units, dropped = _averaged(_rows(emerged, name, role), over)
    steps = range(len(emerged.steps))
    return [_point(torch.nanmean(units[:, _near(i, steps, window)], dim=1), dropped[i]) for i in steps]


def change(
    emerged: Emergence,
    name: str = "sparsity",
    *,
    against: str | None = None,
    role: str | None = None,
    between: tuple[int, int] = (0, -1),
    window: int = 1,
    over: Over = "places",
) -> Point:
    """By how much did a measure change between two checkpoints, place by place and prompt by prompt?

    What is not defined at both checkpoints is left out, so that a change is never one of which heads or prompts there
    are.

    Args:
        emerged: A training, measured at its checkpoints.
        name: The measure, such as sparsity or n_recon.
        against: Another measure, such as a control: by how much more than that one did it change? Default: none.
        role: The role of the heads that are taken. Default: all heads.
        between: The two checkpoints, by index. Default: the first and the last.
        window: Around each, so many neighbouring checkpoints are averaged, as in `curve`.
        over: The interval is over places or over sources, which are trainings.

    >>> from keyhole.lab.emergence import EmergenceRow
    >>> rows = [EmergenceRow("mover", (1, 0), 0, 5, 2, 8, 6, 0.9, 3.0, S, *(0.5,) * 6) for S in (0.6, 0.2)]
    >>> round(change(Emergence((0, 100), tuple((row,) for row in rows))).mean, 3)
    -0.4
    """
    first, last = between
    rows = _smooth(_rows(emerged, name, role), window)
    if against is not None:
        rows = _less(rows, _smooth(_rows(emerged, against, role), window))
    moved = {key: [series[last] - series[first]] for key, series in rows.items()}
    units, dropped = _averaged(moved, over)
    return _point(units[:, 0], dropped[0])


def gap(
    emerged: Emergence,
    name: str,
    against: str,
    *,
    role: str | None = None,
    at: int = -1,
    window: int = 1,
    over: Over = "places",
) -> Point:
    """By how much is a measure above another one, such as its control, at one checkpoint (by index), or around it?"""
    both = _less(*(_smooth(_rows(emerged, measure, role), window) for measure in (name, against)))
    units, dropped = _averaged({key: [series[at]] for key, series in both.items()}, over)
    return _point(units[:, 0], dropped[0])


def _rows(emerged: Emergence, name: str, role: str | None) -> _Rows:
    """The measure of every place in every prompt at every step."""
    if name not in MEASURES:
        raise KeyholeError(f"there is no measure {name!r}: choose one of {', '.join(MEASURES)}.")
    if role is not None and role not in emerged.roles:
        raise KeyholeError(f"no head was measured as {role!r}: there are {', '.join(emerged.roles)}.")
    rows_of_places: _Rows = {}
    for i, rows in enumerate(emerged.rows):
        for row in rows:
            if role in (None, row.role):
                key = (row.source, row.role, row.head), row.prompt
                rows_of_places.setdefault(key, [math.nan] * len(emerged.steps))[i] = float(getattr(row, name))
    return rows_of_places


def _near(i: int, steps: range, window: int) -> slice:
    """The checkpoints around one that a window averages: fewer at the ends."""
    if window < 1:
        raise KeyholeError(f"a window of {window} checkpoints averages nothing: give 1 (no smoothing) or more.")
    return slice(max(0, i - (window - 1) // 2), min(len(steps), i + window // 2 + 1))


def _smooth(rows: _Rows, window: int) -> _Rows:
    """Every series averaged over a window, where something in it is defined."""
    smoothed: _Rows = {}
    for key, series in rows.items():
        values, steps = torch.tensor(series, dtype=torch.float64), range(len(series))
        smoothed[key] = [float(torch.nanmean(values[_near(i, steps, window)])) for i in steps]
    return smoothed


def _less(rows: _Rows, others: _Rows) -> _Rows:
    return {key: [a - b for a, b in zip(series, others[key], strict=True)] for key, series in rows.items()}


def _averaged(rows: _Rows, over: Over) -> tuple[Float[Tensor, "unit step"], list[int]]:
    """Means of every place, or of every training over its places, and how many rows of each step had no value."""
    places: dict[_Where, list[list[float]]] = {}
    for (place, _), series in rows.items():
        places.setdefault(place, []).append(series)
    means = {place: torch.tensor(series, dtype=torch.float64).nanmean(0) for place, series in places.items()}
    dropped = torch.tensor(list(rows.values()), dtype=torch.float64).isnan().sum(0).tolist()
    if over == "places":
        return torch.stack(list(means.values())), dropped
    sources = dict.fromkeys(source for source, _, _ in means)
    grouped = [torch.stack([mean for place, mean in means.items() if place[0] == source]) for source in sources]
    return torch.stack([group.nanmean(0) for group in grouped]), dropped


def _point(values: Float[Tensor, "unit"], dropped: int) -> Point:
    values = values[values.isfinite()]
    if not len(values):
        return Point(Interval(math.nan, math.nan, math.nan), 0, dropped)
    return Point(interval(values.tolist()), len(values), dropped)


# When does attention become sparse? S(v), N_recon and the attention itself over a training, beside their controls.

_OWN, _REFACTOR, _AMBIENT = BLUE, RED, GREY


def emergence_figure(
    emerged: Emergence,
    *,
    window: int = 1,
    over: Over = "places",
    by_role: bool = False,
    tolerant: bool = False,
    unit: str = "training step",
    title: str = "Sparse attention over training",
) -> Figure:
    """Does S(v) fall while its rotated controls stay? Means over places with 95 % intervals, against training steps.

    Steps are on a logarithmic axis, which is linear below the first step after 0. `window` smooths over checkpoints,
    `by_role` adds a thin line for each role, `tolerant` counts the channels of N_recon with tolerance. `unit` says what
    the steps are; those that are no training steps stand side by side.
    """
    if len(emerged.steps) < 2:
        raise KeyholeError("there is one checkpoint, and a line needs two: measure more checkpoints.")
    count, name = ("n_recon_tolerant", "N_recon, with tolerance") if tolerant else ("n_recon", "N_recon")
    panels: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
        (
            "Sparsity of the channels",
            "S(v)",
            (("ambient", _AMBIENT, "--"), ("refactor", _REFACTOR, "--"), ("sparsity", _OWN, "-")),
        ),
        ("Channels that make up the score", name, ((f"{count}_refactor", _REFACTOR, "--"), (count, _OWN, "-"))),
        ("Attention in the role", "attention weight", (("attention", _OWN, "-"),)),
    )
    figure = blank(12.0, 4.1 if by_role else 3.9)
    heading(figure, title)
    shades = dict(zip(emerged.roles, colours(len(emerged.roles) + 1)[1:], strict=True)) if by_role else {}
    for axis, (above, label, lines) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        tidy(axis, above, x=unit, y=label)
        for measure, shade, dash in lines:
            _line(axis, emerged.steps, curve(emerged, measure, window=window, over=over), shade=shade, dash=dash)
        for role, shade in shades.items():
            values = [point.mean for point in curve(emerged, lines[-1][0], role=role, window=window, over=over)]
            axis.plot(emerged.steps, values, color=shade, linewidth=1.0, zorder=2)
        axis.set_ylim(bottom=0)
        if unit == "training step":
            _steps(axis, emerged.steps)
        else:
            axis.set_xticks(emerged.steps)
        if label == "S(v)":
            axis.axhline(1 / emerged.channels, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    legend(figure, _handles(emerged, shades), columns=4, beneath=True)
    return figure


def _line(axis: Any, steps: Sequence[int], points: Sequence[Point], *, shade: str, dash: str) -> None:
    low, high = [point.low for point in points], [point.high for point in points]
    axis.fill_between(steps, low, high, color=shade, alpha=0.16, linewidth=0)
    dots = {"marker": "o", "markersize": 3.2} if dash == "-" and len(steps) <= 24 else {}
    axis.plot(steps, [point.mean for point in points], color=shade, linewidth=1.8, linestyle=dash, zorder=3, **dots)


def _steps(axis: Any, steps: Sequence[int]) -> None:
    """A logarithmic axis that has room for step 0."""
    first = next(step for step in steps if step > 0)
    axis.set_xscale("symlog", linthresh=first, linscale=0.45) if steps[0] == 0 else axis.set_xscale("log")
    axis.set_xlim(steps[0], steps[-1] * 1.04)
    decades = [10**k for k in range(8) if max(first, 1) <= 10**k <= steps[-1]]
    ticks = [*([0] if steps[0] == 0 else []), *(decades or [first, steps[-1]])]
    axis.set_xticks(ticks)
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def _handles(emerged: Emergence, shades: dict[str, str]) -> list[Line2D]:
    look: dict[str, Any] = {"linewidth": 1.8}
    handles = [
        Line2D([], [], color=_OWN, marker="o", markersize=3.2, label="singular channels", **look),
        Line2D([], [], color=_REFACTOR, linestyle="--", label="rotated channels (refactor)", **look),
        Line2D([], [], color=_AMBIENT, linestyle="--", label="rotated space (ambient)", **look),
        Line2D([], [], color=INK, linestyle=":", linewidth=0.8, label=f"least possible, 1/{emerged.channels}"),
    ]
    return handles + [Line2D([], [], color=shade, linewidth=1.0, label=role) for role, shade in shades.items()]
