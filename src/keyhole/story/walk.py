"""Who carries a route? The nodes of its moves and stays, each with the influence that passes on this route alone."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from keyhole.circuits.circuit import Edge, EdgeSide
from keyhole.story.routes import Kind, Route, Ways

Place = tuple[int, int]  # a stage (how many moves were made since the answer), and a node


@dataclass
class Group:
    """All nodes of a move, of a stay, or of the word."""

    influence: float = 0.0  # that enters
    carried: dict[int, float] = field(default_factory=dict)  # by each node, which may read each other
    sides: dict[EdgeSide, float] = field(default_factory=lambda: defaultdict(float))  # how it reads what is below


SMALL = 0.01  # of a route: edges that carry less of it are not counted to it


def groups_on(ways: Ways, route: Route) -> tuple[dict[tuple[Kind, int], Group], list[Edge]]:
    """The groups of a route, by kind and stage, and the edges that carry it."""
    rest = _Rest(ways, route)
    groups: dict[tuple[Kind, int], Group] = defaultdict(Group)
    edges: dict[Edge, None] = {}
    waiting: dict[Place, float] = defaultdict(float, {(0, ways.kinds.index("answer")): route.share})
    while waiting:
        stage, node = place = max(waiting, key=lambda at: ways.height(at[1]))
        mass = waiting.pop(place)
        group = groups[ways.kinds[node], stage]
        group.carried[node] = mass
        for edge, share, further in rest.onward(*place):
            part = mass * share * rest.of(further, edge.source) / rest.of(*place)
            if part > 0:
                waiting[further, edge.source] += part
                group.sides[edge.side] += part
                edges |= {edge: None} if part >= SMALL * route.share else {}
                below = groups[ways.kinds[edge.source], further]
                below.influence += part * (below is not group)
    return groups, list(edges)


@dataclass(frozen=True)
class _Rest:
    """From any place of a route: which share of what is there goes all the way on it?"""

    ways: Ways
    route: Route
    known: dict[Place, float] = field(default_factory=dict)

    def of(self, stage: int, node: int) -> float:
        """The share."""
        if (stage, node) not in self.known:
            end = "move" if self.route.word is None else "word"
            ended = stage == len(self.route.moves) and self.ways.begins(node) and self.ways.kinds[node] == end
            further = sum(share * self.of(after, edge.source) for edge, share, after in self.onward(stage, node))
            self.known[stage, node] = float(ended) + further
        return self.known[stage, node]

    def onward(self, stage: int, node: int) -> Iterator[tuple[Edge, float, int]]:
        """The edges below a node that keep to the route, with their shares, and the stages they lead to."""
        for edge, share in self.ways.below[node]:
            source, kind = self.ways.circuit.nodes[edge.source], self.ways.kinds[edge.source]
            if kind == "move" and (source.dest, source.src) in self.route.moves[stage : stage + 1]:
                yield edge, share, stage + 1
            elif kind in ("stay", "word") and source.dest == self.route.token(stage):
                yield edge, share, stage
