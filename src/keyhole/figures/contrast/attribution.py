"""Which features make a head's logits? Contributions of every token, stacked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.figures.style import GREY, INK, RED, blank, colours, legend, plain, tidy, wrapped


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
    _check(tokens, parts, total, names)
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


def _check(tokens: Sequence[str], parts: Tensor, total: Tensor, names: Sequence[str]) -> None:
    if len(tokens) == 0 or len(total) == 0:
        raise KeyholeError("there are no tokens to draw: give at least one.")
    if parts.shape != (len(names), len(tokens)) or len(total) != len(tokens):
        raise KeyholeError(
            f"{len(names)} names and {len(tokens)} tokens do not fit parts of shape {tuple(parts.shape)} and "
            f"{len(total)} logits: parts is [features, tokens], with one logit for each token."
        )
    if not bool(parts.isfinite().all() and total.isfinite().all()):
        raise KeyholeError("some logits are not finite, as behind a causal mask: leave those tokens out.")
