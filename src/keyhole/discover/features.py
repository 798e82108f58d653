"""What is a discovered query-key feature, and how does a score split over the features of a head?

With U^T q = m_q + A_q s_q and V^T k = m_k + A_k s_k, a score is exactly one term per feature and three rests:

    term_j   c M_jj s_qj s_kj                   M = A_q^T U^T V A_k,  c = scaling
    cross    c sum_{i != j} M_ij s_qi s_kj      features that meet other features
    mean     all that m_q or m_k enter          sources are centred, so the averages are a part of their own:
                                                m_q against a key is a preference whatever the query asks
    outside  what the subspaces do not hold

Features that depend on each other (see `subspaces.py`) are one feature of several dimensions, whose term is the sum of
theirs and of what is between them.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.contrast.features.subspace import principal_cosines, union
from keyhole.discover.ica import IDENTIFIED

_GAUSSIAN = 3.0  # standard errors of kurtosis within which a source may be Gaussian


@dataclass(frozen=True)
class Side:
    """One feature as queries or as keys carry it: its value in x is x.direction + offset."""

    __repr__ = brief

    direction: Float[Tensor, "d_head"]
    offset: float
    pattern: Float[Tensor, "d_head"]  # how x changes per unit of the source
    stability: float  # mean |corr| with refits on other halves from other starts
    kurtosis: float  # excess, on held-out samples
    kurtosis_error: float

    @property
    def gaussian(self) -> bool:
        """Cannot its kurtosis be told from a Gaussian's?"""
        return abs(self.kurtosis) <= _GAUSSIAN * self.kurtosis_error


@dataclass(frozen=True)
class MatchedFeature:
    """What queries ask for and keys offer: a pair of sources."""

    __repr__ = brief

    query: Side
    key: Side
    correlation: float  # of the query source with the source of the attended key
    coupling: float  # c M_jj: what one unit on both sides adds to the score
    share: float  # of the held-out gap between attended and rest, by this feature's own term
    share_error: float

    @property
    def identified(self) -> bool:
        """Is it more than one of many rotations? Both sides come back in refits and neither looks Gaussian.

        A source that comes back may still be a mixture, where features outnumber dimensions.
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
        """Is it this known feature? Cosines of principal angles with what its columns span; smallest rank decides."""
        return principal_cosines(self.query_basis, union([query])), principal_cosines(self.key_basis, union([key]))


@dataclass(frozen=True)
class Split:
    """Scores, taken apart: terms + cross + mean + outside = scaling q.k."""

    terms: Float[Tensor, "*batch feature"]
    cross: Float[Tensor, "*batch"]
    mean: Float[Tensor, "*batch"]
    outside: Float[Tensor, "*batch"]

    @property
    def total(self) -> Float[Tensor, "*batch"]:
        """The sum of all parts."""
        return self.terms.sum(-1) + self.cross + self.mean + self.outside

    def minus(self, other: "Split") -> "Split":
        """Part by part."""
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
    cross: float  # shares of the gap, as the features'; all of them sum to one
    mean: float
    outside: float
    mean_energy: float  # how much of |E[q d^T]|^2 the averages E[q] E[d]^T alone hold
    samples: tuple[int, int]  # fitted, held out
    warnings: tuple[str, ...]

    @property
    def rank(self) -> int:
        """How many dimensions the head matches on."""
        return self.U.shape[1]

    @property
    def between(self) -> float:
        """The share of the gap that lies between subspaces."""
        return 1 - sum(one.share for one in self.subspaces) - self.mean - self.outside

    def split(self, q: Float[Tensor, "*batch d_head"], k: Float[Tensor, "*batch d_head"]) -> Split:
        """How does each score scaling q.k split over the features?"""
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
        """What does every subspace add to each score scaling q.k?"""
        asked, offered = self.query_sources(q), self.key_sources(k)
        A_q = torch.stack([f.query.pattern for f in self.features])
        A_k = torch.stack([f.key.pattern for f in self.features])
        inside = [list(one.members) for one in self.subspaces]
        terms = [((asked[..., at] @ A_q[at]) * (offered[..., at] @ A_k[at])).sum(-1) for at in inside]
        return self.scaling * torch.stack(terms, dim=-1)

    def query_sources(self, q: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch feature"]:
        """How much of each feature do these queries ask for?"""
        return _values(q, [f.query for f in self.features])

    def key_sources(self, k: Float[Tensor, "*batch d_head"]) -> Float[Tensor, "*batch feature"]:
        """How much of each feature do these keys offer?"""
        return _values(k, [f.key for f in self.features])


def _values(x: Tensor, sides: list[Side]) -> Tensor:
    directions = torch.stack([side.direction for side in sides])
    offsets = torch.tensor([side.offset for side in sides], dtype=torch.float64, device=x.device)
    return x.double() @ directions.T + offsets
