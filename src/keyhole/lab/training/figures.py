"""When does attention become sparse? S(v), N_recon and the attention itself over a training, beside their controls."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, colours, heading, legend, tidy
from keyhole.lab.training.curves import Over, Point, curve
from keyhole.lab.training.emergence import Emergence

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
