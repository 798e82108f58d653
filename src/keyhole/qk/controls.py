"""Is a sparse split the singular basis's doing? The same score split in rotated bases.

`ambient`   U -> R1 U, V -> R2 V with Haar rotations of residual space: same spectrum, other directions. The score
            itself changes, so compare only scale-free numbers such as S(v). This is the paper's control.
`refactor`  Omega = (U Sigma^1/2 R)(V Sigma^1/2 R)^T with a Haar rotation R of the channels: Omega and every score
            stay as they are; only the choice of rank-one pieces differs. The stronger control.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul
from keyhole.qk.channels import check_place, score_row
from keyhole.qk.omega import Basis, omega
from keyhole.qk.sparsity import sparsity, sparsity_each

if TYPE_CHECKING:
    from keyhole.models.run import Run

Rotation = Literal["ambient", "refactor"]
_AMBIENT_DRAWS = 2_000


@dataclass(frozen=True)
class RotationControl:
    """S(v) of a firing's relative terms in the singular basis and in rotated ones."""

    __repr__ = brief

    kind: Rotation
    sparsity: float
    rotated: tuple[float, ...]  # one per draw
    error: float  # of the rebuilt scores

    @property
    def mean_rotated(self) -> float:
        """The average over draws."""
        return sum(self.rotated) / len(self.rotated)


def rotation_control(
    run: "Run",
    head: Head,
    dest: int | str = -1,
    src: int | str | None = None,
    *,
    kind: Rotation = "refactor",
    draws: int = 20,
    seed: int = 0,
    basis: Basis = "linear",
) -> RotationControl:
    """How sparse would this split be in a random basis? Averages over `draws` rotations."""
    if draws < 1:
        raise KeyholeError("a rotation control needs at least one draw.")
    if kind not in ("ambient", "refactor"):
        raise KeyholeError(f"there is no rotation {kind!r}: choose 'ambient' or 'refactor'.")
    layer, index, d, s = check_place(run, head, dest, src)
    with exact_matmul():
        row = score_row(run, layer, index, d, basis=basis)
        b, sigma = row.relative_key(s - row.first), omega(run.model, layer, basis).sigma[index, : len(row.a)]
        if kind == "refactor":
            rotated = refactored(row.a[None], b[None], sigma, rotations(len(b), draws, seed))[:, 0]
        else:
            rotated = ambient_draws(sigma, draws, torch.Generator().manual_seed(seed))
    own, each = sparsity(row.a * b), sparsity_each(rotated).tolist()
    return RotationControl(kind, own, tuple(math.nan if math.isnan(own) else one for one in each), row.error)


def refactored(
    a: Float[Tensor, "pair channel"],
    b: Float[Tensor, "pair channel"],
    sigma: Float[Tensor, "channel"],
    R: Float[Tensor, "draw channel channel"],
) -> Float[Tensor, "draw pair channel"]:
    """The terms a_k b_k in other rank-one pieces of the same Omega: every draw has the same sums."""
    root = sigma.double().cpu().sqrt()
    left, right = (a.double().cpu() / root) @ R, (b.double().cpu() * root) @ R
    return left * right


def refactor_draws(
    left: Float[Tensor, "channel"], right: Float[Tensor, "channel"], draws: int, stream: torch.Generator
) -> Float[Tensor, "draw channel"]:
    """(left R) * (right R) for Haar R, of a single pair: left falls on one random direction, right on a plane with it.

    As `refactored` with `rotations`, without drawing what no pair but this one would see.
    """
    n, length = len(left), left.norm()
    along = (left @ right) / length
    across = (right - along * left / length).norm()
    Q, R = torch.linalg.qr(torch.randn(draws, n, min(2, n), generator=stream, dtype=torch.float64))
    frame = Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # without it, QR would prefer some signs
    p, q = frame[..., 0], frame[..., -1]
    return cast(Tensor, length * p * (along * p + across * q if n > 1 else along * p))


def ambient_draws(
    sigma: Float[Tensor, "channel"], draws: int, stream: torch.Generator
) -> Float[Tensor, "draw channel"]:
    """The terms (x . R1 u_k) sigma_k (R2 v_k . y) for Haar R1, R2, up to a factor: sigma_k g_k h_k.

    R1 U is a uniform orthonormal frame whatever U is, and what it reads of any x is proportional to independent
    Gaussians. So the control leaves of a token only its length, which S(v) forgets: it is one number per head.
    """
    g, h = torch.randn(2, draws, len(sigma), generator=stream, dtype=torch.float64)
    return cast(Tensor, sigma.double().cpu() * g * h)


def ambient_sparsity(sigma: Float[Tensor, "channel"], seed: int = 0) -> float:
    """How sparse are the terms of a head with this spectrum and random directions, on average?

    >>> 0.3 < ambient_sparsity(torch.ones(64)) < 0.5
    True
    """
    return float(sparsity_each(ambient_draws(sigma, _AMBIENT_DRAWS, torch.Generator().manual_seed(seed))).mean())


def rotations(n: int, draws: int, seed: int = 0) -> Float[Tensor, "draw n n"]:
    """Haar rotations of n channels."""
    g = torch.Generator().manual_seed(seed)
    return torch.stack([haar(n, n, g) for _ in range(draws)])


def haar(n: int, columns: int, generator: torch.Generator) -> Float[Tensor, "n columns"]:
    """The first columns of a uniformly random rotation: QR of a Gaussian, with the signs of R's diagonal undone."""
    Q, R = torch.linalg.qr(torch.randn(n, columns, generator=generator, dtype=torch.float64))
    return cast(Tensor, Q * R.diagonal().sign())
