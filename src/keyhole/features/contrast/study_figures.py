"""How many dimensions does a feature take, and which pictures show a study?

Ranks against entities, against a toy's true ranks, and spectra; interventions, embeddings and attributions of heads.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from keyhole.brief import Head, head_name, model_label
from keyhole.errors import KeyholeError, UnwritableError
from keyhole.features.contrast.attribution import attribute
from keyhole.features.contrast.clouds import Label, pca_figure, umap_figure
from keyhole.features.contrast.figures import attribution_figure, intervention_figure
from keyhole.features.contrast.finding import choose
from keyhole.features.contrast.lists import RankRow
from keyhole.features.contrast.moves import Effect
from keyhole.features.contrast.studies import Study
from keyhole.features.contrast.subspace import energy_rank
from keyhole.figures.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    KINDS,
    RED,
    blank,
    colours,
    heading,
    legend,
    plain,
    save_as,
    tidy,
    wrapped,
)

_DODGE = 0.09  # ranks are whole numbers: without it the lines of equal heads would hide each other
_ERRORS = LinearSegmentedColormap.from_list("errors", ["#f1f4f8", "#a9bfdc", BLUE, "#16305a"])


@dataclass(frozen=True)
class RankCurve:
    """The rank of one head's contrast, built from more and more entities."""

    head: str
    entities: tuple[int, ...]
    energy: tuple[int, ...]  # singular values that hold 99 % of the squared norm
    null: tuple[int, ...] = ()  # singular values above the permutation null; empty when it was not drawn


def plateau(entities: Sequence[int], ranks: Sequence[int], *, slack: int = 1, least: int = 3) -> int | None:
    """From how many entities on does the rank stay where it ends? None unless `least` counts agree within `slack`.

    None of them may exceed the first one: however slow, that would still be a rise.

    >>> plateau((2, 3, 4, 5, 6), (1, 2, 5, 4, 5))
    4
    >>> plateau((2, 3, 4, 5, 6), (1, 5, 5, 5, 6)) is None
    True
    """
    steady = 0
    while steady < len(ranks) and abs(ranks[-1 - steady] - ranks[-1]) <= slack:
        steady += 1
    while steady > 1 and ranks[-steady] < max(ranks[-steady:]):
        steady -= 1
    return entities[-steady] if steady >= least else None


def rank_figure(
    curves: Sequence[RankCurve], *, title: str = "Rank of the contrast against its number of entities"
) -> Figure:
    """Does the rank stop growing with the number of entities? One line per head, a ring where its plateau begins.

    The dotted diagonal is one rank per entity: a line that follows it only counts entities.
    """
    _check_curves(curves)
    panels = [("Singular values holding 99 % of the energy", [curve.energy for curve in curves])]
    if any(curve.null for curve in curves):
        panels.append(("Singular values above the permutation null", [curve.null for curve in curves]))
    figure = blank(4.1 * len(panels) + 1.6, 3.8)
    heading(figure, title)
    top = max(max(ranks) for _, lines in panels for ranks in lines if ranks)
    shades = colours(len(curves))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, lines) in zip(axes, panels, strict=True):
        tidy(axis, name, x="entities", y="rank" if axis is axes[0] else "")
        for i, (curve, ranks) in enumerate(zip(curves, lines, strict=True)):
            _rank_line(axis, curve.entities, ranks, shades[i], _DODGE * (i - (len(curves) - 1) / 2))
        axis.axline((0, 0), slope=1, color=GREY, linestyle=":", linewidth=1, zorder=0)
        axis.set_ylim(0, top * 1.08 + 0.5)
        axis.set_xlim(min(c.entities[0] for c in curves) - 0.5, max(c.entities[-1] for c in curves) + 0.5)
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    heads = zip(curves, shades, strict=True)
    handles = [Line2D([], [], color=shade, marker="o", markersize=4, label=plain(c.head)) for c, shade in heads]
    handles.append(Line2D([], [], color=GREY, linestyle=":", linewidth=1, label="one per entity"))
    ring: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 9, "markerfacecolor": "none"}
    handles.append(Line2D([], [], color=INK, label="plateau begins", **ring))
    legend(figure, handles)
    return figure


def _rank_line(axis: Any, entities: Sequence[int], ranks: Sequence[int], shade: str, dodge: float) -> None:
    if not ranks:
        return
    axis.plot(entities, [rank + dodge for rank in ranks], color=shade, marker="o", markersize=4, linewidth=1.6)
    start = plateau(entities, ranks)
    if start is not None:
        height = ranks[list(entities).index(start)] + dodge
        axis.plot([start], [height], marker="o", markersize=9, color=shade, markerfacecolor="none", linestyle="")


def _check_curves(curves: Sequence[RankCurve]) -> None:
    if not curves:
        raise KeyholeError("there are no ranks to draw: give at least one RankCurve.")
    for curve in curves:
        n = len(curve.entities)
        if n == 0 or len(curve.energy) != n or len(curve.null) not in (0, n):
            raise KeyholeError(
                f"head {curve.head!r} has {n} numbers of entities, {len(curve.energy)} energy ranks and "
                f"{len(curve.null)} null ranks: give one rank for each number (or no null ranks at all)."
            )
        if list(curve.entities) != sorted(set(curve.entities)):
            raise KeyholeError(f"the numbers of entities of head {curve.head!r} do not rise: sort them, each once.")


def rank_grid_figure(
    recovered: Int[Tensor, "r1 r2 2"], r1: Sequence[int], r2: Sequence[int], d_head: int, *, title: str = ""
) -> Figure:
    """Are the true ranks of a toy's two latents recovered? Text: the recovered ranks; colour: how many are missed.

    recovered[i, j] holds both ranks found when the truth is (r1[i], r2[j]); a negative entry leaves the cell out.
    """
    if not len(r1) or not len(r2) or recovered.shape[:2] != (len(r1), len(r2)):
        raise KeyholeError(
            f"the grid is {recovered.shape[0]} x {recovered.shape[1]}, but there are {len(r1)} values of r1 and "
            f"{len(r2)} of r2: give one row for each r1, one column for each r2, and at least one of both."
        )
    truth = torch.stack(torch.meshgrid(torch.tensor(r1), torch.tensor(r2), indexing="ij"), dim=-1)
    missed = (recovered - truth).abs().sum(-1).double()
    absent = (recovered < 0).any(-1)
    missed[absent] = float("nan")
    most = max(4, int(missed.nan_to_num(0).max()))
    figure = blank(max(4.2, 0.62 * len(r2) + 2.3), max(3.2, 0.5 * len(r1) + 1.5))
    axis = figure.subplots()
    image = axis.imshow(missed.numpy(), cmap=_ERRORS, vmin=0, vmax=most, origin="lower", aspect="auto")
    for i, j in (~absent).nonzero().tolist():
        ranks = ", ".join(str(rank) for rank in recovered[i, j].tolist())
        light = float(missed[i, j]) > 0.45 * most
        axis.text(j, i, ranks, ha="center", va="center", fontsize=9, color="white" if light else INK)
    title = wrapped(figure, title or f"Recovered ranks, d_head = {d_head}", 0.8)
    tidy(axis, title, x="true rank of latent 2", y="true rank of latent 1")
    bar = figure.colorbar(image, ax=axis, ticks=MaxNLocator(integer=True, nbins=5), pad=0.02)
    bar.set_label("ranks missed, |Δ1| + |Δ2|", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if rank_axes(axis, r1, r2, d_head):
        legend(figure, [Line2D([], [], color=RED, linewidth=2.2, label="r1 + r2 = d_head")], beneath=True)
    return figure


def rank_axes(axis: Any, r1: Sequence[int], r2: Sequence[int], d_head: int) -> bool:
    """Name the ranks of a grid, and draw the border r1 + r2 = d_head; returns whether it lies within the grid.

    It runs along edges of cells, so that it hides no text.
    """
    axis.set_xticks(range(len(r2)), [str(r) for r in r2])
    axis.set_yticks(range(len(r1)), [str(r) for r in r1])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    fits = [[a + b <= d_head for b in r2] for a in r1]
    inside = range(len(r1)), range(len(r2))
    upright = [(i, j) for i in inside[0] for j in inside[1][:-1] if fits[i][j] != fits[i][j + 1]]
    level = [(i, j) for i in inside[0][:-1] for j in inside[1] if fits[i][j] != fits[i + 1][j]]
    edges = [((j + 0.5, j + 0.5), (i - 0.5, i + 0.5)) for i, j in upright]
    edges += [((j - 0.5, j + 0.5), (i + 0.5, i + 0.5)) for i, j in level]
    for x, y in edges:
        axis.plot(x, y, color=RED, linewidth=2.2, solid_capstyle="projecting")
    return bool(edges)


def spectrum_figure(
    S: Float[Tensor, "rank"],
    null: Float[Tensor, "levels"] | None = None,
    *,
    shown: int = 32,
    title: str = "Singular values of the contrast",
) -> Figure:
    """How many singular values stand out? Those above the permutation null in blue, and where 99 % of energy ends.

    `null` is the null's 95 % quantile of every singular value (a constant, repeated, for one level).
    """
    if len(S) == 0 or not bool((S.isfinite() & (S >= 0)).all()) or float(S[0]) == 0:
        raise KeyholeError("there is no spectrum: give finite singular values, largest first, at least one above zero.")
    if null is not None and len(null) != len(S):
        raise KeyholeError(f"there are {len(S)} singular values and {len(null)} null levels: give one for each.")
    n = min(len(S), shown)
    index = list(range(1, n + 1))
    values = S[:n].tolist()
    # Only a leading run counts: a value above its level behind one below it is chance.
    above = len(S) if null is None else int((null < S).long().cumprod(0).sum())
    held = int(energy_rank(S))
    figure = blank(6.2, 3.8)
    axis = figure.subplots()
    tidy(axis, wrapped(figure, title, 0.9), x="index", y="singular value")
    axis.vlines(index, 0, values, color=FAINT, linewidth=1.5, zorder=0)
    axis.plot(index[:above], values[:above], "o", color=BLUE)
    axis.plot(index[above:], values[above:], "o", markeredgecolor=GREY, markerfacecolor="white")
    dots: dict[str, Any] = {"linestyle": "", "marker": "o"}
    handles = [Line2D([], [], color=GREY, linewidth=1, linestyle="--", label=f"99 % of energy: rank {held}")]
    if held < n:
        axis.axvline(held + 0.5, color=GREY, linewidth=1, linestyle="--")
    if null is not None:
        axis.plot(index, null[:n].tolist(), color=RED, linewidth=1.6)
        handles.append(Line2D([], [], color=RED, linewidth=1.6, label="95 % of permutations"))
        handles.append(Line2D([], [], color=BLUE, label=f"above them: rank {above}", **dots))
    axis.set_ylim(0, 1.06 * max(*values, *([] if null is None else null[:n].tolist()), 0))
    axis.set_xlim(0.3, n + 0.7)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    legend(figure, handles, columns=3, beneath=True)
    return figure


# Which pictures show a study?

_MOST_HEADS = 6  # of which pictures are drawn; tables have them all
_MOST_LABELS = 12  # with a colour of their own


def draw_study(
    study: Study, folder: Path, *, umap: bool = False, kinds: Sequence[str] = KINDS
) -> tuple[list[Path], list[str]]:
    """Draw everything that the study has: the files, and a note for each picture that could not be made.

    `kinds`: png, svg, pdf; each picture is written as each of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heads = study.selected[:_MOST_HEADS]
    shown = {head_name(head): study.swaps[head] for head in heads if head in study.swaps}
    written: list[Path] = []
    notes: list[str] = []

    def add(draw: Callable[..., list[Path]], *arguments: Any, **options: Any) -> None:
        try:
            written.extend(draw(*arguments, **options))
        except UnwritableError:
            raise
        except KeyholeError as error:  # a picture that cannot be made must not cost the study
            notes.append(str(error))

    if shown:
        add(_interventions, study, shown, folder, kinds)
    for head in heads:
        for name in study.features:
            stem = folder / f"{_slug(name)}-{head_name(head)}"
            add(_spectrum, study, name, head, stem, kinds)
            add(_embeddings, study, name, head, stem, kinds, umap=umap)
        if any(feature.rank for feature in study.of(head)):
            add(_attribution, study, head, folder / f"attribution-{head_name(head)}", kinds)
    return written, list(dict.fromkeys(notes))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "feature"


def _interventions(
    study: Study, shown: dict[str, tuple[Effect, ...]], folder: Path, kinds: Sequence[str]
) -> list[Path]:
    title = (
        f"Attention when a feature's coordinates change places, {model_label(study.model)}, {study.tested} test samples"
    )
    return save_as(intervention_figure(shown, title=title), folder / "interventions", kinds)


def _spectrum(study: Study, name: str, head: Head, stem: Path, kinds: Sequence[str]) -> list[Path]:
    features = study.features[name]
    at = features.at(head)
    null = None if features.threshold is None else features.threshold[at].expand(features.S.shape[-1])
    figure = spectrum_figure(features.S[at], null, title=f"Contrast of {name} in head {head_name(head)}")
    return save_as(figure, stem.with_name(f"spectrum-{stem.name}"), kinds)


def draw_sweep(rows: Mapping[str, Sequence[RankRow]], folder: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Ranks against the number of entities, a picture per feature."""
    written = []
    for name, ranks in rows.items():
        curves = []
        for head in list(dict.fromkeys(row.head for row in ranks))[:_MOST_HEADS]:
            mine = [row for row in ranks if row.head == head]
            columns = ([row.entities for row in mine], [row.energy for row in mine], [row.null for row in mine])
            curves.append(RankCurve(head_name(head), *(tuple(column) for column in columns)))
        figure = rank_figure(curves, title=f"Rank of {name} against the number of entities")
        written += save_as(figure, folder / f"ranks-{_slug(name)}", kinds)
    return written


def coordinates(study: Study, name: str, head: Head, rank: int) -> tuple[Tensor, Tensor, list[Label]]:
    """Queries and their positive keys in the feature's subspace, with the labels of the contrast that made it."""
    features, fit = study.features[name], study.fits[name]
    chosen = choose(fit, half=None if study.half is None else 1 - study.half)
    positive = fit.slots.sign[chosen] == 1
    chosen, first = chosen[positive.any(1)], positive.long().argmax(1)[positive.any(1)]
    samples = fit.layer(head[0]).of(chosen)
    layer, index = features.at(head)
    U, V = features.U[layer, index, :, :rank], features.V[layer, index, :, :rank]
    q = samples.queries[:, index].double().cpu() @ U
    keys = samples.keys[torch.arange(len(chosen)), first, index // samples.group].double().cpu() @ V
    return q, keys, _few([fit.resolved.labels[int(i)] or "all" for i in chosen])


def _few(labels: list[str]) -> list[Label]:
    """Numbers as numbers, so that they are in order; of many texts, the rarer ones together."""
    if all(text.isdecimal() for text in labels):
        return [int(text) for text in labels]
    common = {text for text, _ in Counter(labels).most_common(_MOST_LABELS)}
    return [text if text in common else "others" for text in labels]


def _embeddings(study: Study, name: str, head: Head, stem: Path, kinds: Sequence[str], *, umap: bool) -> list[Path]:
    # Three components are drawn even where the rank is lower, as in the paper: what lies beyond it should be shapeless.
    q, keys, labels = coordinates(study, name, head, max(3, study.features[name].rank(head, study.settings.rank)))
    ordered = all(isinstance(text, int) for text in labels)
    title = f"Queries and right keys in the {name} subspace of head {head_name(head)}"
    figure = pca_figure(q, keys, labels, labels, title=title, ordered=ordered)
    written = save_as(figure, stem.with_name(f"pca-{stem.name}"), kinds)
    if umap:
        figure = umap_figure(q, keys, labels, labels, title=title, ordered=ordered)
        written += save_as(figure, stem.with_name(f"umap-{stem.name}"), kinds)
    return written


def _attribution(study: Study, head: Head, stem: Path, kinds: Sequence[str]) -> list[Path]:
    """The row of the first test sample, split over the study's features."""
    test = study.test
    slot = int(choose(test, half=study.half)[0])
    prompt, at = test.slots.query[slot].tolist()
    run = test.model.run(test.resolved.prompts[prompt].ids)
    split = attribute(run, [feature for feature in study.of(head) if feature.rank], at, frame=test.frame)
    sites = zip(test.slots.keys[slot].tolist(), test.slots.sign[slot].tolist(), strict=True)
    visible = [(key, sign) for (owner, key), sign in sites if owner == prompt and sign and key >= split.first]
    right, others = ([key for key, sign in visible if sign == side] for side in (1, -1))
    title = f"Logits of head {head_name(head)} from “{run.tokens[at].strip()}”, one prompt"
    if right and others:  # the same quantity as the tables' share of gap, of this row
        gap, through = split.gap(right, others)
        title += f": of the gap of {gap:.2f} between right and other keys {through:.2f} passes through the features"
    marked = [key - split.first for key in right]
    tokens = [token.strip() or "·" for token in run.tokens[split.first : at + 1]]
    if not tokens:
        raise KeyholeError("there is no key to attribute to.")
    figure = attribution_figure(tokens, split.parts, split.logits, list(split.names), marked=marked, title=title)
    return save_as(figure, stem, kinds)
