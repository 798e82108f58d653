"""Which directions does a head compare? The singular channels of Omega = W_Q W_K^T, without ever forming it.

QR of the two thin factors leaves an r x r core whose SVD is that of Omega:

    W_Q = Q_q R_q,  W_K = Q_k R_k,  R_q R_k^T = U' Sigma V'^T   =>   Omega = (Q_q U') Sigma (Q_k V')^T

Everything else is head space. With G_d = R_k^T V' and G_s = Sigma^-1 U'^T R_q, both r x r and G_d G_s = I,
a (rotated) query and key split exactly:  q . k_t = sum_k a_k B_tk,  a = q G_d,  B_t = G_s k_t.
Positions never enter the basis, so channel indices compare across prompts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.precision import exact_matmul

if TYPE_CHECKING:
    from keyhole.models.model import Model

Basis = Literal["linear", "homogeneous"]
_MAX_ERROR = 1e-5  # of the rebuilt Omega, relative (Frobenius)


@dataclass(frozen=True)
class Omega:
    """The singular channels of every head of one layer, strongest first.

    Channels beyond a head's `rank` carry no weight: their columns of G are zero, and what RoPE turns into them
    is reported as the unexplained `rest` of a score.
    """

    sigma: Float[Tensor, "heads channel"]
    G_d: Float[Tensor, "heads d_head channel"]
    G_s: Float[Tensor, "heads channel d_head"]
    rank: Int[Tensor, "heads"]
    error: Float[Tensor, "heads"]  # |U Sigma V^T - Omega| / |Omega|, Frobenius
    W_Q: Float[Tensor, "heads reads d_head"]  # the factors; `reads` is d_model, plus one if homogeneous
    W_K: Float[Tensor, "kv_heads reads d_head"]

    def u(self, head: int) -> Float[Tensor, "reads channel"]:
        """What the head looks for at dest: orthonormal columns u_k = W_Q G_d / sigma_k."""
        n = int(self.rank[head])
        return self.W_Q[head] @ self.G_d[head, :, :n] / self.sigma[head, :n]

    def v(self, head: int) -> Float[Tensor, "reads channel"]:
        """What the head looks for at src: orthonormal columns v_k = W_K G_s^T."""
        kv = head // (self.W_Q.shape[0] // self.W_K.shape[0])
        return self.W_K[kv] @ self.G_s[head, : int(self.rank[head])].T


def omega(model: "Model", layer: int, basis: Basis = "linear") -> Omega:
    """The channels of all heads of a layer; decomposed once, and again whenever the weights change.

    `linear` decomposes W_Q W_K^T and leaves biases to the offset. `homogeneous` (the 2024 paper) appends the
    biases as one more row of each factor, so that they are part of the channels.
    """
    if basis not in ("linear", "homogeneous"):
        raise KeyholeError(f"there is no basis {basis!r}: choose 'linear' or 'homogeneous'.")

    def compute() -> Omega:
        w = model.weights(layer)
        if basis == "linear":
            return decompose(w.W_Q, w.W_K)
        W_Q, W_K = torch.cat([w.W_Q, w.b_Q[:, None]], dim=1), torch.cat([w.W_K, w.b_K[:, None]], dim=1)
        return decompose(W_Q, W_K)

    return model.cached_of_layer(("omega", basis), layer, compute)


def decompose(W_Q: Float[Tensor, "heads reads d_head"], W_K: Float[Tensor, "kv_heads reads d_head"]) -> Omega:
    """Singular channels of W_Q W_K^T for a batch of heads, verified, with fixed signs.

    >>> W_Q, W_K = torch.eye(3)[None, :, :2], torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None, :, :2]
    >>> decompose(W_Q, W_K).sigma
    tensor([[3., 2.]])
    """
    with exact_matmul():
        group = W_Q.shape[0] // W_K.shape[0]
        R_q, R_k = _triangle(W_Q), _triangle(W_K).repeat_interleave(group, dim=0)
        core = R_q @ R_k.transpose(-1, -2)
        _require_heads(torch.isfinite(core).all(-1).all(-1), "have weights that are NaN or infinite")
        U, sigma, Vh = torch.linalg.svd(core)
        kept = sigma > sigma[:, :1] * W_Q.shape[-1] * torch.finfo(W_Q.dtype).eps
        G_d = R_k.transpose(-1, -2) @ Vh.transpose(-1, -2) * kept[:, None, :]
        inverse = torch.where(kept, 1.0 / sigma, 0.0)
        G_s = inverse[:, :, None] * (U.transpose(-1, -2) @ R_q)
        signs = _signs(W_Q.to(G_d.dtype) @ G_d)
        G_d, G_s = G_d * signs[:, None, :], G_s * signs[:, :, None]
        error = _rebuilding_error(core, R_q @ G_d, G_s @ R_k.transpose(-1, -2))
    _require_heads(error < _MAX_ERROR, "have an Omega that its SVD does not rebuild")
    to = W_Q.dtype
    return Omega(sigma.to(to), G_d.to(to), G_s.to(to), kept.sum(-1), error.to(to), W_Q, W_K)


def blocks(sigma: Float[Tensor, "*heads channel"], rtol: float = 1e-3) -> Int[Tensor, "*heads channel"]:
    """Which channels cannot be told apart? Neighbours with nearly equal singular values share a block number.

    Inside a block the singular vectors are free to turn, and another SVD routine may return other ones.

    >>> blocks(torch.tensor([3.0, 2.0, 1.9999, 1.0])).tolist()
    [0, 1, 1, 2]
    """
    gap = (sigma[..., :-1] - sigma[..., 1:]) > rtol * sigma[..., :-1]
    return torch.nn.functional.pad(gap.long().cumsum(-1), (1, 0))


def _require_heads(good: Tensor, reason: str) -> None:
    if not bool(good.all()):
        raise KeyholeError(f"heads {torch.nonzero(~good).flatten().tolist()} of a layer {reason}.")


def _triangle(W: Tensor) -> Tensor:
    """R of the QR decomposition, in float64 where the device has it."""
    _, R = torch.linalg.qr(W if W.device.type == "mps" else W.double(), mode="r")
    return cast(Tensor, R)


def _signs(U: Tensor) -> Tensor:
    """Signs that make the largest entry of every u_k positive: an SVD fixes them only up to (u, v) -> (-u, -v)."""
    largest = U.abs().argmax(dim=1, keepdim=True)
    return torch.where(U.gather(1, largest)[:, 0] < 0, -1.0, 1.0).to(U.dtype)


def _rebuilding_error(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """|left right - core| / |core|: Q_q and Q_k are orthonormal, so this is the error of Omega itself."""
    difference = torch.linalg.matrix_norm(left @ right - core)
    norm = torch.linalg.matrix_norm(core)
    return torch.where(norm > 0, difference / norm, difference)
