"""What does a signal look like in residual space? The writer's vector, projected onto the channels it uses.

    dest side:  sum over k of (u_k . x) u_k        src side:  sum over k of (v_k . x) v_k

with x the lifted vector that the head reads as its (rotated) query or key part; in head space its coordinates are
a_k / sigma_k and B_k. Flavours: `rotated` (what the head compares), `raw` (the writer's own vector, unrotated and not
divided by the norm: what an intervention at the writer removes).
"""

from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.models.precision import exact_matmul
from keyhole.qk.omega import omega
from keyhole.tracing.upstream import Writes
from keyhole.tracing.writers import Writer

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing, SideName, Signal

Flavour = Literal["rotated", "raw"]


def signal_vector(
    firing: "Firing", signal: "Signal", side: "SideName", *, flavour: Flavour = "rotated"
) -> Float[Tensor, "d_model"]:
    """A signal in residual space."""
    run, om = firing.run, omega(firing.run.model, firing.layer)
    ks = list(signal.channels)
    basis = (om.u(firing.head) if side == "dest" else om.v(firing.head))[:, ks]
    with exact_matmul():
        if flavour == "raw":
            return basis @ (basis.T @ written(run, signal.writer))
        part = head_part(run, firing.layer, firing.head, signal.writer, side)
        if side == "dest":
            return basis @ ((part @ om.G_d[firing.head])[ks] / om.sigma[firing.head, ks])
        return basis @ (om.G_s[firing.head] @ part)[ks]


def written(run: "Run", writer: Writer) -> Float[Tensor, "d_model"]:
    """What a writer adds to the residual stream at its dest token; zero for an offset, which writes nothing there."""
    writes = Writes(run)
    if writer.kind == "offset":
        return torch.zeros_like(writes.local[0, 0])
    if writer.kind != "head":
        return writes.local[writes.local_slots.index((writer.kind, writer.layer)), writer.dest]
    assert writer.head is not None
    record, w = run.layer(writer.layer), run.model.weights(writer.layer)
    A = record.weights([writer.head], [writer.dest])[0, 0, writer.src]
    v = record.v[w.kv(writer.head), writer.src].to(A.dtype) - w.b_V[w.kv(writer.head)]
    return A * (v @ w.W_O[writer.head]) / record.out_scale[writer.dest]


def head_part(run: "Run", layer: int, head: int, writer: Writer, side: "SideName") -> Float[Tensor, "d_head"]:
    """What a head reads of a writer at its dest token: its share of the rotated query or key."""
    record, w = run.layer(layer), run.model.weights(layer)
    t, kv = writer.dest, w.kv(head)
    scale = record.q_scale[head, t] if side == "dest" else record.k_scale[kv, t]
    if writer.kind == "offset":
        part = scale * (w.b_Q[head] if side == "dest" else w.b_K[kv]) + (w.c_Q[head] if side == "dest" else w.c_K[kv])
    else:
        W = w.W_Q[head] if side == "dest" else w.W_K[kv]
        part = scale * (written(run, writer) @ W) / record.norm_scale[t]
    return part if record.rotary is None else record.rotary.at(slice(t, t + 1)).rotate(part[None])[0]
