"""Along which direction is a write read? A token's logit, what a firing compares, or what a head moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName, Signal
from keyhole.errors import KeyholeError
from keyhole.models.numbers.precision import exact_matmul
from keyhole.tracing.answers.targets import Tokens, token_ids
from keyhole.tracing.firings.attribution import ig_vectors
from keyhole.tracing.firings.sites import Sites
from keyhole.tracing.writes.rows import by_number
from keyhole.tracing.writes.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firings.firing import Firing


def toward(
    run: "Run", target: Tokens, against: Tokens | None = None, *, end: int | str = -1
) -> Float[Tensor, "d_model"]:
    """The direction in the residual stream at `end` that raises an answer's logit, against another's if one is given.

    A write's part along it is its part of the logit, before a cap on logits.
    """
    out, at = run.model.head_out(), run.position(end, "end")
    right, wrong = token_ids(run, target, at), token_ids(run, against, at)
    if not right:
        raise KeyholeError("give a token whose logit is asked for.")
    d = out.W_U[:, right].mean(1)
    if wrong:
        d = d - out.W_U[:, wrong].mean(1)
    return (d / run.final_scale[at]).to(torch.float64)


@dataclass(frozen=True, eq=False)
class Readings:
    """Along which directions do firings of a layer read what is written at their tokens? d . o is a part of the weight.

        dest:  W_Q R^T G_d[:, S] gain_S s / n,  gain_k = scaling * sum over keys of w_j B_jk
        src:   w_src W_K R^T G_s[S]^T a_S s / n,  a = scaling * q G_d

    with w the vector of integrated gradients. On the dest side d . o is a signal's `ig`; on the src side `ig` is over
    all keys, and d . o is what it does at src.
    """

    writes: Writes
    layer: int
    sites: Sites

    @cached_property
    def _pull(self) -> Float[Tensor, "firing key"]:
        record, sites = self.writes.record(self.layer), self.sites
        scores, visible = sites.scores(record), sites.visible(record)
        return ig_vectors(scores, visible, sites.src, record.rule, heads=sites.head).to(self.writes.dtype)

    @cached_property
    def _gains(self) -> dict[SideName, Float[Tensor, "firing channel"]]:
        """What each channel's coordinate counts for, on either side."""
        record, om, sites = self.writes.record(self.layer), self.writes.omega(self.layer), self.sites
        dtype, scaling = self.writes.dtype, record.rule.scaling
        pulled = self._pull[:, None] @ record.k[sites.run, record.kv(sites.head)].to(dtype)
        dest = scaling * (pulled @ om.G_s[sites.head].mT)[:, 0]
        a = scaling * (record.q[sites.run, sites.head, sites.dest].to(dtype)[:, None] @ om.G_d[sites.head])[:, 0]
        return {"dest": dest, "src": a * self._pull.gather(1, sites.src[:, None])}

    def along(
        self, side: SideName, firings: Sequence[int], channels: Sequence[tuple[int, ...]]
    ) -> Float[Tensor, "signal d_model"]:
        """The direction of each signal of one side, at its token: of which firing, through which channels."""
        writes, layer = self.writes, self.layer
        record, om, w = writes.record(layer), writes.omega(layer), writes.weights(layer)
        at = torch.tensor(firings, dtype=torch.long, device=writes.device)
        run, head = self.sites.run[at], self.sites.head[at]
        picked = _picked(channels, self._gains[side].shape[1]).to(writes.device)
        gains = torch.where(picked, self._gains[side][at], 0.0)
        if side == "dest":
            t, scale, G = self.sites.dest[at], record.q_scale[run, head, self.sites.dest[at]], om.G_d[head].mT
        else:
            t, scale, G = self.sites.src[at], record.k_scale[run, record.kv(head), self.sites.src[at]], om.G_s[head]
        turned = (gains[:, None] @ G)[:, 0]
        if record.rotary is not None:
            turned = record.rotary.at(t).transpose(turned)
        turned = turned * (scale / record.norm_scale[run, t])[:, None]
        out = turned.new_empty(len(turned), writes.model.dims.d_model)
        for h, own in by_number(head):
            out[own] = turned[own] @ (w.W_Q[h] if side == "dest" else w.W_K[w.kv(h)]).T
        return out


def read_along(firing: "Firing", signal: Signal) -> Float[Tensor, "d_model"]:
    """The direction at a signal's token along which its firing reads it; where a head does not attend, the opposite.

    Either way the signal's writer writes along it what the firing owes to it.
    """
    writes = Writes([firing.run])
    with exact_matmul():
        sites = Sites.of([(0, firing.head, firing.dest, firing.src)], writes.device)
        d = Readings(writes, firing.layer, sites).along(signal.side, [0], [signal.channels])[0].double()
    return d if firing.why == "here" else -d


def values_along(
    writes: Writes, layer: int, sites: Sites, weights: Float[Tensor, "firing"], d: Float[Tensor, "firing d_model"]
) -> Float[Tensor, "firing d_model"]:
    """The direction at src along which a firing's value is read, if its write is read along d: W_V W_O d A / (m n)."""
    record, w = writes.record(layer), writes.weights(layer)
    d, out = d.to(w.W_O.dtype), torch.empty_like(d, dtype=w.W_O.dtype)
    for h, own in by_number(sites.head):
        out[own] = d[own] @ w.W_O[h].T @ w.W_V[w.kv(h)].T
    scale = record.out_scale[sites.run, sites.dest] * record.norm_scale[sites.run, sites.src]
    return out * (weights.to(out) / scale)[:, None]


def _picked(channels: Sequence[tuple[int, ...]], n: int) -> Tensor:
    """Which channels each signal has."""
    picked = np.zeros((len(channels), n), dtype=bool)
    rows = np.repeat(np.arange(len(channels)), [len(own) for own in channels])
    picked[rows, [k for own in channels for k in own]] = True
    return torch.from_numpy(picked)
