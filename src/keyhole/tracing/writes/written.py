"""What does one writer write at some tokens, and what does a head read of it?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName, Signal, Writer
from keyhole.models.heads import Head
from keyhole.tracing.writes.writers import bias_writes

if TYPE_CHECKING:
    from keyhole.models.run import Run


def read_of(run: "Run", head: Head, signal: Signal, tokens: Sequence[int]) -> Float[Tensor, "token d_head"]:
    """A signal's writer in a head's rotated query (dest) or key (src) at some tokens, in all channels."""
    writer, side = signal.writer, signal.side
    if writer.kind != "offset":
        return read_vectors(run, head, written_by(run, writer, tokens, whole=signal.whole), tokens, side=side)
    layer, index = head
    record, w = run.layer(layer), run.model.weights(layer)
    at, kv, dest = list(tokens), w.kv(index), side == "dest"
    scale = (record.q_scale[index] if dest else record.k_scale[kv])[at][:, None]
    read = scale * (w.b_Q[index] if dest else w.b_K[kv]) + (w.c_Q[index] if dest else w.c_K[kv])
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def read_vectors(
    run: "Run", head: Head, vectors: Float[Tensor, "token d_model"], tokens: Sequence[int], *, side: SideName
) -> Float[Tensor, "token d_head"]:
    """What a head's rotated query (dest) or key (src) has of vectors in the residual stream at some tokens."""
    layer, index = head
    record, w = run.layer(layer), run.model.weights(layer)
    at, kv = list(tokens), w.kv(index)
    scale, W = (record.q_scale[index], w.W_Q[index]) if side == "dest" else (record.k_scale[kv], w.W_K[kv])
    read = scale[at][:, None] * (vectors @ W) / record.norm_scale[at][:, None]
    return read if record.rotary is None else record.rotary.at(torch.tensor(at)).rotate(read)


def written_by(
    run: "Run", writer: Writer, tokens: Sequence[int], *, whole: bool = False
) -> Float[Tensor, "token d_model"]:
    """What a writer adds to the residual stream at some tokens.

    A head: what it moves there from its source, or if `whole` from all sources, sum over b of A_tb (v_b - b_V) W_O.
    """
    at, dtype = list(tokens), run.final_scale.dtype
    if writer.kind == "head":
        assert writer.head is not None
        record, w = run.layer(writer.layer), run.model.weights(writer.layer)
        sources = slice(None) if whole else slice(writer.src, writer.src + 1)
        A = record.weights([writer.head], at)[0, :, sources]
        v = record.v[w.kv(writer.head), sources].to(dtype) - w.b_V[w.kv(writer.head)]
        return (A @ v) @ w.W_O[writer.head] / record.out_scale[at][:, None]
    if writer.kind == "bias":
        return bias_writes(run, writer.layer, at)
    layer = run.layers[writer.layer]
    found = {"embedding": run.layers[0].resid, "mlp": layer.mlp, "mixer": layer.mixer}.get(writer.kind)
    assert found is not None, writer.kind
    return found[at].to(dtype)
