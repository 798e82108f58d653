"""A discovered query-key feature, of one dimension or several, and how a score splits over the features of a head.

With U^T q = m_q + A_q s_q and V^T k = m_k + A_k s_k, a score is exactly one term per feature and three rests:

    term_j   c M_jj s_qj s_kj                   M = A_q^T U^T V A_k,  c = scaling
    cross    c sum_{i != j} M_ij s_qi s_kj      a feature of the query with another one of the key
    mean     everything with m_q or m_k         sources are centred, so averages are a separate part: m_q against a
                                                key is a preference of every query
    outside  the rest, outside the subspaces

Features that depend on each other (see below) are one feature of several dimensions, whose term is the sum of
theirs and of what is between them.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import brief
from keyhole.features.contrast.places import islands
from keyhole.features.contrast.subspace import principal_cosines, union
from keyhole.features.discovery.ica import IDENTIFIED
from keyhole.features.discovery.keys import Samples

_GAUSSIAN = 3.0  # standard errors of kurtosis within which a source may be Gaussian


@dataclass(frozen=True)
class Side:
    """One side of a feature, in queries or in keys: its value in x is x.direction + offset."""

    __repr__ = brief

    direction: Float[Tensor, "d_head"]
    offset: float
    pattern: Float[Tensor, "d_head"]  # how x changes per unit of the source
    stability: float  # mean |corr| with refits on other halves from other starts
    kurtosis: float  # excess, on held-out samples
    kurtosis_error: float

    @property
    def gaussian(self) -> bool:
        """Is its kurtosis within three standard errors of a Gaussian's?"""
        return abs(self.kurtosis) <= _GAUSSIAN * self.kurtosis_error


@dataclass(frozen=True)
class MatchedFeature:
    """A pair of sources: one of queries, one of the keys that they attend to."""

    __repr__ = brief

    query: Side
    key: Side
    correlation: float  # of the query source with the source of the attended key
    coupling: float  # c M_jj: what one unit on both sides adds to the score
    share: float  # of the held-out gap between attended and rest, by this feature's own term
    share_error: float

    @property
    def identified(self) -> bool:
        """Is it determined beyond rotation? Both sides recur in refits, and neither looks Gaussian.

        A source that recurs may still be a mixture, where features outnumber dimensions.
        """
        steady = min(self.query.stability, self.key.stability) >= IDENTIFIED
        return steady and not (self.query.gaussian or self.key.gaussian)


@dataclass(frozen=True)
class MatchedSubspace:
    """A feature of one or several dimensions: pairs of sources that depend on each other, however they are rotated."""

    __repr__ = brief

    members: tuple[int, ...]  # numbers of features
    query_basis: Float[Tensor, "d_head rank"]  # orthonormal: how queries change with it
    key_basis: Float[Tensor, "d_head rank"]
    dependence: float | None  # of energies: the weakest link of its features, on the weaker side; None: one dimension
    p: float | None  # of that dependence, corrected over all pairs of features; likewise
    share: float  # of the held-out gap, by the terms of its features and all products between them
    share_error: float

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.members)

    def cosines(
        self, query: Float[Tensor, "d_head a"], key: Float[Tensor, "d_head b"]
    ) -> tuple[Float[Tensor, "_"], Float[Tensor, "_"]]:
        """Cosines of principal angles with a known feature, given as columns that span it: of queries, and of keys.

        Args:
            query: Columns that span the known feature among queries.
            key: Columns that span it among keys.
        """
        return principal_cosines(self.query_basis, union([query])), principal_cosines(self.key_basis, union([key]))


@dataclass(frozen=True)
class Split:
    """The parts of scores: terms + cross + mean + outside = scaling q.k."""

    terms: Float[Tensor, "*batch feature"]
    cross: Float[Tensor, "*batch"]
    mean: Float[Tensor, "*batch"]
    outside: Float[Tensor, "*batch"]

    @property
    def total(self) -> Float[Tensor, "*batch"]:
        """The sum of all parts."""
        return self.terms.sum(-1) + self.cross + self.mean + self.outside

    def minus(self, other: "Split") -> "Split":
        """The difference, part by part."""
        return Split(
            self.terms - other.terms, self.cross - other.cross, self.mean - other.mean, self.outside - other.outside
        )


@dataclass(frozen=True)
class Discovery:
    """The features of one head, by their share of the held-out gap."""

    __repr__ = brief

    U: Float[Tensor, "d_head rank"]
    S: Float[Tensor, "d_head"]
    V: Float[Tensor, "d_head rank"]
    query_mean: Float[Tensor, "rank"]  # m_q
    key_mean: Float[Tensor, "rank"]  # m_k
    scaling: float
    features: tuple[MatchedFeature, ...]
    subspaces: tuple[MatchedSubspace, ...]  # every feature is in one of them, mostly alone
    gap: float  # held-out mean of score(attended) - score(rest)
    cross: float  # shares of the gap, as those of features; all shares sum to one
    mean: float
    outside: float
    mean_energy: float  # how much of |E[q d^T]|^2 the averages E[q] E[d]^T alone hold
    samples: tuple[int, int]  # fitted, held out
    warnings: tuple[str, ...]

    @property
    def rank(self) -> int:
        """The number of dimensions that the head matches on."""
        return self.U.shape[1]

    @property
    def between(self) -> float:
        """The share of the gap that lies between subspaces."""
        return 1 - sum(subspace.share for subspace in self.subspaces) - self.mean - self.outside

    def split(self, q: Float[Tensor, "*batch d_head"], k: Float[Tensor, "*batch d_head"]) -> Split:
        """How does each score scaling q.k split over the features?

        Args:
            q: Queries.
            k: Keys, one per query.
        """
        q, k = q.double(), k.double()
        z_q, z_k, G = q @ self.U, k @ self.V, self.U.T @ self.V
        centred = (((z_q - self.query_mean) @ G) * (z_k - self.key_mean)).sum(-1)
        inside = ((z_q @ G) * z_k).sum(-1)
        coupling = torch.tensor([f.coupling for f in self.features], dtype=q.dtype, device=q.device)
        terms = coupling * self.query_sources(q) * self.key_sources(k)
        c = self.scaling
        total = c * (q * k).sum(-1)
        return Split(terms, c * centred - terms.sum(-1), c * (inside - centred), total - c * inside)

    def subspace_terms(
        self, q: Float[Tensor, "*batch d_head"], k: Float[Tensor, "*batch d_head"]
    ) -> Float[Tensor, "*batch subspace"]:
        """What every subspace adds to each score scaling q.k.

        Args:
            q: Queries.
            k: Keys, one per query.
        """
        queries, keys = self.query_sources(q), self.key_sources(k)
        A_q = torch.stack([f.query.pattern for f in self.features])
        A_k = torch.stack([f.key.pattern for f in self.features])
        inside = [list(subspace.members) for subspace in self.subspaces]
        terms = [((queries[..., at] @ A_q[at]) * (keys[..., at] @ A_k[at])).sum(-1) for at in inside]
        return self.scaling * torch.stack(terms, dim=-1)

    def query_sources(self, q: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch feature"]:
        """The value of each feature in these queries.

        Args:
            q: Queries.
        """
        return _values(q, [f.query for f in self.features])

    def key_sources(self, k: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch feature"]:
        """The value of each feature in these keys.

        Args:
            k: Keys.
        """
        return _values(k, [f.key for f in self.features])


def _values(x: Tensor, sides: list[Side]) -> Tensor:
    directions = torch.stack([side.direction for side in sides])
    offsets = torch.tensor([side.offset for side in sides], dtype=torch.float64, device=x.device)
    return x.double() @ directions.T + offsets


# Features of several dimensions: components whose energies depend on each other, on both sides.
#
# ICA takes a ring, a sphere or any other feature of several dimensions apart into uncorrelated components that still
# depend on each other: when one is large, the others are not (or are too). That shows in their energies e = s^2 (of
# unit mean),
#
#     D_ij = cov(e_i, e_j) / max(1, sd(e_i) sd(e_j))     0: independent, -1/2: a ring, -2 / (r + 2): a sphere
#
# on samples that no component was fitted to. It is a correlation, but for components of nearly constant energy: what
# varies in the energies of two signs is the trace of each other that unmixing leaves in them (it undoes chance
# correlations too), tiny but perfectly correlated. Linked pairs are merged, and pairs linked through others too.

LEVEL = 0.01  # of corrected p: a significant dependence
LEAST = 0.15  # of |D|, as in a sphere of rank 11: in text, all features depend a little on each other


@dataclass(frozen=True)
class Dependence:
    """The dependence of every pair of sources; zero for a source with itself."""

    value: Float[Tensor, "source source"]  # D
    p: Float[Tensor, "source source"]  # of |D|, corrected over all pairs


def energy_dependence(
    S: Float[Tensor, "samples source"],
    groups: Int[Tensor, "samples"] | None = None,
    *,
    permutations: int = 99,
    seed: int = 0,
) -> Dependence:
    """The dependence of uncorrelated sources, with p-values from permuted samples.

    Every source is permuted separately, groups as a whole, and compared with the largest |D| of all pairs.

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
    """The smaller |D| of both sides, and the larger p.

    The dimensions of one feature must depend on each other in queries and in the keys that they attend to.
    """
    return Dependence(torch.minimum(query.value.abs(), key.value.abs()), torch.maximum(query.p, key.p))


def merged(discovery: Discovery, held: Samples, *, permutations: int, seed: int) -> Discovery:
    """A discovery with its dependent features merged into subspaces, largest share of the held-out gap first."""
    values = discovery.query_sources(held.q), discovery.key_sources(held.attended)
    sides = [energy_dependence(s, held.group, permutations=permutations, seed=seed) for s in values]
    weaker = weaker_side(*sides)
    linked = (weaker.p <= LEVEL) & (weaker.value >= LEAST)
    label = torch.tensor(islands(len(linked), [(i, j) for i, j in linked.nonzero().tolist()]))
    subspaces = []
    for number in sorted(set(label.tolist())):
        inside = label == number
        links = weaker.value[linked & inside], weaker.p[linked & inside]
        subspaces.append(_subspace(discovery, inside.nonzero()[:, 0].tolist(), *links))
    whole = replace(discovery, subspaces=tuple(subspaces))
    terms = whole.subspace_terms(held.q, held.attended) - whole.subspace_terms(held.q, held.rest)
    scored = [
        replace(subspace, share=float(share), share_error=float(error))
        for subspace, share, error in zip(subspaces, *held.shares(terms), strict=True)
    ]
    return replace(discovery, subspaces=tuple(sorted(scored, key=lambda subspace: -subspace.share)))


def _subspace(discovery: Discovery, members: list[int], weaker: Tensor, p: Tensor) -> MatchedSubspace:
    """Some features as one subspace, not yet scored, with the weakest of the links between them."""
    features = [discovery.features[j] for j in members]
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
