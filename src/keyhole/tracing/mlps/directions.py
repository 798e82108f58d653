"""Along which direction is an MLP's write read? A token's logit, or what one firing compares."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName, Signal
from keyhole.errors import KeyholeError
from keyhole.tracing.attribution import ig_vectors
from keyhole.tracing.targets import Tokens, token_ids

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing
    from keyhole.tracing.upstream import Writes


def toward(
    run: "Run", target: Tokens, against: Tokens | None = None, *, end: int | str = -1
) -> Float[Tensor, "d_model"]:
    """The direction in the residual stream at `end` that raises an answer's logit, against another's if one is given.

    A write's part along it is its part of the logit, before a cap on logits.
    """
    out, at = run.model.head_out(), run.position(end, "end")
    right, wrong = token_ids(run, target), token_ids(run, against)
    if not right:
        raise KeyholeError("give a token whose logit is asked for.")
    d = out.W_U[:, right].mean(1)
    if wrong:
        d = d - out.W_U[:, wrong].mean(1)
    return (d / run.final_scale[at]).to(torch.float64)


@dataclass(frozen=True)
class Reading:
    """Along which directions does a firing read what is written at its tokens? d . o is a part of the weight.

        dest:  W_Q R^T G_d[:, S] gain_S s / n,  gain_k = scaling * sum over keys of w_j B_jk
        src:   w_src W_K R^T G_s[S]^T a_S s / n,  a = scaling * q G_d

    with w the vector of integrated gradients. On the dest side d . o is a signal's `ig`; on the src side `ig` is over
    all keys, and d . o is what it does at src.
    """

    firing: "Firing"
    writes: "Writes"
    dest: Float[Tensor, "d_head channel"]  # G_d and its gains
    src: Float[Tensor, "d_head channel"]

    @classmethod
    def of(cls, firing: "Firing", writes: "Writes") -> "Reading":
        """What is the same for all signals of a firing."""
        head, record = firing.head, writes.run.layer(firing.layer)
        om, scaling = writes.omega(firing.layer), record.rule.scaling
        G_d, G_s = om.G_d[head], om.G_s[head]
        scores, visible = record.scores([head], [firing.dest])[0], record.visible([firing.dest])
        at = torch.tensor([firing.src], device=scores.device)
        pull = ig_vectors(scores, visible, at, record.rule, head=head)[0].to(G_d.dtype)
        gain = scaling * (pull @ record.k[record.kv(head)].to(G_d.dtype)) @ G_s.T
        a = scaling * (record.q[head, firing.dest].to(G_d.dtype) @ G_d)
        return cls(firing, writes, G_d * gain, pull[firing.src] * (G_s.T * a))

    def along(self, side: SideName, signals: Sequence[Signal]) -> Float[Tensor, "signal d_model"]:
        """The direction of each signal of one side, at its token."""
        firing, head = self.firing, self.firing.head
        record, w = self.writes.run.layer(firing.layer), self.writes.weights(firing.layer)
        if side == "dest":
            t, read, scale, W = firing.dest, self.dest, record.q_scale[head, firing.dest], w.W_Q[head]
        else:
            kv = record.kv(head)
            t, read, scale, W = firing.src, self.src, record.k_scale[kv, firing.src], w.W_K[kv]
        turned = torch.stack([read[:, list(signal.channels)].sum(1) for signal in signals])
        if record.rotary is not None:
            turned = record.rotary.at(torch.tensor([t])).transpose(turned[:, None])[:, 0]
        return turned @ W.T * (scale / record.norm_scale[t])


def value_along(firing: "Firing", writes: "Writes", d: Float[Tensor, "d_model"]) -> Float[Tensor, "d_model"]:
    """The direction at src along which a firing's value is read, if its write is read along d: W_V W_O d A / (m n)."""
    head, record, w = firing.head, writes.run.layer(firing.layer), writes.weights(firing.layer)
    moved = w.W_V[record.kv(head)] @ (w.W_O[head] @ d.to(w.W_O.dtype))
    return moved * firing.attention / (record.out_scale[firing.dest] * record.norm_scale[firing.src])
