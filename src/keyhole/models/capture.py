"""How is a run recorded? One forward pass of the model's own code, with ordinary hooks around it.

The attention function (see `attention.py`) hands over q, k and v; hooks keep references to residual streams and
block outputs. A tensor is copied only if the model writes into it later. The second half turns these notes into
records.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.models import attention
from keyhole.models.attention import AttentionRule, window_starts
from keyhole.models.facts import Rotary, read_norm
from keyhole.models.families import Family
from keyhole.models.numbers import exact_matmul, working_dtype
from keyhole.models.run import AttentionRun, LayerRun
from keyhole.models.weights import Dims, optional, read_qk_norm, split_qkv, submodule


@dataclass
class Notes:
    """What the hooks kept of one layer, for a whole batch; filled during the forward pass."""

    block: nn.Module
    attn: nn.Module | None
    resid: Tensor | None = None
    mlp: Tensor | None = None
    mixer: Tensor | None = None
    attn_out: Tensor | None = None  # the input of a norm on the attention output
    attn_kwargs: dict[str, Any] = field(default_factory=dict)
    projected: dict[str, Tensor] = field(default_factory=dict)  # outputs of the q, k, v projections
    qkv: tuple[Tensor, Tensor, Tensor] | None = None
    first: Tensor | None = None
    rule: AttentionRule | None = None
    bypassed: bool = False  # an intervention began above this layer, so it was not run


@dataclass(frozen=True)
class Captured:
    """One forward pass of a batch."""

    layers: tuple[Notes, ...]
    final: Tensor
    logits: Tensor


_one_at_a_time = threading.RLock()  # hooks and the attention implementation belong to the model, not to a thread
_TRAINING = "the model is in training mode, where dropout changes every run: call model.eval()."
Prepare = Callable[[ExitStack, tuple[Notes, ...]], None]


def capture(
    hf: Any, family: Family, ids: Tensor, prepare: Prepare | None = None, *, all_logits: bool = True
) -> Captured:
    """Run a batch of token ids, padded on the right, through the model's own code and note what it did.

    Right padding needs no padding mask: a causal query never sees what comes after it. `prepare` may add hooks of its
    own (interventions do); they are removed with the others. Without `all_logits` the unembedding, a third of a small
    model's work, is left out where the model's code allows it.
    """
    if hf.training:
        raise KeyholeError(_TRAINING)
    blocks = submodule(hf, family.layers).children()
    layers = tuple(Notes(block, optional(block, family.attn)) for block in blocks)
    final: list[Tensor] = []
    with _one_at_a_time, ExitStack() as stack:
        stack.enter_context(exact_matmul())
        for notes in layers:
            watch_layer(stack, notes, family)
        _before(stack, submodule(hf, family.final_norm), lambda args, kwargs: final.append(args[0]))
        if family.routed:
            stack.enter_context(_recorded(layers))
        stack.enter_context(attention_named(hf, attention.NAME if family.routed else family.implementation))
        _forget_longer_prompts(hf)
        if prepare is not None:
            prepare(stack, layers)
        spared = {} if all_logits or not _can_spare_logits(hf) else {"logits_to_keep": 1}
        logits = hf(input_ids=ids, use_cache=False, return_dict=True, **spared).logits
    return Captured(layers, final[0], logits)


def _can_spare_logits(hf: Any) -> bool:
    return "logits_to_keep" in inspect.signature(hf.forward).parameters


@contextmanager
def alone(hf: Any) -> Iterator[None]:
    """Reserve the model for this thread."""
    if hf.training:
        raise KeyholeError(_TRAINING)
    with _one_at_a_time:
        _forget_longer_prompts(hf)
        yield


@contextmanager
def undisturbed(hf: Any) -> Iterator[None]:
    """Reserve the model for this thread, without gradients, for work that runs the model without `capture`."""
    with alone(hf), torch.no_grad():
        yield


def plain_logits(hf: Any, family: Family, ids: Tensor) -> Tensor:
    """The model's own answer, without Keyhole's attention function or hooks."""
    with _one_at_a_time, attention_named(hf, family.implementation):
        _forget_longer_prompts(hf)
        logits: Tensor = hf(input_ids=ids, use_cache=False, return_dict=True).logits
    return logits


def watch_layer(stack: ExitStack, notes: Notes, family: Family) -> None:
    """Hooks for one layer: its input, what its blocks write, and what its attention is called with."""

    def keep(name: str, copy: bool = False) -> Any:
        def hook(out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out  # mixtures of experts also return their routing
            setattr(notes, name, out.clone() if copy else out)

        return hook

    def keep_projection(name: str) -> Any:
        return lambda out: notes.projected.__setitem__(name, out)

    _before(stack, notes.block, lambda args, kwargs: keep("resid")(args[0] if args else kwargs["hidden_states"]))
    _after(stack, optional(notes.block, family.mlp), keep("mlp", copy=family.mlp_in_place))
    _after(stack, optional(notes.block, family.mixer), keep("mixer"))
    if notes.attn is None:
        return
    _before(stack, notes.attn, lambda args, kwargs: notes.attn_kwargs.update(kwargs))
    _before(stack, optional(notes.block, family.post_attn_norm), lambda args, kwargs: keep("attn_out")(args[0]))
    if not family.routed or family.qk_norm is not None:
        for name in family.qkv:
            _after(stack, optional(notes.attn, name), keep_projection(name))


def _before(stack: ExitStack, module: nn.Module | None, keep: Any) -> None:
    if module is not None:
        hook = module.register_forward_pre_hook(lambda _, args, kwargs: keep(args, kwargs), with_kwargs=True)
        stack.callback(hook.remove)


def _after(stack: ExitStack, module: nn.Module | None, keep: Any) -> None:
    if module is not None:
        hook = module.register_forward_hook(lambda _, args, out: keep(out))
        stack.callback(hook.remove)


def _forget_longer_prompts(hf: Any) -> None:
    """Dynamic RoPE keeps the frequencies of the longest prompt so far; a run must not depend on earlier prompts."""
    for module in hf.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.inv_freq = module.original_inv_freq
            module.max_seq_len_cached = module.original_max_seq_len


@contextmanager
def _recorded(layers: tuple[Notes, ...]) -> Iterator[None]:
    """Let Keyhole's attention function write q, k and v into the notes of its layer."""
    by_module = {id(notes.attn): notes for notes in layers}

    def record(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, first: Tensor, rule: AttentionRule) -> None:
        notes = by_module[id(module)]
        notes.qkv, notes.first, notes.rule = (q, k, v), first, rule

    attention.register()
    token = attention.recorder.set(record)
    try:
        yield
    finally:
        attention.recorder.reset(token)


@contextmanager
def attention_named(hf: Any, name: str | None) -> Iterator[None]:
    """Switch the model's attention implementation; the user's choice is put back afterwards."""
    before = hf.config._attn_implementation
    hf.config._attn_implementation = name or before
    try:
        yield
    finally:
        hf.config._attn_implementation = before


# How do a forward pass's notes become records? Scales are frozen, RoPE tables read.
#
# Families that do not call the attention interface are read at their projections; their RoPE, windows and ALiBi are
# applied here.


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
    q_scale = qk_scale(notes, attn, family, dims.heads)
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
        k_scale=qk_scale(notes, attn, family, dims.kv_heads, side=1),
        out_scale=frozen_scale(optional(notes.block, family.post_attn_norm), attn_out, family),
    )


def read_attention(
    notes: Notes, attn: nn.Module, family: Family, dims: Dims
) -> tuple[Tensor, Tensor, Tensor, Tensor, AttentionRule, Rotary | None]:
    """q, k, v, first visible keys, rule and RoPE table of one layer, for a whole batch."""
    rotary = rotary_of(attn, notes, family)
    if not family.routed:
        _read_projections(notes, attn, rotary, family=family, dims=dims)
        if (editor := attention.editors.get(id(attn))) is not None and notes.qkv is not None:
            q, k, v = notes.qkv
            notes.qkv = (*editor.compared(attn, q, k), v)
    if notes.qkv is None:
        raise KeyholeError(
            f"transformers {transformers.__version__} computes the attention of {type(attn).__name__} in its own way, "
            "where Keyhole cannot read it: later versions route it through their AttentionInterface."
        )
    assert notes.first is not None and notes.rule is not None
    return *notes.qkv, notes.first, notes.rule, rotary


def qk_scale(notes: Notes, attn: nn.Module, family: Family, heads: int, side: int = 0) -> Tensor:
    """What QK-norm multiplies with, [batch, heads, pos], from the projection it is applied to."""
    norm = read_qk_norm(attn, family, side)
    if norm is None:
        assert notes.resid is not None
        return frozen_scale(None, notes.resid, family)[:, None].expand(-1, heads, -1)
    x = notes.projected[family.qkv[side]]
    if family.qk_norm_spans == "all":
        return norm.scale(x).reciprocal()[:, None].expand(-1, heads, -1)
    return norm.scale(x.view(*x.shape[:2], heads, -1)).reciprocal().transpose(1, 2)


def rotary_of(attn: Any, notes: Notes, family: Family) -> Rotary | None:
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
    if (
        alibi is not None and family.alibi_factor is not None
    ):  # [batch * heads, 1, pos], equal for every prompt of the batch
        alibi = alibi.to(working_dtype(q.dtype))
        key_bias = alibi.reshape(-1, dims.heads, alibi.shape[-1])[0] * family.alibi_factor(attn)
    assert family.scaling is not None
    notes.qkv = (q, k, v)
    notes.rule = AttentionRule(family.scaling(attn), key_bias=key_bias)
    notes.first = window_starts(q.shape[2], family.window(attn), q.device)


def _by_head(x: Tensor, dims: Dims) -> Tensor:
    return x.view(*x.shape[:-1], -1, dims.d_head)
