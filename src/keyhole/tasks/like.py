"""Which prompts are like this one, and what is its counterfactual? The same wording and tokens, with other words."""

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.tasks.catalogue import CATALOGUE
from keyhole.tasks.example import Example
from keyhole.tasks.variants import COUNTERFACTUALS, OTHERS, Draw, Words

if TYPE_CHECKING:
    from keyhole.models.model import Model

LEAST = 8  # prompts of which a mean still says what they have in common
_TRIES = 200  # draws for each prompt that is wanted: words of several tokens rarely have as many again


def like(example: Example, model: "Model", n: int = 32, seed: int = 0) -> list[Example]:
    """Which prompts of its task are like this one? The same wording and order, other names or values.

    All have as many tokens for this model, with every role at the same tokens; the prompt itself is not among them. At
    most n, and no fewer than 8 (or n, if that is less): otherwise they are refused.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> [example] = ioi(1)
    >>> others = like(example, keyhole.load(), n=9)
    >>> len(others), {other.template for other in others} == {example.template}
    (9, True)
    >>> {example.answer, example.wrong} & {name for other in others for name in (other.answer, other.wrong)}
    set()
    """
    draw = OTHERS.get(example.task)
    if draw is None:
        raise KeyholeError(f"no prompts like one of {example.task!r} can be drawn: only of {', '.join(OTHERS)}.")
    if n < 1:
        raise KeyholeError(f"there cannot be {n} prompts like this one: ask for at least one.")
    found = _draws(example, model, draw, n=n, seed=seed)
    if len(found) < min(n, LEAST):
        raise KeyholeError(
            f"only {len(found)} prompts are like {example.text!r} for {model.name}, with as many tokens and every role "
            f"at the same ones, and {min(n, LEAST)} are needed: ask about another prompt, or give your own list."
        )
    return found


def counterfactual(example: Example, model: "Model", *, kind: str | None = None, seed: int = 0) -> Example:
    """What would this prompt be, were what decides its answer another? As many tokens, roles at the same ones.

    `kind` is one of `counterfactual_kinds(example.task)`, by default the first. The answer is that of the new prompt;
    where nothing decides it any more, there is none. The label "counterfactual" says which kind it is.

    >>> import keyhole
    >>> from keyhole.tasks import ioi
    >>> [example] = ioi(1, 2, names=["Mary", "John"], wordings=[0], order="ABBA")
    >>> other = counterfactual(example, keyhole.load(), kind="third name")
    >>> [example.word(role) == other.word(role) for role in ("IO", "S1", "S2")]
    [True, True, False]
    """
    kinds = COUNTERFACTUALS.get(example.task, {})
    names = counterfactual_kinds(example.task)
    kind = names[0] if kind is None else kind
    if kind not in kinds:
        raise KeyholeError(f"{kind!r} is no counterfactual of {example.task}: there are {', '.join(map(repr, names))}.")
    found = _draws(example, model, kinds[kind], n=1, seed=seed)
    if not found:
        raise KeyholeError(
            f"no counterfactual ({kind}) of {example.text!r} differs from it and has as many tokens for {model.name}: "
            "ask about another prompt, or give one of your own."
        )
    return replace(found[0], labels={**found[0].labels, "counterfactual": kind})


def counterfactual_kinds(task: str) -> tuple[str, ...]:
    """Which counterfactuals do the prompts of a task have? The default first.

    >>> counterfactual_kinds("ioi")
    ('other names', 'third name')
    """
    if task not in COUNTERFACTUALS:
        raise KeyholeError(
            f"{task!r} has no counterfactuals: only {', '.join(COUNTERFACTUALS)} have. Give a prompt of your own."
        )
    return tuple(COUNTERFACTUALS[task])


def _draws(example: Example, model: "Model", draw: Draw, *, n: int, seed: int) -> list[Example]:
    """At most n different prompts that agree with this one token by token, drawn in the order of the seed."""
    words, places, rng = _words_for(example, model), _places(example, model), random.Random(seed)
    found: list[Example] = []
    tried = {example.text}
    for _ in range(n * _TRIES):
        other = draw(example, words, rng)
        if other.text in tried:
            continue
        tried.add(other.text)
        if _places(other, model) == places:
            found.append(other)
            if len(found) == n:
                break
    return found


def _words_for(example: Example, model: "Model") -> Words:
    """The task's words that are one token of this model."""
    given: dict[str, Any] = {}
    if example.task == "ioi":  # the names that belong to its wordings, whichever the model would be asked in
        given["published"] = example.labels.get("wordings") == "published"
    if example.task == "greater_than":
        given["digits"] = example.labels.get("asks") == "tens"
    if example.task == "induction":
        count = sum(role.startswith("word_") for role in example.roles)
        given["length"] = (count, count)
    return CATALOGUE[example.task].fit(model, given)


def _places(example: Example, model: "Model") -> tuple[int, set[tuple[int, ...]]]:
    """Of how many tokens is a prompt, and at which of them do its roles stand?

    Without their names: a counterfactual may ask about another box, whose letter then has the role BOX.
    """
    from keyhole.models.tokens.prompts import text_ids

    return len(text_ids(model, example.text)), set(example.tokens(model).values())
