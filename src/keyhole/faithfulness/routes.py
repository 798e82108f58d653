"""What does a story consist of? Words, steps and paths; the ways of influence, and who carries them.

What does a story say? Words with their effects, paths of steps with influence and effect, and what was left out.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import count
from typing import Any, Literal

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit, Edge, EdgeSide, Node
from keyhole.circuits.records import Writer

LEAD = 1.0  # logits: effects are no shares of a smaller lead, which many things are several times as large as
EITHER = 3.0  # times the smallest effect that matters: so much an exchange must help, and another hurt
MANY = 0.5  # of the exchanges of a word: with so many of another answer it decides, whatever their mean
SOME = 0.25  # of the exchanges that help, and of those that hurt: their mean says little
MATTERS, LEAST = 0.1, 0.3  # a word or path matters if its effect is this share of the lead; or so many logits or nats


@dataclass(frozen=True)
class Word:
    """What the answer owes to a word of the prompt."""

    tokens: tuple[int, ...]  # of which it is made
    effect: float  # by how much the answer is less without it; below 0 the word holds it back
    influence: float  # share of the answer that is followed to its embedding
    flips: float | None = None  # share of the copies with another word in which the answer is no longer preferred
    minor: bool = False  # a function word, or a mark between clauses
    span: tuple[float, float] | None = None  # the effect in the copy with the smallest, and in that with the largest
    lost: float = 1.0  # share of the copies in which the answer loses the smallest effect that matters, or more
    gained: float = 0.0  # share of those in which it gains as much

    @property
    def disagrees(self) -> bool:
        """Do some exchanges hurt the answer and others help it, so that their mean says little?"""
        return min(self.lost, self.gained) >= SOME

    @property
    def order(self) -> tuple[bool, float, float]:
        """By which words are listed: function words last; those that change the answer more often, then the most."""
        return self.minor, -(self.flips or 0.0), -abs(self.effect)


@dataclass(frozen=True)
class Step:
    """What happens next on a path: a word is there, writers work at its token, or heads move it to another."""

    kind: Literal["word", "stay", "move"]
    dest: int
    src: int  # equal to dest for all but moves
    writers: tuple[Writer, ...]  # that carry most of it, from the lowest up
    more: int  # that are not named
    influence: float  # share of the answer that passes these writers, on any path
    side: EdgeSide | None = None  # of a move: how its heads read what comes before, for the most part
    role: str | None = None  # of a move: what it looks like
    tested: bool = False  # does the role hold when the words it is about are changed?
    effect: float | None = None  # by how much the answer is less with the writers at their baseline; None: not measured
    others: tuple[Writer, ...] = ()  # those that are not named


@dataclass(frozen=True)
class Path:
    """One way from a word to the answer."""

    share: float  # of the answer: its influence
    steps: tuple[Step, ...]
    effect: float | None = None  # by how much the answer is less with its edges at their baseline
    edges: tuple[Edge, ...] = field(default=(), repr=False)  # of the circuit, that carry it


@dataclass(frozen=True)
class Story:
    """Which words decide an answer, and the paths behind it: all shares add up to 1."""

    circuit: Circuit = field(repr=False)  # that is told
    paths: tuple[Path, ...]  # those that support the answer first
    weaker: float  # share of the answer on other paths from words
    constants: float  # that ends in what is written whatever the prompt says
    unfollowed: Mapping[str, float]  # that ends before it reaches a word, by reason
    metric: Literal["logit difference", "log-probability"] | None = None  # of effects; None: not measured
    answer: float | None = None  # the metric in the prompt
    words: tuple[Word, ...] = ()  # by `Word.order`
    words_by: str = ""  # how their effects were measured
    baseline: str = ""  # of steps and paths
    nothing: float | None = None  # the metric with every writer at the baseline
    kept: float | None = None  # share of the gap that is left with these paths alone
    cut: float | None = None  # and without them
    note: str = ""  # why something is missing

    @property
    def in_shares(self) -> bool:
        """Are effects shares of the answer? A log-probability has none, nor has a lead that is small or negative."""
        return self.metric == "logit difference" and (self.answer or 0.0) >= LEAD

    @property
    def least(self) -> float:
        """The smallest effect that matters."""
        return least_effect(self.answer or 0.0, lead=self.metric == "logit difference")

    @property
    def decisive(self) -> tuple[Word, ...]:
        """Words whose exchanges mostly change the answer, or agree that it owes them something, of either sign."""
        return tuple(word for word in self.words if self._decides(word))

    def _decides(self, word: Word) -> bool:
        agreed = abs(word.effect) >= self.least and not word.disagrees
        return agreed or (word.flips or 0.0) >= MANY

    @property
    def either_way(self) -> tuple[Word, ...]:
        """Other words that matter: some exchanges help the answer and others hurt it."""
        far = EITHER * self.least
        return tuple(
            word
            for word in self.words
            if not self._decides(word)
            and (
                abs(word.effect) >= self.least
                or (word.span is not None and word.span[0] <= -far and far <= word.span[1])
            )
        )

    @property
    def held(self) -> float:
        """Which share of the answer the told paths carry."""
        return sum(path.share for path in self.paths)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        names = ("held", "weaker", "constants", "metric", "answer", "words_by", "baseline", "nothing", "kept", "cut")
        return {
            "model": dict(self.circuit.model),
            "parameters": self.circuit.parameters.record(),
            "tokens": list(self.circuit.tokens),
            **{name: getattr(self, name) for name in (*names, "note")},
            "words": [asdict(word) for word in self.words],
            "unfollowed": dict(self.unfollowed),
            "paths": [
                {"share": path.share, "effect": path.effect, "steps": [asdict(step) for step in path.steps]}
                for path in self.paths
            ],
        }

    def __str__(self) -> str:
        from keyhole.faithfulness.story import story_text

        return story_text(self)

    __repr__ = brief


def least_effect(answer: float, *, lead: bool) -> float:
    """The smallest effect that matters to an answer, which is a lead in logits or a log-probability.

    >>> least_effect(6.0, lead=True), least_effect(0.8, lead=True), least_effect(-0.5, lead=False)
    (0.6000000000000001, 0.3, 0.3)
    """
    return MATTERS * answer if lead and answer >= LEAD else LEAST


def verdict(effect: float | None, least: float) -> int:
    """Does it support the answer (1), hold it back (-1), or not matter alone (0)?"""
    return 0 if effect is None or abs(effect) < least else 1 if effect > 0 else -1


# Which ways does influence take from words to the answer? Routes over tokens, best first, exactly.
#
# Node by node there are tens of thousands of paths, and each holds next to nothing. A route gathers all that visit
# the same tokens by the same *moves*: heads that look from dest at src, any of them. Between moves influence *stays*
# at a token, in its MLPs, in heads that look at their own token, or in nothing. A node hands its influence on by the
# shares of its edges, so that a path of nodes has the product of them, and a route the sum of its paths: routes from
# words and what ends elsewhere add up to 1.

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
        steps: dict[int, list[tuple[Edge, float]]] = {i: [] for i in range(len(self.circuit.nodes))}
        for edge in self.circuit.edges:
            if edge.influence:
                steps[edge.receiver].append((edge, edge.influence / self.circuit.influence[edge.receiver]))
        return steps

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
                reached[edge.sender] += reached[node] * share
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
            for longer, masses in self._longer(route, arrived):
                heapq.heappush(waiting, (-longer.share, next(order), longer, masses))

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
                source, kind = self.circuit.nodes[edge.sender], self.kinds[edge.sender]
                if kind == "move":
                    moved[source.dest, source.src][edge.sender] += mass * share
                elif kind == "word":
                    ends[source.dest] += mass * share
                elif kind == "stay":
                    staying[edge.sender] += mass * share
        for move, masses in moved.items():
            yield Route((*route.moves, move), None, sum(masses.values())), masses
        for word, mass in ends.items():
            yield Route(route.moves, word, mass), {}


# Who carries a route? The nodes of its moves and stays, each with the influence that passes on this route alone.

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
            part = mass * share * rest.of(further, edge.sender) / rest.of(*place)
            if part > 0:
                waiting[further, edge.sender] += part
                group.sides[edge.side] += part
                edges |= {edge: None} if part >= SMALL * route.share else {}
                below = groups[ways.kinds[edge.sender], further]
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
            further = sum(share * self.of(after, edge.sender) for edge, share, after in self.onward(stage, node))
            self.known[stage, node] = float(ended) + further
        return self.known[stage, node]

    def onward(self, stage: int, node: int) -> Iterator[tuple[Edge, float, int]]:
        """The edges below a node that keep to the route, with their shares, and the stages they lead to."""
        for edge, share in self.ways.below[node]:
            source, kind = self.ways.circuit.nodes[edge.sender], self.ways.kinds[edge.sender]
            if kind == "move" and (source.dest, source.src) in self.route.moves[stage : stage + 1]:
                yield edge, share, stage + 1
            elif kind in ("stay", "word") and source.dest == self.route.token(stage):
                yield edge, share, stage
