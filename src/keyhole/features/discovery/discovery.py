"""Which features do a head's queries and keys match on? Found without labels: attention itself is the contrast.

    dC = E[q (k_att - k_rest)^T] = U S V^T                    the joint subspace of all features (see `keys.py`)
    U^T q = m_q + A_q s_q,   V^T k_att = m_k + A_k s_k        independent sources, paired by corr

A feature's share is what its own term of the score (see `features.py`) adds to the gap between attended and rest,
E[score(q, k_att) - score(q, k_rest)], over samples that it was not fitted to. Sources that depend on each other there
are features of several dimensions.
"""

from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

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
from keyhole.features.discovery.keys import samples_of as samples_of
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option

SAMPLES_PER_DIMENSION = 10  # fewer and the small singular values are noise
_LARGE = 0.2  # share of the gap from which a rest is no longer small


@dataclass(frozen=True)
class DiscoverySettings:
    """How the features of one head are found."""

    rank: int | None = option(None, "Dimensions that the head matches on; default: as many as hold `energy`.")
    energy: float = option(0.99, "Share of the squared singular values that is kept.")
    centre: bool = option(True, "Leave out of the contrast what the average query prefers.")
    nonlinearity: Nonlinearity = option("cube", "Of ICA. cube: best for bits; tanh: robust to outliers.")
    refits: int = option(5, "Refits on other halves, from other starts, that test how stable a source is.", least=1)
    permutations: int = option(99, "Permutations that test which features depend on each other.")
    seed: int = option(0, "Seed of the split, of ICA and of the permutations.")


class DiscoveryOptions(TypedDict, total=False):
    """The fields of `DiscoverySettings`, as keywords."""

    rank: int | None
    energy: float
    centre: bool
    nonlinearity: Nonlinearity
    refits: int
    permutations: int
    seed: int


def discover(
    samples: Samples,
    *,
    settings: DiscoverySettings | None = None,
    **options: Unpack[DiscoveryOptions],
) -> Discovery:
    """Find the features that a head matches on: independent sources of queries and keys, paired and scored.

    Everything is fitted on a random half of their groups; shares of the gap and
    dependences between features are those of the other half.

    Args:
        samples: Queries of one head, as `samples_of` returns them.
        settings: How sources are found. Default: those of `DiscoverySettings`.
        **options: Fields of `DiscoverySettings`: `rank`, `energy`, `centre`, `nonlinearity`, `refits`,
            `permutations`, `seed`.

    >>> stream = torch.Generator().manual_seed(0)
    >>> bits = torch.randint(0, 2, (400, 2, 3), generator=stream) * 2.0 - 1  # of a query and of one of its keys
    >>> bits[:, 1] = bits[:, 0]  # the other key has the bits of the query
    >>> keys = torch.stack([bits[:, 1], bits[:, 1].roll(1, 0)], dim=1)
    >>> attention = torch.einsum("nd,nkd->nk", bits[:, 0], keys).softmax(-1)
    >>> discover(samples_of(bits[:, 0], keys, attention), permutations=9).rank
    3
    """
    how = settings_with(settings, DiscoverySettings, options)
    rank, permutations, seed = how.rank, how.permutations, how.seed
    _check(samples, rank, permutations)
    half = split_groups(samples.group, seed)
    fit, held = samples.where(half == 0), samples.where(half == 1)
    U, S, V = decompose(contrast_of(fit, centre=how.centre))
    r = int(energy_rank(S, how.energy)) if rank is None else rank
    if r == 0:
        raise KeyholeError("the contrast is zero: these queries attend to nothing in particular, so no feature shows.")
    ica = _Ica(how.nonlinearity, how.refits, seed)
    query = ica.side(U[:, :r], fit.q, held.q, (fit.group, held.group))
    key = ica.side(V[:, :r], fit.attended, held.attended, (fit.group, held.group))
    if not query.sides or not key.sides:
        raise KeyholeError("queries or attended keys do not vary in the contrast's directions: give other prompts.")
    unscored = Discovery(
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
    scored = merged(_scored(unscored, held), held, permutations=permutations, seed=seed)
    return replace(scored, warnings=_warnings(scored, converged=query.sources.converged and key.sources.converged))


@dataclass(frozen=True)
class _Sided:
    """The sources of one side, each with its stability and kurtosis."""

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


def _scored(discovery: Discovery, held: Samples) -> Discovery:
    """Shares of the held-out gap, largest first."""
    parts = discovery.split(held.q, held.attended).minus(discovery.split(held.q, held.rest))
    rows = torch.cat([parts.terms, torch.stack([parts.cross, parts.mean, parts.outside], dim=1)], dim=1)
    shares, errors = held.shares(rows)
    scored = [
        replace(feature, share=float(share), share_error=float(error))
        for feature, share, error in zip(discovery.features, shares, errors, strict=False)
    ]
    cross, mean, outside = shares[-3:].tolist()
    ordered = tuple(sorted(scored, key=lambda feature: -feature.share))
    return replace(discovery, features=ordered, cross=cross, mean=mean, outside=outside)


def _warnings(discovery: Discovery, *, converged: bool) -> tuple[str, ...]:
    """Reasons not to read these features one by one."""
    said = []
    gaussian = [j for j, f in enumerate(discovery.features) if f.query.gaussian or f.key.gaussian]
    unstable = [j for j, f in enumerate(discovery.features) if min(f.query.stability, f.key.stability) < IDENTIFIED]
    if gaussian:
        said.append(
            f"features {gaussian} have sources that cannot be told from Gaussian ones: any rotation of these fits as "
            "well, so read their joint subspace, not the single features."
        )
    if unstable:
        said.append(f"features {unstable} change when ICA is refitted on other halves: they are not identified.")
    if discovery.rank == discovery.U.shape[0]:
        said.append(
            f"the contrast fills all {discovery.rank} dimensions of the head: there may be more features than "
            "dimensions (superposition), and then no source is a single feature."
        )
    if len(discovery.features) < discovery.rank:
        said.append(
            f"only {len(discovery.features)} of {discovery.rank} dimensions vary on both sides: the others are "
            "constant."
        )
    if abs(discovery.outside) > _LARGE:
        said.append(
            f"{discovery.outside:.0%} of the gap lies outside the {discovery.rank} dimensions kept: the contrast "
            "weighs directions by their length, not by their effect. Raise energy or rank."
        )
    if abs(discovery.between) > _LARGE:
        said.append(
            f"{discovery.between:.0%} of the gap lies between features: query and key sources do not match one to one."
        )
    if not converged:
        said.append("ICA did not converge: give more samples, a lower rank, or the other nonlinearity.")
    if discovery.gap <= 0:
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
