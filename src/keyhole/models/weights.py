"""What does a layer's attention read and write, once every norm, gain and bias is folded into its weights?

With the frozen scales of a run (n_t of the norm, s_t of QK-norm, m_t of the norm on the output) all is linear:

    q_t = R_t [ s_t (x_t W_Q / n_t + b_Q) + c_Q ]        k likewise with its own s_t
    head h moves  A_tb v_b W_O / m_t  from b to t, with  v_b = x_b W_V / n_b  (its bias joins the layer's bias)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from keyhole.models.effective import bias_of, matrix_of
from keyhole.models.facts import Norm, read_norm, rope_types
from keyhole.models.families import Family


@dataclass(frozen=True)
class Dims:
    """The sizes of a model."""

    layers: int
    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    vocab: int
    positions: int | None  # None: no limit


@dataclass(frozen=True)
class LayerWeights:
    """One attention layer's folded weights, in float32 or better."""

    W_Q: Float[Tensor, "heads d_model d_head"]
    b_Q: Float[Tensor, "heads d_head"]
    c_Q: Float[Tensor, "heads d_head"]
    W_K: Float[Tensor, "kv_heads d_model d_head"]
    b_K: Float[Tensor, "kv_heads d_head"]
    c_K: Float[Tensor, "kv_heads d_head"]
    W_V: Float[Tensor, "kv_heads d_model d_head"]
    b_V: Float[Tensor, "kv_heads d_head"]
    W_O: Float[Tensor, "heads d_head d_model"]
    b_O: Float[Tensor, "d_model"]

    @property
    def group(self) -> int:
        """How many query heads share one KV head."""
        return self.W_Q.shape[0] // self.W_K.shape[0]

    def kv(self, head: int) -> int:
        """The KV head that a query head reads."""
        return head // self.group


@dataclass(frozen=True)
class HeadOut:
    """From the last residual stream to logits: cap(z + b_U) with z = x W_U / n; the logit scale is folded in."""

    W_U: Float[Tensor, "d_model vocab"]
    b_U: Float[Tensor, "vocab"]
    softcap: float | None

    def logits(self, z: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
        """cap(z + b_U)."""
        logits = z + self.b_U.to(z.dtype)
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def slope(self, z: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"] | float:
        """Derivative of the cap at z + b_U."""
        if self.softcap is None:
            return 1.0
        return 1 - torch.tanh((z + self.b_U.to(z.dtype)) / self.softcap).square()


def submodule(root: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path."""
    return root.get_submodule(path)


def optional(root: nn.Module, path: str | None) -> nn.Module | None:
    """The module at a dotted path, or None where this layer or config has none."""
    if path is None:
        return None
    try:
        module = root.get_submodule(path)
    except AttributeError:
        return None
    return module if isinstance(module, nn.Module) else None


def split_qkv(
    x: Float[Tensor, "*rows out"], fused: str | None, heads: int, d_head: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Cut a fused projection (its weights, bias or output) into q, k and v, each [*rows, heads, d_head]."""
    rows = x.shape[:-1]
    kv_heads = (x.shape[-1] // d_head - heads) // 2
    if fused == "stacked":  # all q, then all k, then all v
        parts = torch.split(x, [heads * d_head, kv_heads * d_head, kv_heads * d_head], dim=-1)
        q, k, v = (part.reshape(*rows, -1, d_head) for part in parts)
    elif fused == "per_head":  # q, k, v of head 0, of head 1, ...
        q, k, v = x.reshape(*rows, heads, 3, d_head).unbind(-2)
    elif fused == "grouped":  # the queries of one KV head, its key, its value
        groups = x.reshape(*rows, kv_heads, heads // kv_heads + 2, d_head)
        q, k, v = groups[..., :-2, :].flatten(-3, -2), groups[..., -2, :], groups[..., -1, :]
    elif fused == "shared_kv":  # all queries, then the one key and the one value
        groups = x.reshape(*rows, heads + 2, d_head)
        q, k, v = groups[..., :-2, :], groups[..., -2:-1, :], groups[..., -1:, :]
    else:
        raise AssertionError(f"unknown layout {fused!r}")
    return q, k, v


def read_dims(hf: Any, family: Family) -> Dims:
    """The sizes of a model, from its weights where the config might be silent."""
    layers = cast(Sequence[nn.Module], submodule(hf, family.layers))
    attn = next(a for a in (optional(layer, family.attn) for layer in layers) if a is not None)
    config = hf.config.get_text_config()
    heads = config.num_attention_heads
    out_heads = matrix_of(submodule(attn, family.out)).shape[0]
    d_head = out_heads // heads
    if family.fused is None:
        kv_heads = matrix_of(submodule(attn, family.qkv[1])).shape[1] // d_head
    else:
        kv_heads = (matrix_of(submodule(attn, family.qkv[0])).shape[1] // d_head - heads) // 2
    stretches = "dynamic" in rope_types(config)  # beyond the positions that the config names
    positions = None if stretches else getattr(config, "max_position_embeddings", None)
    return Dims(len(layers), heads, kv_heads, d_head, config.hidden_size, config.vocab_size, positions)


def read_layer(layer: nn.Module, family: Family, dims: Dims, config: Any) -> LayerWeights | None:
    """Fold one layer's attention weights; None for a layer that mixes tokens without attention."""
    attn = optional(layer, family.attn)
    if attn is None:
        return None
    (W_Q, b_Q, c_Q), (W_K, b_K, c_K) = read_queries_keys(layer, attn, family, dims)
    W_V, b_V = fold_input(*projections(attn, family, dims)[2], _input_norm(layer, family))
    out = submodule(attn, family.out)
    W_O = matrix_of(out).view(dims.heads, dims.d_head, dims.d_model)
    b_O = bias_of(out, W_O)
    post = optional(layer, family.post_attn_norm)
    gain = read_norm(post, family.norm, family.norm_adds_one).gain if post is not None else None
    factor = getattr(config, family.residual_multiplier) if family.residual_multiplier else 1.0
    if gain is not None or factor != 1.0:
        gain = factor * (gain if gain is not None else torch.ones_like(b_O))
        W_O, b_O = W_O * gain, b_O * gain
    return LayerWeights(W_Q, b_Q, c_Q, W_K, b_K, c_K, W_V, b_V, W_O, b_O)


def read_queries_keys(
    layer: nn.Module, attn: nn.Module, family: Family, dims: Dims, dtype: torch.dtype | None = None
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    """(W, b, c) of the queries and of the keys, folded in `dtype`. Default: the working precision.

    The rank of a head needs float64: rounding after the gain is folded in makes dependent columns independent, and a
    channel of rounding noise appears.
    """
    norm, folded = _input_norm(layer, family), []
    for side, (W, b) in enumerate(projections(attn, family, dims)[:2]):
        qk_norm, to = read_qk_norm(attn, family, side), dtype or W.dtype
        W, b = fold_input(W.to(to), b.to(to), None if norm is None else norm.to(to))
        folded.append(_fold_qk_norm(W, b, None if qk_norm is None else qk_norm.to(to)))
    queries, keys = folded
    return queries, keys


def read_unnormed(
    layer: nn.Module, attn: nn.Module, family: Family, dims: Dims
) -> list[tuple[Float[Tensor, "heads d_model d_head"], Float[Tensor, "heads d_head"]]]:
    """(W, b) of queries, keys and values with the norm before them folded in, but not a norm on queries and keys."""
    norm = _input_norm(layer, family)
    return [fold_input(W, b, norm) for W, b in projections(attn, family, dims)]


def _input_norm(layer: nn.Module, family: Family) -> Norm | None:
    module = optional(layer, family.attn_norm)
    return None if module is None else read_norm(module, family.norm, family.norm_adds_one)


def read_head_out(hf: Any, family: Family) -> HeadOut:
    """Fold the final norm and the logit scale into the unembedding."""
    norm = read_norm(submodule(hf, family.final_norm), family.norm, family.norm_adds_one)
    head = hf.get_output_embeddings()
    W = matrix_of(head)
    b = bias_of(head, W)
    W_U, b_U = fold_input(W[None], b[None], norm)
    config = hf.config.get_text_config()
    scale = family.logit_scale(config)
    return HeadOut(W_U[0] * scale, b_U[0] * scale, getattr(config, "final_logit_softcapping", None))


def read_qk_norm(attn: nn.Module, family: Family, side: int) -> Norm | None:
    """The norm on queries (side 0) or keys (side 1), where this layer has one."""
    module = optional(attn, family.qk_norm[side]) if family.qk_norm else None
    return None if module is None else read_norm(module, family.norm, family.norm_adds_one)


def projections(attn: nn.Module, family: Family, dims: Dims) -> list[tuple[Tensor, Tensor]]:
    """(W [heads, d_model, d_head], b [heads, d_head]) for q, k and v, as the model stores them."""
    modules = [submodule(attn, name) for name in family.qkv]
    if family.fused is not None:
        W = matrix_of(modules[0])
        b = bias_of(modules[0], W)
        weights = split_qkv(W, family.fused, dims.heads, dims.d_head)
        biases = split_qkv(b, family.fused, dims.heads, dims.d_head)
    else:
        matrices = [matrix_of(module) for module in modules]
        weights = tuple(W.reshape(dims.d_model, -1, dims.d_head) for W in matrices)  # type: ignore[assignment]
        biases = tuple(  # type: ignore[assignment]
            bias_of(m, W).view(-1, dims.d_head) for m, W in zip(modules, matrices, strict=True)
        )
    return [(W.transpose(0, 1), b) for W, b in zip(weights, biases, strict=True)]


def fold_input(W: Tensor, b: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
    """Fold the norm before a reading matrix into it: gain on rows, its bias through W, centring along d_model.

    Centring W instead of x is the convention of the published circuits: (x - mean) W = x (W - mean of W over rows).
    """
    if norm is None:
        return W, b
    if norm.bias is not None:
        b = b + norm.bias @ W
    if norm.gain is not None:
        W = norm.gain[:, None] * W
    if norm.kind == "layer":
        W = W - W.mean(-2, keepdim=True)
    return W, b


def _fold_qk_norm(W: Tensor, b: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor, Tensor]:
    """Fold a norm on q or k: centring and gain act on the columns of W and b, its bias c escapes the scale."""
    heads, _, d_head = W.shape
    c = torch.zeros_like(b)
    if norm is None:
        return W, b, c
    W, b = norm.centre(W), norm.centre(b)
    if norm.gain is not None:
        gain = norm.gain.reshape(-1, d_head).expand(heads, d_head)
        W, b = W * gain[:, None, :], b * gain
    if norm.bias is not None:
        c = norm.bias.reshape(-1, d_head).expand(heads, d_head)
    return W, b, c
