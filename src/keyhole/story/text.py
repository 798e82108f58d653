"""How does a story read? A line for each path, from its word to the answer, folded to a width."""

from collections.abc import Mapping, Sequence

from keyhole.brief import model_label
from keyhole.circuits.circuit import Edge, Node
from keyhole.circuits.text import answer_label, count, node_label
from keyhole.circuits.writer import Writer
from keyhole.models.tokens.prompts import token_label
from keyhole.story.story import LOST, NEEDED, WORDS, Path, Step, Story

WIDTH = 100
LARGE = 0.2  # the influence of a step that is remarked on
SMALL = 0.05  # if its effect is less: a share of the answer, or in log-probability
FIRST = "at the first token"  # as flows say it of what is not followed
_VERBS = {"value": "moved by", "src": "found by", "dest": "aims"}  # how heads read what comes before them
_WORDS = {"moved by": "read as a head's value", "found by": "as its key", "aims": "as its query"}


def story_text(story: Story, width: int = WIDTH, *, names: Mapping[Edge, str] | None = None, long: bool = False) -> str:
    """A story for the terminal; below a path the `names` of the strongest signals by which its heads attend.

    `long`: with every writer of a step, and not only those that carry most of it.
    """
    circuit = story.circuit
    where = token_label(circuit.tokens, circuit.parameters.end)
    lines = [f"{model_label(str(circuit.model['name']))}, answer at {where}{answer_label(circuit)}"]
    lines += _folded(held_pieces(story), "", " ", width)
    for path in story.paths:
        steps = [f"{step_label(step, circuit.tokens, long=long)} {numbers(story, step)}" for step in path.steps]
        lines += _folded([*steps, "answer"], f"{path.share:5.1%}  ", " -> ", width)
        for name in _names(story, path, names or {}):
            lines += _folded(name.split(), "       ", " ", width)
    if pieces := needed_pieces(story):
        lines += _folded(pieces, "", " ", width)
    lines += _folded(numbers_legend(story, long=long).split(), "", " ", width)
    if legend := words_legend(story, long=long).split():
        lines += _folded(legend, "", " ", width)
    return "\n".join(lines)


def _names(story: Story, path: Path, names: Mapping[Edge, str]) -> list[str]:
    """Of every head that moves on a path, the name of its strongest named signal."""
    circuit, found = story.circuit, []
    for writer in (one for step in path.steps if step.kind == "move" for one in step.writers):
        node = Node.of(writer)
        into = [edge for edge in names if circuit.nodes[edge.target] == node]
        if writer.kind == "head" and into:
            best = max(into, key=lambda edge: edge.weight if edge.influence is None else edge.influence)
            who = node_label(circuit.nodes[best.source], circuit.tokens)
            found.append(f"{writer.layer}.{writer.head} attends by {best.side} of {who}: {names[best]}")
    return found


def step_label(step: Step, tokens: Sequence[str], *, long: bool = False) -> str:
    """A step in words: 2:Mary, mlps 2,3, moved by head 1.6 (14:to <- 2:Mary)."""
    dest = token_label(tokens, step.dest)
    if step.kind == "word":
        return dest
    own = _named(step.writers, itself=step.kind == "stay")
    if long and step.others:
        own += f" with {_named(step.others, itself=step.kind == 'stay')}"
    elif step.more:
        own += f",+{step.more}"
    if step.kind == "stay":
        return own
    role = f", {step.role}" if step.role else ""
    verb = f"{_VERBS[step.side]} " if step.side in _VERBS else ""
    return f"{verb}{own} ({dest} <- {token_label(tokens, step.src)}{role})"


def _named(writers: Sequence[Writer], *, itself: bool) -> str:
    """MLPs and heads by their numbers; heads that look at their own token are called so."""
    mlps = [str(one.layer) for one in writers if one.kind == "mlp"]
    heads = [f"{one.layer}.{one.head}" for one in writers if one.kind == "head"]
    told = [_several("mlp", mlps), _several("head", heads) + " (at itself)" * (itself and bool(heads))]
    return " and ".join(one for one in told if one)


def _several(what: str, names: Sequence[str]) -> str:
    return f"{what}{'s' * (len(names) > 1)} {','.join(names)}" if names else ""


def numbers(story: Story, step: Step) -> str:
    """Influence, and effect if it was measured: as a share of the answer where it is a positive difference."""
    if step.effect is None or story.answer is None:
        return f"[{step.influence:.0%}]"
    shares = story.in_shares
    effect = step.effect / story.answer if shares else step.effect
    # By what is told, so that equal numbers are remarked on alike.
    alone = ": not needed alone" if round(step.influence, 2) >= LARGE and abs(round(effect, 2)) < SMALL else ""
    told = f"{round(effect, 2) + 0.0:{'+.0%' if shares else '+.2f'}}"  # no -0
    return f"[{step.influence:.0%}, {told}{alone}]"


def decisive_pieces(story: Story) -> list[str]:
    """Words without which much of the answer is gone, whether a path begins there or not; nothing if not measured."""
    if story.answer is None:
        return []
    least = NEEDED * story.answer if story.in_shares else LOST
    words = {path.steps[0].src: path.steps[0] for path in story.paths if path.steps and path.steps[0].kind == "word"}
    words |= {word.src: word for word in story.needed}
    lost = sorted(
        (word for word in words.values() if (word.effect or 0.0) <= -least), key=lambda word: word.effect or 0.0
    )
    if not lost:
        return []
    told = [f"{step_label(word, story.circuit.tokens)} {numbers(story, word)}" for word in lost[:WORDS]]
    return ["Decisive words, without which the answer loses most:", *(f"{one}," for one in told[:-1]), f"{told[-1]}."]


def needed_pieces(story: Story) -> list[str]:
    """Words that the paths leave out, though the answer hangs on them."""
    if not story.needed:
        return []
    tokens = story.circuit.tokens
    words = [f"{step_label(word, tokens)} {numbers(story, word)}" for word in story.needed]
    return ["Needed, too, though no path above begins there:", *(f"{one}," for one in words[:-1]), f"{words[-1]}."]


def held_pieces(story: Story) -> list[str]:
    """What the told paths hold, and where the rest is, as far as it can be seen."""
    verb = "holds" if len(story.paths) == 1 else "hold"
    told = [f"{count(len(story.paths), 'path')} from words {verb} {story.held:.0%} of its influence"]
    told += [f"weaker ones {story.weaker:.0%}"] * _seen(story.weaker)
    told += [f"constants {story.constants:.0%}"] * _seen(story.constants)
    lost = sorted(((share, reason) for reason, share in story.unfollowed.items() if _seen(share)), reverse=True)
    told += [f"not followed: {', '.join(f'{reason} {share:.0%}' for share, reason in lost)}"] * bool(lost)
    return [f"{one};" for one in told[:-1]] + told[-1:]


def _seen(share: float) -> bool:
    """Is it more than 0%, as shares are told?"""
    return share >= 0.005


def numbers_legend(story: Story, *, long: bool = False) -> str:
    """What the numbers are, and what they are not."""
    words = f"of the writers named{' first' * long}: the share of the answer that passes them, on any path (accounting)"
    if story.metric is None:
        why = "give the model" if story.circuit.parameters.target_ids else "a direction has no answer to lose"
        told = f"[influence] {words}. Effects were not measured: {why}."
    else:
        change = "the share by which" if story.in_shares else "by how much"
        told = (
            f"[influence, effect] {words}, and {change} the {story.metric} ({story.answer:+.2f}) changes when they "
            "write nothing (measured; other paths may make up for them)."
        )
        if any((step.effect or 0.0) > 0 and "+" in numbers(story, step) for step in _steps(story)):
            told += " Above 0 the answer is stronger without them."
    if any(step.role for step in _steps(story)):
        told += " Role words go by the positions of tokens alone."
    return told


def words_legend(story: Story, *, long: bool = False) -> str:
    """What the words of a story mean, so far as they are in it."""
    steps = _steps(story)
    verbs = {_VERBS[step.side] for step in steps if step.side in _VERBS}
    stays = [writer for step in steps if step.kind == "stay" for writer in step.writers + step.others * long]
    told = [f"{word}: {means}" for word, means in _WORDS.items() if word in verbs]
    told += ["at itself: looking at its own token"] * any(writer.kind == "head" for writer in stays)
    told += ["+n: so many more (--long names them)"] * (not long and any(step.more for step in steps))
    told += ["pruned: too weak to follow (a smaller --eps follows more)"] * _seen(story.unfollowed.get("pruned", 0.0))
    if _seen(story.unfollowed.get(FIRST, 0.0)):
        told.append(f"{FIRST}: what is written there, mostly as a sink")
    return f"Words: {'; '.join(told)}." if told else ""


def _steps(story: Story) -> list[Step]:
    return [step for path in story.paths for step in path.steps]


def _folded(pieces: Sequence[str], start: str, joint: str, width: int) -> list[str]:
    """Pieces joined, broken between them alone; further lines begin under the first piece."""
    lines = [start + pieces[0]]
    for piece in pieces[1:]:
        longer = lines[-1] + joint + piece
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(" " * len(start) + joint.lstrip() + piece)
    return lines
