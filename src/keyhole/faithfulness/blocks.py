"""What does one layer make of what its heads and its MLP read, if each of them reads something else?

Norms are taken anew of what is read; everything else is the model's own: its rule of attention, RoPE, QK-norm, sinks,
windows, grouped heads (each query head reads keys and values of its own here), norms after a block, experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.attention import AttentionRule
from keyhole.models.effective import bias_of, matrix_of
from keyhole.models.facts import Norm, Rotary, read_norm
from keyhole.models.mlps import MlpWeights, NoMlp
from keyhole.models.weights import optional, read_qk_norm, read_unnormed, submodule

if TYPE_CHECKING:
    from torch import nn

    from keyhole.models.model import Model
    from keyhole.models.run import Run

Read = Float[Tensor, "head prompt pos d_model"]
InHead = Float[Tensor, "head prompt pos d_head"]


@dataclass(frozen=True)
class Side:
    """How every query head reads one of its three inputs: its norm, its weights, and the norm on what comes out."""

    norm: Norm | None
    W: Float[Tensor, "head d_model d_head"]
    b: Float[Tensor, "head d_head"]
    qk_norm: Norm | None = None
    spans_all: bool = False  # one scale of it over all heads together

    def of(self, heads: list[int]) -> "Side":
        """Some heads alone."""
        qk_norm = self.qk_norm
        if qk_norm is not None:
            gain, bias = (_per_head(p, *self.b.shape) for p in (qk_norm.gain, qk_norm.bias))
            qk_norm = replace(
                qk_norm, gain=None if gain is None else gain[heads], bias=None if bias is None else bias[heads]
            )
        return replace(self, W=self.W[heads], b=self.b[heads], qk_norm=qk_norm)

    def linear(self, x: Read, lost: InHead | None = None) -> InHead:
        """X through the norm before, and the weights, less what is `lost` of it there; without the bias."""
        y = (x.flatten(1, 2) @ self.W).view(*x.shape[:-1], -1)
        y = y if lost is None else y - lost
        if self.norm is None:
            return y
        alike = x.stride(0) == 0 and not x.requires_grad  # all heads read the same, and no slope is taken of each
        return y / self.norm.scale(x[:1] if alike else x)[..., None]

    def read(self, x: Read, lost: InHead | None = None) -> InHead:
        """The same with the bias, and the norm after."""
        y = self.linear(x, lost) + self.b[:, None, None]
        if self.qk_norm is None:
            return y
        scaled = y.permute(1, 2, 0, 3).flatten(-2)[None] if self.spans_all else y
        y = self.qk_norm.centre(y) / self.qk_norm.scale(scaled)[..., None]
        gain, bias = (_per_head(p, *self.b.shape) for p in (self.qk_norm.gain, self.qk_norm.bias))
        y = y if gain is None else y * gain[:, None, None]
        return y if bias is None else y + bias[:, None, None]


@dataclass(frozen=True)
class After:
    """A norm on the attention output: the output projection as the model has it, for its scale."""

    norm: Norm
    W: Float[Tensor, "heads_d_head d_model"]
    b: Float[Tensor, "d_model"]


@dataclass(frozen=True, eq=False)
class Block:
    """One layer, for prompts of one length."""

    query: Side
    key: Side
    value: Side
    rule: AttentionRule
    visible: Bool[Tensor, "pos pos"]
    rotary: Rotary | None
    factor: Float[Tensor, "pos"] | None  # on queries
    W_O: Float[Tensor, "head d_head d_model"]  # with gain and multiplier, as in `LayerWeights`
    b_O: Float[Tensor, "d_model"]
    after: After | None
    mlp: MlpWeights
    mlp_norm: Norm | None
    mlp_after: Norm | None

    @cached_property
    def separable(self) -> bool:
        """Can some heads be left out? Not where a norm reads all of them, or sinks scale the biases of their values."""
        normed = self.after is not None or (self.query.qk_norm is not None and self.query.spans_all)
        return not normed and (self.rule.sinks is None or not bool(self.value.b.any()))

    @cached_property
    def constant(self) -> Float[Tensor, "d_model"]:
        """What a separable layer's biases write, whatever its heads do."""
        return self.b_O + (self.value.b[:, None] @ self.W_O)[:, 0].sum(0)

    def attend(
        self,
        q: Read,
        k: Read,
        v: Read,
        heads: Sequence[int] | None = None,
        lost: tuple[InHead | None, InHead | None] = (None, None),
    ) -> tuple[Read, Float[Tensor, "prompt pos d_model"]]:
        """What each head writes, and what the layer's bias does, from what the heads' three sides read.

        `heads`: these alone, where heads are `separable`. `lost`: what their queries and keys go without.
        """
        some = None if heads is None or len(heads) == len(self.W_O) else list(heads)
        query, key, value = (side if some is None else side.of(some) for side in (self.query, self.key, self.value))
        rule, W_O = (self.rule, self.W_O) if some is None else (self.rule.heads(some), self.W_O[some])
        queries, keys, values = query.read(q, lost[0]), key.read(k, lost[1]), value.linear(v)
        if self.factor is not None:
            queries = queries * self.factor[:, None]
        if self.rotary is not None:
            queries, keys = self.rotary.rotate(queries), self.rotary.rotate(keys)
        scores = (queries @ keys.mT * rule.scaling).transpose(0, 1)
        A = rule.weights(scores, self.visible).transpose(0, 1).to(values)
        mixed = A @ values
        moved = (mixed.flatten(1, 2) @ W_O).view(*v.shape)
        if some is not None:
            return moved, self.constant.expand_as(v[0])
        mass = A.sum(-1, keepdim=True)  # less than 1 with sinks
        constant = self.b_O + (mass * (self.value.b[:, None] @ self.W_O)[:, None]).sum(0)
        if self.after is None:
            return moved, constant
        whole = (mixed + mass * self.value.b[:, None, None]).permute(1, 2, 0, 3).flatten(-2)
        scale = self.after.norm.scale(whole @ self.after.W + self.after.b)[..., None]
        return moved / scale, constant / scale

    def feed(self, x: Float[Tensor, "prompt pos d_model"]) -> Float[Tensor, "prompt pos d_model"]:
        """What the MLP writes."""
        flat = x.flatten(0, 1)
        normed = (
            self.mlp.read(flat) if self.mlp_norm is None else self.mlp.read(flat) / self.mlp_norm.scale(flat)[:, None]
        )
        reads = writes = normed.new_ones(len(flat), len(self.mlp.neurons))
        if self.mlp.route is not None:
            dtype = next(self.mlp.norm.parameters()).dtype if self.mlp.norm is not None else flat.dtype
            sent = flat.to(dtype)
            routed = self.mlp.route(sent if self.mlp.norm is None else self.mlp.norm(sent)).to(flat)
            reads, writes = (routed, (routed != 0).to(flat)) if self.mlp.routes_input else (reads, routed)
        out = torch.zeros_like(flat)
        for e, neurons in enumerate(self.mlp.neurons):
            own_read = normed * reads[:, e, None]
            added = torch.stack([own_read @ W.to(flat) for W in neurons.reading])
            out = out + (neurons.values(added) @ neurons.W_out.to(flat) + neurons.b_out.to(flat)) * writes[:, e, None]
        written = self.mlp.written(out)
        return (written if self.mlp_after is None else written / self.mlp_after.scale(out)[:, None]).view(x.shape)


def mlps_of(model: "Model") -> list[MlpWeights]:
    """Every layer's MLP; refused is a model with layers that cannot be taken apart."""
    if len(model.attention_layers) < model.dims.layers:
        raise KeyholeError(
            f"{model.name} has layers that mix tokens with another block than attention: Keyhole knows what such a "
            "block wrote, but not what it would write if it read something else, so edges into it cannot be cut."
        )
    mlps = []
    for layer in range(model.dims.layers):
        mlp = model.mlp(layer)
        if isinstance(mlp, NoMlp):
            raise KeyholeError(f"edges into the MLPs of {model.name} cannot be cut: {mlp.reason}.")
        mlps.append(mlp)
    return mlps


def blocks_of(run: "Run", mlps: Sequence[MlpWeights]) -> tuple[Block, ...]:
    """All layers, for prompts as long as this run's."""
    return tuple(_block(run, layer, mlp) for layer, mlp in enumerate(mlps))


def _block(run: "Run", layer: int, mlp: MlpWeights) -> Block:
    model, record = run.model, run.attention_run(layer)
    family, module, weights = model.family, model.blocks[layer], model.folded(layer)
    attn = submodule(module, family.attn)
    before = _norm(model, optional(module, family.attn_norm))
    factor = None
    if family.q_factor is not None:
        factor = family.q_factor(attn, torch.arange(len(run), device=record.q.device)).to(weights.W_Q.dtype)
    sides = []
    for side, (W, b) in enumerate(read_unnormed(module, attn, family, model.dims)):
        repeat = 1 if side == 0 else weights.group
        qk_norm = read_qk_norm(attn, family, side) if side < 2 else None
        W, b = (part.repeat_interleave(repeat, 0) for part in (W, b))
        sides.append(Side(before, W, b, qk_norm, family.qk_norm_spans == "all"))
    query, key, value = sides
    return Block(
        query=query,
        key=key,
        value=value,
        rule=record.rule,
        visible=record.visible(),
        rotary=record.rotary,
        factor=factor,
        W_O=weights.W_O,
        b_O=weights.b_O,
        after=_after(model, module, attn),
        mlp=mlp,
        mlp_norm=_norm(model, mlp.norm),
        mlp_after=_norm(model, mlp.post_norm),
    )


def _after(model: "Model", module: "nn.Module", attn: "nn.Module") -> After | None:
    norm = _norm(model, optional(module, model.family.post_attn_norm))
    if norm is None:
        return None
    out = submodule(attn, model.family.out)
    W = matrix_of(out)
    return After(norm, W, bias_of(out, W))


def _norm(model: "Model", module: "nn.Module | None") -> Norm | None:
    return None if module is None else read_norm(module, model.family.norm, model.family.norm_adds_one)


def _per_head(parameter: Tensor | None, heads: int, d_head: int) -> Float[Tensor, "head d_head"] | None:
    """A norm's gain or bias for every query head: shared by all, one each, or one per group."""
    if parameter is None:
        return None
    rows = parameter.reshape(-1, d_head)
    return rows.expand(heads, d_head) if len(rows) == 1 else rows.repeat_interleave(heads // len(rows), 0)
