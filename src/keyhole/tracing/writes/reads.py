"""What does a head read of everything written below it? Projected once, and shared by all its firings.

What is moved is projected onto W_Q and W_K of a downstream head; for long prompts W_O W_Q is composed first (r x r per
pair of heads). The cheaper way is chosen by counting operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.tracing.writes.upstream import Writes

Pair = tuple[int, int]  # run, head


@dataclass(frozen=True)
class Reads:
    """What some heads read of everything below them, each in one run. Without RoPE already in channel coordinates."""

    q_moved: Float[Tensor, "pair moved read"]
    q_local: Float[Tensor, "pair local pos read"]
    k_moved: Float[Tensor, "key_pair moved read"]
    k_local: Float[Tensor, "key_pair local pos read"]
    key: Int[Tensor, "pair"]  # whose keys are whose: query heads may share them


def reads_of(writes: Writes, layer: int, pairs: Sequence[Pair]) -> Reads:
    """Project everything below a layer onto queries and keys of heads; pairs of a run adjoin."""
    w, om = writes.weights(layer), writes.omega(layer)
    if writes.record(layer).rotary is not None:  # rotation comes between the projection and the channels
        shared = sorted({(run, w.kv(head)) for run, head in pairs})
        number = {pair: i for i, pair in enumerate(shared)}
        key = [number[run, w.kv(head)] for run, head in pairs]
        q_side, k_side = w.W_Q, w.W_K
    else:
        shared, key = list(pairs), list(range(len(pairs)))
        q_side = w.W_Q @ om.G_d
        k_side = w.W_K.repeat_interleave(w.group, dim=0) @ om.G_s.mT
    q, k = _projected(writes, layer, pairs, q_side), _projected(writes, layer, shared, k_side)
    return Reads(*q, *k, torch.tensor(key, device=writes.device))


def floats_per_pair(writes: Writes, layer: int) -> int:
    """How many numbers one head's reads are."""
    rows = writes.moved_below(layer) + writes.below(layer)[1] * writes.n
    return max(1, rows * 2 * writes.model.dims.d_head)


def _projected(
    writes: Writes, layer: int, pairs: Sequence[Pair], sides: Float[Tensor, "heads d_model read"]
) -> tuple[Float[Tensor, "pair moved read"], Float[Tensor, "pair local pos read"]]:
    """What was moved, and what was written where it is, through one side of heads: all of a run's at once."""
    (n_layers, n_local), width, start = writes.below(layer), sides.shape[2], 0
    moved = writes.local.new_empty(len(pairs), writes.moved_below(layer), width)
    local = writes.local.new_empty(len(pairs), n_local * writes.n, width)
    for run, own in groupby(pairs, itemgetter(0)):
        W = sides[[head for _, head in own]]
        rows = slice(start, start + len(W))
        torch.matmul(writes.local[run, :n_local].flatten(0, 1), W, out=local[rows])
        _project_moved(writes, n_layers, run, W, out=moved[rows])
        start = rows.stop
    return moved, local.view(len(pairs), n_local, writes.n, width)


def composing_is_cheaper(n: int, d_model: int, d_head: int) -> bool:
    """Per pair of heads: d r^2 + T r^2 multiplications with W_O W_Q composed first, T d r without."""
    return d_model * d_head + n * d_head < n * d_model


def _project_moved(
    writes: Writes,
    n_layers: int,
    run: int,
    W: Float[Tensor, "heads d_model read"],
    *,
    out: Float[Tensor, "heads moved read"],
) -> None:
    dims = writes.model.dims
    if n_layers == 0:
        return
    if not composing_is_cheaper(writes.n, dims.d_model, dims.d_head):
        torch.matmul(writes.moved[run, :n_layers].flatten(0, 2), W, out=out)
        return
    by_layer = out.view(len(W), n_layers, dims.heads, writes.n, -1)
    for index in range(n_layers):
        W_O = writes.weights(writes.attention_layers[index]).W_O
        by_layer[:, index] = writes.values[run, index] @ (W_O @ W[:, None])
