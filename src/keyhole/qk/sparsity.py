"""How few terms carry a sum? S(v) and N_recon, of one split and of many at once."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def sparsity(terms: Float[Tensor, "channel"]) -> float:
    """S(v) of one split.

    >>> sparsity(torch.tensor([0.0, 0.0, 5.0, 0.0]))
    0.25
    """
    return float(sparsity_each(terms))


def sparsity_each(terms: Float[Tensor, "*batch channel"]) -> Float[Tensor, "*batch"]:
    """S(v) = mean(|v|)^2 / mean(v^2), in [1/n, 1]; small means few terms carry the sum. NaN if all are zero.

    >>> sparsity_each(torch.tensor([[0.0, 5.0], [1.0, -1.0]])).tolist()
    [0.5, 1.0]
    """
    terms = terms.double()
    return terms.abs().mean(-1) ** 2 / terms.square().mean(-1)


def n_recon(terms: Float[Tensor, "channel"], tolerance: float = 1.0, total: float | None = None) -> int | None:
    """Size of the smallest set of terms that sums to `tolerance` times the total.

    None if the total is not positive or the terms cannot reach it (where a `total` includes a rest beside them).
    `tolerance=1` is the paper's. Tiny negative terms force extra channels in there; 0.95 or 0.99 forgives them.

    >>> n_recon(torch.tensor([3.0, 1.0, -0.01])), n_recon(torch.tensor([3.0, 1.0, -0.01]), 0.7)
    (2, 1)
    """
    whole = terms.double().sum() if total is None else torch.tensor(total, dtype=torch.float64, device=terms.device)
    count = float(n_recon_each(terms, whole, tolerance))
    return None if math.isnan(count) else int(count)


def n_recon_each(
    terms: Float[Tensor, "*batch channel"], total: Float[Tensor, "*batch"], tolerance: float = 1.0
) -> Float[Tensor, "*batch"]:
    """N_recon of every split; NaN where there is none.

    >>> n_recon_each(torch.tensor([[3.0, 1.0, -0.01], [-1.0, 0.5, 0.0]]), torch.tensor([3.99, -0.5])).tolist()
    [2.0, nan]
    """
    ordered, total = terms.double().sort(dim=-1, descending=True).values, total.double()[..., None]
    slack = 1e-6 * ordered.abs().sum(-1, keepdim=True)  # float32 terms, summed in another order, fall short by rounding
    reached = ordered.cumsum(-1) >= tolerance * total - slack
    counts = reached.int().argmax(-1).double() + 1
    return torch.where((total[..., 0] > 0) & reached.any(-1), counts, float("nan"))
