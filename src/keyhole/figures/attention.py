"""Attention weights of one head as a picture, and which heads take over when another is removed."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from keyhole.brief import Head, head_name, model_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.backup_record import Backups
from keyhole.figures.style import (
    BLUE,
    FAINT,
    GREY,
    INK,
    PALETTE,
    RED,
    blank,
    heading,
    legend,
    plain,
    scale,
    tidy,
    wrapped,
)
from keyhole.models.attention import visible_mask
from keyhole.models.numbers import exact_matmul
from keyhole.models.tokens import token_label
from keyhole.qk.channels import check_head

if TYPE_CHECKING:
    from keyhole.models.run import Run

_UNSEEN = "#ececea"
_NAMED = 70  # tokens with a label each; in longer prompts every second, third, ... has one
_LETTERS = 16  # of a label, at most


def head_figure(run: "Run", head: Head) -> Figure:
    """Draw all attention weights of one head in this prompt.

    Keys that a token cannot see are grey. `run.plot(head)` is the same.

    Args:
        run: The prompt.
        head: (layer, head).

    >>> import keyhole
    >>> head_figure(keyhole.load().run("Mary gave John a book"), (3, 1)).axes[0].get_ylabel()
    'attending token (dest)'
    """
    layer, index = check_head(run, head)
    record = run.attention_run(layer)
    with exact_matmul():
        weights = record.weights([index], range(len(run)))[0]
    visible = visible_mask(record.first, torch.arange(len(run), device=weights.device), len(run))
    weights = weights.masked_fill(~visible, float("nan"))
    return attention_figure(weights, run.tokens, title=f"{model_label(run.model.name)}, head {layer}.{index}")


def attention_figure(weights: Float[Tensor, "dest src"], tokens: Sequence[str], *, title: str = "") -> Figure:
    """Draw a matrix of attention weights, such as `run.layer(3).weights([1], range(len(run)))[0]`.

    Args:
        weights: A row for each attending token, a column for each attended one. NaN, drawn grey, stands for keys that
            a token cannot see.
        tokens: Labels of rows and columns.
        title: Of the figure.

    >>> weights = torch.tensor([[1.0, float("nan")], [0.3, 0.7]])
    >>> attention_figure(weights, ["a", "b"], title="head 3.1").axes[0].get_title(loc="left")
    'head 3.1'
    """
    n = len(tokens)
    if weights.shape != (n, n):
        raise KeyholeError(f"{n} tokens have {n} x {n} weights, not {' x '.join(map(str, weights.shape))}.")
    side = min(10.5, max(2.4, 0.26 * n, 0.15 * n + 1.5))
    figure = blank(side + 1.9, side + 0.9)
    axis = figure.subplots()
    shades = colormaps["Blues"].with_extremes(bad=_UNSEEN)
    image = axis.imshow(weights.tolist(), cmap=shades, vmin=0, vmax=float(weights.nan_to_num().max()))
    tidy(axis, wrapped(figure, title, 0.8), x="attended token (src)", y="attending token (dest)")
    places = list(range(0, n, -(-n // _NAMED)))
    names = [_name(tokens, place) for place in places]
    size = 9 if n <= 25 else 8 if n <= 40 else 7
    axis.set_xticks(places, names, rotation=90, fontsize=size)
    axis.set_yticks(places, names, fontsize=size)
    axis.tick_params(length=0)
    axis.spines[:].set(visible=True, color=INK, linewidth=0.8)
    scale(figure, axis, image, "attention weight")
    return figure


def _name(tokens: Sequence[str], place: int) -> str:
    name = token_label(tokens, place)
    return plain(name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…")


# Which heads take over? Effects of heads alone and once another is gone, and what joint removals cost.

_SHADES = {"wakes": RED, "counts more": PALETTE[1], "holds back less": PALETTE[2]}
_NAMED_BACKUPS = 6  # backups whose names stand beside their dots
_BARS = {"alone": GREY, "effects added": BLUE, "with its backups": RED, "with random heads": FAINT}


def backups_figure(backups: Backups) -> Figure:
    """A dot per pair: the second head's effect alone, and once the first is removed; beside it, joint removals.

    Args:
        backups: The result of `circuit.backups()`.
    """
    backed = [row for row in backups.heads if row.supporting]
    figure = blank(10.5 if backed else 6.0, 4.6)
    heading(figure, f"Which heads take over? {plain(backups.model)}")
    axes = figure.subplots(1, 2 if backed else 1, squeeze=False)[0]
    _pairs(axes[0], backups)
    handles: list[Any] = [
        Line2D([], [], color=shade, marker="o", linestyle="none", markersize=6, label=kind)
        for kind, shade in _SHADES.items()
    ]
    handles += [
        Line2D([], [], color=BLUE, marker="o", linestyle="none", markersize=4, label="no backup"),
        Line2D([], [], color=GREY, marker="x", linestyle="none", markersize=5, label="random pair"),
    ]
    if backed:
        for i, (name, shade) in enumerate(_BARS.items()):
            values = [_bars(row)[name] for row in backed]
            axes[1].barh([at + 0.2 * (i - 1.5) for at in range(len(backed))], values, height=0.18, color=shade)
        axes[1].axvline(0, color=INK, linewidth=0.8)
        axes[1].set_yticks(range(len(backed)), [head_name(row.head) for row in backed])
        axes[1].set_ylim(len(backed) - 0.5, -0.5)
        tidy(axes[1], "a head removed", x=f"effect on the {backups.metric}")
        handles += [Patch(color=shade, label=name) for name, shade in _BARS.items()]
    legend(figure, handles, columns=5, beneath=True)
    return figure


def _bars(row: Any) -> dict[str, float]:
    random = sum(row.random) / max(1, len(row.random))
    return dict(zip(_BARS, (row.effect, row.expected, row.joint, random), strict=True))


def _pairs(axis: Any, backups: Backups) -> None:
    others = [pair for row in backups.heads for pair in row.pairs if not pair.kind]
    axis.plot([p.alone for p in backups.random], [p.after for p in backups.random], "x", color=GREY, markersize=4)
    axis.plot([p.alone for p in others], [p.after for p in others], "o", color=BLUE, markersize=3, alpha=0.5)
    for pair in backups.pairs:
        axis.plot([pair.alone], [pair.after], "o", color=_SHADES[str(pair.kind)], markersize=6)
    for pair in backups.pairs[:_NAMED_BACKUPS]:
        label = f"{head_name(pair.second)} without {head_name(pair.first)}"
        axis.annotate(label, (pair.alone, pair.after), xytext=(6, 0), textcoords="offset points", fontsize=8)
    ends = [*axis.get_xlim(), *axis.get_ylim()]
    line = [min(ends), max(ends)]
    axis.plot(line, line, color=FAINT, linewidth=1, zorder=0)
    axis.fill_between(
        line, [y - backups.bar for y in line], [y + backups.bar for y in line], color=FAINT, alpha=0.4, zorder=0
    )
    tidy(axis, "a dot per pair", x="effect of a head", y="its effect once another is gone")
