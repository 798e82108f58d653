"""Do heads share directions? Cosines of their mean signals, compared with other channels of the same heads.

Heads are compared across layers only, since heads of one layer may share their keys. In the control every head has as
many random channels of its own, with the same writers in the same firings. Signals are compared as they are, and again
without what all streams have in common: likeness that does not survive this is anisotropy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief
from keyhole.features.contrast.subspace import energy_rank
from keyhole.stats import Interval, p_of_draws
from keyhole.studies.directions.heard import Heard
from keyhole.tracing.upstream import Writes

ALIKE = 0.5  # a cosine from which two signals are alike
ENERGY = 0.9  # share of the squared directions that the shared subspace holds
_RANKED = 19  # draws whose rank is measured: the rank of hundreds of vectors is slow
_NOTHING = 1e-4  # share of a signal's squared length: a smaller rest is rounding and has no direction
Range = tuple[float, float, float]  # of a control: its mean, and where 95 % of its draws lie


@dataclass(frozen=True)
class Likeness:
    """How alike are the heads of different layers, and how alike would they be with other channels?"""

    taken: int | None  # out of the signals: nothing (None), the mean (0), or the mean and so many directions
    pairs: int  # of heads in different layers
    left: float  # share of the signals' squared length that is left, on average over heads
    near: Interval  # share of pairs with a cosine above a limit; resampled over prompts
    cosine: Interval  # mean over pairs
    rank: int  # number of dimensions that hold `ENERGY` of the directions
    shuffled_near: Range
    shuffled_cosine: Range
    shuffled_rank: Range
    p: float  # of `near`, against the shuffled heads
    p_cosine: float  # of `cosine`


def spread(heard: Heard) -> float:
    """The mean cosine distance of a head's signals from each other; NaN of a single one."""
    n = len(heard)
    if n < 2:
        return float("nan")
    total = (heard.used / heard.used.norm(dim=1, keepdim=True)).sum(0)
    return 1.0 - (float(total @ total) - n) / (n * (n - 1))


def directions(
    heard: Sequence[Heard], taken: Mapping[int, Float[Tensor, "d_model q"]] | None = None
) -> Float[Tensor, "heads d_model"]:
    """The mean of every head's signals, each of length 1, as a direction; zero where nothing is left."""
    rows = [
        _mean(signals, signals.used[None], None if taken is None else taken[signals.layer])[0][0] for signals in heard
    ]
    return torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.float64)


def shuffled(
    heard: Sequence[Heard],
    taken: Mapping[int, Float[Tensor, "d_model q"]] | None,
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "draw heads d_model"]:
    """The mean directions with other channels: a permutation for each head, the same in all of its firings."""
    vectors = []
    for signals in heard:
        turns = torch.rand(draws, signals.basis.shape[1], generator=generator).argsort(1)
        a = signals.written * signals.chosen[:, turns].transpose(0, 1)
        vectors.append(_mean(signals, a, None if taken is None else taken[signals.layer])[0].float())
    return torch.stack(vectors, dim=1)


def resampled(
    heard: Sequence[Heard],
    taken: Mapping[int, Float[Tensor, "d_model q"]] | None,
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "draw heads d_model"]:
    """The mean directions over resampled prompts; a head without any prompt in a resample keeps all of its own."""
    prompts = sorted({prompt for signals in heard for prompt in signals.prompt.tolist()})
    places = torch.randint(len(prompts), (draws, len(prompts)), generator=generator)
    counts = torch.nn.functional.one_hot(places, len(prompts)).sum(1).double()
    number = {prompt: i for i, prompt in enumerate(prompts)}
    vectors = []
    for signals in heard:
        weight = counts[:, [number[prompt] for prompt in signals.prompt.tolist()]]
        weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, 1.0)
        vectors.append(
            _mean(signals, signals.used[None], None if taken is None else taken[signals.layer], weight)[0].float()
        )
    return torch.stack(vectors, dim=1)


def _mean(
    heard: Heard,
    a: Float[Tensor, "draw firing channel"],
    taken: Float[Tensor, "d_model q"] | None,
    weight: Float[Tensor, "draws firing"] | None = None,
) -> tuple[Float[Tensor, "draws d_model"], float]:
    """The mean directions of signals with these coordinates, and the share of their squared length that is left."""
    basis = heard.basis
    whole = a.square().sum(-1)
    left = whole
    if taken is not None and taken.shape[1]:
        inside = taken.T @ basis
        left = whole - (a @ inside.T).square().sum(-1)
        basis = basis - taken @ inside
    remains = left > _NOTHING * whole
    scale = torch.where(remains, left.clamp_min(1e-300).rsqrt(), 0.0)
    scale = scale if weight is None else scale * weight
    mean = torch.einsum("df,dfc->dc", scale, a.expand(len(scale), -1, -1)) @ basis.T
    share = float((left / whole.clamp_min(1e-300)).clamp(0, 1).mean())
    return mean / mean.norm(dim=1, keepdim=True).clamp_min(1e-12), share


def apart(heads: Sequence[Head]) -> tuple[Int[Tensor, "pair"], Int[Tensor, "pair"]]:
    """All pairs of heads in different layers."""
    layers = torch.tensor([layer for layer, _ in heads])
    i, j = torch.triu_indices(len(heads), len(heads), 1)
    kept = layers[i] != layers[j]
    return i[kept], j[kept]


def cosines(vectors: Float[Tensor, "*draws heads d_model"], heads: Sequence[Head]) -> Float[Tensor, "*draws pair"]:
    """The cosines of all pairs of heads in different layers."""
    i, j = apart(heads)
    return (vectors @ vectors.mT)[..., i, j]


def rank_of(vectors: Float[Tensor, "*draws heads d_model"]) -> Int[Tensor, "*draws"]:
    """How many dimensions hold most of these directions?"""
    gram = (vectors @ vectors.mT).double()
    return energy_rank(torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(-1), ENERGY)


def likeness(
    heard: Sequence[Heard],
    taken: Mapping[int, Float[Tensor, "d_model q"]],
    *,
    top: int | None,
    limit: float = ALIKE,
    draws: int = 99,
    seed: int = 0,
    absolute: bool = False,
) -> Likeness:
    """How alike are these heads without `taken`? `top` says how many directions that is; see `Likeness.taken`.

    `absolute`: take the size of cosines, for channels, whose vectors have no sign.
    """
    heads = [signals.place for signals in heard]
    generator = torch.Generator().manual_seed(seed)
    vectors = directions(heard, taken)
    others = shuffled(heard, taken, draws, generator)
    again = resampled(heard, taken, draws if any(len(signals) > 1 for signals in heard) else 1, generator)
    compared = [_pairs(x, heads, limit, absolute) for x in (vectors[None], again, others)]
    (near, cosine), (nears, means), (null_near, null) = compared
    return Likeness(
        taken=top,
        pairs=len(apart(heads)[0]),
        left=float(np.mean([_mean(signals, signals.used[None], taken[signals.layer])[1] for signals in heard])),
        near=_around(float(near), nears),
        cosine=_around(float(cosine), means),
        rank=int(rank_of(vectors)),
        shuffled_near=_range(null_near),
        shuffled_cosine=_range(null),
        shuffled_rank=_range(rank_of(others[:_RANKED])),
        p=p_of_draws(null_near.tolist(), float(near)),
        p_cosine=p_of_draws(null.tolist(), float(cosine)),
    )


def _pairs(
    vectors: Float[Tensor, "draw heads d_model"], heads: Sequence[Head], limit: float, absolute: bool
) -> tuple[Float[Tensor, "draw"], Float[Tensor, "draw"]]:
    """The share of near pairs and the mean cosine of each draw, one at a time: hundreds of heads have many pairs."""
    near, mean = [], []
    for draw in vectors:
        values = cosines(draw, heads).abs() if absolute else cosines(draw, heads)
        near.append((values > limit).double().mean())
        mean.append(values.mean())
    return torch.stack(near), torch.stack(mean)


def clusters(vectors: Float[Tensor, "heads d_model"], distance: float = 1 - ALIKE) -> Int[np.ndarray, "heads"]:
    """Which heads belong together? Average linkage of cosine distances, cut here; the largest cluster is number 0."""
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    if len(vectors) < 2:
        return np.zeros(len(vectors), dtype=np.int64)
    far = (1 - vectors.double() @ vectors.double().T).clamp_min(0).numpy()
    np.fill_diagonal(far, 0)
    labels = fcluster(linkage(squareform(far, checks=False), "average"), distance, "distance")
    names, sizes = np.unique(labels, return_counts=True)
    rank = {int(name): i for i, name in enumerate(names[np.argsort(-sizes, kind="stable")])}
    return np.array([rank[int(label)] for label in labels], dtype=np.int64)


def members(labels: Int[np.ndarray, "heads"], heads: Sequence[Head]) -> Iterator[tuple[Head, ...]]:
    """The heads of each cluster, largest first."""
    for number in range(int(labels.max(initial=-1)) + 1):
        yield tuple(head for head, label in zip(heads, labels.tolist(), strict=True) if label == number)


def _around(value: float, draws: Float[Tensor, "draw"]) -> Interval:
    """A value with the spread of its draws around it: draws are lower, since means over fewer prompts are noisier."""
    mean, low, high = _range(draws)
    return Interval(value, value + low - mean, value + high - mean)


def _range(values: Tensor) -> Range:
    low, high = torch.quantile(values.double(), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(values.double().mean()), low, high


# What do all residual streams have in common? Their mean and their directions of largest variance.
#
# Streams are anisotropic: all are alike, and so is whatever is projected out of them. What the tokens of a layer have
# in common is measured here, and taken out of signals before these are compared. The first token is left out, because
# what sets it apart may be a signal. Streams are normalised first, as they are behind a norm.

TAKEN: tuple[int | None, ...] = (None, 0, 1, 3)  # nothing; the mean; and so many directions of largest variance
_TOP = max(top or 0 for top in TAKEN)


@dataclass(frozen=True)
class Ambient:
    """Mean and largest variance of each layer's streams."""

    __repr__ = brief

    mean: Mapping[int, Float[Tensor, "d_model"]]  # by layer, of the tokens after the first
    spread: Mapping[int, Float[Tensor, "d_model top"]]  # orthonormal, largest variance around the mean first
    shares: Mapping[int, Float[Tensor, "top"]]  # of the variance
    root: Float[Tensor, "d_model d_model"]  # of the second moment over these tokens and all layers

    def taken(self, top: int | None) -> dict[int, Float[Tensor, "d_model q"]]:
        """By layer, an orthonormal basis of what is taken out: nothing (None), the mean, or also `top` directions."""
        if top is None:
            return {layer: mean[:, None][:, :0] for layer, mean in self.mean.items()}
        return {
            layer: orthonormal(torch.cat([mean[:, None], self.spread[layer][:, :top]], dim=1))
            for layer, mean in self.mean.items()
        }

    def draw(self, rank: int, generator: torch.Generator) -> Float[Tensor, "d_model rank"]:
        """A random subspace drawn from the streams' second moment, in which their large directions are more likely."""
        normal = torch.randn(len(self.root), rank, generator=generator, dtype=self.root.dtype)
        return orthonormal(self.root @ normal)


@dataclass
class Moments:
    """First and second moments of the streams, summed batch by batch."""

    count: dict[int, int] = field(default_factory=dict)
    first: dict[int, Tensor] = field(default_factory=dict)
    second: dict[int, Tensor] = field(default_factory=dict)

    def add(self, writes: Writes, layers: Sequence[int]) -> None:
        """Add the streams that these layers read, of all tokens after the first."""
        for layer in layers:
            for run in writes.runs:
                x = run.layers[layer].resid.double().cpu()
                x = (x / x.norm(dim=1, keepdim=True).clamp_min(1e-12))[1:]
                self.count[layer] = self.count.get(layer, 0) + len(x)
                self.first[layer] = self.first.get(layer, 0) + x.sum(0)
                self.second[layer] = self.second.get(layer, 0) + x.T @ x

    def ambient(self, top: int = _TOP) -> Ambient:
        """Mean and variance of all that was added, with so many directions of largest variance."""
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
