"""What does each query of a head attend to, and what does it leave? Attention itself is the contrast.

k_att = sum_j a_j k_j,   k_rest = sum_j (1 - a_j) k_j / sum_j (1 - a_j)      over the visible keys of a query
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.discover.ica import mean_error
from keyhole.errors import KeyholeError


@dataclass(frozen=True)
class Samples:
    """Queries of one head, each with what it attends to and what it leaves; float64, in main memory."""

    __repr__ = brief

    q: Float[Tensor, "samples d_head"]
    attended: Float[Tensor, "samples d_head"]
    rest: Float[Tensor, "samples d_head"]
    group: Int[Tensor, "samples"]  # samples of one group (prompt) stay on one side of the split
    scaling: float

    @property
    def gap(self) -> Float[Tensor, "samples"]:
        """The score of what is attended minus the score of the rest."""
        return self.scaling * (self.q * (self.attended - self.rest)).sum(-1)

    def where(self, chosen: Bool[Tensor, "samples"]) -> "Samples":
        """Some of the samples."""
        return Samples(self.q[chosen], self.attended[chosen], self.rest[chosen], self.group[chosen], self.scaling)

    def shares(self, parts: Float[Tensor, "samples part"]) -> tuple[Float[Tensor, "part"], Float[Tensor, "part"]]:
        """Which share of the mean gap is each part's mean, and how sure? The error is that of a ratio of two means."""
        gap = self.gap.mean()
        shares = parts.mean(0) / gap
        return shares, mean_error((parts - shares * self.gap[:, None]) / gap, self.group)


def samples_of(
    q: Float[Tensor, "samples d_head"],
    keys: Float[Tensor, "samples keys d_head"],
    attention: Float[Tensor, "samples keys"],
    *,
    visible: Bool[Tensor, "samples keys"] | None = None,
    groups: Int[Tensor, "samples"] | None = None,
    scaling: float | None = None,
) -> Samples:
    """What does each query attend to, and what does it leave? Attention is normalised over the visible keys.

    Queries that see fewer than two keys, or attend to none that is visible, have no contrast and are left out.
    `scaling` is 1 / sqrt(d_head) unless given.
    """
    if not bool(torch.isfinite(q).all() and torch.isfinite(keys).all()):
        raise KeyholeError("queries or keys hold NaN or infinite numbers: fill padded keys with zeros.")
    seen = torch.ones_like(attention, dtype=torch.bool) if visible is None else visible
    a = attention.double().masked_fill(~seen, 0.0)
    mass, count = a.sum(1), seen.sum(1)
    usable = (mass > 0) & (count > 1)
    a, seen, k = a[usable] / mass[usable, None], seen[usable].double(), keys[usable].double()
    attended = (a[:, None] @ k)[:, 0]
    rest = ((seen - a)[:, None] @ k)[:, 0] / (count[usable, None] - 1)  # sum_j (1 - a_j) = count - 1
    group = torch.arange(len(q), device=q.device) if groups is None else groups
    c = q.shape[1] ** -0.5 if scaling is None else scaling
    return Samples(q[usable].double().cpu(), attended.cpu(), rest.cpu(), group[usable].cpu(), c)


def contrast_of(samples: Samples, *, centre: bool = False) -> Float[Tensor, "d_head d_head"]:
    """E[q (k_att - k_rest)^T]; centred: the covariance, without what E[q] prefers whatever a query asks."""
    q, d = samples.q, samples.attended - samples.rest
    return q.T @ d / len(q) - (mean_part(samples) if centre else 0.0)


def mean_part(samples: Samples) -> Float[Tensor, "d_head d_head"]:
    """E[q] E[k_att - k_rest]^T: what all queries prefer alike."""
    return torch.outer(samples.q.mean(0), (samples.attended - samples.rest).mean(0))
