"""What does a head read of everything written below it? Projected once, and shared by all its firings.

What is moved is projected onto W_Q and W_K of a downstream head; for long prompts W_O W_Q is composed first (r x r per
pair of heads). The cheaper way is chosen by counting operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.tracing.upstream import Writes

Pair = tuple[int, int]  # run, head


@dataclass(frozen=True)
class Reads:
    """What some heads read of everything below them, each in one run. Without RoPE already in channel coordinates."""

    q_moved: Float[Tensor, "pair moved read"]
    k_moved: Float[Tensor, "pair moved read"]
    q_local: Float[Tensor, "pair local pos read"]
    k_local: Float[Tensor, "pair local pos read"]


def reads_of(writes: Writes, layer: int, pairs: Sequence[Pair]) -> Reads:
    """Project everything below a layer onto queries and keys of heads; all heads of a run, which adjoin, at once."""
    by_run = groupby(pairs, lambda pair: pair[0])
    found = [_of_run(writes, layer, run, [head for _, head in own]) for run, own in by_run]
    if len(found) == 1:
        return found[0]
    names = [field.name for field in fields(Reads)]
    return Reads(**{name: torch.cat([getattr(own, name) for own in found]) for name in names})


def floats_per_pair(writes: Writes, layer: int) -> int:
    """How many numbers one head's reads are."""
    rows = writes.moved_below(layer) + writes.below(layer)[1] * writes.n
    return max(1, rows * 2 * writes.model.dims.d_head)


def _of_run(writes: Writes, layer: int, run: int, heads: list[int]) -> Reads:
    w, om = writes.weights(layer), writes.omega(layer)
    rotates = writes.record(layer).rotary is not None
    n_layers, n_local = writes.below(layer)
    kv_heads = sorted({w.kv(h) for h in heads})
    if rotates:  # rotation comes between the projection and the channels
        q_side, k_side = w.W_Q[heads], w.W_K[kv_heads]
    else:
        q_side = w.W_Q[heads] @ om.G_d[heads]
        k_side = w.W_K[[w.kv(h) for h in heads]] @ om.G_s[heads].mT
    W = torch.cat([q_side, k_side]).transpose(0, 1).flatten(1)  # [d_model, all columns of all heads]
    columns = (len(q_side) + len(k_side), q_side.shape[-1])
    local = (writes.local[run, :n_local].flatten(0, 1) @ W).view(n_local, writes.n, *columns)
    moved = _project_moved(writes, n_layers, run, W).view(writes.moved_below(layer), *columns)
    n = len(heads)
    k: slice | list[int] = [n + kv_heads.index(w.kv(head)) for head in heads] if rotates else slice(n, None)
    return Reads(
        q_moved=moved[:, :n].transpose(0, 1),
        k_moved=moved[:, k].transpose(0, 1),
        q_local=local[:, :, :n].permute(2, 0, 1, 3),
        k_local=local[:, :, k].permute(2, 0, 1, 3),
    )


def composing_is_cheaper(n: int, d_model: int, d_head: int) -> bool:
    """Per pair of heads: d r^2 + T r^2 multiplications with W_O W_Q composed first, T d r without."""
    return d_model * d_head + n * d_head < n * d_model


def _project_moved(writes: Writes, n_layers: int, run: int, W: Tensor) -> Float[Tensor, "moved cols"]:
    n, dims = writes.n, writes.model.dims
    if n_layers == 0:
        return W.new_zeros(0, W.shape[-1])
    if not composing_is_cheaper(n, dims.d_model, dims.d_head):
        return writes.moved[run, :n_layers].flatten(0, 2) @ W
    projected = W.new_empty(n_layers, dims.heads, n, W.shape[-1])
    for index in range(n_layers):
        W_O = writes.weights(writes.attention_layers[index]).W_O
        torch.matmul(writes.values[run, index], W_O @ W, out=projected[index])
    return projected.flatten(0, 2)
