"""How are subspaces of query and key space made and compared? Bases are orthonormal columns throughout."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
