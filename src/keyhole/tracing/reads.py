"""What does a head read of everything written below it? Projected once, and shared by all its firings.

What is moved is projected onto W_Q and W_K of a downstream head; for long prompts W_O W_Q is composed first (r x r per
pair of heads). The cheaper way is chosen by counting operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.tracing.upstream import Writes

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
    """Project everything below a layer onto queries and keys of heads."""
    w, om = writes.weights(layer), writes.omega(layer)
    if writes.record(layer).rotary is not None:  # rotation comes between the projection and the channels
        shared = sorted({(run, w.kv(head)) for run, head in pairs})
        key = [shared.index((run, w.kv(head))) for run, head in pairs]
        q_moved, q_local = _projected(writes, layer, [(run, w.W_Q[head]) for run, head in pairs])
        k_moved, k_local = _projected(writes, layer, [(run, w.W_K[kv]) for run, kv in shared])
    else:
        key = list(range(len(pairs)))
        heads = {head for _, head in pairs}
        q_side = {head: w.W_Q[head] @ om.G_d[head] for head in heads}
        k_side = {head: w.W_K[w.kv(head)] @ om.G_s[head].T for head in heads}
        q_moved, q_local = _projected(writes, layer, [(run, q_side[head]) for run, head in pairs])
        k_moved, k_local = _projected(writes, layer, [(run, k_side[head]) for run, head in pairs])
    return Reads(q_moved, q_local, k_moved, k_local, torch.tensor(key, device=writes.device))


def floats_per_pair(writes: Writes, layer: int) -> int:
    """How many numbers one head's reads are."""
    rows = writes.moved_below(layer) + writes.below(layer)[1] * writes.n
    return max(1, rows * 2 * writes.model.dims.d_head)


def _projected(
    writes: Writes, layer: int, sides: Sequence[tuple[int, Float[Tensor, "d_model read"]]]
) -> tuple[Float[Tensor, "side moved read"], Float[Tensor, "side local pos read"]]:
    """What was moved, and what was written where it is, of one run through one side of a head each."""
    (n_layers, n_local), width = writes.below(layer), sides[0][1].shape[1]
    moved = writes.local.new_empty(len(sides), writes.moved_below(layer), width)
    local = writes.local.new_empty(len(sides), n_local, writes.n, width)
    for i, (run, W) in enumerate(sides):
        torch.matmul(writes.local[run, :n_local], W, out=local[i])
        _project_moved(writes, n_layers, run, W, out=moved[i])
    return moved, local


def composing_is_cheaper(n: int, d_model: int, d_head: int) -> bool:
    """Per pair of heads: d r^2 + T r^2 multiplications with W_O W_Q composed first, T d r without."""
    return d_model * d_head + n * d_head < n * d_model


def _project_moved(
    writes: Writes, n_layers: int, run: int, W: Float[Tensor, "d_model read"], *, out: Float[Tensor, "moved read"]
) -> None:
    dims = writes.model.dims
    if n_layers == 0:
        return
    if not composing_is_cheaper(writes.n, dims.d_model, dims.d_head):
        torch.matmul(writes.moved[run, :n_layers].flatten(0, 2), W, out=out)
        return
    by_layer = out.view(n_layers, dims.heads, writes.n, -1)
    for index in range(n_layers):
        W_O = writes.weights(writes.attention_layers[index]).W_O
        torch.matmul(writes.values[run, index], W_O @ W, out=by_layer[index])
