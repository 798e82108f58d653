"""How did the words become this answer? First what was measured: which words decide. Then the paths, with both numbers.

Influence is accounting: which share of the answer passes a step's writers, by attributions. Effect is a measurement: by
how much the answer is less when a word is another, or when a step's writers, or a path's edges, are at their baseline.
Neither stands in for the other, so paths that the answer does not need, or that hold it back, stand after those that
support it.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypedDict

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.writer import OFFSETS
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Likes
from keyhole.intervene.cuts import metric_of, run_of
from keyhole.models.tokens.prompts import Prompt
from keyhole.progress import Progress
from keyhole.story.measuring import measured
from keyhole.story.record import Path, Step, Story
from keyhole.story.roles import check_roles, role_of
from keyhole.story.routes import Kind, Route, Ways
from keyhole.story.walk import Group, groups_on

if TYPE_CHECKING:
    from keyhole.models.model import Model

NAMED, MOST = 0.1, 4  # writers that carry this share of a path are named, so many of them at most
CONSTANT = ("bias", *OFFSETS)  # written whatever the prompt says


class Telling(TypedDict, total=False):
    """What can be chosen about a story."""

    top: int
    least: float
    roles: Mapping[str, int] | None
    like: Likes | None
    counterfactual: Prompt | None


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
