"""Do heads listen to the same directions? Cosines of their mean signals, beside the same heads with other channels.

Heads are compared across layers only: heads of one layer may share their keys. The control lets every head listen to as
many random channels of its own, to the same writers in the same firings. Signals are taken as they are, and again
without what all streams have in common (`keyhole.shared.ambient`): what does not survive that is anisotropy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.contrast.features.subspace import energy_rank
from keyhole.models.heads import Head
from keyhole.shared.heard import Heard
from keyhole.stats import Interval

ALIKE = 0.5  # a cosine from which two signals are alike
ENERGY = 0.9  # of the directions, which the shared subspace holds
_RANKED = 19  # draws whose rank is taken: that of hundreds of vectors takes its time
_NOTHING = 1e-4  # of a signal's squared length: what is left below that is rounding and has no direction
Range = tuple[float, float, float]  # of a control: its mean, and where 95 % of its draws lie


@dataclass(frozen=True)
class Likeness:
    """How alike are the heads of different layers, and how alike would they be with other channels?"""

    taken: int | None  # out of the signals: nothing, the mean (0), the mean and so many directions
    pairs: int  # of different layers
    left: float  # share of the signals' squared length that is left, on average over heads
    near: Interval  # share of pairs with a cosine above a limit; resampled over prompts
    cosine: Interval  # mean over pairs
    rank: int  # dimensions that hold `ENERGY` of the directions
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
    rows = [_mean(one, one.used[None], None if taken is None else taken[one.layer])[0][0] for one in heard]
    return torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.float64)


def shuffled(
    heard: Sequence[Heard],
    taken: Mapping[int, Float[Tensor, "d_model q"]] | None,
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "draw heads d_model"]:
    """The same with other channels of each head: a permutation of them, the same in all its firings."""
    found = []
    for one in heard:
        turns = torch.rand(draws, one.basis.shape[1], generator=generator).argsort(1)
        a = one.written * one.chosen[:, turns].transpose(0, 1)
        found.append(_mean(one, a, None if taken is None else taken[one.layer])[0].float())
    return torch.stack(found, dim=1)


def resampled(
    heard: Sequence[Heard],
    taken: Mapping[int, Float[Tensor, "d_model q"]] | None,
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "draw heads d_model"]:
    """The same with prompts drawn again, with replacement; a head whose prompts were not drawn keeps its own."""
    prompts = sorted({prompt for one in heard for prompt in one.prompt.tolist()})
    places = torch.randint(len(prompts), (draws, len(prompts)), generator=generator)
    counts = torch.nn.functional.one_hot(places, len(prompts)).sum(1).double()
    number = {prompt: i for i, prompt in enumerate(prompts)}
    found = []
    for one in heard:
        weight = counts[:, [number[prompt] for prompt in one.prompt.tolist()]]
        weight = torch.where(weight.sum(1, keepdim=True) > 0, weight, 1.0)
        found.append(_mean(one, one.used[None], None if taken is None else taken[one.layer], weight)[0].float())
    return torch.stack(found, dim=1)


def _mean(
    heard: Heard,
    a: Float[Tensor, "draw firing channel"],
    taken: Float[Tensor, "d_model q"] | None,
    weight: Float[Tensor, "draws firing"] | None = None,
) -> tuple[Float[Tensor, "draws d_model"], float]:
    """Mean directions of signals with these coordinates, and which share of their squared length was left."""
    basis = heard.basis
    whole = a.square().sum(-1)
    left = whole
    if taken is not None and taken.shape[1]:
        inside = taken.T @ basis
        left = whole - (a @ inside.T).square().sum(-1)
        basis = basis - taken @ inside
    there = left > _NOTHING * whole
    scale = torch.where(there, left.clamp_min(1e-300).rsqrt(), 0.0)
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
    """Of all pairs of heads in different layers."""
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
    """How alike are these heads once `taken` is out of what they hear? `top` says what that is.

    `absolute`: vectors whose sign says nothing, as that of channels.
    """
    heads = [one.place for one in heard]
    generator = torch.Generator().manual_seed(seed)
    own = directions(heard, taken)
    others = shuffled(heard, taken, draws, generator)
    again = resampled(heard, taken, draws if any(len(one) > 1 for one in heard) else 1, generator)
    told = [_pairs(x, heads, limit, absolute) for x in (own[None], again, others)]
    (near, cosine), (nears, means), (null_near, null) = told
    return Likeness(
        taken=top,
        pairs=len(apart(heads)[0]),
        left=float(np.mean([_mean(one, one.used[None], taken[one.layer])[1] for one in heard])),
        near=_around(float(near), nears),
        cosine=_around(float(cosine), means),
        rank=int(rank_of(own)),
        shuffled_near=_range(null_near),
        shuffled_cosine=_range(null),
        shuffled_rank=_range(rank_of(others[:_RANKED])),
        p=(1 + int((null_near >= near).sum())) / (1 + draws),
        p_cosine=(1 + int((null >= cosine).sum())) / (1 + draws),
    )


def _pairs(
    vectors: Float[Tensor, "draw heads d_model"], heads: Sequence[Head], limit: float, absolute: bool
) -> tuple[Float[Tensor, "draw"], Float[Tensor, "draw"]]:
    """The share of near pairs and the mean cosine of each draw, one at a time: hundreds of channels have many pairs."""
    near, mean = [], []
    for one in vectors:
        found = cosines(one, heads).abs() if absolute else cosines(one, heads)
        near.append((found > limit).double().mean())
        mean.append(found.mean())
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
    """A value with the spread of its draws: these are lower on average, since means over fewer prompts are noisier."""
    mean, low, high = _range(draws)
    return Interval(value, value + low - mean, value + high - mean)


def _range(values: Tensor) -> Range:
    low, high = torch.quantile(values.double(), torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(values.double().mean()), low, high
