"""What does a signal look like in residual space? The writer's vector, projected onto the channels it uses.

    dest side:  sum over k of (u_k . x) u_k        src side:  sum over k of (v_k . x) v_k

with x the lifted vector that the head reads as its (rotated) query or key part; in head space its coordinates are
a_k / sigma_k and B_k. Flavours: `rotated` (what the head compares), `raw` (the writer's own vector, unrotated and not
divided by the norm: what an intervention at the writer removes). In the homogeneous basis u_k and v_k have one more
coordinate, for the biases. Nobody writes it, so it is 0 in what was written and is dropped from the signal.
"""

from typing import TYPE_CHECKING, Literal

from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.numbers.precision import exact_matmul
from keyhole.qk.omega import omega
from keyhole.tracing.writes.written import read_of, written_by

if TYPE_CHECKING:
    from keyhole.circuits.writer import Signal
    from keyhole.tracing.firings.firing import Firing

Flavour = Literal["rotated", "raw"]


def signal_vector(firing: "Firing", signal: "Signal", *, flavour: Flavour = "rotated") -> Float[Tensor, "d_model"]:
    """A signal in residual space."""
    run, om = firing.run, omega(firing.run.model, firing.layer, signal.basis)
    ks, who = list(signal.channels), signal.writer
    basis = (om.u(firing.head) if signal.side == "dest" else om.v(firing.head))[: run.model.dims.d_model, ks]
    with exact_matmul():
        if flavour == "raw" and who.kind == "offset":
            raise KeyholeError("an offset is the head's own bias and is written nowhere: it has no raw vector.")
        if flavour == "raw":
            return basis @ (basis.T @ written_by(run, who, [who.dest], whole=signal.whole)[0])
        read = read_of(run, (firing.layer, firing.head), signal, [who.dest])[0]
        if signal.side == "dest":
            return basis @ ((read @ om.G_d[firing.head])[ks] / om.sigma[firing.head, ks])
        return basis @ (om.G_s[firing.head] @ read)[ks]
