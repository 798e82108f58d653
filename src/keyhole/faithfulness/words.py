"""Which words and paths matter, and what do moves look like? Measured on this prompt.

What is measured for a story? Effects of words, steps and paths, what paths carry together, and tests of roles.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from keyhole.circuits.circuit import Node
from keyhole.circuits.records import Writer
from keyhole.errors import KeyholeError
from keyhole.faithfulness.baseline import Likes, as_far, baseline
from keyhole.faithfulness.effects import edge_list, edge_of, out_of, place_of
from keyhole.faithfulness.other_words import COPIES, MORE, Words, effects_of_words, is_minor, words_of
from keyhole.faithfulness.routes import Move, Path, Step, Story, Word, least_effect, verdict
from keyhole.faithfulness.search import LEAST_GAP, small_gap
from keyhole.faithfulness.shares import MaskedQuestion, question, until_answer
from keyhole.faithfulness.template import template_tokens
from keyhole.faithfulness.token_masks import EdgeList, all_but, no_edges, only
from keyhole.intervene.cuts import metric_of
from keyhole.intervene.removal import Metric
from keyhole.models.tokens import Prompt
from keyhole.progress import Progress, part_of, silent
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.models.run import Run

TESTS = 4  # copies in which the words of a role are changed
HALF = 0.5  # of the attention: a role holds if less is left where it should go, or more where it should stay


def measured(
    story: Story,
    whole: "Run",
    *,
    like: Likes | None = None,
    counterfactual: Prompt | Example | None = None,
    progress: Progress | None = None,
) -> Story:
    """The same story, with words first and with the effects of its steps and paths."""
    whole._require_fresh()  # effects of other weights would stand beside this circuit's influence
    metric, progress = metric_of(story.circuit), progress or silent
    run = until_answer(whole, metric.end)
    if like is not None and not isinstance(like, str):
        like = [as_far(prompt, run, whole) for prompt in like]
    counterfactual = None if counterfactual is None else as_far(counterfactual, run, whole)
    answer = metric.of(run.logits[metric.at])
    story = replace(story, metric="logit difference" if metric.against else "log-probability", answer=answer)
    exchanged = (like is None or isinstance(like, str)) and counterfactual is None and run.model.tokenizer is not None
    if exchanged:
        story = _with_words(story, run, metric, part_of(progress, 0.0, 0.4))
    story = replace(story, paths=tuple(_tested(path, run) for path in story.paths))
    try:
        stand_in = baseline(run, like=like, counterfactual=counterfactual, progress=part_of(progress, 0.4, 0.7))
        posed = question(run, metric, stand_in)
    except KeyholeError as error:
        if like is not None or counterfactual is not None:
            raise
        return replace(story, note=f"effects of steps and paths were not measured: {error}")
    story = _with_paths(story, posed, part_of(progress, 0.7, 1.0))
    return story if exchanged else _with_words_at(story, posed)


def _influences(story: Story) -> Mapping[int, float]:
    """Which share of the answer is followed to the embedding of each token."""
    pairs = zip(story.circuit.nodes, story.circuit.influence, strict=True)
    return {node.dest: share for node, share in pairs if node.kind == "embedding"}


def deciding_words(
    run: "Run", metric: Metric, influences: Mapping[int, float], *, progress: Progress | None = None
) -> tuple[Word, ...]:
    """The words of a prompt, each exchanged for others: those that change the answer most often first."""
    answer, words, template = metric.of(run.logits[metric.at]), [], template_tokens(run)
    least = least_effect(answer, lead=bool(metric.against))
    for tokens, lost in effects_of_words(run, metric, least=least, progress=progress).items():
        flips = float((lost > answer).mean()) if metric.against else None
        share = sum(influences.get(token, 0.0) for token in tokens)
        span = (float(lost.min()), float(lost.max()))
        minor = is_minor(_text(run, tokens)) or template.issuperset(tokens)
        far = float((lost >= least).mean()), float((lost <= -least).mean())
        words.append(Word(tokens, float(lost.mean()), share, flips, minor, span, *far))
    return _ranked(words)


def _with_words(story: Story, run: "Run", metric: Metric, progress: Progress) -> Story:
    """Effects of words, each exchanged for others in the prompt itself."""
    words = deciding_words(run, metric, _influences(story), progress=progress)
    others = f"the {COPIES} others that the model finds likeliest there"
    by = f"the word exchanged for {others} ({MORE} where {COPIES} leave it open)"
    return replace(story, words=words, words_by=by)


def _ranked(words: list[Word]) -> tuple[Word, ...]:
    return tuple(sorted(words, key=lambda word: word.order))


def _text(run: "Run", tokens: tuple[int, ...]) -> str:
    return "".join(run.tokens[token] for token in tokens)


def _with_words_at(story: Story, question: MaskedQuestion) -> Story:
    """Effects of words at the baseline of the rest: of its embedding, at each token."""
    influences, places = _influences(story), range(len(question.run))
    answers = question.answers([all_but(out_of(question.masked.wiring, 0, token)) for token in places])
    lost, template = (question.ends[0] - answers).tolist(), template_tokens(question.run)
    words = [
        Word(
            (token,),
            effect,
            influences.get(token, 0.0),
            minor=is_minor(question.run.tokens[token]) or token in template,
        )
        for token, effect in zip(places, lost, strict=True)
    ]
    by = f"its embedding at {question.baseline}"
    return replace(story, words=_ranked(words), words_by=by)


def _with_paths(story: Story, question: MaskedQuestion, progress: Progress) -> Story:
    """Effects of steps and paths at the baseline, and what the paths keep together."""
    everything, nothing = question.ends
    steps = list({step.writers: None for path in story.paths for step in path.steps})
    edges = [_edges_of(path, story, question) for path in story.paths]
    together = edge_list(map(tuple, np.concatenate([no_edges(), *edges]).tolist()))  # type: ignore[arg-type]
    masks = [all_but(_silenced(writers, question)) for writers in steps]
    masks += [*map(all_but, edges), only(together), all_but(together)]
    answers = question.answers(masks, progress)
    effects = dict(zip(steps, (everything - answers).tolist(), strict=False))
    paths = []
    for path, answer in zip(story.paths, answers[len(steps) :], strict=False):
        steps_with = tuple(replace(step, effect=effects[step.writers]) for step in path.steps)
        paths.append(replace(path, steps=steps_with, effect=float(everything - answer)))
    story = replace(story, paths=_ordered(paths, story.least), baseline=question.baseline.name, nothing=nothing)
    gap = everything - nothing
    if gap < LEAST_GAP:
        small = (
            f"at the baseline the {story.metric} is {nothing:+.2f}, against {everything:+.2f} in the prompt: "
            f"{small_gap(gap)} to say what the paths keep of it"
        )
        return replace(story, note=small)
    kept, cut = ((float(answer) - nothing) / gap for answer in answers[-2:])
    return replace(story, kept=kept, cut=cut, note=question.baseline.note)


def _ordered(paths: list[Path], least: float) -> tuple[Path, ...]:
    """Those that support the answer, those that do not matter alone, those that hold it back; by influence in each."""
    return tuple(sorted(paths, key=lambda path: (-verdict(path.effect, least), -path.share)))


def _edges_of(path: Path, story: Story, question: MaskedQuestion) -> EdgeList:
    return edge_list(edge_of(story.circuit, edge, question.masked.wiring) for edge in path.edges)


def _silenced(writers: tuple[Writer, ...], question: MaskedQuestion) -> EdgeList:
    """All edges out of some writers; constants have none."""
    places = {place_of(Node.of(writer), question.masked.wiring) for writer in writers} - {None}
    lists = [out_of(question.masked.wiring, *place) for place in sorted(places)]  # type: ignore[misc, type-var]
    return np.concatenate([no_edges(), *lists])


# -- do roles hold? ------------------------------------------------------------------------------------------


def _tested(path: Path, run: "Run") -> Path:
    return replace(path, steps=tuple(_test(step, run) if step.role else step for step in path.steps))


def _test(step: Step, run: "Run") -> Step:
    """Change the words that a role is about, and see whether the heads still attend there."""
    changed: Mapping[str, tuple[int, Callable[[float], bool]]] = {
        "induction": (step.src - 1, lambda left: left < HALF),  # what stood before, as it does now
        "duplicate token": (step.src, lambda left: left < HALF),
        "previous token": (step.src, lambda left: left >= HALF),  # whatever it says
    }
    roles = [role for role in (step.role or "").split(" or ") if role in changed]
    if not roles or run.model.tokenizer is None:
        return step
    words = words_of(run)
    holds = [
        changed[role][1](left) for role in roles if (left := _left(step, run, words, changed[role][0])) is not None
    ]
    return replace(step, tested=bool(holds) and all(holds))


def _left(step: Step, run: "Run", words: Words, token: int) -> float | None:
    """Which share of the attention of a step's heads is left when one word is another; None: it cannot be exchanged."""
    word = next((word for word in words.words if token in word), None)
    heads = [writer for writer in step.writers if writer.kind == "head"]
    if word is None or not heads:
        return None
    copies = run.model.run_many([list(ids) for ids in words.copies([[token]], TESTS)], bos=False)
    before = _attention(run, heads)
    return float(np.mean([_attention(copy, heads) for copy in copies]) / before) if before > 0 else None


def _attention(run: "Run", heads: list[Writer]) -> Float[np.ndarray, ""]:
    weights = [run.attention_run(w.layer).weights([w.head or 0], [w.dest])[0, 0, w.src].item() for w in heads]
    return np.asarray(np.mean(weights))


# What does a move look like? Words for where heads look from and at, and no proof of what they do elsewhere.


def check_roles(roles: Mapping[str, int], length: int) -> None:
    """Refuse roles that stand outside the prompt."""
    outside = {role: at for role, at in roles.items() if not 0 <= at < length}
    if outside:
        raise KeyholeError(f"roles are token positions from 0 to {length - 1} in this prompt, not {outside}.")


def role_of(move: Move, reader: Move | None, token_ids: Sequence[int], roles: Mapping[str, int]) -> str | None:
    """A word for a move: of the task, where its roles are known, or for what its two tokens have in common.

    `reader` is the move that reads it next; None: the answer. Published names also say who reads a head.

    >>> role_of((3, 1), None, [7, 8, 9, 7], {}), role_of((3, 2), None, [7, 8, 9, 6], {})
    ('induction', 'previous token')
    >>> roles = {"END": 3, "IO": 1, "S2": 2}
    >>> role_of((3, 1), None, [6, 7, 8, 9], roles), role_of((3, 2), (3, 1), [6, 7, 8, 9], roles)
    ('name mover', 'S-inhibition')
    """
    end, receiver, giver = (roles.get(role) for role in ("END", "IO", "S2"))
    if None not in (end, receiver, giver):
        if move == (end, receiver) and reader is None:
            return "name mover"
        if move == (end, giver) and reader == (end, receiver):
            return "S-inhibition"
    dest, src = move
    words = {
        "duplicate token": token_ids[src] == token_ids[dest],
        "previous token": src == dest - 1,
        "induction": src > 0 and token_ids[src - 1] == token_ids[dest],
    }
    return " or ".join(word for word, fits in words.items() if fits) or None
