"""What does one writer write at some tokens, and what does a head read of it?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Kind
from keyhole.tracing.writers import bias_writes

if TYPE_CHECKING:
    from keyhole.models.run import Run


@dataclass(frozen=True)
class Part:
    """One writer, with the channels to take away. `src` is the source token of a head, else unused."""

    kind: Kind
    layer: int
    head: int | None
    src: int
    channels: tuple[int, ...]


def part_read(
    run: "Run", head: tuple[int, int], part: Part, tokens: Sequence[int], *, dest: bool
) -> Float[Tensor, "token d_head"]:
    """A writer's share of a head's rotated query (dest) or key at some tokens."""
    layer, index = head
    record, w = run.layer(layer), run.model.weights(layer)
    at, kv = list(tokens), w.kv(index)
    scale = (record.q_scale[index] if dest else record.k_scale[kv])[at][:, None]
    if part.kind == "offset":
        read = scale * (w.b_Q[index] if dest else w.b_K[kv]) + (w.c_Q[index] if dest else w.c_K[kv])
    else:
        W = w.W_Q[index] if dest else w.W_K[kv]
        read = scale * (part_written(run, part, at) @ W) / record.norm_scale[at][:, None]
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def part_written(run: "Run", part: Part, tokens: Sequence[int]) -> Float[Tensor, "token d_model"]:
    """What a writer adds to the residual stream at some tokens."""
    at, dtype = list(tokens), run.final_scale.dtype
    if part.kind == "head":
        assert part.head is not None
        record, w = run.layer(part.layer), run.model.weights(part.layer)
        A = record.weights([part.head], at)[0, :, part.src]
        v = record.v[w.kv(part.head), part.src].to(dtype) - w.b_V[w.kv(part.head)]
        return A[:, None] * (v @ w.W_O[part.head]) / record.out_scale[at][:, None]
    if part.kind == "bias":
        return bias_writes(run, part.layer, at)
    layer = run.layers[part.layer]
    found = {"embedding": run.layers[0].resid, "mlp": layer.mlp, "mixer": layer.mixer}.get(part.kind)
    assert found is not None, part.kind
    return found[at].to(dtype)
