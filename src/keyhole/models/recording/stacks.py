"""How do runs lie side by side? Tensors with an axis of runs in front: one cut out of them, or several put together.

Shorter runs are padded at the end. No token of a prompt sees what is there.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.models.recording.attention import AttentionRule
from keyhole.models.run import AttentionRun, LayerRun

if TYPE_CHECKING:
    from keyhole.models.run import Run


def cut_layer(layer: LayerRun, row: int, n: int) -> LayerRun:
    """The first n tokens of one run of several."""
    return LayerRun(
        resid=layer.resid[row, :n],
        attention=None if layer.attention is None else cut_attention(layer.attention, row, n),
        mixer=None if layer.mixer is None else layer.mixer[row, :n],
        mlp=layer.mlp[row, :n],
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
    own = [run.layers[layer] for run in runs]
    heads = [one.attention for one in own if one.attention is not None]
    mixers = [one.mixer for one in own if one.mixer is not None]
    return LayerRun(
        resid=stack([one.resid for one in own]),
        attention=_stack_attention(heads) if heads else None,
        mixer=stack(mixers) if mixers else None,
        mlp=stack([one.mlp for one in own]),
    )


def _stack_attention(records: Sequence[AttentionRun]) -> AttentionRun:
    longest = max(records, key=lambda record: len(record.first))
    return AttentionRun(
        **{name: stack([getattr(one, name) for one in records]) for name in ("q", "k", "v")},
        first=longest.first,
        rule=longest.rule,
        rotary=longest.rotary,
        norm_scale=stack([one.norm_scale[:, None] for one in records], 1.0)[..., 0],
        q_scale=stack([one.q_scale[..., None] for one in records], 1.0)[..., 0],
        k_scale=stack([one.k_scale[..., None] for one in records], 1.0)[..., 0],
        out_scale=stack([one.out_scale[:, None] for one in records], 1.0)[..., 0],
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
