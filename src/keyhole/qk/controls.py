"""Is a sparse split the singular basis's doing? The same score split in rotated bases.

`ambient`   U -> R1 U, V -> R2 V with Haar rotations of residual space: same spectrum, other directions. The score
            itself changes, so compare only scale-free numbers such as S(v). This is the paper's control.
`refactor`  Omega = (U Sigma^1/2 R)(V Sigma^1/2 R)^T with a Haar rotation R of the channels: Omega and every score
            stay as they are; only the choice of rank-one pieces differs. The stronger control.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.models.precision import exact_matmul
from keyhole.qk.channels import check_place, score_row, sparsity
from keyhole.qk.omega import Basis, Omega, omega

if TYPE_CHECKING:
    from keyhole.models.run import Run

Rotation = Literal["ambient", "refactor"]


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
    head: tuple[int, int],
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
    generator = torch.Generator().manual_seed(seed)
    with exact_matmul():
        row = score_row(run, layer, index, d, basis=basis)
        own, _ = row.relative(s - row.first)
        om = omega(run.model, layer, basis)
        singular = om.sigma[index, : len(row.a)]
        a, b = row.a, row.relative_key(s - row.first)
        if kind == "refactor":
            root = singular.sqrt()
            rotated = [refactor_terms(a / root, b * root, generator) for _ in range(draws)]
        else:
            x, y = _lifted(om, index, a, b)
            rotated = [ambient_terms(x, y, singular, generator) for _ in range(draws)]
    return RotationControl(kind, sparsity(own), tuple(sparsity(terms) for terms in rotated), row.error)


def refactor_terms(
    left: Float[Tensor, "channel"], right: Float[Tensor, "channel"], generator: torch.Generator
) -> Float[Tensor, "channel"]:
    """(left R) * (right R) for one Haar R: other terms with the same sum left . right."""
    R = haar(len(left), len(left), generator).to(left)
    return (left @ R) * (right @ R)


def ambient_terms(
    x: Float[Tensor, "reads"],
    y: Float[Tensor, "reads"],
    sigma: Float[Tensor, "channel"],
    generator: torch.Generator,
) -> Float[Tensor, "channel"]:
    """(x . R1 u_k) sigma_k (R2 v_k . y) for Haar R1, R2.

    R1 U is a uniform orthonormal frame whatever U is, so n random orthonormal directions are drawn for each side.
    """
    U, V = (haar(len(x), len(sigma), generator).to(x) for _ in range(2))
    return (x @ U) * sigma * (y @ V)


def haar(n: int, columns: int, generator: torch.Generator) -> Float[Tensor, "n columns"]:
    """The first columns of a uniformly random rotation: QR of a Gaussian, with the signs of R's diagonal undone."""
    Q, R = torch.linalg.qr(torch.randn(n, columns, generator=generator, dtype=torch.float64))
    return cast(Tensor, Q * R.diagonal().sign())


def _lifted(om: Omega, head: int, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Residual-space vectors that the channels read as a and b: the shortest ones, inside the head's own subspaces.

    Biases and RoPE act in head space, so a token has no unique residual vector behind its query or key; an
    ambient rotation depends on these vectors only through their lengths.
    """
    n = len(a)
    return om.u(head) @ (a / om.sigma[head, :n]), om.v(head) @ b
