"""How did the words become this answer? The routes that carry most of it, step by step, with the effect of each.

Influence is accounting: which share of the answer passes a step's writers, by attributions. Effect is a measurement:
how the answer changes when they write nothing, everything downstream free. Neither stands in for the other.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit, EdgeSide, Node
from keyhole.circuits.writer import OFFSETS, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric
from keyhole.intervene.verification import metric_of, run_of
from keyhole.intervene.writers import answers_without
from keyhole.progress import Progress
from keyhole.story.needed import words_silenced
from keyhole.story.roles import check_roles, role_of
from keyhole.story.routes import Kind, Route, Ways
from keyhole.story.walk import Group, groups_on

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

NAMED, MOST = 0.1, 4  # writers that carry this share of a path are named, so many of them at most
CONSTANT = ("bias", *OFFSETS)  # written whatever the prompt says
LEAD = 1.0  # logits: effects are no shares of a smaller lead, which many things are several times as large as
NEEDED, LOST = 0.2, 0.5  # a word without which so large a share of the lead is gone is needed; in logits or nats
WORDS = 5  # needed words that are told


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
    effect: float | None = None  # change of the answer when the writers write nothing; None: not measured
    others: tuple[Writer, ...] = ()  # those that are not named


@dataclass(frozen=True)
class Path:
    """One way from a word to the answer."""

    share: float  # of the answer
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Story:
    """The paths behind one answer, and what they leave out: all shares add up to 1."""

    circuit: Circuit = field(repr=False)  # that is told
    paths: tuple[Path, ...]  # the largest first
    weaker: float  # share of the answer on other paths from words
    constants: float  # that ends in what is written whatever the prompt says
    unfollowed: Mapping[str, float]  # that ends before it reaches a word, by reason
    metric: Literal["logit difference", "log-probability"] | None  # of effects; None: not measured
    answer: float | None  # the metric with nothing removed
    needed: tuple[Step, ...] = ()  # words where no told path begins, and without which much of the answer is gone

    @property
    def in_shares(self) -> bool:
        """Are effects shares of the answer? A log-probability has none, nor has a lead that is small or negative."""
        return self.metric == "logit difference" and (self.answer or 0.0) >= LEAD

    @property
    def held(self) -> float:
        """Which share of the answer the told paths carry."""
        return sum(path.share for path in self.paths)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        told = {name: getattr(self, name) for name in ("held", "weaker", "constants", "metric", "answer")}
        return {
            "model": dict(self.circuit.model),
            "parameters": self.circuit.parameters.record(),
            "tokens": list(self.circuit.tokens),
            **told,
            "unfollowed": dict(self.unfollowed),
            "paths": [asdict(path) for path in self.paths],
            "needed": [asdict(word) for word in self.needed],
        }

    def __str__(self) -> str:
        from keyhole.story.text import story_text

        return story_text(self)

    __repr__ = brief


def tell(
    circuit: Circuit,
    model: "Model | None" = None,
    *,
    top: int = 5,
    least: float = 0.01,
    roles: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Story:
    """The `top` paths that carry the most influence from words to the answer, each at least this share of it.

    Effects are measured where the circuit knows its run, or is told the `model` that made it. `roles` are the positions
    of a task's actors (`example.positions(run)`): without them no step is called by a task's words.
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
    told = islice(takewhile(lambda route: route.share >= least, ways.routes()), top)
    paths = [_path(ways, route, roles or {}) for route in told]
    words = sum(share for node, share in enumerate(circuit.influence) if ways.begins(node))
    story = Story(
        circuit=circuit,
        paths=tuple(paths),
        weaker=max(0.0, words - sum(path.share for path in paths)),
        metric=None,
        answer=None,
        **_left_out(ways),
    )
    metric = metric_of(circuit)
    if not metric.targets or (model is None and circuit.run is None):
        return story
    return _measured(story, run_of(circuit, model), metric, progress)


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
    groups, last = groups_on(ways, route), len(route.moves)
    order: list[tuple[Kind, int]] = [("word", last)]
    order += [(kind, stage) for stage in range(last, -1, -1) for kind in ("stay", "move")]
    steps = []
    for kind, stage in order:
        group = groups.get((kind, stage))
        if group is not None and group.influence >= NAMED * route.share:
            step = _step(ways, kind, group, NAMED * route.share)
            steps.append(replace(step, role=_role(ways.circuit, route, stage, roles)) if kind == "move" else step)
    return Path(route.share, tuple(steps))


def _step(ways: Ways, kind: Kind, group: Group, least: float) -> Step:
    """A group of nodes, the larger ones by name; the largest, where all are small."""
    assert kind in ("word", "stay", "move")
    nodes = ways.circuit.nodes
    ranked = sorted(group.carried, key=lambda i: -group.carried[i])
    named = [i for i in ranked[:MOST] if group.carried[i] >= least] or ranked[:1]
    one, rest = nodes[named[0]], set(group.carried) - set(named)
    return Step(
        kind=kind,
        dest=one.dest,
        src=one.src,
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


def _measured(story: Story, run: "Run", metric: Metric, progress: Progress | None) -> Story:
    """The same story with the effect of each step, and with the words that are needed besides."""
    sets = list({step.writers: None for path in story.paths for step in path.steps})
    before = metric.of(run.logits[metric.end])
    after = dict(zip(sets, answers_without(run, sets, metric, progress=progress), strict=True))
    paths = tuple(
        replace(path, steps=tuple(replace(step, effect=after[step.writers] - before) for step in path.steps))
        for path in story.paths
    )
    kind: Literal["logit difference", "log-probability"] = "logit difference" if metric.against else "log-probability"
    measured = replace(story, paths=paths, metric=kind, answer=before)
    return replace(measured, needed=_needed(measured, run, metric, progress))


def _needed(story: Story, run: "Run", metric: Metric, progress: Progress | None) -> tuple[Step, ...]:
    """Words where no path begins, and that the answer hangs on; those without which it loses most first."""
    assert story.answer is not None
    least = NEEDED * story.answer if story.in_shares else LOST
    told = {path.steps[0].src for path in story.paths}
    effects = {t: after - story.answer for t, after in words_silenced(run, told, metric, progress=progress).items()}
    passed = dict(zip(story.circuit.nodes, story.circuit.influence, strict=True))
    found = []
    for token in sorted((t for t, effect in effects.items() if effect <= -least), key=lambda t: effects[t])[:WORDS]:
        word = Node("embedding", 0, None, token, token)
        share = passed.get(word, 0.0)
        found.append(Step("word", token, token, (word.writer,), 0, share, effect=effects[token]))
    return tuple(found)
