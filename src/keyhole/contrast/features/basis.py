"""Does the singular basis already know this feature? A feature's directions, read by the head's channels.

A query reads u as x . (W_Q u), a key reads v as x . (W_K v), so the feature spans W_Q U and W_K V in residual space;
the head's channels span all that it can read there with orthonormal u_k and v_k. The share of channel k is the mean
squared cosine between the feature's span and it; shares sum to one, and a feature that is one channel has one share.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.contrast.features.finding import Feature
from keyhole.contrast.features.subspace import random_bases
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul
from keyhole.qk.omega import omega

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class ChannelShares:
    """Which channels of its head a feature lies in, on the query (dest) and on the key (src) side."""

    feature: str
    head: Head
    rank: int
    dest: tuple[float, ...]  # one share per channel, strongest channel first
    src: tuple[float, ...]
    dest_random: float  # channels that hold 90 % of a random subspace of the same rank, mean over draws
    src_random: float

    @property
    def dest_channels(self) -> int:
        """How many channels hold 90 % of the feature?"""
        return _needed(torch.tensor(self.dest))

    @property
    def src_channels(self) -> int:
        """How many channels hold 90 % of the feature?"""
        return _needed(torch.tensor(self.src))


def channel_shares(model: "Model", feature: Feature, *, draws: int = 20, seed: int = 0) -> ChannelShares:
    """Over which channels is a feature spread? Beside random subspaces of query and key space.

    With RoPE, ask for features found in the frame `pre_rope`: channels are directions before rotation.
    """
    layer, head = feature.head
    om = omega(model, layer)
    with exact_matmul():
        W_Q, W_K = om.factors()
        kv = model.weights(layer).kv(head)
        sides = ((W_Q[head], om.u(head), feature.U), (W_K[kv], om.v(head), feature.V))
        shares = [_shares(W, channels, basis) for W, channels, basis in sides]
        random = []
        for W, channels, basis in sides:
            drawn = random_bases(basis.shape[0], basis.shape[1], draws, seed)
            random.append(sum(_needed(_shares(W, channels, one)) for one in drawn) / draws)
    dest, src = (tuple(share.tolist()) for share in shares)
    return ChannelShares(feature.name, feature.head, feature.rank, dest, src, *random)


def _shares(
    W: Float[Tensor, "reads d_head"], channels: Float[Tensor, "reads channel"], basis: Float[Tensor, "d_head rank"]
) -> Float[Tensor, "channel"]:
    """Mean squared cosine of span(W basis) with every channel."""
    Q, _ = torch.linalg.qr(W.double() @ basis.to(W.device).double())
    cosines: Tensor = Q.T @ channels.double()
    return cosines.square().sum(0) / max(basis.shape[1], 1)


def _needed(shares: Float[Tensor, "channel"], share: float = 0.9) -> int:
    ordered = shares.sort(descending=True).values.cumsum(0)
    return int((ordered < share * ordered[-1]).sum()) + 1
