"""How did the words become this answer? First what was measured: which words decide. Then the paths, with both numbers.

Influence is accounting: which share of the answer passes a step's writers, by attributions. Effect is a measurement: by
how much the answer is less when a word is another, or when a step's writers, or a path's edges, are at their baseline.
Neither stands in for the other, so paths that the answer does not need, or that hold it back, stand after those that
support it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit, Edge, EdgeSide
from keyhole.circuits.writer import OFFSETS, Writer
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Likes
from keyhole.intervene.verification import metric_of, run_of
from keyhole.models.tokens.prompts import Prompt
from keyhole.progress import Progress
from keyhole.story.roles import check_roles, role_of
from keyhole.story.routes import Kind, Route, Ways
from keyhole.story.walk import Group, groups_on

if TYPE_CHECKING:
    from keyhole.models.model import Model

NAMED, MOST = 0.1, 4  # writers that carry this share of a path are named, so many of them at most
CONSTANT = ("bias", *OFFSETS)  # written whatever the prompt says
LEAD = 1.0  # logits: effects are no shares of a smaller lead, which many things are several times as large as
MATTERS, LEAST = 0.1, 0.3  # a word or path matters if its effect is this share of the lead; or so many logits or nats


class Telling(TypedDict, total=False):
    """What can be chosen about a story."""

    top: int
    least: float
    roles: Mapping[str, int] | None
    like: Likes | None
    counterfactual: Prompt | None


@dataclass(frozen=True)
class Word:
    """What the answer owes to a word of the prompt."""

    tokens: tuple[int, ...]  # of which it is made
    effect: float  # by how much the answer is less without it; below 0 the word holds it back
    influence: float  # share of the answer that is followed to its embedding
    flips: float | None = None  # share of the copies with another word in which the answer is no longer preferred
    minor: bool = False  # a function word, or a mark between clauses


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
    words: tuple[Word, ...] = ()  # the largest effect first, whatever its sign; function words after all others
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
        return MATTERS * (self.answer or 0.0) if self.in_shares else LEAST

    @property
    def decisive(self) -> tuple[Word, ...]:
        """All words that matter, with either sign."""
        return tuple(word for word in self.words if abs(word.effect) >= self.least)

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
        from keyhole.story.text import story_text

        return story_text(self)

    __repr__ = brief


def verdict(effect: float | None, least: float) -> int:
    """Does it support the answer (1), hold it back (-1), or not matter alone (0)?"""
    return 0 if effect is None or abs(effect) < least else 1 if effect > 0 else -1


def tell(
    circuit: Circuit,
    model: "Model | None" = None,
    *,
    top: int = 5,
    least: float = 0.01,
    roles: Mapping[str, int] | None = None,
    like: Likes | None = None,
    counterfactual: Prompt | None = None,
    progress: Progress | None = None,
) -> Story:
    """Which words decide, and the `top` paths of most influence from words to the answer, each at least this share.

    Effects are measured where the circuit knows its run, or is told the `model` that made it: of words by exchanging
    them for others, or, with prompts `like` this one or a `counterfactual` prompt, at that baseline; of steps and paths
    at the baseline. `roles` are the positions of a task's actors (`example.positions(run)`): without them no step is
    called by a task's words.
    """
    if not circuit.influence:
        raise KeyholeError(
            "this circuit ends at MLPs and does not account for influence, so it has no story: trace it with "
            'through="mlps" (--through mlps).'
        )
    if top < 1:
        raise KeyholeError(f"a story has at least one path, not {top}.")
    check_roles(roles or {}, len(circuit.tokens))
    ways = Ways(circuit)
    largest = islice(takewhile(lambda route: route.share >= least, ways.routes()), top)
    paths = [_path(ways, route, roles or {}) for route in largest]
    words = sum(share for node, share in enumerate(circuit.influence) if ways.begins(node))
    story = Story(
        circuit=circuit,
        paths=tuple(paths),
        weaker=max(0.0, words - sum(path.share for path in paths)),
        **_left_out(ways),
    )
    if not metric_of(circuit).targets or (model is None and circuit.run is None):
        return story
    from keyhole.story.measuring import measured

    return measured(story, run_of(circuit, model), like=like, counterfactual=counterfactual, progress=progress)


def _left_out(ways: Ways) -> dict[str, Any]:
    """What ends elsewhere than in words."""
    circuit, constants, unfollowed = ways.circuit, 0.0, dict[str, float]()
    for i, (node, share, leaf) in enumerate(zip(circuit.nodes, circuit.influence, circuit.leaves, strict=True)):
        if node.kind in CONSTANT:
            constants += share
        elif leaf is not None and share and not ways.begins(i):
            unfollowed[leaf] = unfollowed.get(leaf, 0.0) + share
    return {"constants": constants, "unfollowed": unfollowed}


def _path(ways: Ways, route: Route, roles: Mapping[str, int]) -> Path:
    """A route as steps from its word up. A stay that hardly any of it makes is no step."""
    (groups, edges), last = groups_on(ways, route), len(route.moves)
    order: list[tuple[Kind, int]] = [("word", last)]
    order += [(kind, stage) for stage in range(last, -1, -1) for kind in ("stay", "move")]
    steps = []
    for kind, stage in order:
        group = groups.get((kind, stage))
        if group is not None and group.influence >= NAMED * route.share:
            step = _step(ways, kind, group, NAMED * route.share)
            steps.append(replace(step, role=_role(ways.circuit, route, stage, roles)) if kind == "move" else step)
    return Path(route.share, tuple(steps), edges=tuple(edges))


def _step(ways: Ways, kind: Kind, group: Group, least: float) -> Step:
    """A group of nodes, the larger ones by name; the largest, where all are small."""
    assert kind in ("word", "stay", "move")
    nodes = ways.circuit.nodes
    ranked = sorted(group.carried, key=lambda i: -group.carried[i])
    named = [i for i in ranked[:MOST] if group.carried[i] >= least] or ranked[:1]
    first, rest = nodes[named[0]], set(group.carried) - set(named)
    return Step(
        kind=kind,
        dest=first.dest,
        src=first.src,
        writers=tuple(nodes[i].writer for i in sorted(named, key=lambda i: nodes[i].key)),
        more=len(rest),
        influence=ways.through(named),
        side=max(group.sides.items(), key=itemgetter(1))[0] if kind == "move" and group.sides else None,
        others=tuple(nodes[i].writer for i in sorted(rest, key=lambda i: nodes[i].key)),
    )


def _role(circuit: Circuit, route: Route, stage: int, roles: Mapping[str, int]) -> str | None:
    """What the move into a stage looks like, and who reads it."""
    reader = route.moves[stage - 2] if stage > 1 else None
    return role_of(route.moves[stage - 1], reader, circuit.token_ids, roles)
