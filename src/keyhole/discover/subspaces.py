"""Which components are one feature of several dimensions? Those whose energies depend on each other, on both sides.

ICA takes a ring, a sphere or any other feature of several dimensions apart into uncorrelated components that still
depend on each other: when one is large, the others are not (or are too). That shows in their energies e = s^2
(of unit mean),

    D_ij = cov(e_i, e_j) / max(1, sd(e_i) sd(e_j))     0: independent, -1/2: a ring, -2 / (r + 2): a sphere

on samples that no component was fitted to. It is a correlation, but for components of nearly constant energy: what
varies in the energies of two signs is the trace of each other that unmixing leaves in them (it undoes chance
correlations too), tiny but perfectly correlated. Linked pairs are merged, and pairs linked through others too.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.contrast.features.subspace import union
from keyhole.contrast.islands import islands
from keyhole.discover.features import Discovery, MatchedSubspace
from keyhole.discover.samples import Samples

LEVEL = 0.01  # of corrected p: a dependence beyond doubt
LEAST = 0.15  # of |D|, worth merging for: a sphere of rank 11. In text, everything depends a little on everything


@dataclass(frozen=True)
class Dependence:
    """Of every pair of sources; none of a source with itself."""

    value: Float[Tensor, "source source"]  # D
    p: Float[Tensor, "source source"]  # of |D|, corrected over all pairs


def energy_dependence(
    S: Float[Tensor, "samples source"],
    groups: Int[Tensor, "samples"] | None = None,
    *,
    permutations: int = 99,
    seed: int = 0,
) -> Dependence:
    """Do uncorrelated sources still depend on each other? Energies against those of permuted samples.

    Every source is put in an order of its own, groups as a whole, and the largest |D| of all pairs is kept.

    >>> angle = torch.rand(500, generator=torch.Generator().manual_seed(0)).double() * 6.283
    >>> ring = energy_dependence(torch.stack([angle.cos(), angle.sin()], dim=1))
    >>> round(float(ring.value[0, 1]), 1), float(ring.p[0, 1])
    (-0.5, 0.01)
    """
    x = S.double() - S.double().mean(0)
    energy = (x / x.square().mean(0).sqrt().clamp_min(1e-30)).square() - 1
    spread = energy.square().mean(0).sqrt()
    scale = (spread[:, None] * spread).clamp_min(1.0)

    def dependence(e: Tensor) -> Tensor:
        return (e.T @ e / len(e) / scale).fill_diagonal_(0)

    value, generator = dependence(energy), torch.Generator().manual_seed(seed)
    kinds, index = torch.unique(torch.arange(len(S)) if groups is None else groups.cpu(), return_inverse=True)
    reached = torch.zeros_like(value)
    for _ in range(permutations):
        order = torch.rand(len(kinds), S.shape[1], generator=generator)[index].argsort(dim=0, stable=True)
        reached += dependence(energy.gather(0, order.to(energy.device))).abs().max() >= value.abs()
    return Dependence(value, (1 + reached) / (1 + permutations))


def weaker_side(query: Dependence, key: Dependence) -> Dependence:
    """Of which |D|, and with which p, can one be sure on both sides?

    A feature is matched: its dimensions must depend on each other in queries and in the keys that they attend to.
    """
    return Dependence(torch.minimum(query.value.abs(), key.value.abs()), torch.maximum(query.p, key.p))


def merged(found: Discovery, held: Samples, *, permutations: int, seed: int) -> Discovery:
    """The same discovery with its features in subspaces, largest share of the held-out gap first."""
    values = found.query_sources(held.q), found.key_sources(held.attended)
    sides = [energy_dependence(s, held.group, permutations=permutations, seed=seed) for s in values]
    weaker = weaker_side(*sides)
    linked = (weaker.p <= LEVEL) & (weaker.value >= LEAST)
    label = torch.tensor(islands(len(linked), [(i, j) for i, j in linked.nonzero().tolist()]))
    subspaces = []
    for one in sorted(set(label.tolist())):
        inside = label == one
        links = weaker.value[linked & inside], weaker.p[linked & inside]
        subspaces.append(_subspace(found, inside.nonzero()[:, 0].tolist(), *links))
    whole = replace(found, subspaces=tuple(subspaces))
    terms = whole.subspace_terms(held.q, held.attended) - whole.subspace_terms(held.q, held.rest)
    scored = [
        replace(one, share=float(share), share_error=float(error))
        for one, share, error in zip(subspaces, *held.shares(terms), strict=True)
    ]
    return replace(found, subspaces=tuple(sorted(scored, key=lambda one: -one.share)))


def _subspace(found: Discovery, members: list[int], weaker: Tensor, p: Tensor) -> MatchedSubspace:
    """Some features as one, not yet scored; of what links them, the weakest is told."""
    features = [found.features[j] for j in members]
    query, key = (
        union([torch.nn.functional.normalize(side.pattern, dim=0)[:, None] for side in sides])
        for sides in ([f.query for f in features], [f.key for f in features])
    )
    alone = len(members) == 1
    return MatchedSubspace(
        members=tuple(members),
        query_basis=query,
        key_basis=key,
        dependence=None if alone else float(weaker.min()),
        p=None if alone else float(p.max()),
        share=float("nan"),
        share_error=float("nan"),
    )
