"""What does a head read? Queries and keys rebuilt from the residual stream with folded weights and frozen scales.

    q_t = R_t [ s_t (x_t W_Q / n_t + b_Q) + c_Q ]

Captured q and k say what happened; these say why, and the difference between the two is an error we report.
"""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.models.rotary import Rotary

if TYPE_CHECKING:
    from keyhole.models.run import Run


def read_queries(run: "Run", layer: int, heads: slice = slice(None)) -> Float[Tensor, "heads pos d_head"]:
    """The layer's queries, from the residual stream it read."""
    record, w = run.layer(layer), run.model.weights(layer)
    q = normalised(run, layer) @ w.W_Q[heads] + w.b_Q[heads, None]
    return _rotated(q * record.q_scale[heads, :, None] + w.c_Q[heads, None], record.rotary)


def read_keys(run: "Run", layer: int, kv_heads: slice = slice(None)) -> Float[Tensor, "kv_heads pos d_head"]:
    """The layer's keys, from the residual stream it read."""
    record, w = run.layer(layer), run.model.weights(layer)
    k = normalised(run, layer) @ w.W_K[kv_heads] + w.b_K[kv_heads, None]
    return _rotated(k * record.k_scale[kv_heads, :, None] + w.c_K[kv_heads, None], record.rotary)


def read_values(run: "Run", layer: int) -> Float[Tensor, "kv_heads pos d_head"]:
    """The layer's values, from the residual stream it read."""
    w = run.model.weights(layer)
    return normalised(run, layer) @ w.W_V + w.b_V[:, None]


def normalised(run: "Run", layer: int) -> Float[Tensor, "pos d_model"]:
    """x_t / n_t: what the folded weights are applied to (centring and gain sit in the weights)."""
    scale, device = run.layer(layer).norm_scale, run.model.weights(layer).W_Q.device
    return (run.layers[layer].resid.to(scale.dtype) / scale[:, None]).to(device)


def _rotated(x: Tensor, rotary: Rotary | None) -> Tensor:
    return x if rotary is None else rotary.rotate(x)
