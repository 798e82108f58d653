"""What does a head lose when a signal is removed? Its change of query or key, in head space, RoPE included.

Removing what writer c puts into channels S changes the rotated query by  part G_d[:, S] G_s[S]  and the rotated key by
G_d[:, S] G_s[S] part, with `part` the writer's share of the rotated query or key. Scores change by exactly the rows
of the search.

Signals of SVT are in the homogeneous basis, where u_k and v_k have one more coordinate for the biases. A head's query
or key loses all of their channels, as the score does. The residual stream has no such coordinate: it is dropped there.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName, Signal
from keyhole.errors import KeyholeError
from keyhole.qk.omega import Basis, omega
from keyhole.tracing.firings.candidates import Keys
from keyhole.tracing.writes.written import read_of, read_vectors

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run


@dataclass(frozen=True)
class Cut:
    """Signals to take from one side of one firing."""

    layer: int  # of the firing's head
    head: int  # in its layer
    dest: int  # the token that attends
    src: int  # the token attended to
    signals: tuple[Signal, ...]  # of one side
    keys: Keys = "all"  # which keys a src-side cut touches

    def __post_init__(self) -> None:
        if len({(signal.side, signal.basis) for signal in self.signals}) != 1:
            raise KeyholeError(
                "a cut takes one or more signals of one side and basis: make one cut for dest and one for src."
            )

    @property
    def side(self) -> SideName:
        """Of the firing, and of all signals here."""
        return self.signals[0].side

    @property
    def basis(self) -> Basis:
        """That the channels of all signals here are numbered in."""
        return self.signals[0].basis

    def tokens(self, run: "Run") -> list[int]:
        """The tokens at which the head's input changes."""
        if self.side == "dest":
            return [self.dest]
        return [self.src] if self.keys == "source" else list(range(self.dest + 1))


def head_delta(run: "Run", cut: Cut) -> Float[Tensor, "token d_head"]:
    """What the head's rotated query (at dest) or rotated keys lose, at each of the cut's tokens."""
    tokens, head = cut.tokens(run), (cut.layer, cut.head)
    shares = [read_of(run, head, signal, tokens) for signal in cut.signals]
    kept = [_in_channels(run, cut, share, signal) for share, signal in zip(shares, cut.signals, strict=True)]
    return torch.stack(kept).sum(0)


def vector_delta(run: "Run", cut: Cut, vector: Float[Tensor, "d_model"]) -> Float[Tensor, "1 d_head"]:
    """What a vector in the residual stream at a signal's token puts into the signal's channels."""
    (signal,), (token,) = cut.signals, cut.tokens(run)
    share = read_vectors(run, (cut.layer, cut.head), vector[None], [token], side=cut.side)
    return _in_channels(run, cut, share, signal)


def _in_channels(run: "Run", cut: Cut, share: Float[Tensor, "token d_head"], signal: Signal) -> Tensor:
    om, ks = omega(run.model, cut.layer, cut.basis), list(signal.channels)
    G_d, G_s = om.G_d[cut.head][:, ks], om.G_s[cut.head][ks]
    return share @ G_d @ G_s if cut.side == "dest" else share @ G_s.T @ G_d.T


def residual_delta(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"]) -> Float[Tensor, "token d_model"]:
    """The shortest change of the residual stream, before the norm, that the head reads as this change of q or k.

    Without RoPE this is the projection of what was written onto the channels' directions u_k (or v_k). With RoPE, what
    turns into directions that the head does not read stays: nothing in the residual stream could change it.
    """
    record, at = run.layer(cut.layer), cut.tokens(run)
    scales = record.q_scale[cut.head] if cut.side == "dest" else record.k_scale[record.kv(cut.head)]
    scale = scales[at][:, None]
    if cut.basis == "homogeneous":
        delta = delta - _of_bias(run, cut, delta)
    if record.rotary is not None:
        turn = record.rotary.at(torch.tensor(at))
        norm = (turn.cos[:, :1].square() + turn.sin[:, :1].square()).to(delta.dtype)  # YaRN scales cos and sin
        delta = turn.transpose(delta)
        n = 2 * turn.cos.shape[1]
        delta = torch.cat([delta[:, :n] / norm, delta[:, n:]], dim=-1)
    read = delta / scale
    lift = _lift(run.model, cut.layer, cut.head, cut.side)
    return read @ lift.to(read.dtype) * record.norm_scale[at][:, None]


def _of_bias(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"]) -> Float[Tensor, "token d_head"]:
    """What the last coordinate of a homogeneous change is read as: a multiple of the head's own bias."""
    om, w = omega(run.model, cut.layer, "homogeneous"), run.model.weights(cut.layer)
    n = int(om.rank[cut.head])
    if cut.side == "dest":
        last = (delta @ om.G_d[cut.head, :, :n] / om.sigma[cut.head, :n]) @ om.u(cut.head)[-1]
        return last[:, None] * w.b_Q[cut.head]
    last = (delta @ om.G_s[cut.head, :n].T) @ om.v(cut.head)[-1]
    return last[:, None] * w.b_K[w.kv(cut.head)]


def _lift(model: "Model", layer: int, head: int, side: SideName) -> Float[Tensor, "d_head d_model"]:
    """The pseudo-inverse of what a head reads its queries or keys with, computed once."""
    w = model.weights(layer)
    index, W = (head, w.W_Q) if side == "dest" else (w.kv(head), w.W_K)
    return model.cached_of_layer(("lift", side, index), layer, lambda: _inverse(W[index]))


def _inverse(W: Float[Tensor, "d_model d_head"]) -> Float[Tensor, "d_head d_model"]:
    # A direction that W reads no better than its rounding could be changed only by a change without bounds.
    rtol = max(W.shape) * torch.finfo(W.dtype).eps
    return cast(Tensor, torch.linalg.pinv(W.double(), rtol=rtol).to(W.dtype))


def signal_delta(run: "Run", cut: Cut, signal: Signal) -> Float[Tensor, "token d_model"]:
    """One signal's change of the residual stream: what a global intervention takes from its writer."""
    alone = replace(cut, signals=(signal,))
    return residual_delta(run, alone, head_delta(run, alone))


def predicted(run: "Run", cut: Cut, delta: Float[Tensor, "token d_head"], factor: float = -1.0) -> float:
    """The attention weight of the firing once its scores have changed by the cut."""
    record = run.layer(cut.layer)
    scores = record.scores([cut.head], [cut.dest])[0, 0].double()
    if cut.side == "dest":
        change = record.k[record.kv(cut.head)].double() @ delta[0].double()
        scores = scores + factor * record.rule.scaling * change
    else:
        q = record.q[cut.head, cut.dest].double()
        scores[cut.tokens(run)] += factor * record.rule.scaling * (delta.double() @ q)
    return float(record.rule.of_head(scores, record.visible([cut.dest])[0], cut.head)[cut.src])
