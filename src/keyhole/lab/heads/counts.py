"""How few terms carry a sum, for many pairs at once, and in bases that know nothing of the head?

The paper's control (`ambient`) turns U and V by independent Haar rotations. That leaves of a token only its length,
and S(v) forgets lengths: the control is one number per head, whatever the prompts are. `refactor` keeps every score and
turns only the choice of rank-one pieces, so that it says what the singular basis adds for that very pair.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.qk.controls import haar

_AMBIENT_DRAWS = 2_000


def count_to(
    terms: Float[Tensor, "*pair channel"], total: Float[Tensor, "*pair"], tolerance: float = 1.0
) -> Float[Tensor, "*pair"]:
    """N_recon of every pair: `qk.channels.n_recon`, many at once; NaN where that is None.

    >>> count_to(torch.tensor([[3.0, 1.0, -0.01], [-1.0, 0.5, 0.0]]), torch.tensor([3.99, -0.5])).tolist()
    [2.0, nan]
    """
    ordered, total = terms.double().sort(dim=-1, descending=True).values, total.double()[..., None]
    slack = 1e-6 * ordered.abs().sum(-1, keepdim=True)  # as there: float32 terms fall short by rounding
    reached = ordered.cumsum(-1) >= tolerance * total - slack
    counts = reached.int().argmax(-1).double() + 1
    return torch.where((total[..., 0] > 0) & reached.any(-1), counts, float("nan"))


def sparsity_each(terms: Float[Tensor, "*pair channel"]) -> Float[Tensor, "*pair"]:
    """S(v) = mean(|v|)^2 / mean(v^2) of every pair; NaN where all terms are zero.

    >>> sparsity_each(torch.tensor([[0.0, 5.0], [1.0, -1.0]])).tolist()
    [0.5, 1.0]
    """
    terms = terms.double()
    return terms.abs().mean(-1) ** 2 / terms.square().mean(-1)


def ambient_sparsity(sigma: Float[Tensor, "channel"], seed: int = 0) -> float:
    """How sparse are the terms of a head with this spectrum and random directions, on average?

    The first n coordinates of a uniformly random unit vector are proportional to n independent Gaussians, so the terms
    are proportional to g_k sigma_k h_k.

    >>> 0.3 < ambient_sparsity(torch.ones(64)) < 0.5
    True
    """
    g = torch.Generator().manual_seed(seed)
    left, right = torch.randn(2, _AMBIENT_DRAWS, len(sigma), generator=g, dtype=torch.float64)
    return float(sparsity_each(left * sigma.double().cpu() * right).mean())


def rotations(n: int, draws: int, seed: int = 0) -> Float[Tensor, "draw n n"]:
    """Haar rotations of n channels."""
    g = torch.Generator().manual_seed(seed)
    return torch.stack([haar(n, n, g) for _ in range(draws)])


def refactored(
    a: Float[Tensor, "pair channel"],
    b: Float[Tensor, "pair channel"],
    sigma: Float[Tensor, "channel"],
    R: Float[Tensor, "draw channel channel"],
) -> Float[Tensor, "draw pair channel"]:
    """The terms a_k b_k in other rank-one pieces of the same Omega: every draw has the same sums."""
    root = sigma.double().sqrt()
    left, right = (a.double() / root) @ R, (b.double() * root) @ R
    return left * right
