"""Which directions does a head compare? The singular channels of Omega = W_Q W_K^T, without ever forming it.

QR of the two thin factors leaves an r x r core whose SVD is that of Omega:

    W_Q = Q_q R_q,  W_K = Q_k R_k,  R_q R_k^T = U' Sigma V'^T   =>   Omega = (Q_q U') Sigma (Q_k V')^T

Everything else is head space. With G_d = R_k^T V' and G_s = Sigma^-1 U'^T R_q, both r x r and G_d G_s = I,
a (rotated) query and key split exactly:  q . k_t = sum_k a_k B_tk,  a = q G_d,  B_t = G_s k_t.
Positions never enter the basis, so channel indices compare across prompts.

A weak channel is mostly as good as a strong one: its column of G_d is as short as its row of G_s is long. Rank ends
where float64 says so, at the rounding of R_q R_k^T.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.numbers import exact_matmul, working_dtype

if TYPE_CHECKING:
    from keyhole.models.model import Model

Basis = Literal["linear", "homogeneous"]
Factors = tuple[Float[Tensor, "heads reads d_head"], Float[Tensor, "kv_heads reads d_head"]]
_MAX_ERROR = 1e-5  # of the reconstructed Omega, relative (Frobenius)
_MAX_SWELL = 10.0  # a usual term against a usual score; beyond, terms only cancel one another. Below 1 in trained heads
_ROUNDING = 10.0  # singular values of exactly dependent columns come out below 0.4 eps |R_q| |R_k|


@dataclass(frozen=True)
class Omega:
    """The singular channels of every head of one layer, strongest first.

    The first `rank` channels of a head are resolved. Those after them carry no weight: their columns of G are zero, and
    what they hold of a score is reported as its unexplained `rest`. They are the null directions of Omega, into which
    RoPE and biases reach, and, rarely, weak directions whose terms would only cancel one another (docs/models.md).
    """

    sigma: Float[Tensor, "heads channel"]
    G_d: Float[Tensor, "heads d_head channel"]
    G_s: Float[Tensor, "heads channel d_head"]
    rank: Int[Tensor, "heads"]
    error: Float[Tensor, "heads"]  # |U Sigma V^T - Omega| / |Omega|, Frobenius
    # G_d / sigma and G_s^T in float64: of a weak channel, u_k and v_k are small differences of large products.
    lift_d: Float[Tensor, "heads d_head channel"] = field(repr=False)
    lift_s: Float[Tensor, "heads d_head channel"] = field(repr=False)
    factors: Callable[[], Factors] = field(repr=False)  # W_Q, W_K; `reads` is d_model, plus one if homogeneous

    @cached_property
    def _all_u(self) -> Float[Tensor, "heads reads channel"]:
        """Every head's u_k at once, on first use: folding the weights again costs as much for one head as for all."""
        return (self.factors()[0].to(self.lift_d.dtype) @ self.lift_d).to(self.sigma.dtype)

    @cached_property
    def _all_v(self) -> Float[Tensor, "heads reads channel"]:
        W_K = self.factors()[1]
        shared = W_K.to(self.lift_s.dtype).repeat_interleave(len(self.sigma) // len(W_K), dim=0)
        return (shared @ self.lift_s).to(self.sigma.dtype)

    def u(self, head: int) -> Float[Tensor, "reads channel"]:
        """What the head looks for at dest: orthonormal columns u_k = W_Q G_d / sigma_k.

        Args:
            head: Index of the head in its layer.

        >>> import keyhole
        >>> omega(keyhole.load(), 3).u(6).shape
        torch.Size([128, 16])
        """
        return self._all_u[head, :, : int(self.rank[head])]

    def v(self, head: int) -> Float[Tensor, "reads channel"]:
        """What the head looks for at src: orthonormal columns v_k = W_K G_s^T.

        Args:
            head: Index of the head in its layer.

        >>> import keyhole
        >>> omega(keyhole.load(), 3).v(6).shape
        torch.Size([128, 16])
        """
        return self._all_v[head, :, : int(self.rank[head])]


def omega(model: "Model", layer: int, basis: Basis = "linear") -> Omega:
    """The channels of all heads of a layer, cached until the weights change.

    `linear` decomposes W_Q W_K^T and leaves biases to the offset. `homogeneous` (the 2024 paper) appends the
    biases as one more row of each factor, so that they are part of the channels.
    """
    if basis not in ("linear", "homogeneous"):
        raise KeyholeError(f"there is no basis {basis!r}: choose 'linear' or 'homogeneous'.")
    return model._cached_of_layer(("omega", basis), layer, lambda: _decomposed(model, layer, basis))


def _decomposed(model: "Model", layer: int, basis: Basis) -> Omega:
    factors = partial(_factors, model, layer, basis)  # computed again when needed: keeping them would double the memory
    return replace(decompose(*factors(), layer=layer, dtype=model.folded(layer).W_Q.dtype), factors=factors)


def _factors(model: "Model", layer: int, basis: Basis) -> Factors:
    (W_Q, b_Q, _), (W_K, b_K, _) = model._queries_keys(layer)
    if basis == "linear":
        return W_Q, W_K
    return torch.cat([W_Q, b_Q[:, None]], dim=1), torch.cat([W_K, b_K[:, None]], dim=1)


def decompose(
    W_Q: Float[Tensor, "heads reads d_head"],
    W_K: Float[Tensor, "kv_heads reads d_head"],
    *,
    layer: int | None = None,
    dtype: torch.dtype | None = None,
) -> Omega:
    """Decompose W_Q W_K^T of a batch of heads into singular channels, verified and with fixed signs.

    A decomposition
    that does not reconstruct Omega is refused.

    Args:
        W_Q: Folded query matrices.
        W_K: Folded key matrices; several query heads may share one.
        layer: The layer that errors name.
        dtype: Of the result. Default: that of the matrices.

    >>> W_Q, W_K = torch.eye(3)[None, :, :2], torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None, :, :2]
    >>> decompose(W_Q, W_K).sigma
    tensor([[3., 2.]])
    """
    with exact_matmul():
        group = W_Q.shape[0] // W_K.shape[0]
        R_q, R_k = _triangle(W_Q), _triangle(W_K).repeat_interleave(group, dim=0)
        core = R_q @ R_k.mT
        _require_heads(torch.isfinite(core).all(-1).all(-1), layer, "has weights that are NaN or infinite")
        U, sigma, Vh = torch.linalg.svd(core)
        error = _reconstruction_error(core, U * sigma[:, None], Vh)
        U, sigma, V, resolved = _resolved_first(U, sigma, Vh.mT, R_q, R_k)
        G_d = R_k.mT @ V * resolved[:, None]
        signs = _signs(W_Q.to(G_d.dtype) @ G_d)
        G_d, inverse = G_d * signs[:, None], torch.where(resolved, 1.0 / sigma, 0.0)
        G_s = _dual((signs * inverse)[:, :, None] * (U.mT @ R_q), G_d, resolved)
    _require_heads(error < _MAX_ERROR, layer, "has an Omega that its SVD does not reconstruct")
    to = working_dtype(W_Q.dtype) if dtype is None else dtype
    rank, lift_d, factors = resolved.sum(-1), G_d * inverse[:, None], lambda: (W_Q, W_K)
    return Omega(sigma.to(to), G_d.to(to), G_s.to(to), rank, error.to(to), lift_d, G_s.mT, factors)


def blocks(sigma: Float[Tensor, "*heads channel"], rtol: float = 1e-3) -> Int[Tensor, "*heads channel"]:
    """Number the blocks of channels that cannot be distinguished: neighbours with nearly equal singular values.

    Two neighbours are of one block if their values differ by at most `rtol`, relative. Inside a block the singular
    vectors are free to rotate, and another SVD routine may return other ones.

    Args:
        sigma: Singular values, largest first.
        rtol: The largest relative difference within a block.

    >>> blocks(torch.tensor([3.0, 2.0, 1.9999, 1.0])).tolist()
    [0, 1, 1, 2]
    """
    gap = (sigma[..., :-1] - sigma[..., 1:]) > rtol * sigma[..., :-1]
    return torch.nn.functional.pad(gap.long().cumsum(-1), (1, 0))


def _require_heads(good: Tensor, layer: int | None, reason: str) -> None:
    if not bool(good.all()):
        bad = [str(h) if layer is None else f"{layer}.{h}" for h in torch.nonzero(~good).flatten().tolist()]
        more = f" (and heads {', '.join(bad[1:])} too)" if len(bad) > 1 else ""
        raise KeyholeError(f"head {bad[0]} {reason}{more}.")


def _resolved_first(
    U: Tensor, sigma: Tensor, V: Tensor, R_q: Tensor, R_k: Tensor
) -> tuple[Tensor, Tensor, Tensor, Bool[Tensor, "heads channel"]]:
    """The singular triples of each head, resolved ones first; and which are resolved.

    Beyond the rank there is only rounding. Within it, a term is about |G_d e_k| |e_k G_s| |q| |k| / r, a score
    |q| |k| / sqrt(r): the quotient says how often a term holds a score.
    """
    rounding = torch.finfo(sigma.dtype).eps * torch.linalg.matrix_norm(R_q) * torch.linalg.matrix_norm(R_k)
    product = (R_k.mT @ V).norm(dim=1) * (R_q.mT @ U).norm(dim=1)
    swell = product / sigma.clamp_min(torch.finfo(sigma.dtype).tiny) / R_k.shape[-1] ** 0.5
    resolved = (sigma > _ROUNDING * rounding[:, None]) & (swell < _MAX_SWELL)
    order = (~resolved).int().argsort(dim=-1, stable=True)
    U, V = (x.gather(2, order[:, None].expand_as(x)) for x in (U, V))
    return U, sigma.gather(1, order), V, resolved.gather(1, order)


def _dual(G_s: Tensor, G_d: Tensor, resolved: Tensor) -> Tensor:
    """G_s with G_s G_d = I, to rounding, on the resolved channels.

    An SVD is off by eps sigma_1, which is eps sigma_1 / sigma_k of a weak channel's row.
    """
    return cast(Tensor, torch.linalg.solve(G_s @ G_d + torch.diag_embed((~resolved).to(G_s.dtype)), G_s))


def _triangle(W: Tensor) -> Tensor:
    """R of the QR decomposition, in float64 where the device has it."""
    _, R = torch.linalg.qr(W if W.device.type == "mps" else W.double(), mode="r")
    return cast(Tensor, R)


def _signs(U: Tensor) -> Tensor:
    """Signs that make the largest entry of every u_k positive: an SVD fixes them only up to (u, v) -> (-u, -v)."""
    largest = U.abs().argmax(dim=1, keepdim=True)
    return torch.where(U.gather(1, largest)[:, 0] < 0, -1.0, 1.0).to(U.dtype)


def _reconstruction_error(core: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """|left right - core| / |core|: Q_q and Q_k are orthonormal, so this is the error of Omega itself."""
    difference = torch.linalg.matrix_norm(left @ right - core)
    norm = torch.linalg.matrix_norm(core)
    return torch.where(norm > 0, difference / norm, difference)
