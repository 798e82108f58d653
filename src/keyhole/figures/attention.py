"""Where does a head attend? All its weights, tokens on both sides."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import model_label
from keyhole.errors import KeyholeError
from keyhole.figures.style import INK, blank, plain, scale, tidy, wrapped
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.recording.attention import visible_mask
from keyhole.models.tokens.prompts import token_label
from keyhole.qk.channels import check_head

if TYPE_CHECKING:
    from keyhole.models.run import Run

_UNSEEN = "#ececea"
_NAMED = 70  # tokens that all have their name at the axes; of longer prompts every second, third, ...
_LETTERS = 16  # of such a name


def head_figure(run: "Run", head: Head) -> Figure:
    """Where does this head attend in this prompt?"""
    layer, index = check_head(run, head)
    record = run.layer(layer)
    with exact_matmul():
        weights = record.weights([index], range(len(run)))[0]
    seen = visible_mask(record.first, torch.arange(len(run), device=weights.device), len(run))
    weights = weights.masked_fill(~seen, float("nan"))
    return attention_figure(weights, run.tokens, title=f"{model_label(run.model.name)}, head {layer}.{index}")


def attention_figure(weights: Float[Tensor, "dest src"], tokens: Sequence[str], *, title: str = "") -> Figure:
    """Each row is a token and where it looks; NaN, drawn grey, are keys that it does not see."""
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
