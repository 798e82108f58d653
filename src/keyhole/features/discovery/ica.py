"""Which independent sources were mixed into these vectors? FastICA, and checks of its result.

    z = mean + A s,   s = W (z - mean),   Cov(s) = I,   W chosen so that the sources are as non-Gaussian as possible

A rotation of Gaussian sources is as good as the sources themselves, so nothing can single them out; `stability`
and `excess_kurtosis` show where that is so. Signs and order of sources are arbitrary: `pair_sources` fixes both
between two sets that were sampled together.
"""

from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.features.contrast.places import split_groups
from keyhole.qk.controls import haar

Nonlinearity = Literal["cube", "tanh"]
NONLINEARITIES = ("cube", "tanh")
IDENTIFIED = 0.95  # mean |correlation| with refits from which a source counts as identified
_NO_VARIANCE = 1e-12  # directions with less variance than this share of E|z|^2 hold rounding, not a source
_NO_SKEW = 0.1  # below this the skewness of a sample is no guide to a sign


@dataclass(frozen=True)
class Sources:
    """A fitted unmixing of vectors z."""

    mean: Float[Tensor, "d"]
    mixing: Float[Tensor, "d source"]  # A
    unmixing: Float[Tensor, "source d"]  # W; W A = 1
    iterations: int
    converged: bool

    def of(self, Z: Float[Tensor, "samples d"]) -> Float[Tensor, "samples source"]:
        """The source values W (z - mean)."""
        return (Z.double() - self.mean) @ self.unmixing.T


@dataclass(frozen=True)
class SourcePairs:
    """Query sources matched with key sources, one to one."""

    query: Int[Tensor, "pair"]
    key: Int[Tensor, "pair"]
    sign: Float[Tensor, "pair"]  # of the correlation: what the key source must be multiplied by
    correlation: Float[Tensor, "pair"]  # |corr| over the samples


@dataclass(frozen=True)
class Kurtosis:
    """E[s^4] / E[s^2]^2 - 3 of each source, with its standard error."""

    value: Float[Tensor, "source"]
    error: Float[Tensor, "source"]


def fast_ica(
    Z: Float[Tensor, "samples d"],
    *,
    nonlinearity: Nonlinearity = "cube",
    seed: int = 0,
    tolerance: float = 1e-8,
    max_iterations: int = 500,
) -> Sources:
    """Fit independent, non-Gaussian sources to vectors.

    On whitened x every row w of W is updated together (symmetric decorrelation), from a random rotation:

        w <- E[g(w.x) x] - E[g'(w.x)] w,   then   W <- (W W^T)^-1/2 W

    g is y^3 (kurtosis: best for bits) or tanh y (robust to outliers). It has converged when no row turns by more
    than 1 - |cos| = tolerance in a step.

    >>> bits = torch.randint(0, 2, (2000, 2), generator=torch.Generator().manual_seed(0)).double()
    >>> Z = bits @ torch.tensor([[1.0, 2.0], [0.5, -1.0]]).double()
    >>> bool((correlations(fast_ica(Z).of(Z), bits).abs().max(1).values > 0.99).all())
    True
    """
    if nonlinearity not in NONLINEARITIES:
        raise KeyholeError(f"there is no nonlinearity {nonlinearity!r}: choose 'cube' or 'tanh'.")
    if not bool(torch.isfinite(Z).all()):
        raise KeyholeError("the samples hold NaN or infinite numbers: sources cannot be found in them.")
    mean, whiten, unwhiten = _whitening(Z.double())
    X = (Z.double() - mean) @ whiten.T
    W = haar(X.shape[1], X.shape[1], torch.Generator().manual_seed(seed)).to(X)
    turn, steps = 1.0, 0
    while turn >= tolerance and steps < max_iterations:
        steps += 1
        before, W = W, _decorrelated(_update(W, X, nonlinearity))
        turn = float((1 - (W * before).sum(1).abs()).max()) if len(W) else 0.0
    W = W * _signs(X @ W.T, unwhiten @ W.T)[:, None]
    return Sources(mean, unwhiten @ W.T, W @ whiten, steps, turn < tolerance)


def pair_sources(query: Float[Tensor, "samples a"], key: Float[Tensor, "samples b"]) -> SourcePairs:
    """Match query sources with key sources: the one-to-one assignment with the largest sum of |corr|.

    >>> s = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 1.0], [0.5, 0.2]])
    >>> pairing = pair_sources(s, -s.flip(1))
    >>> pairing.key.tolist(), pairing.sign.tolist()
    ([1, 0], [-1.0, -1.0])
    """
    from scipy.optimize import linear_sum_assignment  # a third of a second to import, and only this needs it

    table = correlations(query, key)
    rows, columns = linear_sum_assignment(-table.abs().cpu().numpy())
    at, to = torch.as_tensor(rows), torch.as_tensor(columns)
    correlation = table.cpu()[at, to]
    return SourcePairs(at, to, torch.where(correlation < 0, -1.0, 1.0).double(), correlation.abs())


def stability(
    Z: Float[Tensor, "samples d"],
    sources: Sources,
    *,
    groups: Int[Tensor, "samples"] | None = None,
    nonlinearity: Nonlinearity = "cube",
    runs: int = 5,
    seed: int = 0,
) -> Float[Tensor, "source"]:
    """Mean |corr| of each source with its match in refits from other starts on other data.

    Every refit has another start AND another random half of the groups: a finite Gaussian sample, too, has a most
    non-Gaussian direction, which recurs from other starts but not on other samples.
    """
    if runs < 1:
        raise KeyholeError("stability needs at least one refit.")
    index = torch.arange(len(Z)) if groups is None else groups.cpu()
    values, matches = sources.of(Z), []
    for run in range(1, runs + 1):
        half = split_groups(index, seed + run) == 0
        refit = fast_ica(Z[half.to(Z.device)], nonlinearity=nonlinearity, seed=seed + run)
        pairing = pair_sources(values, refit.of(Z))
        matched = torch.zeros(values.shape[1], dtype=torch.float64)
        matched[pairing.query] = pairing.correlation
        matches.append(matched)
    return torch.stack(matches).mean(0)


def excess_kurtosis(S: Float[Tensor, "samples source"], groups: Int[Tensor, "samples"] | None = None) -> Kurtosis:
    """Excess kurtosis of each source: zero for a Gaussian, -2 for a fair coin, large for rare events.

    Measure it on samples that the sources were not fitted to, or it is biased away from zero. It is zero, too, for a
    coin of bias .21; such a source is found by tanh though its kurtosis does not show it.
    """
    x = S.double() - S.double().mean(0)
    x = x / x.square().mean(0).sqrt().clamp_min(1e-30)
    third, fourth = (x**3).mean(0), (x**4).mean(0)
    influence = (x**4 - fourth) - 2 * fourth * (x**2 - 1) - 4 * third * x
    return Kurtosis(fourth - 3, mean_error(influence, groups))


def mean_error(
    influence: Float[Tensor, "samples *more"], groups: Int[Tensor, "samples"] | None = None
) -> Float[Tensor, "*more"]:
    """The standard error of a mean of centred values, where values of one group are not independent."""
    n = len(influence)
    if groups is None:
        return (influence**2).sum(0).sqrt() / n
    kinds, index = torch.unique(groups.to(influence.device), return_inverse=True)
    sums = influence.new_zeros(len(kinds), *influence.shape[1:]).index_add(0, index, influence)
    return (sums**2).sum(0).sqrt() / n


def correlations(A: Float[Tensor, "samples a"], B: Float[Tensor, "samples b"]) -> Float[Tensor, "a b"]:
    """Pearson's r of every column of A with every column of B; zero where a column is constant."""
    a, b = (x.double() - x.double().mean(0) for x in (A, B))
    return torch.nn.functional.normalize(a, dim=0, eps=1e-30).T @ torch.nn.functional.normalize(b, dim=0, eps=1e-30)


def _whitening(Z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean, the map to unit covariance, and back; directions without variance are left out."""
    mean = Z.mean(0)
    X = Z - mean
    values, vectors = torch.linalg.eigh(X.T @ X / len(X))
    kept = values > _NO_VARIANCE * Z.square().sum(1).mean().clamp_min(1e-30)
    values, vectors = values[kept].flip(0), vectors[:, kept].flip(1)
    # The signs of eigenvectors depend on rounding. Fixed, so that the start and the order of sources do not.
    vectors = vectors * torch.where(vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0)
    return mean, (vectors / values.sqrt()).T, vectors * values.sqrt()


def _update(W: Tensor, X: Tensor, nonlinearity: Nonlinearity) -> Tensor:
    Y = X @ W.T
    if nonlinearity == "cube":
        return (Y**3).T @ X / len(X) - 3 * W  # E[g'] = 3 E[y^2] = 3
    G = Y.tanh()
    return G.T @ X / len(X) - (1 - G**2).mean(0)[:, None] * W


def _decorrelated(W: Tensor) -> Tensor:
    """(W W^T)^-1/2 W: the nearest rotation."""
    U, _, Vh = torch.linalg.svd(W, full_matrices=False)
    return cast(Tensor, U @ Vh)


def _signs(S: Tensor, mixing: Tensor) -> Tensor:
    """The rarer side of a source is its positive one; a symmetric source follows its largest mixing weight."""
    skew = (S**3).mean(0)
    largest = mixing.gather(0, mixing.abs().argmax(0, keepdim=True))[0] if mixing.numel() else skew
    return torch.where(torch.where(skew.abs() > _NO_SKEW, skew, largest) < 0, -1.0, 1.0).to(S)
