"""Which features of a dictionary is a signal made of? The nearest directions, and how much of it they span together.

A cosine in many dimensions is small by chance, and the largest of many is not: beside it stands the largest that as
many random directions reach, and beside the span of the best ones that of the best random ones. Directions are chosen
one after the other (orthogonal matching pursuit), each by what the ones before leave over; signs are as they come.
"""

from dataclasses import dataclass
from statistics import mean

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.bridges.dictionary import Dictionary
from keyhole.errors import KeyholeError

DRAWS = 5  # of random dictionaries


@dataclass(frozen=True)
class Feature:
    """A direction of the dictionary beside a vector."""

    index: int
    cosine: float  # with the vector itself; below 0: the vector points away from it
    share: float  # of the vector's squared length that this and all features before span together


@dataclass(frozen=True)
class Nearest:
    """The features that a vector is made of, best first, and what random directions reach."""

    dictionary: str
    features: tuple[Feature, ...]
    random_cosine: float  # mean of the largest |cosine| of as many random directions
    random_share: float  # mean share that as many of these span, chosen in the same way
    size: int  # features of the dictionary
    length: float  # of the vector

    @property
    def share(self) -> float:
        """What all features here span together."""
        return self.features[-1].share if self.features else 0.0

    @property
    def verdict(self) -> str:
        """Is that more than chance? Of one vector it cannot be said how sure that is."""
        best = abs(self.features[0].cosine) if self.features else 0.0
        if best <= self.random_cosine:
            return "no feature is nearer than the nearest of as many random directions"
        return f"the nearest feature is {best / self.random_cosine:.1f} times as near as the nearest random direction"

    def __str__(self) -> str:
        lines = [f"{self.dictionary}, {self.size:,} features: {self.verdict}"]
        lines += [f"  {one.index:>7}  cosine {one.cosine:+.3f}  together {one.share:.1%}" for one in self.features]
        best = f"cosine {self.random_cosine:.3f}, together {self.random_share:.1%}"
        return "\n".join([*lines, f"   random  {best} (mean of {DRAWS} dictionaries)"])


def nearest_features(vector: Float[Tensor, "d_model"], decoder: Dictionary, *, top: int = 10, seed: int = 0) -> Nearest:
    """The `top` features of a dictionary that a vector is made of, e.g. `firing.vector(signal)`."""
    if vector.shape[0] != decoder.directions.shape[1]:
        raise KeyholeError(
            f"the vector has {vector.shape[0]} dimensions, and {decoder.name} has {decoder.directions.shape[1]}: it is "
            "of another model, or of another place than the residual stream."
        )
    x = vector.detach().to("cpu", torch.float64)
    length = float(x.norm())
    if not 0 < length < float("inf"):
        raise KeyholeError("a vector that is zero or not finite is near to nothing.")
    if top < 1:
        raise KeyholeError(f"ask for at least one feature, not for {top}.")
    if len(decoder) == decoder.dead:
        raise KeyholeError(f"{decoder.name} has no feature with a direction: all {len(decoder):,} are zero.")
    top = min(top, len(decoder) - decoder.dead, len(x))
    x = x / length
    chosen, shares = _pursuit(x, decoder.directions, top)
    generator = torch.Generator().manual_seed(seed)
    random = [_random(x, len(decoder) - decoder.dead, top, generator) for _ in range(DRAWS)]
    cosines = (decoder.directions[chosen].double() @ x).tolist()
    found = tuple(Feature(*one) for one in zip(chosen, cosines, shares, strict=True))
    chance = [mean(values) for values in zip(*random, strict=True)]
    return Nearest(decoder.name, found, chance[0], chance[1], len(decoder), length)


def _pursuit(x: Tensor, directions: Tensor, top: int) -> tuple[list[int], list[float]]:
    """Orthogonal matching pursuit: the next is the one that what is left over points along most."""
    chosen, shares, left = list[int](), list[float](), x
    dead = (directions == 0).all(1)  # features without a direction
    for _ in range(top):
        along = (directions @ left.to(directions.dtype)).abs()
        along[chosen], along[dead] = -1.0, -1.0
        chosen.append(int(along.argmax()))
        basis = _span(directions[chosen].double())
        left = x - basis @ (basis.T @ x)
        shares.append(1.0 - float(left @ left))
    return chosen, shares


def _span(rows: Tensor) -> Tensor:
    """A basis of what some directions span, as columns; those that say the same again add nothing to it."""
    _, lengths, basis = torch.linalg.svd(rows, full_matrices=False)
    kept: Tensor = basis[lengths > 1e-6 * lengths[0]]  # directions are float32
    return kept.T


def _random(x: Tensor, size: int, top: int, generator: torch.Generator) -> tuple[float, float]:
    """The largest cosine, and the span of the best, of as many random directions."""
    drawn = torch.randn(size, len(x), generator=generator)
    drawn /= drawn.norm(dim=1, keepdim=True)
    chosen, shares = _pursuit(x, drawn, top)
    return abs(float(drawn[chosen[0]].double() @ x)), shares[-1]
