"""How are subspaces made and compared, and how large would a contrast be if its labels meant nothing?

How are subspaces of query and key space made and compared? Bases are orthonormal columns throughout.
"""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.features.contrast.places import Slots
from keyhole.features.contrast.sums import Balance, Centre, by_kv_head
from keyhole.qk.controls import haar

_DEPENDENT = 1e-6  # singular values of a union of unit columns below this belong to directions already counted


def decompose(
    contrast: Float[Tensor, "*heads d_query d_key"],
) -> tuple[Float[Tensor, "*heads d_query rank"], Float[Tensor, "*heads rank"], Float[Tensor, "*heads d_key rank"]]:
    """U, S, V with contrast = U diag(S) V^T, in float64; the largest entry of every u is positive.

    >>> U, S, V = decompose(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
    >>> S.tolist(), U[:, 0].abs().tolist(), V[:, 0].abs().tolist()
    ([2.0, 1.0], [1.0, 0.0], [0.0, 1.0])
    """
    U, S, Vh = torch.linalg.svd(contrast.double(), full_matrices=False)
    V = Vh.transpose(-1, -2)
    largest = U.gather(-2, U.abs().argmax(dim=-2, keepdim=True))
    signs = torch.where(largest < 0, -1.0, 1.0)
    return U * signs, S, V * signs


def energy_rank(S: Float[Tensor, "*heads rank"], share: float = 0.99) -> Int[Tensor, "*heads"]:
    """How many singular values hold this share of the squared Frobenius norm? Zero for a zero matrix.

    >>> energy_rank(torch.tensor([3.0, 1.0, 0.01])).item()
    2
    """
    energy = S.double() ** 2
    total = energy.sum(-1, keepdim=True)
    before = energy.cumsum(-1) - energy
    return ((before < share * total) & (total > 0)).sum(-1)


def union(bases: Sequence[Float[Tensor, "d _"]]) -> Float[Tensor, "d rank"]:
    """An orthonormal basis of everything that the bases span together: overlaps count once.

    >>> line = torch.tensor([[1.0], [0.0]])
    >>> union([line, line]).shape
    torch.Size([2, 1])
    """
    stacked = torch.cat([basis.double() for basis in bases], dim=1)
    if stacked.shape[1] == 0:
        return stacked
    U, S, _ = torch.linalg.svd(stacked, full_matrices=False)
    return cast(Tensor, U[:, S > _DEPENDENT])


def random_bases(d: int, rank: int, draws: int, seed: int) -> Float[Tensor, "draw d rank"]:
    """Uniformly random subspaces of one rank."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([haar(d, rank, generator) for _ in range(draws)])


def principal_cosines(A: Float[Tensor, "d a"], B: Float[Tensor, "d b"]) -> Float[Tensor, "angles"]:
    """The cosines of the principal angles between two subspaces, largest first.

    >>> principal_cosines(torch.eye(3)[:, :2], torch.eye(3)[:, 1:]).tolist()
    [1.0, 0.0]
    """
    return cast(Tensor, torch.linalg.svdvals(A.double().T @ B.double()).clamp(max=1.0))


def overlap(A: Float[Tensor, "d a"], B: Float[Tensor, "d b"]) -> float:
    """|A^T B|_F^2 / min(a, b): the mean squared cosine. 0: orthogonal, 1: one lies inside the other."""
    if min(A.shape[1], B.shape[1]) == 0:
        return float("nan")
    return float((principal_cosines(A, B) ** 2).mean())


# How large would a contrast be if its labels meant nothing? Signs permuted within every query, contrasts made again.
#
# Positives and negatives of a query are drawn anew from its own keys, so prompts, queries and keys stay as they are;
# samples that repeat each other are permuted alike, for they are no further evidence. A sample whose two sides have
# queries of their own is flipped as a whole. All draws of a layer are two matrix products: coefficients x keys, then
# queries x those.

_BLOCK_BYTES = 256e6  # of summed keys held at once


def permuted_signs(slots: Slots, draws: int, seed: int) -> Int[Tensor, "draws slots keys"]:
    """Signs under the null: shuffled within each query, or flipped for both slots of a sample."""
    generator = torch.Generator().manual_seed(seed)
    distinct, twin = torch.unique(slots.twin, return_inverse=True)
    order = torch.rand(draws, len(distinct), slots.sign.shape[1], generator=generator)[:, twin]
    order = order.masked_fill(slots.sign == 0, 2.0)  # padding stays at the end
    at_end = (slots.sign == 0).long().argsort(dim=1, stable=True)
    packed = slots.sign.gather(1, at_end)
    ranks = order.argsort(dim=-1).argsort(dim=-1)  # the rank of each key in a random order; padding comes last
    shuffled = packed.expand(draws, -1, -1).gather(-1, ranks)
    first = torch.full((int(slots.sample.max()) + 1,), len(distinct)).scatter_reduce(0, slots.sample, twin, "amin")
    flips = torch.randint(0, 2, (draws, len(distinct) + 1), generator=generator) * 2 - 1
    flipped = slots.sign * flips[:, first[slots.sample], None]  # a sample's two slots share its first one's draw
    return torch.where(slots.paired[:, None], flipped, shuffled)


def coefficients(
    sign: Int[Tensor, "*draws slots keys"], weight: Float[Tensor, "slots"], balance: Balance
) -> tuple[Float[Tensor, "*draws slots keys"], Float[Tensor, "*draws slots keys"]]:
    """What every pair counts for on the positive and on the negative side."""
    plus, minus = (weight[:, None] * (sign == side) for side in (1, -1))
    if balance == "pairs":
        return plus / plus.sum((-1, -2), keepdim=True), minus / minus.sum((-1, -2), keepdim=True)
    samples = (weight * (sign == 1).any(-1)).sum(-1)[..., None, None]
    return plus / samples, minus / samples


def contrasts(
    q: Float[Tensor, "slots heads d_query"],
    k: Float[Tensor, "slots keys kv_heads d_key"],
    sides: tuple[Float[Tensor, "draws slots keys"], Float[Tensor, "draws slots keys"]],
    centre: Centre,
) -> Float[Tensor, "draws heads d_query d_key"]:
    """The contrast of every head for several sets of coefficients."""
    if centre == "each":  # constants in q and k do not change it; without them float32 is enough, whatever the biases
        used = (sides[0][0] + sides[1][0] > 0).to(k.device)
        q, k = q - q.mean(0), k - k[used].mean(0)
    n, m, kv, d = k.shape
    block = max(1, int(_BLOCK_BYTES / (n * kv * d * k.element_size())))
    keys = k.reshape(n, m, kv * d)
    blocks = []
    for start in range(0, len(sides[0]), block):
        plus, minus = (side[start : start + block].to(k) for side in sides)
        dC = _products(q, _summed(plus - minus, keys), kv)
        if centre != "none":
            dC = dC - _of_means(q, keys, plus, minus, kv=kv, pooled=centre == "pooled")
        blocks.append(dC)
    return torch.cat(blocks)


def quantile_range(
    draws: Float[Tensor, "draws heads"], level: float
) -> tuple[Float[Tensor, "heads"], Float[Tensor, "heads"]]:
    """Where does the quantile lie, as far as so many draws can tell? A 95 % interval, of order statistics.

    Draws below the true quantile are binomial, whatever they are draws of. Too few draws have no upper bound.

    >>> low, high = quantile_range(torch.arange(1.0, 201.0).double()[:, None], 0.95)
    >>> low.tolist(), high.tolist()
    ([184.0], [197.0])
    """
    from scipy.special import bdtr  # P(X <= k); scipy.stats takes a second to import

    n = len(draws)
    below = bdtr(list(range(n)), n, level)  # fewer than k + 1 of the draws lie below the quantile
    lower, upper = int((below <= 0.025).sum()), int((below < 0.975).sum())
    ends = torch.full_like(draws[:1], torch.inf)
    ordered = torch.cat([-ends, draws.sort(0).values, ends])
    return ordered[lower], ordered[upper + 1]


def _summed(coefficients: Tensor, keys: Tensor) -> Float[Tensor, "slots draws kv_d"]:
    return coefficients.transpose(0, 1) @ keys


def _products(q: Tensor, summed: Tensor, kv: int) -> Float[Tensor, "draws heads d_query d_key"]:
    n, draws, _ = summed.shape
    left = by_kv_head(q, kv).permute(1, 2, 3, 0).flatten(1, 2)  # [kv, group * d_query, slots]
    right = summed.view(n, draws, kv, -1).permute(2, 0, 1, 3).flatten(2, 3)  # [kv, slots, draws * d_key]
    products = (left @ right).view(kv, -1, q.shape[2], draws, summed.shape[2] // kv)
    return products.permute(3, 0, 1, 2, 4).flatten(1, 2)


def _of_means(q: Tensor, keys: Tensor, plus: Tensor, minus: Tensor, *, kv: int, pooled: bool) -> Tensor:
    """What centring takes away; see `sums.contrast_matrix`."""
    group = q.shape[1] // kv
    mu_q, mu_k = [], []
    for side in (plus, minus):
        rows = side.sum(-1)  # [draws, slots]
        mu_q.append(torch.einsum("pn,nhd->phd", rows / rows.sum(-1, keepdim=True), q))
        summed = torch.einsum("pnk,nkd->pd", side, keys)
        mu_k.append(summed.view(len(summed), kv, -1).repeat_interleave(group, dim=1))
    if not pooled:
        return mu_q[0][..., None] * mu_k[0][..., None, :] - mu_q[1][..., None] * mu_k[1][..., None, :]
    centre_q, centre_k = (mu_q[0] + mu_q[1]) / 2, (mu_k[0] + mu_k[1]) / 2
    shift_q, shift_k = mu_q[0] - mu_q[1], mu_k[0] - mu_k[1]
    return centre_q[..., None] * shift_k[..., None, :] + shift_q[..., None] * centre_k[..., None, :]
