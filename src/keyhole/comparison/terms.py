"""What do two sets of circuits share, and what has one alone? Terms with their frequencies in each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Int

from keyhole.comparison.score import Score, overlap
from keyhole.errors import KeyholeError
from keyhole.family.columns import Granularity
from keyhole.family.distances import in_common
from keyhole.family.sets import Sets
from keyhole.family.terms import Term

FEWEST = 5  # circuits of a half


@dataclass(frozen=True)
class TermRow:
    """One term and the share of circuits that have it, of each set."""

    term: Term
    a: float
    b: float


@dataclass(frozen=True)
class Halves:
    """Likeness of as many circuits on each side: random halves of one, and a half of each. Fewer are less alike."""

    circuits: int
    within_a: float
    within_b: float
    between: float


@dataclass(frozen=True)
class TermComparison:
    """Two sets of circuits at one granularity."""

    granularity: Granularity
    circuits: tuple[int, int]
    threshold: float
    rows: tuple[TermRow, ...]  # every term that either has; the largest difference first
    score: Score  # a against b as the reference, of terms in at least this share of circuits
    likeness: float  # sum of the smaller frequencies over that of the larger: 1 where all are equal
    halves: Halves | None  # what likeness is beside; None: there are too few circuits

    @property
    def only_a(self) -> tuple[TermRow, ...]:
        """Terms that no circuit of b has."""
        return tuple(row for row in self.rows if not row.b)

    @property
    def only_b(self) -> tuple[TermRow, ...]:
        """Terms that no circuit of a has."""
        return tuple(row for row in self.rows if not row.a)

    @property
    def shared(self) -> tuple[TermRow, ...]:
        """Terms that circuits of both have."""
        return tuple(row for row in self.rows if row.a and row.b)


def frequencies(sets: Sets) -> dict[Term, float]:
    """The share of circuits that have each term."""
    if not len(sets.prompts):
        raise KeyholeError("there are no circuits to count terms of: ask for other prompts.")
    counts = np.asarray((sets.matrix != 0).sum(axis=0)).ravel() / len(sets.prompts)
    return dict(zip(sets.terms, counts.tolist(), strict=True))


def likeness(mine: Mapping[Term, float], its: Mapping[Term, float]) -> float:
    """Sum of the smaller frequencies over that of the larger.

    >>> from keyhole.circuits.writer import Component
    >>> one, other = (Term(Component("head", 9, head)) for head in (6, 9))
    >>> likeness({one: 1.0, other: 0.5}, {one: 0.75})
    0.5
    """
    every = list(dict.fromkeys([*mine, *its]))  # no set: its order, and with it rounding, differs from run to run
    one, other = (np.array([own.get(term, 0.0) for term in every]) for own in (mine, its))
    return float(in_common(one, other))


def halves(a: Sets, b: Sets, *, draws: int = 5, seed: int = 0) -> Halves | None:
    """How alike are random halves of one side, beside halves of both? Means over draws."""
    size = min(len(a.prompts), len(b.prompts)) // 2
    if size < FEWEST:
        return None
    rng, found = np.random.default_rng(seed), []
    for _ in range(draws):
        mine, its = (rng.permutation(len(one.prompts))[: 2 * size] for one in (a, b))
        first, second = (_some(a, rows) for rows in (mine[:size], mine[size:]))
        third, fourth = (_some(b, rows) for rows in (its[:size], its[size:]))
        found.append((likeness(first, second), likeness(third, fourth), likeness(first, third)))
    return Halves(size, *(float(value) for value in np.mean(found, axis=0)))


def _some(sets: Sets, rows: Int[np.ndarray, "rows"]) -> dict[Term, float]:
    return frequencies(replace(sets, prompts=sets.prompts[rows], matrix=sets.matrix[rows]))


def compare_terms(a: Sets, b: Sets, *, threshold: float) -> TermComparison:
    """Which terms do circuits of both have, how often, and which those of one alone?"""
    if a.granularity != b.granularity:
        raise KeyholeError(f"{a.granularity} and {b.granularity} are other things, and cannot be compared.")
    mine, its = frequencies(a), frequencies(b)
    every = list(dict.fromkeys([*mine, *its]))
    rows = [TermRow(term, mine.get(term, 0.0), its.get(term, 0.0)) for term in every]
    rows = sorted((row for row in rows if row.a or row.b), key=lambda row: (-abs(row.a - row.b), repr(row.term)))
    often = [{term for term, share in one.items() if share and share >= threshold} for one in (mine, its)]
    return TermComparison(
        granularity=a.granularity,
        circuits=(len(a.prompts), len(b.prompts)),
        threshold=threshold,
        rows=tuple(rows),
        score=overlap(often[0], often[1]),
        likeness=likeness(mine, its),
        halves=halves(a, b),
    )
