"""How did the words become this answer? The routes that carry most of it, step by step, with the effect of each.

Influence is accounting: which share of the answer passes a step's writers, by attributions. Effect is a measurement:
how the answer changes when they write nothing, everything downstream free. Neither stands in for the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit, EdgeSide
from keyhole.circuits.writer import OFFSETS, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric
from keyhole.intervene.verification import metric_of, run_of
from keyhole.intervene.writers import answers_without
from keyhole.progress import Progress
from keyhole.story.roles import check_roles, role_of
from keyhole.story.routes import Kind, Route, Ways
from keyhole.story.walk import Group, groups_on

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run

NAMED, MOST = 0.1, 4  # writers that carry this share of a path are named, so many of them at most
CONSTANT = ("bias", *OFFSETS)  # written whatever the prompt says


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
    metric, answer = metric_of(circuit), None
    if metric.targets and (model is not None or circuit.run is not None):
        run = run_of(circuit, model)
        answer = metric.of(run.logits[metric.end])
        paths = _measured(run, paths, metric, progress)
    words = sum(share for node, share in enumerate(circuit.influence) if ways.begins(node))
    return Story(
        circuit=circuit,
        paths=tuple(paths),
        weaker=max(0.0, words - sum(path.share for path in paths)),
        metric=None if answer is None else "logit difference" if metric.against else "log-probability",
        answer=answer,
        **_left_out(ways),
    )


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


def _measured(run: "Run", paths: Sequence[Path], metric: Metric, progress: Progress | None) -> list[Path]:
    """The same paths with the effect of each step."""
    sets = list({step.writers: None for path in paths for step in path.steps})
    before = metric.of(run.logits[metric.end])
    after = dict(zip(sets, answers_without(run, sets, metric, progress=progress), strict=True))
    return [
        replace(path, steps=tuple(replace(step, effect=after[step.writers] - before) for step in path.steps))
        for path in paths
    ]
