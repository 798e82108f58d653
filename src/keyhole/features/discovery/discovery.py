"""Which features do a head's queries and keys match on, with no labels given? Attention itself is the contrast.

    dC = E[q (k_att - k_rest)^T] = U S V^T                    the joint subspace of all features (see `samples.py`)
    U^T q = m_q + A_q s_q,   V^T k_att = m_k + A_k s_k        independent sources, paired by corr

A feature's share is what its own term of the score (see `features.py`) adds to the gap between attended and rest,
E[score(q, k_att) - score(q, k_rest)], over samples that it was not fitted to. Sources that depend on each other there
are features of several dimensions (`subspaces.py`).
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.features.contrast.places import split_groups
from keyhole.features.contrast.subspace import decompose, energy_rank
from keyhole.features.discovery.features import Discovery, MatchedFeature, Side, merged
from keyhole.features.discovery.ica import (
    IDENTIFIED,
    Nonlinearity,
    Sources,
    excess_kurtosis,
    fast_ica,
    pair_sources,
    stability,
)
from keyhole.features.discovery.keys import Samples, contrast_of, mean_part

SAMPLES_PER_DIMENSION = 10  # fewer and the small singular values are noise
_LARGE = 0.2  # share of the gap from which a rest is no longer small


def discover(
    samples: Samples,
    *,
    rank: int | None = None,
    energy: float = 0.99,
    centre: bool = True,
    nonlinearity: Nonlinearity = "cube",
    refits: int = 5,
    permutations: int = 99,
    seed: int = 0,
) -> Discovery:
    """Which features does this head match on? Sources in a subspace, paired; then their shares of held-out attention.

    `rank=None` keeps `energy` of the squared singular values; `centre` leaves out of the contrast what the average
    query prefers. Everything is fitted on a random half of the groups and scored on the other half, where
    `permutations` tell which features depend on each other.
    """
    _check(samples, rank, permutations)
    half = split_groups(samples.group, seed)
    fit, held = samples.where(half == 0), samples.where(half == 1)
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
        subspaces=(),
        gap=float(held.gap.mean()),
        cross=0.0,
        mean=0.0,
        outside=0.0,
        mean_energy=float(mean_part(fit).square().sum() / contrast_of(fit).square().sum()),
        samples=(len(fit.q), len(held.q)),
        warnings=(),
    )
    scored = merged(_scored(found, held), held, permutations=permutations, seed=seed)
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
    shares, errors = held.shares(rows)
    scored = [
        replace(feature, share=float(share), share_error=float(error))
        for feature, share, error in zip(found.features, shares, errors, strict=False)
    ]
    cross, mean, outside = shares[-3:].tolist()
    ordered = tuple(sorted(scored, key=lambda feature: -feature.share))
    return replace(found, features=ordered, cross=cross, mean=mean, outside=outside)


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
    if abs(found.between) > _LARGE:
        said.append(
            f"{found.between:.0%} of the gap lies between features: query and key sources do not match one to one."
        )
    if not converged:
        said.append("ICA did not converge: give more samples, a lower rank, or the other nonlinearity.")
    if found.gap <= 0:
        said.append("what is attended does not score above the rest here, so shares of that gap mean little.")
    return tuple(said)


def _check(samples: Samples, rank: int | None, permutations: int) -> None:
    n, d = samples.q.shape
    if rank is not None and not 1 <= rank <= d:
        raise KeyholeError(f"rank {rank} is impossible: a head of {d} dimensions has ranks 1 to {d}.")
    if permutations < 1:
        raise KeyholeError("whether features depend on each other is told by permutations: give at least one.")
    need = 2 * SAMPLES_PER_DIMENSION * d
    if n < need:
        raise KeyholeError(
            f"there are {n} queries, but a rank among {d} dimensions takes {need} ({SAMPLES_PER_DIMENSION} per "
            "dimension and half): give more or longer prompts."
        )
    if bool((samples.group == samples.group[:1]).all()):
        raise KeyholeError("all samples are of one group: half of the groups must be held out, so give two or more.")
