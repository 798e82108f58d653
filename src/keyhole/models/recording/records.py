"""How do a forward pass's notes become records? Scales are frozen, RoPE tables read.

Families that do not call the attention interface are read at their projections; their RoPE, windows and ALiBi
are applied here.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.models.architecture.families import Family
from keyhole.models.architecture.norms import read_norm
from keyhole.models.architecture.rotary import Rotary
from keyhole.models.architecture.weights import Dims, optional, read_qk_norm, split_qkv
from keyhole.models.numbers.precision import working_dtype
from keyhole.models.recording.attention import AttentionRule, window_starts
from keyhole.models.recording.capture import Notes
from keyhole.models.run import AttentionRun, LayerRun


def layer_batch(notes: Notes, family: Family, dims: Dims, config: Any) -> LayerRun:
    """Freeze what the hooks noted in one layer."""
    assert notes.resid is not None
    attention = None if notes.attn is None else attention_batch(notes, notes.attn, family, dims)
    return LayerRun(notes.resid, attention, notes.mixer, mlp_writes(notes, family, config))


def mlp_writes(notes: Notes, family: Family, config: Any) -> Tensor:
    """What one layer's MLP added to the residual stream, in a whole batch."""
    if notes.mlp is None:
        raise KeyholeError(
            f"transformers {transformers.__version__} keeps no {family.mlp!r} in {type(notes.block).__name__}, so that "
            "Keyhole cannot read what its MLPs write: later versions do."
        )
    assert notes.resid is not None
    mlp = notes.mlp.view(notes.resid.shape)  # OPT and some mixtures of experts flatten batch and position
    return mlp * getattr(config, family.residual_multiplier) if family.residual_multiplier else mlp


def frozen_scale(module: nn.Module | None, x: Tensor, family: Family) -> Tensor:
    """What a norm divided each token by; ones where there is no norm."""
    if module is None:
        return torch.ones(x.shape[:2], device=x.device, dtype=working_dtype(x.dtype))
    return read_norm(module, family.norm, family.norm_adds_one).scale(x)


def attention_batch(notes: Notes, attn: nn.Module, family: Family, dims: Dims) -> AttentionRun:
    """Freeze what the hooks noted of one layer's attention."""
    resid = notes.resid
    assert resid is not None
    q, k, v, first, rule, rotary = read_attention(notes, attn, family, dims)
    q_scale = _qk_scale(notes, attn, family, dims.heads)
    if family.q_factor is not None:
        positions = torch.arange(resid.shape[1], device=resid.device)
        q_scale = q_scale * family.q_factor(attn, positions).to(q_scale.dtype)
    attn_out = resid if notes.attn_out is None else notes.attn_out
    return AttentionRun(
        q=q,
        k=k,
        v=v,
        first=first,
        rule=rule,
        rotary=rotary,
        norm_scale=frozen_scale(optional(notes.block, family.attn_norm), resid, family),
        q_scale=q_scale,
        k_scale=_qk_scale(notes, attn, family, dims.kv_heads, side=1),
        out_scale=frozen_scale(optional(notes.block, family.post_attn_norm), attn_out, family),
    )


def read_attention(
    notes: Notes, attn: nn.Module, family: Family, dims: Dims
) -> tuple[Tensor, Tensor, Tensor, Tensor, AttentionRule, Rotary | None]:
    """q, k, v, first visible keys, rule and RoPE table of one layer, for a whole batch."""
    rotary = _rotary(attn, notes, family)
    if not family.routed:
        _read_projections(notes, attn, rotary, family=family, dims=dims)
    if notes.qkv is None:
        raise KeyholeError(
            f"transformers {transformers.__version__} computes the attention of {type(attn).__name__} in its own way, "
            "where Keyhole cannot read it: later versions route it through their AttentionInterface."
        )
    assert notes.first is not None and notes.rule is not None
    return *notes.qkv, notes.first, notes.rule, rotary


def _qk_scale(notes: Notes, attn: nn.Module, family: Family, heads: int, side: int = 0) -> Tensor:
    """What QK-norm multiplies with, [batch, heads, pos], from the projection it is applied to."""
    norm = read_qk_norm(attn, family, side)
    if norm is None:
        assert notes.resid is not None
        return frozen_scale(None, notes.resid, family)[:, None].expand(-1, heads, -1)
    x = notes.projected[family.qkv[side]]
    if family.qk_norm_spans == "all":
        return norm.scale(x).reciprocal()[:, None].expand(-1, heads, -1)
    return norm.scale(x.view(*x.shape[:2], heads, -1)).reciprocal().transpose(1, 2)


def _rotary(attn: Any, notes: Notes, family: Family) -> Rotary | None:
    """The table that this layer's RoPE used, one column per frequency."""
    if family.rotary is None or not family.has_rope(attn):
        return None
    assert notes.resid is not None
    if hasattr(attn, "embed_positions"):  # GPT-J keeps one table of [sin, cos] in each attention module
        sin, cos = attn.embed_positions[: notes.resid.shape[1]].chunk(2, dim=-1)
        return Rotary(cos, sin, family.rotary)
    table = notes.attn_kwargs["position_embeddings"]
    if torch.is_tensor(table):  # Llama 4 passes complex numbers
        return Rotary(table[0].real, table[0].imag, family.rotary)
    cos, sin = (part[0] for part in table)
    if family.rotary_table == "tiled":
        cos, sin = cos[:, : cos.shape[1] // 2], sin[:, : sin.shape[1] // 2]
    elif family.rotary_table == "interleaved":
        cos, sin = cos[:, ::2], sin[:, ::2]
    return Rotary(cos, sin, family.rotary)


def _read_projections(notes: Notes, attn: nn.Module, rotary: Rotary | None, *, family: Family, dims: Dims) -> None:
    """q, k, v, mask and rule of a family that does not call the attention interface."""
    if family.fused is not None:
        parts = split_qkv(notes.projected[family.qkv[0]], family.fused, dims.heads, dims.d_head)
        q, k, v = (part.transpose(1, 2) for part in parts)
    else:
        q, k, v = (_by_head(notes.projected[n], dims).transpose(1, 2) for n in family.qkv)
    if rotary is not None:
        q, k = rotary.rotate(q), rotary.rotate(k)
    alibi, key_bias = notes.attn_kwargs.get("alibi"), None
    if alibi is not None and family.alibi_factor is not None:  # [batch * heads, 1, pos], alike for every prompt
        alibi = alibi.to(working_dtype(q.dtype))
        key_bias = alibi.reshape(-1, dims.heads, alibi.shape[-1])[0] * family.alibi_factor(attn)
    assert family.scaling is not None
    notes.qkv = (q, k, v)
    notes.rule = AttentionRule(family.scaling(attn), key_bias=key_bias)
    notes.first = window_starts(q.shape[2], family.window(attn), q.device)


def _by_head(x: Tensor, dims: Dims) -> Tensor:
    return x.view(*x.shape[:-1], -1, dims.d_head)
