"""How does RoPE turn a head's query or key? As a linear map per position, read off the model's own tables."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

Pairing = Literal["halves", "pairs"]  # which dimensions turn together: (i, i + n) or (2i, 2i + 1)


def rope_types(config: Any) -> set[str]:
    """Which kinds of scaling a model's RoPE has, in any layer; before transformers 5, `rope_scaling` held them.

    >>> from transformers import LlamaConfig
    >>> rope_types(LlamaConfig(rope_scaling={"rope_type": "dynamic", "factor": 4.0}))
    {'dynamic'}
    """
    told = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    groups = [told, *(group for group in told.values() if isinstance(group, dict))]
    kinds = (group.get("rope_type", group.get("type")) for group in groups)
    return {kind for kind in kinds if isinstance(kind, str)}


@dataclass(frozen=True)
class Rotary:
    """R_t for every position t of one layer: pairs of dimensions turn, the remaining ones pass.

    `cos` and `sin` hold one column per frequency as the model used them, so every scaling scheme (linear,
    Llama-3, YaRN with its factor on cos and sin, per-layer bases) is already inside.
    """

    cos: Float[Tensor, "pos freq"]
    sin: Float[Tensor, "pos freq"]
    pairing: Pairing

    def rotate(self, x: Float[Tensor, "... pos d_head"]) -> Float[Tensor, "... pos d_head"]:
        """R_t x_t for every position."""
        return turn(x, self.cos, self.sin, self.pairing)

    def transpose(self, x: Float[Tensor, "... pos d_head"]) -> Float[Tensor, "... pos d_head"]:
        """R_t^T x_t for every position."""
        return turn(x, self.cos, -self.sin, self.pairing)

    def dots(self, x: Float[Tensor, "any d_head"], y: Float[Tensor, "any d_head"]) -> Float[Tensor, "any pos"]:
        """The dot product of x and R_t y at every position t; y need not be turned, as all pairs share cos and sin."""
        n = self.cos.shape[1]
        (x1, x2), (y1, y2) = (_paired(one, n, self.pairing) for one in (x, y))
        turning = (x1 * y1 + x2 * y2) @ self.cos.T.to(x.dtype) + (x2 * y1 - x1 * y2) @ self.sin.T.to(x.dtype)
        return turning + (x[:, 2 * n :] * y[:, 2 * n :]).sum(-1, keepdim=True)

    def at(self, positions: Tensor | slice) -> "Rotary":
        """The same map at chosen positions only."""
        return Rotary(self.cos[positions], self.sin[positions], self.pairing)


def turn(
    x: Float[Tensor, "... d_head"], cos: Float[Tensor, "... freq"], sin: Float[Tensor, "... freq"], pairing: Pairing
) -> Float[Tensor, "... d_head"]:
    """(x1 cos - x2 sin, x2 cos + x1 sin) on each pair of dimensions; those beyond the last pair pass."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    n = cos.shape[-1]
    first, second = _paired(x, n, pairing)
    passing = x[..., 2 * n :]
    first, second = first * cos - second * sin, second * cos + first * sin
    if pairing == "halves":
        return torch.cat([first, second, passing.expand(*first.shape[:-1], -1)], dim=-1)
    pairs = torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([pairs, passing.expand(*pairs.shape[:-1], -1)], dim=-1)


def _paired(x: Float[Tensor, "... d_head"], n: int, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """The first and the second of the n pairs of dimensions that turn together."""
    turning = x[..., : 2 * n]
    return (turning[..., :n], turning[..., n:]) if pairing == "halves" else (turning[..., ::2], turning[..., 1::2])
