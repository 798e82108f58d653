"""What do two sets of circuits share, and what has one alone? Terms with their frequencies in each."""

from dataclasses import dataclass

import numpy as np

from keyhole.comparison.score import Score, overlap
from keyhole.errors import KeyholeError
from keyhole.family.columns import Granularity
from keyhole.family.sets import Sets
from keyhole.family.terms import Term


@dataclass(frozen=True)
class TermRow:
    """One term and the share of circuits that have it, of each set."""

    term: Term
    a: float
    b: float


@dataclass(frozen=True)
class TermComparison:
    """Two sets of circuits at one granularity."""

    granularity: Granularity
    circuits: tuple[int, int]
    threshold: float
    rows: tuple[TermRow, ...]  # every term that either has; the largest difference first
    score: Score  # a against b as the reference, of terms in at least this share of circuits
    likeness: float  # sum of the smaller frequencies over that of the larger: 1 where all are equal

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


def compare_terms(a: Sets, b: Sets, *, threshold: float) -> TermComparison:
    """Which terms do circuits of both have, how often, and which those of one alone?"""
    if a.granularity != b.granularity:
        raise KeyholeError(f"{a.granularity} and {b.granularity} are other things, and cannot be compared.")
    mine, its = frequencies(a), frequencies(b)
    every = list(dict.fromkeys([*mine, *its]))
    rows = [TermRow(term, mine.get(term, 0.0), its.get(term, 0.0)) for term in every]
    rows = sorted((row for row in rows if row.a or row.b), key=lambda row: (-abs(row.a - row.b), repr(row.term)))
    often = [{term for term, share in one.items() if share and share >= threshold} for one in (mine, its)]
    least, most = (sum(pick(row.a, row.b) for row in rows) for pick in (min, max))
    return TermComparison(
        granularity=a.granularity,
        circuits=(len(a.prompts), len(b.prompts)),
        threshold=threshold,
        rows=tuple(rows),
        score=overlap(often[0], often[1]),
        likeness=least / most if most else 0.0,
    )
