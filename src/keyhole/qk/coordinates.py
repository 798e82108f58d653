"""What are the queries and keys of a layer in the channels of its heads? Every score as channels plus a rest.

    S_ds = scaling q_d . k_s = a_d . B_s + rest_ds

The rest is zero unless a head's Omega is rank deficient: RoPE can turn a query out of what such a head reads. Queries
and keys come from folded weights and frozen scales, not from the captured ones, so that comparing these scores with
the model's own compares two independent ways to them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.models.recording.reading import attention_of, read_keys, read_queries
from keyhole.qk.omega import Basis, Omega, omega

if TYPE_CHECKING:
    from keyhole.models.architecture.weights import LayerWeights
    from keyhole.models.run import LayerRun, Run


@dataclass(frozen=True)
class InChannels:
    """Queries and keys of some heads in channel coordinates; those beyond a head's rank are zero."""

    __repr__ = brief

    a: Float[Tensor, "*runs heads pos channel"]  # what each query asks, scaling included
    B: Float[Tensor, "*runs heads pos channel"]  # what each key offers
    k: Float[Tensor, "*runs heads pos d_head"]
    unread: Float[Tensor, "*runs heads pos d_head"] | None  # of queries, scaling included; None: all is in the channels
    rank: Int[Tensor, "heads"]

    def rest(self, dests: slice = slice(None)) -> Float[Tensor, "*runs heads dest pos"]:
        """What is outside the channels of the scores of some queries."""
        if self.unread is None:
            n = self.a.shape[-2]
            return self.a.new_zeros(()).expand(*self.a.shape[:-2], len(range(n)[dests]), n)
        return self.unread[..., dests, :] @ self.k.mT

    def scores(self, dests: slice = slice(None)) -> Float[Tensor, "*runs heads dest pos"]:
        """The scaled scores of some queries against every key, visible or not."""
        inside = self.a[..., dests, :] @ self.B.mT
        return inside if self.unread is None else inside + self.rest(dests)


def in_channels(run: "Run", layer: int, head: int | None = None, *, basis: Basis = "linear") -> InChannels:
    """The coordinates of all heads of a layer, or of one."""
    run.layer(layer)  # refuses a layer without heads
    return layer_in_channels(run.layers[layer], run.model.weights(layer), omega(run.model, layer, basis), head)


def layer_in_channels(layer: "LayerRun", w: "LayerWeights", om: Omega, head: int | None = None) -> InChannels:
    """The same for a layer of one run, or of several side by side."""
    record = attention_of(layer)
    if head is None:
        heads, k = slice(None), read_keys(layer, w).repeat_interleave(record.group, dim=-3)
    else:
        kv = record.kv(head)
        heads, k = slice(head, head + 1), read_keys(layer, w, slice(kv, kv + 1))
    q, G_d, G_s = record.rule.scaling * read_queries(layer, w, heads), om.G_d[heads], om.G_s[heads]
    a, deficient, unread = q @ G_d, om.rank[heads] < k.shape[-1], None
    if bool(deficient.any()):
        unread = torch.where(deficient[:, None, None], q - a @ G_s, 0.0)
    return InChannels(a, k @ G_s.mT, k, unread, om.rank[heads])
