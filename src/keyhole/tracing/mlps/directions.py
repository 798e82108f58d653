"""Along which direction is an MLP's write read? A token's logit, or what one firing compares."""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Signal
from keyhole.errors import KeyholeError
from keyhole.qk.omega import omega
from keyhole.tracing.attribution import ig_vectors
from keyhole.tracing.targets import Tokens, token_ids

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Firing


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


def read_along(firing: "Firing", signal: Signal) -> Float[Tensor, "d_model"]:
    """The direction at a signal's token along which its firing reads it: its part of the attention weight, d . o.

        dest:  W_Q R^T G_d[:, S] gain_S s / n,  gain_k = scaling * sum over keys of w_j B_jk
        src:   w_src W_K R^T G_s[S]^T a_S s / n,  a = scaling * q G_d

    with w the vector of integrated gradients. On the dest side d . o is the signal's `ig`; on the src side `ig` is over
    all keys, and d . o is what it does at src.
    """
    run, head = firing.run, firing.head
    record, w, om = run.layer(firing.layer), run.model.weights(firing.layer), omega(run.model, firing.layer)
    kv, scaling, t = record.kv(head), record.rule.scaling, signal.writer.dest
    dest, ks = signal.side == "dest", list(signal.channels)
    G_d, G_s = om.G_d[head].double(), om.G_s[head].double()
    scores, visible = record.scores([head], [firing.dest])[0], record.visible([firing.dest])
    pull = ig_vectors(scores, visible, torch.tensor([firing.src], device=scores.device), record.rule, head=head)[0]
    if dest:
        B = record.k[kv].double() @ G_s.T
        turned, scale, W = G_d[:, ks] @ (scaling * pull @ B)[ks], record.q_scale[head, t], w.W_Q[head]
    else:
        a = scaling * (record.q[head, firing.dest].double() @ G_d)
        turned, scale, W = pull[firing.src] * (G_s[ks].T @ a[ks]), record.k_scale[kv, t], w.W_K[kv]
    if record.rotary is not None:
        turned = record.rotary.at(torch.tensor([t])).transpose(turned[None])[0]
    return W.double() @ turned * (scale / record.norm_scale[t]).double()


def value_along(firing: "Firing", d: Float[Tensor, "d_model"]) -> Float[Tensor, "d_model"]:
    """The direction at src along which a firing's value is read, if its write is read along d: W_V W_O d A / (m n)."""
    run, head = firing.run, firing.head
    record, w = run.layer(firing.layer), run.model.weights(firing.layer)
    moved = w.W_V[record.kv(head)].double() @ (w.W_O[head].double() @ d)
    return moved * firing.attention / (record.out_scale[firing.dest] * record.norm_scale[firing.src]).double()
