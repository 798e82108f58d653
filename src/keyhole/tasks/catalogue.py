"""Which tasks are there, what are their prompts for a model, and which prompts are like one at hand?"""

import difflib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from keyhole.errors import KeyholeError
from keyhole.settings.fields import chosen
from keyhole.strict import shortened
from keyhole.tasks import answers
from keyhole.tasks.choices import Design, IndirectObjectsOptions, IndirectObjectsSettings
from keyhole.tasks.copying import PUBLISHED, induction, ioi, ioi_words, published_ioi
from keyhole.tasks.corpus import knows_tasks_alone
from keyhole.tasks.example import Example
from keyhole.tasks.files import read_examples
from keyhole.tasks.knowledge import N_FACTS, facts, greater_than, pronouns
from keyhole.tasks.things import boxes, lists
from keyhole.tasks.variants import COUNTERFACTUALS, OTHERS, Draw, Words
from keyhole.tasks.words import check_choices, choices_of

if TYPE_CHECKING:
    from keyhole.models.model import Model

PUBLISHED_IOI: Mapping[Design, int] = {"mixed": 256, "balanced": 3000}  # prompts
MOST = 1_000_000  # prompts of a task that are made at once: they are held in memory


@dataclass(frozen=True)
class Task:
    """A task: what it asks, how many prompts by default, who makes them, and how its words are fitted to a model."""

    asks: str
    n: int | None  # None: `make` decides
    make: Callable[..., list[Example]]
    fit: Callable[["Model", dict[str, Any]], dict[str, Any]]

    @property
    def choices(self) -> tuple[str, ...]:
        """What can be chosen."""
        return tuple(choices_of(self.make))


def examples(
    task: str | Path, model: "Model | None" = None, n: int | None = None, seed: int = 0, **choices: Any
) -> list[Example]:
    """Prompts of a task, or of a JSON Lines file, that this model can be asked.

    With a model, words are limited to single tokens of it, indirect objects come in the published wordings, and prompts
    that cannot be asked are refused with the reason.

    Args:
        task: The task's name, or the path of a file, whose first n prompts are taken as they are.
        model: The model. Default: the organism, which knows every word of its tasks.
        n: How many prompts. Default: as many as the task usually has; of a file, all.
        seed: Seed of the prompts.
        **choices: The task's own choices, such as design="mixed" or held_out=True.

    >>> [example.template for example in examples("ioi", n=3)]
    ['ABBA-0', 'BABA-0', 'ABBA-1']
    """
    name = str(task).replace("-", "_")
    if isinstance(task, str) and name in CATALOGUE:
        return _of_task(name, model, n, seed, choices)
    if choices:
        raise KeyholeError(f"{', '.join(choices)}: these are chosen for a task, and a file is taken as it is.")
    if not os.path.exists(task):  # pathlib raises for a name that is too long
        near = difflib.get_close_matches(name, CATALOGUE, 1)
        meant = f", such as {near[0]}" if near else ""
        path, names = shortened(str(task)), ", ".join(CATALOGUE)
        raise KeyholeError(f"{path} is neither a file nor a task{meant}: there are {names}.")
    prompts = read_examples(task)
    if n is not None and not 0 <= n <= len(prompts):
        raise KeyholeError(f"{task} has {len(prompts)} prompts, so that {n} of them cannot be taken.")
    return prompts[:n]


def _of_task(name: str, model: "Model | None", n: int | None, seed: int, choices: dict[str, Any]) -> list[Example]:
    task = CATALOGUE[name]
    if n is not None and n > MOST:
        raise KeyholeError(f"{n:,} prompts of {name} are too many: at most {MOST:,} are made at once. Ask for fewer.")
    check_choices(name, task.make, choices)
    if model is not None:
        choices = task.fit(model, _both_sides(model, task, choices))
    prompts = task.make(task.n if n is None else n, seed, **choices)
    if model is not None:
        _require_readable(model, name, prompts)
    return prompts


def _both_sides(model: "Model", task: Task, choices: dict[str, Any]) -> dict[str, Any]:
    """Only a model that was trained on these tasks has held-out prompts; any other takes both sides of the line."""
    if "held_out" not in task.choices or knows_tasks_alone(model):
        return choices
    return {"held_out": None, **choices}


def _require_readable(model: "Model", name: str, prompts: Sequence[Example]) -> None:
    """Some vocabularies are small: the organism's has no word of the facts."""
    from keyhole.models.tokens import text_ids

    for example in prompts:
        try:
            text_ids(model, example.text)
        except KeyholeError as error:
            raise KeyholeError(f"{name} cannot be asked of {model.name}: {error}") from error


def indirect_objects(
    n: int | None = None,
    seed: int = 0,
    *,
    settings: IndirectObjectsSettings | None = None,
    **choices: Unpack[IndirectObjectsOptions],
) -> list[Example]:
    """Who receives the object, in our wordings or in the published ones? By default as many as were published."""
    how = chosen(settings, IndirectObjectsSettings, choices)
    n = PUBLISHED_IOI[how.design] if n is None else n
    given: dict[str, Any] = {"names": how.names, "wordings": how.wordings}
    given = {key: value for key, value in given.items() if value is not None}
    given |= {"design": how.design, "order": how.order}
    if not how.published:
        return ioi(n, seed, held_out=how.held_out, **given)
    if how.held_out:
        raise KeyholeError(
            "held_out is for the organism's own wordings (published=False): no training text has the published ones."
        )
    return published_ioi(n, seed, **given)


CATALOGUE: Mapping[str, Task] = {
    "ioi": Task("Who receives the object?", None, indirect_objects, answers.fit_ioi),
    "greater_than": Task("In which year can it have ended?", 256, greater_than, answers.fit_greater_than),
    "pronouns": Task("He or she?", 100, pronouns, answers.fit_pronouns),
    "facts": Task("Which capital, which sport, which sum?", N_FACTS, facts, answers.fit_facts),
    "induction": Task("What followed this word before?", 256, induction, answers.fit_induction),
    "boxes": Task("Which box holds it?", 256, boxes, answers.fit_boxes),
    "lists": Task("Which item of the list is of this kind?", 256, lists, answers.fit_lists),
}


# Which prompts are like this one, and what is its counterfactual? The same wording and tokens, with other words.

LEAST = 8  # prompts of which a mean still says what they have in common
_TRIES = 200  # draws for each prompt that is wanted: words of several tokens rarely have as many again


def like(example: Example, model: "Model", n: int = 32, seed: int = 0) -> list[Example]:
    """Other prompts of the same task, wording and order, with other names or values.

    All have as many tokens for this model, with every role at the same tokens; the prompt itself is not among them.
    Fewer than 8 (or n, if that is less) are refused.

    Args:
        example: The prompt.
        model: The model whose tokens are counted.
        n: How many at most.
        seed: Seed of the prompts.

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
    others = _draws(example, model, draw, n=n, seed=seed)
    if len(others) < min(n, LEAST):
        raise KeyholeError(
            f"only {len(others)} prompts are like {example.text!r} for {model.name}, with as many tokens and every "
            f"role at the same ones, and {min(n, LEAST)} are needed: ask about another prompt, or give your own list."
        )
    return others


def counterfactual(example: Example, model: "Model", *, kind: str | None = None, seed: int = 0) -> Example:
    """The same prompt with what decides its answer changed: as many tokens, roles at the same positions.

    The answer is that of the new prompt. Where nothing decides it any more, there is none. The label "counterfactual"
    names the kind.

    Args:
        example: The prompt.
        model: The model whose tokens are counted.
        kind: One of `counterfactual_kinds(example.task)`. Default: the first.
        seed: Seed of what is put in.

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
    drawn = _draws(example, model, kinds[kind], n=1, seed=seed)
    if not drawn:
        raise KeyholeError(
            f"no counterfactual ({kind}) of {example.text!r} differs from it and has as many tokens for {model.name}: "
            "ask about another prompt, or give one of your own."
        )
    return replace(drawn[0], labels={**drawn[0].labels, "counterfactual": kind})


def counterfactual_kinds(task: str) -> tuple[str, ...]:
    """Which counterfactuals do the prompts of a task have? The default first.

    Args:
        task: The task's name.

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
    drawn: list[Example] = []
    tried = {example.text}
    for _ in range(n * _TRIES):
        other = draw(example, words, rng)
        if other.text in tried:
            continue
        tried.add(other.text)
        if _places(other, model) == places:
            drawn.append(other)
            if len(drawn) == n:
                break
    return drawn


def _words_for(example: Example, model: "Model") -> Words:
    """The task's words that are one token of this model."""
    given: dict[str, Any] = {}
    if example.task == "ioi":  # the names that belong to its wordings, whichever the model would be asked in
        given["published"] = ioi_words(example) is PUBLISHED
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
    from keyhole.models.tokens import text_ids

    return len(text_ids(model, example.text)), set(example.tokens(model).values())


# Which prompts does an item ask a model? The published ones; of the organism, held-out ones in its own wordings.
#
# The organism knows the words of its tasks alone, so that the published wordings cannot be asked of it. Any other model
# gets the published prompts, in those of the published names that are one token for it, and tasks fitted to how it cuts
# text (years into digits, for example): what `examples` gives for that model.

_CALLED = {"greater_than": "greater-than prompts", "pronouns": "pronoun prompts", "induction": "induction prompts"}


@dataclass(frozen=True)
class PromptSet:
    """Prompts of one task, and what a result says of them."""

    examples: tuple[Example, ...]
    kind: str  # "published indirect objects (mixed)"
    total: int  # how many there are of that kind; these are the first of them

    @property
    def about(self) -> str:
        """How many, and which.

        >>> PromptSet((), "published indirect objects (mixed)", 256).about
        'the first 0 of 256 published indirect objects (mixed)'
        """
        first = "" if len(self.examples) == self.total else f"the first {len(self.examples):,} of "
        return f"{first}{self.total:,} {self.kind}"

    def first(self, n: int) -> "PromptSet":
        """The first of them, or all if there are fewer."""
        return replace(self, examples=self.examples[:n])


def prompts_for(
    task: str, model: "Model", n: int | None = None, seed: int = 0, *, design: Design = "mixed"
) -> PromptSet:
    """The prompts of a task that a published item asks this model, by default as many as were published.

    `design` is of indirect objects.

    >>> import keyhole
    >>> prompts_for("ioi", keyhole.load(), 8).about
    "8 held-out indirect objects in the organism's own wordings (mixed)"
    """
    organism = knows_tasks_alone(model)
    if task == "ioi":
        return _indirect_objects(model, PUBLISHED_IOI[design] if n is None else n, seed, design, organism=organism)
    n = CATALOGUE[task].n if n is None else n
    assert n is not None
    first: dict[str, Example] = {}
    for example in examples(task, model, 2 * n, seed, **({"held_out": True} if organism else {})):
        first.setdefault(example.text, example)  # intervals over prompts count each once
    distinct = tuple(first.values())[:n]
    asks = ", asked for the tens of a year" if distinct[0].labels.get("asks") == "tens" else ""
    kind = f"held-out {_CALLED[task]}" if organism else f"{_CALLED[task]} in single tokens of the model{asks}"
    return PromptSet(distinct, kind, len(distinct))


def _indirect_objects(model: "Model", n: int, seed: int, design: Design, *, organism: bool) -> PromptSet:
    from keyhole.models.tokens import one_token_words

    if organism:
        prompts = tuple(examples("ioi", model, n, seed, design=design, held_out=True))
        return PromptSet(prompts, f"held-out indirect objects in the organism's own wordings ({design})", n)
    prompts = tuple(examples("ioi", model, n, seed, design=design))
    every = tuple(published_ioi(PUBLISHED_IOI[design], design=design))
    if prompts == every[:n]:  # called published only if they are so to the letter
        return PromptSet(prompts, f"published indirect objects ({design})", len(every))
    known = len(one_token_words(model, PUBLISHED.names))
    of = len(PUBLISHED.names)
    names = "" if known == of else f", with the {known} of {of} names that are one token of the model"
    return PromptSet(prompts, f"indirect objects in the published wordings ({design}, seed {seed}{names})", n)
