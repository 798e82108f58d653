"""Do latents keep to themselves in query-key space? The interaction matrix, with lines between latents."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.figures.style import INK, blank, plain, scale, tidy, wrapped


def interaction_figure(
    G: Float[Tensor, "query key"], sizes: Sequence[int], names: Sequence[str] = (), *, title: str = ""
) -> Figure:
    """Which latent directions of the query meet which of the key? G = (W_Q B)^T (W_K A); red: attracts, blue: repels.

    `sizes` are the ranks of the latents, in the order of G's rows; `names` theirs. A diagonal means one feature per
    dimension; entries outside the blocks mean that latents share dimensions (superposition).
    """
    _check(G, sizes, names)
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


def _check(G: Float[Tensor, "query key"], sizes: Sequence[int], names: Sequence[str]) -> None:
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
