"""Is what the method finds right where the truth is known: in a machine, and in a lattice?

How well are traced heads those that are known to do the task?
"""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from keyhole.brief import Head
from keyhole_papers.finding import Finding, Provenance, rows_of
from keyhole_papers.svt import Subject, is_gpt2

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


# Do name movers and S-inhibition heads cross, more than heads with as many edges would by chance?
#
# The control keeps how many edges leave and reach every head, and changes who is joined with whom: two edges a -> b
# and c -> d become a -> d and c -> b, again and again, as long as each still leads to a later layer. Movers, where
# tracing starts, are reached by many edges; so they are in every control.

Pair = tuple[Head, Head]  # writer and reader
_DRAWS = 500  # rewired networks
_SWAPS = 10  # tried for each edge
_CHANCE = 0.05
REWIRED = (
    f"all but {_CHANCE:.0%} of {_DRAWS} networks with the same heads, rewired so that each keeps how many it hears and "
    "is heard by"
)


@dataclass(frozen=True)
class Lattice:
    """Edges between the heads of the two top roles, in the layers from the lowest of them on."""

    movers: frozenset[Head]
    inhibitors: frozenset[Head]
    pairs: frozenset[Pair]  # all edges there

    @property
    def lowest(self) -> int:
        """The lowest of its layers."""
        return min(layer for layer, _ in self.movers | self.inhibitors)

    @property
    def among(self) -> set[Pair]:
        """Joined heads of both roles."""
        both = self.movers | self.inhibitors
        return {pair for pair in self.pairs if both.issuperset(pair)}

    @property
    def crossing(self) -> set[Pair]:
        """S-inhibition heads that name movers hear."""
        return self._crossing(self.pairs)

    @property
    def several(self) -> int:
        """Name movers that hear several S-inhibition heads."""
        return sum(len({a for a, b in self.crossing if b == mover}) > 1 for mover in self.movers)

    @cached_property
    def p(self) -> float:
        """How often rewired networks have as many crossing pairs."""
        rng, most = random.Random(0), len(self.crossing)
        as_many = sum(len(self._crossing(rewired(sorted(self.pairs), rng))) >= most for _ in range(_DRAWS))
        return (1 + as_many) / (1 + _DRAWS)

    @property
    def beyond_chance(self) -> bool:
        """Are there crossing pairs, and more than in rewired networks?"""
        return bool(self.crossing) and self.p < _CHANCE

    @property
    def holds(self) -> list[bool]:
        """What is asked of it, one by one."""
        return [row.holds for row in self.rows if row.holds is not None]

    @property
    def rows(self) -> list[Finding]:
        """How many are joined, and what is asked of that."""
        joined = f"more than name movers, and of S-inhibition heads with name movers more than in {REWIRED}"
        woven = self.beyond_chance and len(self.among) > len(self.movers)
        hear = self.beyond_chance and self.several >= 2
        return [
            Finding("pairs among both roles", len(self.among), joined, woven),
            Finding("S-inhibition to name mover", len(self.crossing)),
            Finding("S-inhibition to name mover, p of rewired networks", self.p),
            Finding("name movers with several S-inhibition heads", self.several, "two or more, and the same", hear),
        ]

    def _crossing(self, pairs: Collection[Pair]) -> set[Pair]:
        return {(a, b) for a, b in pairs if a in self.inhibitors and b in self.movers}


def lattice(seen: Subject, starts: Sequence[Head], pairs: Collection[Pair]) -> Lattice:
    """Do name movers (where tracing starts) and S-inhibition heads cross in the network of frequent edges?"""
    movers = frozenset(starts)
    inhibitors = frozenset(seen.roles.get("S-inhibition", ())) - movers
    if is_gpt2(seen.asked.model):
        inhibitors |= {(7, 3), (7, 9)}  # the others that the published figure names
    lowest = min(layer for layer, _ in movers | inhibitors)
    return Lattice(movers, inhibitors, frozenset(pair for pair in pairs if pair[0][0] >= lowest))


def rewired(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    """Another network in which every head hears as many heads as before, and is heard by as many.

    >>> before = [((0, 0), (1, 0)), ((0, 1), (1, 1)), ((0, 2), (1, 2))]
    >>> sorted(rewired(before, random.Random(2)))
    [((0, 0), (1, 2)), ((0, 1), (1, 0)), ((0, 2), (1, 1))]
    """
    edges, present = list(pairs), set(pairs)
    for _ in range(_SWAPS * len(edges) if len(edges) > 1 else 0):
        i, j = rng.sample(range(len(edges)), 2)
        (a, b), (c, d) = edges[i], edges[j]
        swapped = (a, d), (c, b)
        if all(writer[0] < reader[0] for writer, reader in swapped) and present.isdisjoint(swapped):
            present.difference_update((edges[i], edges[j]))
            present.update(swapped)
            edges[i], edges[j] = swapped
    return edges
