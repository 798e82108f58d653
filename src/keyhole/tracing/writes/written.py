"""What does one writer write at some tokens, and what does a head read of it?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName, Writer
from keyhole.tracing.writes.writers import bias_writes

if TYPE_CHECKING:
    from keyhole.models.run import Run


def read_of(
    run: "Run", head: tuple[int, int], writer: Writer, tokens: Sequence[int], *, side: SideName
) -> Float[Tensor, "token d_head"]:
    """A writer's share of a head's rotated query (dest) or key (src) at some tokens, whichever its own one is."""
    if writer.kind != "offset":
        return read_vectors(run, head, written_by(run, writer, tokens), tokens, side=side)
    layer, index = head
    record, w = run.layer(layer), run.model.weights(layer)
    at, kv, dest = list(tokens), w.kv(index), side == "dest"
    scale = (record.q_scale[index] if dest else record.k_scale[kv])[at][:, None]
    read = scale * (w.b_Q[index] if dest else w.b_K[kv]) + (w.c_Q[index] if dest else w.c_K[kv])
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def read_vectors(
    run: "Run", head: tuple[int, int], vectors: Float[Tensor, "token d_model"], tokens: Sequence[int], *, side: SideName
) -> Float[Tensor, "token d_head"]:
    """What a head's rotated query (dest) or key (src) has of vectors in the residual stream at some tokens."""
    layer, index = head
    record, w = run.layer(layer), run.model.weights(layer)
    at, kv = list(tokens), w.kv(index)
    scale, W = (record.q_scale[index], w.W_Q[index]) if side == "dest" else (record.k_scale[kv], w.W_K[kv])
    read = scale[at][:, None] * (vectors @ W) / record.norm_scale[at][:, None]
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def written_by(run: "Run", writer: Writer, tokens: Sequence[int]) -> Float[Tensor, "token d_model"]:
    """What a writer adds to the residual stream at some tokens; a head, what it moves there from its source."""
    at, dtype = list(tokens), run.final_scale.dtype
    if writer.kind == "head":
        assert writer.head is not None
        record, w = run.layer(writer.layer), run.model.weights(writer.layer)
        A = record.weights([writer.head], at)[0, :, writer.src]
        v = record.v[w.kv(writer.head), writer.src].to(dtype) - w.b_V[w.kv(writer.head)]
        return A[:, None] * (v @ w.W_O[writer.head]) / record.out_scale[at][:, None]
    if writer.kind == "bias":
        return bias_writes(run, writer.layer, at)
    layer = run.layers[writer.layer]
    found = {"embedding": run.layers[0].resid, "mlp": layer.mlp, "mixer": layer.mixer}.get(writer.kind)
    assert found is not None, writer.kind
    return found[at].to(dtype)
