"""How well are traced heads those that are known to do the task?"""

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.models.heads import Head
from keyhole_papers.finding import Finding, rows_of
from keyhole_papers.provenance import Provenance
from keyhole_papers.svt.ioi import Subject, is_gpt2

_KNOWN: frozenset[Head] = frozenset(  # of Wang et al. (2023), those that can lie below the three name movers
    [
        *((9, 6), (9, 9), (10, 0), (7, 3), (7, 9), (8, 6), (8, 10), (5, 5), (5, 8), (5, 9), (6, 9)),
        *((0, 1), (0, 10), (3, 0), (2, 2), (4, 11)),
    ]
)


@dataclass(frozen=True)
class Agreement:
    """How well traced heads are the known ones."""

    precision: float
    recall: float
    chance: float  # precision of random heads
    p: float  # how often random heads are as many known ones

    @property
    def beyond_chance(self) -> bool:
        """Are there known heads among them, more than chance would give?"""
        return self.recall > 0 and self.p < 0.05

    @property
    def agrees(self) -> bool:
        """Widely, as published?"""
        return self.beyond_chance and self.precision >= 0.4 and self.recall >= 0.5

    @property
    def rows(self) -> list[Finding]:
        """For a reader; what is asked of them differs."""
        return rows_of(
            {
                "precision": self.precision,
                "recall": self.recall,
                "precision of random heads": self.chance,
                "p of random heads": self.p,
            }
        )


def known_here(of: Provenance) -> str:
    """Which heads count as known, and what is not counted?"""
    if of.real:
        return "Starts are not counted: without them the published precision is .44 and the recall .62."
    return (
        "Known heads are here those with a role, and a firing is a weight of a quarter, since name movers give "
        "less than half; heads where tracing starts are not counted."
    )


def known_heads(seen: Subject) -> frozenset[Head]:
    """The published ones of GPT-2; of any other model, those with a role."""
    return _KNOWN if is_gpt2(seen.asked.model) else frozenset(head for heads in seen.roles.values() for head in heads)


def agreement(seen: Subject, heads: set[Head], starts: Sequence[Head]) -> Agreement:
    """Of known heads below the starts, which are given and do not count."""
    from scipy.stats import hypergeom

    top = max(layer for layer, _ in starts)
    known, upstream = {head for head in known_heads(seen) if head[0] < top} - set(starts), heads - set(starts)
    given = sum(layer < top for layer, _ in starts)
    exist = sum(layer < top for layer in seen.model.attention_layers) * seen.model.dims.heads - given
    right = len(upstream & known)
    p = float(hypergeom.sf(right - 1, exist, len(known), len(upstream)))
    return Agreement(right / max(len(upstream), 1), right / max(len(known), 1), len(known) / max(exist, 1), p)
