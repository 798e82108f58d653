"""How do attribution, interaction and interventions look?

Which features make a head's logits? Contributions of every token, stacked.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.features.contrast.moves import Effect
from keyhole.figures.style import BLUE, GREY, INK, RED, blank, colours, heading, legend, plain, scale, tidy, wrapped


@dataclass(frozen=True)
class Stacks:
    """Bars that end where the last of their sign ended: positive ones pile up from zero, negative ones down."""

    heights: Float[Tensor, "parts tokens"]  # the features in order, then the rest
    bottoms: Float[Tensor, "parts tokens"]


def stack(parts: Float[Tensor, "features tokens"], total: Float[Tensor, "tokens"]) -> Stacks:
    """Where does each bar begin? The rest, total minus all parts, is the last part: heights sum to the total exactly.

    >>> bars = stack(torch.tensor([[2.0], [-1.0]]), torch.tensor([4.0]))
    >>> bars.heights.T.tolist(), bars.bottoms.T.tolist()
    ([[2.0, -1.0, 3.0]], [[0.0, 0.0, 2.0]])
    """
    rest = total.double() - parts.double().sum(0)
    heights = torch.cat([parts.double(), rest[None]])
    up, down = heights.clamp(min=0), heights.clamp(max=0)
    bottoms = torch.where(heights >= 0, up.cumsum(0) - up, down.cumsum(0) - down)
    return Stacks(heights, bottoms)


def attribution_figure(
    tokens: Sequence[str],
    parts: Float[Tensor, "features tokens"],
    total: Float[Tensor, "tokens"],
    names: Sequence[str],
    *,
    marked: Sequence[int] = (),
    title: str = "What each feature adds to each token's logit",
) -> Figure:
    """Why does each token score as it does? Ordered features in colour, the unexplained rest grey, a dot for the sum.

    `marked` tokens (the right answer, say) have bold red labels.
    """
    _check_parts(tokens, parts, total, names)
    bars = stack(parts, total)
    n = len(tokens)
    figure = blank(min(16.5, max(5.5, 2.2 + (0.3 if n <= 30 else 0.155) * n)), 4.0)
    axis = figure.subplots()
    shades = [*colours(len(names)), GREY]
    labels = [*names, "unexplained rest"]
    for heights, bottoms, shade in zip(bars.heights, bars.bottoms, shades, strict=True):
        axis.bar(range(n), heights.tolist(), bottom=bottoms.tolist(), color=shade, width=0.8, linewidth=0)
    axis.axhline(0, color=INK, linewidth=0.8)
    dot: dict[str, Any] = {
        "marker": "o",
        "markersize": 4.5 if n <= 50 else 3.5,
        "color": "black",
        "markeredgecolor": "white",
    }
    axis.plot(range(n), total.tolist(), linestyle="", markeredgewidth=0.6, clip_on=False, **dot)
    tidy(axis, wrapped(figure, title, 0.9), y="attention logit")
    axis.set_xticks(
        range(n), [plain(token) for token in tokens], rotation=90 if n > 30 else 60, fontsize=9 if n <= 50 else 8
    )
    for i, label in enumerate(axis.get_xticklabels()):
        label.set(ha="center" if n > 30 else "right", rotation_mode="default" if n > 30 else "anchor")
        if i in marked:
            label.set(fontweight="bold", color=RED)
    axis.set_xlim(-0.7, n - 0.3)
    handles: list[Any] = [Patch(color=shade, label=plain(label)) for label, shade in zip(labels, shades, strict=True)]
    handles.append(Line2D([], [], linestyle="", label="logit", **dot))
    legend(figure, handles, columns=min(len(handles), 5), beneath=True)
    return figure


def _check_parts(tokens: Sequence[str], parts: Tensor, total: Tensor, names: Sequence[str]) -> None:
    if len(tokens) == 0 or len(total) == 0:
        raise KeyholeError("there are no tokens to draw: give at least one.")
    if parts.shape != (len(names), len(tokens)) or len(total) != len(tokens):
        raise KeyholeError(
            f"{len(names)} names and {len(tokens)} tokens do not fit parts of shape {tuple(parts.shape)} and "
            f"{len(total)} logits: parts is [features, tokens], with one logit for each token."
        )
    if not bool(parts.isfinite().all() and total.isfinite().all()):
        raise KeyholeError("some logits are not finite, as behind a causal mask: leave those tokens out.")


# Do latents keep to themselves in query-key space? The interaction matrix, with lines between latents.


def interaction_figure(
    G: Float[Tensor, "query key"], sizes: Sequence[int], names: Sequence[str] = (), *, title: str = ""
) -> Figure:
    """Which latent directions of the query meet which of the key? G = (W_Q B)^T (W_K A); red: attracts, blue: repels.

    `sizes` are the ranks of the latents, in the order of G's rows; `names` theirs. A diagonal means one feature per
    dimension; entries outside the blocks mean that latents share dimensions (superposition).
    """
    _check_interaction(G, sizes, names)
    names = names or [f"latent {i + 1}" for i in range(len(sizes))]
    n = len(G)
    side = min(6.5, max(3.2, 0.24 * n + 1.2))
    figure = blank(side + 1.2, side + 0.5)
    axis = figure.subplots()
    limit = float(G.abs().max()) or 1.0  # an all-zero matrix is drawn white
    image = axis.imshow(G.tolist(), cmap="RdBu_r", vmin=-limit, vmax=limit)
    diagonal = float((G.diagonal() ** 2).sum() / (G**2).sum()) if bool(G.any()) else float("nan")
    title = title or f"G: {100 * diagonal:.0f} % of energy on the diagonal"
    tidy(axis, wrapped(figure, title, 0.8), x="key", y="query")
    edges = torch.tensor([0, *sizes]).cumsum(0)
    for edge in edges[1:-1].tolist():
        axis.axhline(edge - 0.5, color=INK, linewidth=1.2)
        axis.axvline(edge - 0.5, color=INK, linewidth=1.2)
    middles = ((edges[1:] + edges[:-1]) / 2 - 0.5).tolist()
    labels = [plain(name) for name in names]
    axis.set_xticks(middles, labels)
    axis.set_yticks(middles, labels, rotation=90, va="center")
    axis.tick_params(length=0)
    axis.spines[:].set(visible=True, color=INK, linewidth=0.8)
    scale(figure, axis, image, "entry of G")
    return figure


def _check_interaction(G: Float[Tensor, "query key"], sizes: Sequence[int], names: Sequence[str]) -> None:
    if len(G) == 0 or not bool(G.isfinite().all()):
        raise KeyholeError("there is no interaction to draw: give a finite matrix with at least one row.")
    if G.shape[0] != G.shape[1]:
        raise KeyholeError(f"G is {G.shape[0]} x {G.shape[1]}, but query and key have the same latents: give a square.")
    if sum(sizes) != len(G) or any(size < 1 for size in sizes):
        raise KeyholeError(
            f"latents of ranks {list(sizes)} have {sum(sizes)} rows together, but G has {len(G)}: give the rank of "
            "each latent, all at least 1."
        )
    if names and len(names) != len(sizes):
        raise KeyholeError(f"there are {len(sizes)} latents and {len(names)} names: give one name for each.")


# Does attention follow a feature that is swapped between two keys? Attention and normalised effects, head by head.

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
    _check_effects(heads)
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


def _check_effects(heads: Mapping[str, Sequence[Effect]]) -> None:
    if not heads or not all(heads.values()):
        raise KeyholeError("there is nothing to draw: give at least one head, and at least one Effect for each.")
    for head, row in heads.items():
        names = [effect.name for effect in row]
        if len(set(names)) < len(names):
            raise KeyholeError(f"head {head!r} has two effects of one name among {names}: rename one of them.")
