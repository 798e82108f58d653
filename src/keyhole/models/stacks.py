"""How do runs lie side by side? Tensors have an axis of runs in front, from which a run is cut out.

Shorter runs are padded at the end, where no token of a prompt attends to. Also here: queries, keys and values
reconstructed from the residual stream, and layers that are read during a pass without being kept.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.models.attention import AttentionRule
from keyhole.models.capture import Notes, capture, read_attention
from keyhole.models.facts import Rotary
from keyhole.models.numbers import require_finite_heads
from keyhole.models.run import AttentionRun, LayerRun
from keyhole.models.tokens import Encoded

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.models.weights import LayerWeights


def cut_layer(layer: LayerRun, row: int, n: int) -> LayerRun:
    """The first n tokens of one run of several."""
    return LayerRun(
        resid=layer.resid[row, :n],
        attention=None if layer.attention is None else cut_attention(layer.attention, row, n),
        mixer=None if layer.mixer is None else layer.mixer[row, :n],
        mlp=layer.mlp[row, :n],
        mid=None if layer.mid is None else layer.mid[row, :n],
    )


def cut_attention(record: AttentionRun, row: int, n: int) -> AttentionRun:
    """The same for one layer's attention."""
    rule, bias = record.rule, record.rule.key_bias
    return AttentionRun(
        q=record.q[row, :, :n],
        k=record.k[row, :, :n],
        v=record.v[row, :, :n],
        first=record.first[:n],
        rule=AttentionRule(rule.scaling, rule.softcap, rule.sinks, None if bias is None else bias[:, :n]),
        rotary=None if record.rotary is None else record.rotary.at(slice(n)),
        norm_scale=record.norm_scale[row, :n],
        q_scale=record.q_scale[row, :, :n],
        k_scale=record.k_scale[row, :, :n],
        out_scale=record.out_scale[row, :n],
    )


def stack_layer(runs: Sequence["Run"], layer: int) -> LayerRun:
    """One layer of several runs of a model, side by side. RoPE and masks are those of the longest."""
    layers = [run.layers[layer] for run in runs]
    heads = [record.attention for record in layers if record.attention is not None]
    mixers = [record.mixer for record in layers if record.mixer is not None]
    mids = [record.mid for record in layers if record.mid is not None]
    return LayerRun(
        resid=stack([record.resid for record in layers]),
        attention=_stack_attention(heads) if heads else None,
        mixer=stack(mixers) if mixers else None,
        mlp=stack([record.mlp for record in layers]),
        mid=stack(mids) if mids else None,
    )


def _stack_attention(records: Sequence[AttentionRun]) -> AttentionRun:
    longest = max(records, key=lambda record: len(record.first))
    return AttentionRun(
        **{name: stack([getattr(record, name) for record in records]) for name in ("q", "k", "v")},
        first=longest.first,
        rule=longest.rule,
        rotary=longest.rotary,
        norm_scale=stack([record.norm_scale[:, None] for record in records], 1.0)[..., 0],
        q_scale=stack([record.q_scale[..., None] for record in records], 1.0)[..., 0],
        k_scale=stack([record.k_scale[..., None] for record in records], 1.0)[..., 0],
        out_scale=stack([record.out_scale[:, None] for record in records], 1.0)[..., 0],
    )


def stack(tensors: Sequence[Float[Tensor, "*any pos size"]], pad: float = 0.0) -> Float[Tensor, "runs *any most size"]:
    """Tensors that differ in their last axis but one, padded at its end; a single one is not copied."""
    if len(tensors) == 1:
        return tensors[0][None]
    most = max(tensor.shape[-2] for tensor in tensors)
    if all(tensor.shape[-2] == most for tensor in tensors):
        return torch.stack(list(tensors))
    shape = (len(tensors), *tensors[0].shape[:-2], most, tensors[0].shape[-1])
    out = tensors[0].new_full(shape, pad)
    for row, tensor in zip(out, tensors, strict=True):
        row[..., : tensor.shape[-2], :] = tensor
    return out


# What does a head read? Queries and keys reconstructed from the residual stream with folded weights and frozen scales.
#
#     q_t = R_t [ s_t (x_t W_Q / n_t + b_Q) + c_Q ]
#
# The captured q and k are what the model computed; these are what the decomposition stands on. Their difference is an
# error that is reported. Of one run, or of several side by side.


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


# How is attention read without keeping a run? Each layer is handed to a function during the forward pass.
#
# `Model.run` keeps all layers. Work over thousands of prompts needs each layer's queries and keys once, and memory for
# one layer only.


@dataclass(frozen=True)
class Seen:
    """One layer's attention for a batch of prompts padded on the right; q and k as the scores use them."""

    q: Float[Tensor, "batch heads pos d_head"]
    k: Float[Tensor, "batch kv_heads pos d_head"]
    first: Int[Tensor, "pos"]
    rule: AttentionRule
    rotary: Rotary | None


See = Callable[[int, Seen], None]


def visit(model: "Model", batch: Sequence[Encoded], see: See) -> None:
    """Run one batch and call `see(layer, attention)` for every attention layer as it is computed."""
    longest = max(len(encoded.ids) for encoded in batch)
    rows = [[*encoded.ids, *[0] * (longest - len(encoded.ids))] for encoded in batch]

    def prepare(stack: ExitStack, layers: tuple[Notes, ...]) -> None:
        for layer, notes in enumerate(layers):
            hook = notes.block.register_forward_hook(lambda *_, layer=layer, notes=notes: show(layer, notes))
            stack.callback(hook.remove)

    def show(layer: int, notes: Notes) -> None:
        if notes.attn is not None:
            q, k, _, first, rule, rotary = read_attention(notes, notes.attn, model.family, model.dims)
            require_finite_heads(layer, q, k)
            see(layer, Seen(q, k, first, rule, rotary))
        notes.resid = notes.mlp = notes.mid = notes.mixer = notes.attn_out = notes.qkv = None
        notes.projected.clear()
        notes.attn_kwargs.clear()

    capture(model.hf, model.family, torch.tensor(rows, device=model.device), prepare, all_logits=False)
