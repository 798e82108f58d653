"""Do few channels carry attention? Counts of channels and slices by head, which slices, and what each contributes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from keyhole.brief import Head, head_name, model_label
from keyhole.errors import KeyholeError
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, legend, plain, tidy
from keyhole.lab.head_summary import Spread, spread
from keyhole.lab.sparse import HeadPairs, SparseStudy
from keyhole.qk.channels import Channels
from keyhole.qk.controls import slice_sets

_MOST = 16  # heads drawn when none are chosen: those that fire most
_DODGE = 0.19  # firing above, quiet beneath
_SETS = 256  # rows of a map of slices


def n_recon_figure(studies: Sequence[SparseStudy], heads: Sequence[Head] | None = None, *, title: str = "") -> Figure:
    """How many channels make up relative attention, head by head? A panel per set of prompts.

    Quiet pairs are those with positive relative attention. The red mark is the firing pairs' median in rotated bases.
    """
    title = title or "Channels that make up relative attention"
    return _by_head(studies, heads, lambda t: (t.n_recon, t.n_rotated), unit="channels", title=title)


def slices_figure(studies: Sequence[SparseStudy], heads: Sequence[Head] | None = None, *, title: str = "") -> Figure:
    """How many slices make up the score, head by head? A panel per set of prompts; marks as in `n_recon_figure`."""
    title = title or "Orthogonal slices that make up the attention score"
    return _by_head(studies, heads, lambda t: (t.slices, t.slices_rotated), unit="slices", title=title)


def slice_counts_figure(studies: Sequence[SparseStudy], *, title: str = "") -> Figure:
    """How many slices does a pair use, over all heads? The 2024 paper's distribution, firing and quiet."""
    _require(studies)
    figure = blank(4.2 * len(studies) + 0.4, 3.5)
    heading(figure, title or f"Slices used by a pair, all heads of {_model(studies)}")
    axes = figure.subplots(1, len(studies), sharey=True, sharex=True, squeeze=False)[0]
    for axis, study in zip(axes, studies, strict=True):
        tidy(axis, plain(study.name), x="slices used", y="share of pairs" if axis is axes[0] else "")
        most = 0
        for firing, shade in ((False, GREY), (True, BLUE)):
            sizes = torch.cat([table.slices for table in study.tables if table.firing == firing]).long()
            share = (sizes.bincount().double() / len(sizes))[1:].tolist()
            edges = [n + 0.5 for n in range(len(share) + 1)]
            most = max(most, len(share))
            axis.stairs(share, edges, color=shade, linewidth=1.6)
            axis.stairs(share, edges, color=shade, fill=True, alpha=0.15)
            axis.axvline(float(sizes.double().mean()), color=shade, linestyle="--", linewidth=1)
        rotated = torch.cat([table.slices_rotated for table in study.tables if table.firing])
        axis.axvline(float(rotated.mean()), color=RED, linestyle="--", linewidth=1)
        axis.set_xlim(0.5, most + 0.5)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    handles: list[Any] = [Line2D([], [], color=BLUE, linewidth=1.6, label="firing")]
    handles.append(Line2D([], [], color=GREY, linewidth=1.6, label="not firing"))
    handles.append(Line2D([], [], color=INK, linewidth=1, linestyle="--", label="mean"))
    handles.append(Line2D([], [], color=RED, linewidth=1, linestyle="--", label="mean of firing, rotated bases"))
    legend(figure, handles, columns=4, beneath=True)
    return figure


def slice_map_figure(study: SparseStudy, heads: Sequence[Head], *, title: str = "") -> Figure:
    """Does a head use the same slices over prompts, and others when it does not fire? A row per pair."""
    if not heads:
        raise KeyholeError("there is no head to draw: give at least one.")
    figure = blank(2.5 * len(heads) + 0.8, 5.6)
    heading(figure, title or f"Slices used over prompts ({study.name})")
    grid = figure.subplots(2, len(heads), squeeze=False, sharex="col")
    for column, head in enumerate(heads):
        for axis, firing, shade in ((grid[0, column], True, BLUE), (grid[1, column], False, INK)):
            table = study.of(head, firing=firing)
            tidy(axis, head_name(head) if firing else "", x="" if firing else "slice, strongest first")
            if column == 0:
                axis.set_ylabel("firing pairs" if firing else "pairs that do not fire", fontsize=10)
            if len(table):
                # evenly over the prompts, so that long tables show them all
                rows = torch.linspace(0, len(table) - 1, min(_SETS, len(table))).long()
                colours = ListedColormap(["white", shade])
                n = table.used.shape[1]
                used = table.used[rows].int().numpy()
                axis.imshow(
                    used,
                    aspect="auto",
                    cmap=colours,
                    vmin=0,
                    vmax=1,
                    interpolation="nearest",
                    extent=(0.5, n + 0.5, len(rows), 0),
                )
            axis.set_yticks([])
            axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    return figure


def contributions_figure(
    splits: Sequence[Channels], *, relative: bool = False, rotated: bool = False, title: str = ""
) -> Figure:
    """What does each channel add to a score? Those that make it up in red: the set S_ij of the 2024 paper.

    `relative` shows the terms of relative attention instead, and the channels that N_recon counts. Of `rotated`
    channels none is the strongest, and the axis does not say so.
    """
    if not splits:
        raise KeyholeError("there is nothing to draw: give at least one split, as `run.channels` makes it.")
    figure = blank(4.0 * len(splits) + 0.4, 3.2)
    quantity = "relative attention" if relative else "the score"
    heading(figure, title or f"What each channel adds to {quantity}")
    for axis, split in zip(figure.subplots(1, len(splits), squeeze=False)[0], splits, strict=True):
        terms = split.relative_terms if relative else split.terms
        used = _first(terms, split.n_recon() or 0) if relative else slice_sets(terms[None])[0]
        total = split.relative_attention if relative else split.score
        name = f"{split.layer}.{split.head}, {split.dest} ← {split.src}"
        tidy(
            axis,
            f"{name}: {_two_digits(total)} from {int(used.sum())} of {len(terms)}",
            x="rotated channel" if rotated else "channel, strongest first",
            y="contribution" if split is splits[0] else "",
        )
        shades = [RED if kept else GREY for kept in used.tolist()]
        axis.bar(range(1, len(terms) + 1), terms.tolist(), color=shades, width=0.8)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set_xlim(0.3, len(terms) + 0.7)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend(
        figure, [Patch(color=RED, label="makes it up"), Patch(color=GREY, label="the rest")], columns=2, beneath=True
    )
    return figure


def _by_head(
    studies: Sequence[SparseStudy],
    heads: Sequence[Head] | None,
    numbers: Callable[[HeadPairs], tuple[Tensor, Tensor]],
    *,
    unit: str,
    title: str,
) -> Figure:
    _require(studies)
    # in the order of the layers: one sees how early and late heads differ
    shown = sorted(studies[0].firing_heads()[:_MOST]) if heads is None else list(heads)
    if not shown:
        raise KeyholeError("no head fires in enough prompts: give the heads to draw, or a study of more prompts.")
    most = max(table.used.shape[1] for table in studies[0].tables)
    figure = blank(3.7 * len(studies) + 0.9, 0.33 * len(shown) + 1.5)
    heading(figure, f"{title}, {_model(studies)}")
    axes = figure.subplots(1, len(studies), sharex=True, sharey=True, squeeze=False)[0]
    for axis, study in zip(axes, studies, strict=True):
        tidy(axis, plain(study.name), x=f"number of {unit}, of {most}")
        for row, head in enumerate(shown):
            for firing, shade, place in ((True, BLUE, row - _DODGE), (False, GREY, row + _DODGE)):
                table = study.of(head, firing=firing)
                _bar(axis, spread(numbers(table)[0], table.pairs[:, 0]), place, shade)
            table = study.of(head)
            middle = spread(numbers(table)[1], table.pairs[:, 0]).median
            axis.plot([middle], [row - _DODGE], marker="|", markersize=9, markeredgewidth=1.8, color=RED)
        axis.set_yticks(range(len(shown)), [head_name(head) for head in shown])
        axis.set_ylim(len(shown) - 0.4, -0.6)
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x", color=FAINT, linewidth=0.6)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes[0].set_xlim(left=0)
    axes[0].set_ylabel("head", fontsize=10)
    legend(figure, _handles(), columns=3, beneath=True)
    return figure


def _bar(axis: Any, of: Spread, place: float, shade: str) -> None:
    """5 to 95 % thin, the middle half thick, the median a white-edged dot."""
    if of.count == 0:
        return
    low, lower, middle, upper, high = of.quantiles
    axis.plot([low, high], [place, place], color=shade, linewidth=1, solid_capstyle="butt")
    axis.plot([lower, upper], [place, place], color=shade, linewidth=4.5, solid_capstyle="butt")
    axis.plot([middle], [place], "o", color=shade, markeredgecolor="white", markersize=6, markeredgewidth=1)


def _handles() -> list[Any]:
    dot: dict[str, Any] = {"marker": "o", "markersize": 6, "markeredgecolor": "white", "linewidth": 3.5}
    return [
        Line2D([], [], color=BLUE, label="firing: median, half, 90 % of pairs", **dot),
        Line2D([], [], color=GREY, label="not firing", **dot),
        Line2D(
            [],
            [],
            color=RED,
            linestyle="",
            marker="|",
            markersize=9,
            markeredgewidth=1.8,
            label="firing, rotated bases",
        ),
    ]


def _model(studies: Sequence[SparseStudy]) -> str:
    return plain(model_label(studies[0].model))


def _two_digits(value: float) -> str:
    """A number with two significant digits, or all before the point: small ones must not read as -0.0."""
    return f"{value:#.2g}".rstrip(".") if abs(value) < 99.5 else f"{value:.0f}"


def _first(terms: Tensor, n: int) -> Tensor:
    used = torch.zeros_like(terms, dtype=torch.bool)
    used[terms.argsort(descending=True)[:n]] = True
    return used


def _require(studies: Sequence[SparseStudy]) -> None:
    if not studies:
        raise KeyholeError("there is nothing to draw: give at least one SparseStudy.")
