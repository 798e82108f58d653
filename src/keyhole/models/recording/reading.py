"""What does a head read? Queries and keys rebuilt from the residual stream with folded weights and frozen scales.

    q_t = R_t [ s_t (x_t W_Q / n_t + b_Q) + c_Q ]

Captured q and k say what happened; these say why, and the difference between the two is an error we report. Of one run,
or of several side by side.
"""

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from keyhole.models.architecture.rotary import Rotary

if TYPE_CHECKING:
    from keyhole.models.architecture.weights import LayerWeights
    from keyhole.models.run import AttentionRun, LayerRun


def read_queries(
    layer: "LayerRun", w: "LayerWeights", heads: slice = slice(None)
) -> Float[Tensor, "*runs heads pos d_head"]:
    """A layer's queries, from the residual stream it read."""
    record = attention_of(layer)
    q = per_head(normalised(layer, w), w.W_Q[heads]) + w.b_Q[heads, None]
    return _rotated(q * record.q_scale[..., heads, :, None] + w.c_Q[heads, None], record.rotary)


def read_keys(
    layer: "LayerRun", w: "LayerWeights", kv_heads: slice = slice(None)
) -> Float[Tensor, "*runs kv_heads pos d_head"]:
    """A layer's keys, from the residual stream it read."""
    record = attention_of(layer)
    k = per_head(normalised(layer, w), w.W_K[kv_heads]) + w.b_K[kv_heads, None]
    return _rotated(k * record.k_scale[..., kv_heads, :, None] + w.c_K[kv_heads, None], record.rotary)


def read_values(layer: "LayerRun", w: "LayerWeights") -> Float[Tensor, "*runs kv_heads pos d_head"]:
    """A layer's values, from the residual stream it read."""
    return per_head(normalised(layer, w), w.W_V) + w.b_V[:, None]


def normalised(layer: "LayerRun", w: "LayerWeights") -> Float[Tensor, "*runs pos d_model"]:
    """x_t / n_t: what the folded weights are applied to (centring and gain sit in the weights)."""
    scale = attention_of(layer).norm_scale
    return (layer.resid.to(scale.dtype) / scale[..., None]).to(w.W_Q.device)


def per_head(
    x: Float[Tensor, "*runs pos d_model"], W: Float[Tensor, "heads d_model d_head"]
) -> Float[Tensor, "*runs heads pos d_head"]:
    """X through every head's weights, in one product for all runs."""
    every = x @ W.transpose(0, 1).flatten(1)
    return every.view(*every.shape[:-1], len(W), W.shape[-1]).transpose(-3, -2)


def attention_of(layer: "LayerRun") -> "AttentionRun":
    """The attention of a layer that has some."""
    assert layer.attention is not None, "this layer mixes tokens with another block"
    return layer.attention


def _rotated(x: Tensor, rotary: Rotary | None) -> Tensor:
    return x if rotary is None else rotary.rotate(x)
