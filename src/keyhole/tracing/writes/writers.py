"""Who wrote the residual stream? Its exact split into embedding, heads per source token, MLPs and biases.

    x^l_t = e_t + sum over l' < l of [ sum_h sum_b A_tb (v_b - b_V) W_O / m_t  +  bias_t  +  mlp_t ]

with m_t the frozen scale of a norm on the attention output (1 where there is none). A value bias reaches t
through every key at once, so it belongs to the layer's bias: weighted by the row sum of A, which is 1 unless
the head has a sink.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.writer import Writer
from keyhole.errors import KeyholeError
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.numbers.tolerance import require_exact

if TYPE_CHECKING:
    from keyhole.models.architecture.weights import LayerWeights
    from keyhole.models.run import AttentionRun, Run


@dataclass(frozen=True)
class Split:
    """The residual stream that a layer reads at one token, as a sum of what was written."""

    __repr__ = brief

    layer: int
    pos: int
    writers: tuple[Writer, ...]
    vectors: Float[Tensor, "writer d_model"]
    residual: Float[Tensor, "d_model"]
    error: float  # of the sum, relative to the largest entry of the residual


def split(run: "Run", layer: int, pos: int | str) -> Split:
    """Who wrote what layer `layer` reads at this token? `layer` = number of layers: what the final norm reads."""
    run.require_fresh()
    t = run.position(pos)
    if not 0 <= layer <= len(run.layers):
        raise KeyholeError(f"there is no layer {layer}: give 0 to {len(run.layers)} (the last: the final norm).")
    with exact_matmul():
        first = run.layers[0].resid[t]
        residual = (run.layers[layer].resid if layer < len(run.layers) else run.final_resid)[t]
        writers, vectors = [Writer("embedding", 0, None, t, t)], [first[None]]
        for index, record in enumerate(run.layers[:layer]):
            if record.attention is not None:
                moved = head_writes(run, index, t)
                heads, sources = moved.shape[:2]
                writers += [Writer("head", index, h, t, b) for h in range(heads) for b in range(sources)]
                writers.append(Writer("bias", index, None, t, t))
                vectors += [moved.flatten(0, 1), bias_writes(run, index, [t])]
            if record.mixer is not None:
                writers.append(Writer("mixer", index, None, t, t))
                vectors.append(record.mixer[t][None])
            writers.append(Writer("mlp", index, None, t, t))
            vectors.append(record.mlp[t][None])
        stacked = torch.cat([v.to(residual.device, vectors[-1].dtype) for v in vectors])
        difference = stacked.sum(0).to(residual.dtype) - residual
        error = float(difference.abs().max() / residual.abs().max())
    require_exact(error, residual.dtype, f"the writers at layer {layer}, token {t}")
    return Split(layer, t, tuple(writers), stacked, residual, error)


def head_writes(run: "Run", layer: int, dest: int) -> Float[Tensor, "heads src d_model"]:
    """What each head moved from each source token 0..dest to `dest`: A_tb (v_b - b_V) W_O / m_t."""
    record, w = run.layer(layer), run.model.weights(layer)
    A = record.weights(record.heads, [dest])[:, 0, : dest + 1]
    return (A[:, :, None] * moved_values(run, layer)[:, : dest + 1]) @ w.W_O / record.out_scale[dest]


def moved_values(run: "Run", layer: int) -> Float[Tensor, "heads pos d_head"]:
    """v_b - b_V of every query head: what depends on the source token."""
    return values_of(run.layer(layer), run.model.weights(layer))


def values_of(record: "AttentionRun", w: "LayerWeights") -> Float[Tensor, "*runs heads pos d_head"]:
    """The same, of any pass through the layer."""
    return (record.v.to(w.b_V.dtype) - w.b_V[:, None]).repeat_interleave(record.group, dim=-3)


def bias_writes(run: "Run", layer: int, dests: list[int]) -> Float[Tensor, "dest d_model"]:
    """What the attention block adds whatever it attends to: (b_O + sum_h (sum_b A_tb) b_V W_O) / m_t."""
    return biases_of(run.layer(layer), run.model.weights(layer), dests)


def biases_of(record: "AttentionRun", w: "LayerWeights", dests: list[int]) -> Float[Tensor, "*runs dest d_model"]:
    """The same, of any pass through the layer."""
    per_head = (w.b_V.repeat_interleave(w.group, dim=0)[:, None] @ w.W_O)[:, 0]
    if record.rule.sinks is None:
        total = (w.b_O + per_head.sum(0)).expand(len(dests), -1)
    else:
        mass = record.weights(record.heads, dests).sum(-1)
        total = w.b_O + mass.mT @ per_head
    return total / record.out_scale[..., dests, None]


def attention_writes(run: "Run", layer: int) -> Float[Tensor, "pos d_model"]:
    """Everything a layer's attention writes, summed over heads and sources."""
    return attention_of(run.layer(layer), run.model.weights(layer))


def attention_of(record: "AttentionRun", w: "LayerWeights") -> Float[Tensor, "*runs pos d_model"]:
    """The same, of any pass through the layer; in blocks of destinations."""
    written, v, W_O = [], values_of(record, w), w.W_O.flatten(0, 1)
    for dests in record.blocks:
        mixed = (record.weights(record.heads, dests) @ v).transpose(-3, -2).flatten(-2)  # heads side by side, as in W_O
        moved = mixed @ W_O / record.out_scale[..., list(dests), None]
        written.append(moved + biases_of(record, w, list(dests)))
    return torch.cat(written, dim=-2)
