"""What do all residual streams have in common? Their mean and their largest variance, which are nobody's signal.

Streams are anisotropic: whatever is projected out of them looks alike, because all of them do. What a layer's tokens
share is measured here, so that it can be taken out of signals before these are compared. The first token is left out:
what sets it apart from the others may be a signal. Streams count by their direction, as behind a norm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.tracing.writes.upstream import Writes

TAKEN: tuple[int | None, ...] = (None, 0, 1, 3)  # nothing; the mean; and so many directions of largest variance
_TOP = max(top or 0 for top in TAKEN)


@dataclass(frozen=True)
class Ambient:
    """What the streams of each layer have in common."""

    __repr__ = brief

    mean: Mapping[int, Float[Tensor, "d_model"]]  # by layer, of the tokens after the first
    spread: Mapping[int, Float[Tensor, "d_model top"]]  # orthonormal, largest variance around the mean first
    shares: Mapping[int, Float[Tensor, "top"]]  # of the variance
    root: Float[Tensor, "d_model d_model"]  # of the second moment over these tokens and all layers

    def taken(self, top: int | None) -> dict[int, Float[Tensor, "d_model q"]]:
        """By layer, an orthonormal basis of what is taken out: nothing, the mean, or it and the `top` directions."""
        if top is None:
            return {layer: mean[:, None][:, :0] for layer, mean in self.mean.items()}
        return {
            layer: orthonormal(torch.cat([mean[:, None], self.spread[layer][:, :top]], dim=1))
            for layer, mean in self.mean.items()
        }

    def draw(self, rank: int, generator: torch.Generator) -> Float[Tensor, "d_model rank"]:
        """A random subspace, drawn from where streams are: their large directions are in it more often than others."""
        normal = torch.randn(len(self.root), rank, generator=generator, dtype=self.root.dtype)
        return orthonormal(self.root @ normal)


@dataclass
class Moments:
    """Sums over tokens, batch by batch."""

    count: dict[int, int] = field(default_factory=dict)
    first: dict[int, Tensor] = field(default_factory=dict)
    second: dict[int, Tensor] = field(default_factory=dict)

    def add(self, writes: Writes, layers: Sequence[int]) -> None:
        """Count the streams that these layers read in some runs."""
        for layer in layers:
            for run in writes.runs:
                x = run.layers[layer].resid.double().cpu()
                x = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12))[1:]
                self.count[layer] = self.count.get(layer, 0) + len(x)
                self.first[layer] = self.first.get(layer, 0) + x.sum(0)
                self.second[layer] = self.second.get(layer, 0) + x.T @ x

    def ambient(self, top: int = _TOP) -> Ambient:
        """What was counted so far, with so many directions of largest variance."""
        mean = {layer: total / self.count[layer] for layer, total in self.first.items()}
        spread, shares = {}, {}
        for layer, centre in mean.items():
            values, vectors = torch.linalg.eigh(self.second[layer] / self.count[layer] - torch.outer(centre, centre))
            spread[layer] = vectors.flip(1)[:, :top]
            shares[layer] = values.flip(0)[:top] / values.sum()
        total = torch.stack(list(self.second.values())).sum(0) / sum(self.count.values())
        values, vectors = torch.linalg.eigh(total)
        return Ambient(mean, spread, shares, vectors * values.clamp_min(0).sqrt())


def orthonormal(columns: Float[Tensor, "d_model some"]) -> Float[Tensor, "d_model rank"]:
    """A basis of what columns span; those that others already span are dropped.

    >>> orthonormal(torch.tensor([[2.0, 4.0, 0.0], [0.0, 0.0, 3.0]])).abs().sum(0).tolist()
    [1.0, 1.0]
    """
    U, S, _ = torch.linalg.svd(columns, full_matrices=False)
    basis: Tensor = U[:, 1e-9 * S.max() < S] if S.numel() else U
    return basis
