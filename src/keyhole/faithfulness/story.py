"""Why does the model say this? Words and paths by measured effect, and how the story reads.

How did the words become this answer? First what was measured: which words decide. Then the paths, with both numbers.

Influence is accounting: which share of the answer passes a step's writers, by attributions. Effect is a measurement: by
how much the answer is less when a word is another, or when a step's writers, or a path's edges, are at their baseline.
Neither stands in for the other, so paths that the answer does not need, or that hold it back, stand after those that
support it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Unpack

from keyhole.brief import model_label
from keyhole.circuits.circuit import Circuit, Edge, Node
from keyhole.circuits.records import OFFSETS, Sufficient, Writer
from keyhole.circuits.text import answer_label, answer_place, count, node_label
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Likes
from keyhole.faithfulness.routes import Group, Kind, Path, Route, Step, Story, Ways, Word, groups_on, verdict
from keyhole.faithfulness.search import WIDER
from keyhole.faithfulness.words import check_roles, measured, role_of
from keyhole.intervene.cuts import metric_of, run_of
from keyhole.models.tokens import Prompt, token_label
from keyhole.progress import Progress
from keyhole.settings.fields import chosen
from keyhole.settings.measuring import StoryOptions, StorySettings

if TYPE_CHECKING:
    from keyhole.models.model import Model

LITTLE = 0.5  # of the gap: paths that keep less leave most of the answer unexplained
NAMED, MOST = 0.1, 4  # writers that carry this share of a path are named, so many of them at most
CONSTANT = ("bias", *OFFSETS)  # written whatever the prompt says


def tell(
    circuit: Circuit,
    model: "Model | None" = None,
    *,
    roles: Mapping[str, int] | None = None,
    like: Likes | None = None,
    counterfactual: Prompt | None = None,
    settings: StorySettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[StoryOptions],
) -> Story:
    """Which words decide, and the `top` paths of most influence from words to the answer, each at least this share.

    Effects are measured where the circuit knows its run, or is told the `model` that made it: of words by exchanging
    them for others, or, with prompts `like` this one or a `counterfactual` prompt, at that baseline; of steps and paths
    at the baseline. `roles` are the positions of a task's actors (`example.positions(run)`): without them no step is
    called by a task's words.
    """
    if isinstance(circuit.parameters, Sufficient):
        raise KeyholeError(
            "this circuit suffices: its edges have shares and no influence, along which stories are told. Print the "
            "circuit itself, or trace the prompt for a story."
        )
    if not circuit.influence:
        raise KeyholeError(
            "this circuit ends at MLPs and does not account for influence, so it has no story: trace it with "
            'through="mlps" (--through mlps).'
        )
    wanted = chosen(settings, StorySettings, options)
    check_roles(roles or {}, len(circuit.tokens))
    ways = Ways(circuit)
    largest = islice(takewhile(lambda route: route.share >= wanted.least, ways.routes()), wanted.top)
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


# How does a story read? A line for each path, from its word to the answer, folded to a width.

WIDTH = 100
_INDENT = 7  # of a path's further lines
FIRST = "at the first token"  # as flows say it of what is not followed
_VERBS = {"value": "moved by", "src": "found by", "dest": "aims"}  # how heads read what comes before them
_WORDS = {"moved by": "read as a head's value", "found by": "as its key", "aims": "as its query"}
_HEADINGS = {
    1: "Paths that support the answer",
    0: "Paths that do not matter to it alone",
    -1: "Paths that hold it back",
}


def story_text(story: Story, width: int = WIDTH, *, names: Mapping[Edge, str] | None = None, long: bool = False) -> str:
    """A story for the terminal; below a path the `names` of the strongest signals by which its heads attend.

    `long`: with every writer of a step, and not only those that carry most of it.
    """
    circuit = story.circuit
    first = f"{model_label(str(circuit.model['name']))}, {answer_place(circuit)}{answer_label(circuit)}"
    lead = [] if story.answer is None else [f"{story.metric} {story.answer:+.2f}"]
    lines = _folded([first + ";" * bool(lead), *lead], "", " ", width)
    if pieces := words_pieces(story):
        lines += _folded(pieces, "", " ", width)
    for heading, paths in headed(story):
        lines += [f"{heading}:"] * bool(heading)
        for path in paths:
            steps = [f"{step_label(step, circuit.tokens, long=long)} {numbers(step)}" for step in path.steps]
            lines += _folded([*steps, "answer"], f"{path_numbers(path)}  ", " -> ", width, further=_INDENT)
            for name in _names(story, path, names or {}):
                lines += _folded(name.split(), " " * _INDENT, " ", width)
    for sentence in closing(story):
        lines += _folded(sentence.split(), "", " ", width)
    lines += _folded(numbers_legend(story, long=long).split(), "", " ", width)
    if legend := words_legend(story, long=long).split():
        lines += _folded(legend, "", " ", width)
    return "\n".join(lines)


def words_pieces(story: Story) -> list[str]:
    """Which words decide, with the effect of each; empty if it was not measured."""
    if not story.words:
        return []
    major = [word for word in story.decisive if not word.minor]
    minor = [word for word in story.decisive if word.minor]
    if not major and not minor:
        average = " on average" * bool(story.either_way)
        none = f"No word alone decides: each changes the {story.metric} by less than {story.least:.2f}{average}."
        return [none, *either_way(story)]
    pieces = ["Words that decide:", *_listed(story, major)] if major else ["No content word alone decides."]
    pieces += either_way(story, minor=False)
    minor += [word for word in story.either_way if word.minor]
    return [*pieces, *(["Function words and marks:", *_listed(story, minor)] if minor else [])]


def either_way(story: Story, *, minor: bool = True) -> list[str]:
    """Words whose exchanges help or hurt, as it happens, function words among them or not; empty if there are none."""
    words = [word for word in story.either_way if minor or not word.minor]
    return ["Either way, by what stands there instead:", *_listed(story, words)] if words else []


def _listed(story: Story, words: Sequence[Word]) -> list[str]:
    return [f"{word_label(story, word)}{',' if i < len(words) - 1 else '.'}" for i, word in enumerate(words)]


def word_label(story: Story, word: Word) -> str:
    """A word with what the answer owes to it, as a range where its exchanges disagree: 4:Italy +8.40."""
    flips = f" (another answer in {word.flips:.0%})" if word.flips else ""
    if word.span is not None and (word.disagrees or word in story.either_way):
        return f"{word_text(story, word)} {word.span[0]:+.2f} to {word.span[1]:+.2f}{flips}"
    return f"{word_text(story, word)} {word.effect:+.2f}{flips}"


def word_text(story: Story, word: Word) -> str:
    """A word with its place: 4:Italy."""
    tokens = story.circuit.tokens
    return token_label(tokens, word.tokens[0]) + "".join(tokens[token].rstrip() for token in word.tokens[1:])


def headed(story: Story) -> list[tuple[str, list[Path]]]:
    """Paths by what they do to the answer; without a heading where that was not measured."""
    groups: dict[str, list[Path]] = {}
    for path in story.paths:
        heading = "" if path.effect is None else _HEADINGS[verdict(path.effect, story.least)]
        groups.setdefault(heading, []).append(path)
    return list(groups.items())


def path_numbers(path: Path) -> str:
    """A path's influence, and its effect."""
    return f"{path.share:5.1%}" + ("" if path.effect is None else f" {path.effect:+7.2f}")


def closing(story: Story) -> list[str]:
    """What is said after the paths: what they carry together, what is odd about them, and what is missing."""
    note = story.note and f"Note: {story.note.rstrip('.')}."
    sentences = [together(story), beyond(story), " ".join(held_pieces(story)) + ".", note, advice(story)]
    return [sentence for sentence in sentences if sentence]


def together(story: Story) -> str:
    """What the paths carry together; empty if it was not measured."""
    if story.kept is None or story.cut is None:
        return ""
    these = "this path" if len(story.paths) == 1 else f"these {len(story.paths)} paths"
    return (
        f"With {these} alone {story.kept:.0%} of the answer's gap to the baseline remains, without "
        f"{'it' if len(story.paths) == 1 else 'them'} {story.cut:.0%}."
    )


def beyond(story: Story) -> str:
    """Which paths' effects are larger than the whole lead, and what that means; empty if none is."""
    over = [path.effect for path in story.paths if path.effect is not None and path.effect > (story.answer or 0.0)]
    if not story.in_shares or not over:
        return ""
    which = f"One path's effect ({over[0]:+.2f}) is"
    if len(over) > 1:
        which = f"Effects of {len(over)} paths (up to {max(over):+.2f}) are"
    return (
        f"{which} larger than the whole {story.metric} of {story.answer:+.2f}: cut alone, such a path leaves edges "
        "that speak for another answer. Effects are no shares and do not add up."
    )


def advice(story: Story) -> str:
    """What to ask instead where the paths keep little of the answer, or where that could not be measured."""
    if not story.baseline or not story.paths:  # no model to measure with, or one that no pass with masks takes
        return ""
    if story.kept is None:
        return WIDER
    if story.kept < LITTLE:
        return "These paths are no explanation of the whole answer: --sufficient searches for edges that carry it."
    return ""


def _names(story: Story, path: Path, names: Mapping[Edge, str]) -> list[str]:
    """Of every head that moves on a path, the name of its strongest named signal."""
    circuit, lines = story.circuit, []
    for writer in (member for step in path.steps if step.kind == "move" for member in step.writers):
        node = Node.of(writer)
        into = [edge for edge in names if circuit.nodes[edge.receiver] == node]
        if writer.kind == "head" and into:
            best = max(into, key=lambda edge: edge.weight if edge.influence is None else edge.influence)
            who = node_label(circuit.nodes[best.sender], circuit.tokens)
            lines.append(f"{writer.layer}.{writer.head} attends by {best.side} of {who}: {names[best]}")
    return lines


def step_label(step: Step, tokens: Sequence[str], *, long: bool = False) -> str:
    """A step in words: 2:Mary, mlps 2,3, moved by head 1.6 (14:to <- 2:Mary)."""
    dest = token_label(tokens, step.dest)
    if step.kind == "word":
        return dest
    names = _named(step.writers, itself=step.kind == "stay")
    if long and step.others:
        names += f" with {_named(step.others, itself=step.kind == 'stay')}"
    elif step.more:
        names += f",+{step.more}"
    if step.kind == "stay":
        return names
    role = f", {step.role if step.tested else f'looks like {step.role}'}" if step.role else ""
    verb = f"{_VERBS[step.side]} " if step.side in _VERBS else ""
    return f"{verb}{names} ({dest} <- {token_label(tokens, step.src)}{role})"


def _named(writers: Sequence[Writer], *, itself: bool) -> str:
    """MLPs and heads by their numbers; heads that look at their own token are called so."""
    mlps = [str(writer.layer) for writer in writers if writer.kind == "mlp"]
    heads = [f"{writer.layer}.{writer.head}" for writer in writers if writer.kind == "head"]
    groups = [_several("mlp", mlps), _several("head", heads) + " (at itself)" * (itself and bool(heads))]
    return " and ".join(writer for writer in groups if writer)


def _several(kind: str, names: Sequence[str]) -> str:
    return f"{kind}{'s' * (len(names) > 1)} {','.join(names)}" if names else ""


def numbers(step: Step) -> str:
    """Influence, and effect if it was measured."""
    if step.effect is None:
        return f"[{step.influence:.0%}]"
    return f"[{step.influence:.0%}, {round(step.effect, 2) + 0.0:+.2f}]"  # no -0


def held_pieces(story: Story) -> list[str]:
    """What the told paths hold, and where the rest is, as far as it can be seen."""
    verb = "holds" if len(story.paths) == 1 else "hold"
    pieces = [f"{count(len(story.paths), 'path')} from words {verb} {story.held:.0%} of its influence"]
    pieces += [f"weaker ones {story.weaker:.0%}"] * _shown(story.weaker)
    pieces += [f"constants {story.constants:.0%}"] * _shown(story.constants)
    lost = sorted(((share, reason) for reason, share in story.unfollowed.items() if _shown(share)), reverse=True)
    pieces += [f"not followed: {', '.join(f'{reason} {share:.0%}' for share, reason in lost)}"] * bool(lost)
    return [f"{piece};" for piece in pieces[:-1]] + pieces[-1:]


def _shown(share: float) -> bool:
    """Is it more than 0%, as shares are told?"""
    return share >= 0.005


def numbers_legend(story: Story, *, long: bool = False) -> str:
    """What the numbers are, and what they are not."""
    if story.metric is None:
        why = "give the model" if story.circuit.parameters.target_ids else "a direction has no answer to lose"
        return f"[influence]: the share of the answer that passes these writers (accounting). Not measured: {why}."
    unit = "logits" if story.metric == "logit difference" else "log-probability"
    sentences = []
    if (missed := story.circuit.errors.get("rounding")) is not None:
        sentences.append(f"Half precision rounded away {missed:.1%} of the last residual stream.")
    if story.words:
        sentences.append(f"Effect of a word: what the {story.metric} loses with {story.words_by}, in {unit}.")
    if story.baseline:
        first = " first" if long else ""
        sentences.append(
            f"Paths: influence (accounting) and effect; [influence, effect] of the writers named{first}. Effect: what "
            f"the {story.metric} loses with them at {story.baseline}. Below 0 they hold the answer back."
        )
    elif story.paths:
        sentences.append("Paths: influence (accounting).")
    if any(step.role for step in _steps(story)):
        sentences.append('A role without "looks like" was tested by changing the words it is about.')
    return " ".join(sentences)


def words_legend(story: Story, *, long: bool = False) -> str:
    """What the words of a story mean, so far as they are in it."""
    steps = _steps(story)
    verbs = {_VERBS[step.side] for step in steps if step.side in _VERBS}
    stays = [writer for step in steps if step.kind == "stay" for writer in step.writers + step.others * long]
    pieces = [f"{word}: {means}" for word, means in _WORDS.items() if word in verbs]
    pieces += ["at itself: looking at its own token"] * any(writer.kind == "head" for writer in stays)
    pieces += ["+n: so many more (--long names them)"] * (not long and any(step.more for step in steps))
    pieces += ["pruned: too weak to follow (a smaller --eps follows more)"] * _shown(
        story.unfollowed.get("pruned", 0.0)
    )
    if _shown(story.unfollowed.get(FIRST, 0.0)):
        pieces.append(f"{FIRST}: what is written there, mostly as a sink")
    return f"Words: {'; '.join(pieces)}." if pieces else ""


def _steps(story: Story) -> list[Step]:
    return [step for path in story.paths for step in path.steps]


def _folded(pieces: Sequence[str], start: str, joint: str, width: int, *, further: int | None = None) -> list[str]:
    """Pieces joined, broken between them alone; further lines begin under the first piece, or where it is said."""
    lines, indent = [start + pieces[0]], len(start) if further is None else further
    for piece in pieces[1:]:
        longer = lines[-1] + joint + piece
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(" " * indent + joint.lstrip() + piece)
    return lines
