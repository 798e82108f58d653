"""Which features do a head's queries and keys match on, with no labels given? Attention itself is the contrast.

    k_att = sum_j a_j k_j,   k_rest = sum_j (1 - a_j) k_j / sum_j (1 - a_j)      over the visible keys of a query
    dC = E[q (k_att - k_rest)^T] = U S V^T                                       the joint subspace of all features
    U^T q = m_q + A_q s_q,   V^T k_att = m_k + A_k s_k                           independent sources, paired by corr

A feature's share is what its own term of the score (see `found.py`) adds to the gap between attended and rest,
E[score(q, k_att) - score(q, k_rest)], over samples that it was not fitted to.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.contrast.features.subspace import decompose, energy_rank
from keyhole.discover.found import Discovery, MatchedFeature, Side
from keyhole.discover.ica import (
    IDENTIFIED,
    Nonlinearity,
    Sources,
    excess_kurtosis,
    fast_ica,
    first_half,
    mean_error,
    pair_sources,
    stability,
)
from keyhole.errors import KeyholeError

SAMPLES_PER_DIMENSION = 10  # fewer and the small singular values are noise
_LARGE = 0.2  # share of the gap from which a rest is no longer small


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
    return q.T @ d / len(q) - (_mean_part(samples) if centre else 0.0)


def discover(
    samples: Samples,
    *,
    rank: int | None = None,
    energy: float = 0.99,
    centre: bool = True,
    nonlinearity: Nonlinearity = "cube",
    refits: int = 5,
    seed: int = 0,
) -> Discovery:
    """Which features does this head match on? Subspace, sources, pairs; then their shares of held-out attention.

    `rank=None` keeps `energy` of the squared singular values; `centre` leaves out of the contrast what the average
    query prefers. Everything is fitted on a random half of the groups and scored on the other half.
    """
    _check(samples, rank)
    half = first_half(samples.group, seed)
    fit, held = samples.where(half), samples.where(~half)
    U, S, V = decompose(contrast_of(fit, centre=centre))
    r = int(energy_rank(S, energy)) if rank is None else rank
    if r == 0:
        raise KeyholeError("the contrast is zero: these queries attend to nothing in particular, so no feature shows.")
    ica = _Ica(nonlinearity, refits, seed)
    query = ica.side(U[:, :r], fit.q, held.q, (fit.group, held.group))
    key = ica.side(V[:, :r], fit.attended, held.attended, (fit.group, held.group))
    if not query.sides or not key.sides:
        raise KeyholeError("queries or attended keys do not vary in the contrast's directions: give other prompts.")
    found = Discovery(
        U=U[:, :r],
        S=S,
        V=V[:, :r],
        query_mean=query.sources.mean,
        key_mean=key.sources.mean,
        scaling=samples.scaling,
        features=_paired(query, key, fit, scaling=samples.scaling),
        gap=float(held.gap.mean()),
        cross=0.0,
        mean=0.0,
        outside=0.0,
        mean_energy=float(_mean_part(fit).square().sum() / contrast_of(fit).square().sum()),
        samples=(len(fit.q), len(held.q)),
        warnings=(),
    )
    scored = _scored(found, held)
    return replace(scored, warnings=_warnings(scored, converged=query.sources.converged and key.sources.converged))


@dataclass(frozen=True)
class _Sided:
    """The sources of one side, and what is known of each."""

    basis: Float[Tensor, "d_head rank"]
    sources: Sources
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class _Ica:
    nonlinearity: Nonlinearity
    refits: int
    seed: int

    def side(self, basis: Tensor, fit: Tensor, held: Tensor, groups: tuple[Tensor, Tensor]) -> _Sided:
        """Sources of x within a basis: fitted and refitted on one half, their kurtosis measured on the other."""
        Z = fit @ basis
        sources = fast_ica(Z, nonlinearity=self.nonlinearity, seed=self.seed)
        steady = stability(
            Z, sources, groups=groups[0], nonlinearity=self.nonlinearity, runs=self.refits, seed=self.seed
        )
        kurtosis = excess_kurtosis(sources.of(held @ basis), groups[1])
        directions, patterns = sources.unmixing @ basis.T, basis @ sources.mixing
        offsets = -sources.unmixing @ sources.mean
        sides = [
            Side(
                direction=directions[j],
                offset=float(offsets[j]),
                pattern=patterns[:, j],
                stability=float(steady[j]),
                kurtosis=float(kurtosis.value[j]),
                kurtosis_error=float(kurtosis.error[j]),
            )
            for j in range(len(directions))
        ]
        return _Sided(basis, sources, tuple(sides))


def _paired(query: _Sided, key: _Sided, fit: Samples, *, scaling: float) -> tuple[MatchedFeature, ...]:
    """One feature per pair of sources, not yet scored."""
    pairing = pair_sources(query.sources.of(fit.q @ query.basis), key.sources.of(fit.attended @ key.basis))
    features = []
    for pair, (i, j) in enumerate(zip(pairing.query.tolist(), pairing.key.tolist(), strict=True)):
        other, sign = key.sides[j], float(pairing.sign[pair])
        turned = replace(
            other, direction=sign * other.direction, offset=sign * other.offset, pattern=sign * other.pattern
        )
        coupling = scaling * float(query.sides[i].pattern @ turned.pattern)
        features.append(
            MatchedFeature(
                query.sides[i], turned, float(pairing.correlation[pair]), coupling, float("nan"), float("nan")
            )
        )
    return tuple(features)


def _scored(found: Discovery, held: Samples) -> Discovery:
    """Shares of the held-out gap, largest first."""
    parts = found.split(held.q, held.attended).minus(found.split(held.q, held.rest))
    rows = torch.cat([parts.terms, torch.stack([parts.cross, parts.mean, parts.outside], dim=1)], dim=1)
    gap = held.gap.mean()
    shares = rows.mean(0) / gap
    errors = mean_error((rows - shares * held.gap[:, None]) / gap, held.group)  # of a ratio of two means
    scored = [
        replace(feature, share=float(share), share_error=float(error))
        for feature, share, error in zip(found.features, shares, errors, strict=False)
    ]
    cross, mean, outside = shares[-3:].tolist()
    ordered = tuple(sorted(scored, key=lambda feature: -feature.share))
    return replace(found, features=ordered, cross=cross, mean=mean, outside=outside)


def _mean_part(samples: Samples) -> Tensor:
    return torch.outer(samples.q.mean(0), (samples.attended - samples.rest).mean(0))


def _warnings(found: Discovery, *, converged: bool) -> tuple[str, ...]:
    """What stands against reading these features one by one?"""
    said = []
    gaussian = [j for j, f in enumerate(found.features) if f.query.gaussian or f.key.gaussian]
    unstable = [j for j, f in enumerate(found.features) if min(f.query.stability, f.key.stability) < IDENTIFIED]
    if gaussian:
        said.append(
            f"features {gaussian} have sources that cannot be told from Gaussian ones: any rotation of these fits as "
            "well, so read their joint subspace, not the single features."
        )
    if unstable:
        said.append(f"features {unstable} change when ICA is refitted on other halves: they are not identified.")
    if found.rank == found.U.shape[0]:
        said.append(
            f"the contrast fills all {found.rank} dimensions of the head: there may be more features than dimensions "
            "(superposition), and then no source is a single feature."
        )
    if len(found.features) < found.rank:
        said.append(
            f"only {len(found.features)} of {found.rank} dimensions vary on both sides: the others are constant."
        )
    if abs(found.outside) > _LARGE:
        said.append(
            f"{found.outside:.0%} of the gap lies outside the {found.rank} dimensions kept: the contrast weighs "
            "directions by their length, not by their effect. Raise energy or rank."
        )
    if abs(found.cross) > _LARGE:
        said.append(
            f"{found.cross:.0%} of the gap lies between features: query and key sources do not match one to one."
        )
    if not converged:
        said.append("ICA did not converge: give more samples, a lower rank, or the other nonlinearity.")
    if found.gap <= 0:
        said.append("what is attended does not score above the rest here, so shares of that gap mean little.")
    return tuple(said)


def _check(samples: Samples, rank: int | None) -> None:
    n, d = samples.q.shape
    if rank is not None and not 1 <= rank <= d:
        raise KeyholeError(f"rank {rank} is impossible: a head of {d} dimensions has ranks 1 to {d}.")
    need = 2 * SAMPLES_PER_DIMENSION * d
    if n < need:
        raise KeyholeError(
            f"there are {n} queries, but a rank among {d} dimensions takes {need} ({SAMPLES_PER_DIMENSION} per "
            "dimension and half): give more or longer prompts."
        )
    if bool((samples.group == samples.group[:1]).all()):
        raise KeyholeError("all samples are of one group: half of the groups must be held out, so give two or more.")
