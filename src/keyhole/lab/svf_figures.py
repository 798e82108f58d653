"""Do singular vectors become features? Cosine matrices, alignment over sweeps and training, and terms of attention."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, FAINT, INK, blank, colours, heading, legend, tidy
from keyhole.lab.svf import cosines
from keyhole.stats import interval

_PANEL = 2.9  # inches
_LEAST = 1e-8  # of 1 - |cos|: trained in float32, nothing below is told apart


@dataclass(frozen=True)
class Matrix:
    """A heat map: its title, entries and the names of its axes. Entries that are not numbers stay grey."""

    title: str
    entries: Float[Tensor, "row column"]
    x: str = ""
    y: str = "feature"


@dataclass(frozen=True)
class Curve:
    """One quantity while training, a row per seed."""

    name: str
    values: Float[Tensor, "seed step"]
    colour: str
    dashed: bool = False


def matrices_figure(
    matrices: Sequence[Matrix],
    *,
    spectrum: Float[Tensor, "seed channel"] | None = None,
    limit: float = 1.0,
    unsigned: bool = False,
    columns: int = 4,
    label: str = "cosine",
    title: str = "",
) -> Figure:
    """Which directions meet? Heat maps on one scale, and beside them, if given, the singular values of all seeds."""
    if not matrices:
        raise KeyholeError("there is no matrix to draw: give at least one.")
    panels = len(matrices) + (spectrum is not None)
    columns = min(columns, panels)
    rows = -(-panels // columns)
    figure = blank(_PANEL * columns + 1.0, 3.0 * rows + 0.55)
    heading(figure, title)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes[panels:]:
        axis.set_axis_off()
    look = {"cmap": "Blues", "vmin": 0.0} if unsigned else {"cmap": "RdBu_r", "vmin": -limit}
    for axis, matrix in zip(axes, matrices, strict=False):
        tidy(axis, matrix.title, x=matrix.x, y=matrix.y)
        axis.set_facecolor(FAINT)
        image = axis.imshow(matrix.entries.tolist(), vmax=limit, aspect="auto", interpolation="nearest", **look)
        axis.spines[:].set(visible=True, color=INK, linewidth=0.8)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    bar = figure.colorbar(image, ax=axes[:panels], shrink=0.85, pad=0.015, aspect=28)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if spectrum is not None:
        _spectrum(axes[len(matrices)], spectrum)
    return figure


def _spectrum(axis: Any, spectrum: Tensor) -> None:
    tidy(axis, "Singular values", x="k", y=r"$\sigma_k$")
    k = list(range(spectrum.shape[1]))
    for seed in spectrum.tolist():
        axis.plot(k, seed, color=BLUE, alpha=0.3, linewidth=0.9)
    axis.plot(k, spectrum.mean(0).tolist(), color=BLUE, linewidth=1.6, marker="o", markersize=3)
    axis.set_ylim(bottom=0)
    axis.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))


def sweep_figure(
    values: Sequence[float],
    cosines: Sequence[Sequence[float]],
    aligned: Sequence[tuple[float, float, float]],
    *,
    x: str,
    log: bool = False,
    bound: float = 0.95,
    panels: tuple[str, str] = ("Cosines of seeds", "Share of seeds"),
    title: str = "",
) -> Figure:
    """Over which settings does alignment hold? Every seed's worst |cos|, and the share of seeds that align.

    `aligned` are shares with their 95 % intervals; `bound` is the |cos| from which a pair counts, drawn dotted.
    """
    if not len(values) == len(cosines) == len(aligned):
        raise KeyholeError("a sweep needs cosines and a share for each value: give three lists of one length.")
    figure = blank(8.6, 3.5)
    heading(figure, title)
    left, right = figure.subplots(1, 2)
    places = list(values) if log else list(range(len(values)))
    tidy(left, panels[0], x=x, y="1 - |cos| with its singular vector")
    for place, of_seeds in zip(places, cosines, strict=True):
        for n, cosine in enumerate(of_seeds):
            offset = (n / max(len(of_seeds) - 1, 1) - 0.5) * 0.16
            at = place * 10 ** (offset / 3) if log else place + offset
            left.plot(at, max(1 - cosine, _LEAST), "o", color=BLUE, alpha=0.45, markersize=4, markeredgewidth=0)
    medians = [float(torch.tensor(of_seeds, dtype=torch.float64).median()) for of_seeds in cosines]
    left.plot(places, [max(1 - median, _LEAST) for median in medians], color=BLUE, linewidth=1.6)
    left.axhline(1 - bound, color=INK, linewidth=0.8, linestyle=":", zorder=0)
    left.set_yscale("log")
    left.set_ylim(_LEAST / 2, 2)
    tidy(right, panels[1], x=x, y="share of seeds, 95 % interval")
    shares, low, high = zip(*aligned, strict=True)
    right.set_ylim(-0.02, 1.03)
    right.fill_between(places, low, high, color=BLUE, alpha=0.16, linewidth=0)
    right.plot(places, shares, color=BLUE, linewidth=1.6, marker="o", markersize=4.5, clip_on=False)
    for axis in (left, right):
        if log:
            axis.set_xscale("log")
        axis.set_xticks(places, [f"{value:g}" for value in values])
        axis.minorticks_off()
    return figure


def curves_figure(
    steps: Sequence[int],
    panels: Mapping[str, Sequence[Curve]],
    *,
    y: str,
    floor: float | None = None,
    means: bool = False,
    title: str = "",
) -> Figure:
    """What happens while training? Medians of seeds with the middle half of them shaded; steps are logarithmic.

    With `means`, means of seeds with their 95 % intervals. `floor` is the least possible value.
    """
    figure = blank(max(5.2, 3.9 * len(panels)), 3.9)
    heading(figure, title)
    entries: dict[str, Curve] = {}
    for axis, (name, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        tidy(axis, name, x="training step", y=y)
        for curve in curves:
            _curve(axis, steps, curve, means)
            entries.setdefault(curve.name, curve)
        if floor is not None:
            axis.axhline(floor, color=INK, linewidth=0.8, linestyle=":", zorder=0)
        axis.set_ylim(0, 1.03 if floor is None else None)
        _steps(axis, steps)
    handles = [
        Line2D([], [], color=entry.colour, linestyle="--" if entry.dashed else "-", label=entry.name)
        for entry in entries.values()
    ]
    if floor is not None:
        handles.append(Line2D([], [], color=INK, linewidth=0.8, linestyle=":", label="least possible"))
    legend(figure, handles, columns=min(4, len(handles)), beneath=True)
    return figure


def _curve(axis: Any, steps: Sequence[int], curve: Curve, means: bool) -> None:
    if means:
        seeds = (of_seeds[of_seeds.isfinite()].tolist() or [math.nan] for of_seeds in curve.values.T)
        middle, low, high = zip(*map(interval, seeds), strict=True)
    else:
        quarter = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
        low, middle, high = curve.values.double().nanquantile(quarter, dim=0).tolist()
    axis.fill_between(steps, low, high, color=curve.colour, alpha=0.14, linewidth=0)
    axis.plot(steps, middle, color=curve.colour, linewidth=1.6, linestyle="--" if curve.dashed else "-")


def _steps(axis: Any, steps: Sequence[int]) -> None:
    """A logarithmic axis that has room for step 0."""
    first = next((step for step in steps if step > 0), 1)
    axis.set_xscale("symlog", linthresh=first, linscale=0.4) if steps[0] == 0 else axis.set_xscale("log")
    axis.set_xlim(steps[0], steps[-1] * 1.04)
    decades = [10**k for k in range(8) if first <= 10**k <= steps[-1]]
    axis.set_xticks([*([0] if steps[0] == 0 else []), *(decades or [first, steps[-1]])])
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def terms_figure(panels: Mapping[str, Float[Tensor, "seed channel"]], *, title: str = "") -> Figure:
    """Which channels carry relative attention? A bar for the mean of seeds, a dot for each of them."""
    if not panels:
        raise KeyholeError("there are no terms to draw: give at least one panel.")
    figure = blank(3.3 * len(panels) + 0.4, 3.3)
    heading(figure, title)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for n, (axis, (name, terms)) in enumerate(zip(axes, panels.items(), strict=True)):
        tidy(axis, name, x="singular pair k", y="" if n else "mean share of all terms' size")
        k = list(range(terms.shape[1]))
        axis.bar(k, terms.nanmean(0).tolist(), color=BLUE, alpha=0.75, width=0.74)
        for seed in terms.tolist():
            axis.plot(k, seed, ".", color=INK, alpha=0.35, markersize=3.5, markeredgewidth=0)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        axis.tick_params(labelleft=n == 0)
    return figure


def strengths_figure(
    products: Float[Tensor, "sample pair"],
    terms: Float[Tensor, "sample pair"],
    gains: Sequence[float],
    *,
    shown: int = 5,
    title: str = "",
) -> Figure:
    """Do terms follow the strengths of features? Left: `shown` token pairs as bars; right: all, with slopes `gains`."""
    n = products.shape[1]
    figure = blank(9.6, 3.6)
    heading(figure, title)
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    shades = colours(n, ordered=True)
    tidy(left, f"{shown} token pairs: bars are terms, marks T times strengths", x="token pair", y="term")
    tidy(right, "All token pairs", x="product of strengths, key beyond the others", y="term")
    for k, shade in enumerate(shades):
        places = [i + (k - (n - 1) / 2) * 0.8 / n for i in range(shown)]
        left.bar(places, terms[:shown, k].tolist(), width=0.72 / n, color=shade, alpha=0.85)
        left.plot(places, (gains[k] * products[:shown, k]).tolist(), "_", color=INK, markersize=9, markeredgewidth=1.4)
        right.plot(products[:, k].tolist(), terms[:, k].tolist(), ".", color=shade, markersize=3, alpha=0.6)
        end = float(products[:, k].max())
        right.plot([0, end], [0, gains[k] * end], color=shade, linewidth=1.0)
    left.set_xticks(range(shown), [str(i + 1) for i in range(shown)])
    left.axhline(0, color=INK, linewidth=0.8)
    handles = [
        Line2D([], [], color=shade, linewidth=3, label=f"pair {k} (T = {gains[k]:g})") for k, shade in enumerate(shades)
    ]
    legend(figure, handles, columns=n, beneath=True)
    return figure


def gram_figure(W: Float[Tensor, "D N"], title: str) -> Figure:
    """Are features antipodal, and are they isotropic? Their cosines, and W W^T."""
    gram = W.double() @ W.double().T
    maps = [
        Matrix("Cosines of features", cosines(W), x="feature"),
        Matrix(r"$W W^T$ / mean eigenvalue", gram / float(gram.diagonal().mean()), x="dimension", y="dimension"),
    ]
    return matrices_figure(maps, label="cosine, entry", title=title)
