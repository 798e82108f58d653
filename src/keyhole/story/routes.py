"""Which ways does influence take from words to the answer? Routes over tokens, best first, exactly.

Node by node there are tens of thousands of paths, and each holds next to nothing. A route gathers all that visit the
same tokens by the same *moves*: heads that look from dest at src, any of them. Between moves influence *stays* at a
token, in its MLPs, in heads that look at their own token, or in nothing. A node hands its influence on by the shares of
its edges, so that a path of nodes has the product of them, and a route the sum of its paths: routes from words and
what ends elsewhere add up to 1.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Literal

from keyhole.circuits.circuit import Circuit, Edge, Node

Move = tuple[int, int]  # dest, src
Kind = Literal["answer", "move", "stay", "word", "end"]


@dataclass(frozen=True)
class Route:
    """A way over tokens, from the answer down."""

    moves: tuple[Move, ...]
    word: int | None  # where it ends; None: in its last move, by heads of layer 0, which read nothing but words
    share: float  # of the answer

    def token(self, stage: int) -> int | None:
        """Where influence stays after so many moves."""
        return self.moves[stage][0] if stage < len(self.moves) else self.word


@dataclass(frozen=True)
class Ways:
    """The graph that routes are found in."""

    circuit: Circuit

    @cached_property
    def below(self) -> Mapping[int, list[tuple[Edge, float]]]:
        """What each node hands on: its edges, with their shares of it."""
        found: dict[int, list[tuple[Edge, float]]] = {i: [] for i in range(len(self.circuit.nodes))}
        for edge in self.circuit.edges:
            if edge.influence:
                found[edge.target].append((edge, edge.influence / self.circuit.influence[edge.target]))
        return found

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """What each node is on a route."""
        return tuple(self._kind(i, node) for i, node in enumerate(self.circuit.nodes))

    def _kind(self, index: int, node: Node) -> Kind:
        if node.kind == "target":
            return "answer"
        if node.kind == "head" and node.dest != node.src:
            return "move"
        if self.begins(index):
            return "word"
        return "stay" if self.below[index] else "end"

    def begins(self, index: int) -> bool:
        """Is this a word, or a head that reads nothing else?"""
        node = self.circuit.nodes[index]
        return node.kind == "embedding" or (node.kind == "head" and node.layer == 0)

    def height(self, index: int) -> tuple[int, bool]:
        """For going down: every node reads lower ones alone, and MLPs the heads of their own layer."""
        node = self.circuit.nodes[index]
        return node.key[0], node.kind == "mlp"

    def through(self, chosen: Collection[int]) -> float:
        """Which share of the answer passes any of these nodes? Of one node, its influence."""
        reached, passed = defaultdict[int, float](float, {self.kinds.index("answer"): 1.0}), 0.0
        for node in sorted(range(len(self.kinds)), key=self.height, reverse=True):
            if node in chosen:
                passed += reached[node]
                continue
            for edge, share in self.below[node]:
                reached[edge.source] += reached[node] * share
        return passed

    def routes(self) -> Iterator[Route]:
        """All routes from words, the largest first: the largest beginning is opened first, and no end is larger."""
        order = count()
        root = self.kinds.index("answer")
        waiting: list[tuple[float, int, Route, dict[int, float]]] = [(-1.0, 0, Route((), None, 1.0), {root: 1.0})]
        while waiting:
            _, _, route, arrived = heapq.heappop(waiting)
            if not arrived:
                yield route
            for found, masses in self._longer(route, arrived):
                heapq.heappush(waiting, (-found.share, next(order), found, masses))

    def _longer(self, route: Route, arrived: dict[int, float]) -> Iterator[tuple[Route, dict[int, float]]]:
        """How a beginning goes on: by one more move, with what arrives at its heads, or by its end."""
        moved: dict[Move, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        ends: dict[int | None, float] = defaultdict(float)
        staying = defaultdict(float, arrived)
        while staying:
            node = max(staying, key=self.height)
            mass = staying.pop(node)
            if self.begins(node):
                ends[None] += mass
            for edge, share in self.below[node]:
                source, kind = self.circuit.nodes[edge.source], self.kinds[edge.source]
                if kind == "move":
                    moved[source.dest, source.src][edge.source] += mass * share
                elif kind == "word":
                    ends[source.dest] += mass * share
                elif kind == "stay":
                    staying[edge.source] += mass * share
        for move, masses in moved.items():
            yield Route((*route.moves, move), None, sum(masses.values())), masses
        for word, mass in ends.items():
            yield Route(route.moves, word, mass), {}
