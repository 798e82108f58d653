"""Which tasks are there, and what are their prompts for a model at hand?"""

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.strict import shortened
from keyhole.tasks import fitting
from keyhole.tasks.boxes import boxes
from keyhole.tasks.choosing import check_choices, choices_of
from keyhole.tasks.example import Example
from keyhole.tasks.facts import N_FACTS, facts
from keyhole.tasks.files import read_examples
from keyhole.tasks.greater_than import greater_than
from keyhole.tasks.induction import induction
from keyhole.tasks.ioi import Design, ioi
from keyhole.tasks.lists import lists
from keyhole.tasks.pronouns import pronouns
from keyhole.tasks.published import published_ioi

MOST = 1_000_000  # prompts of a task that are made at once: they are held in memory

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class Task:
    """A task: what it asks, how many prompts unless told, who makes them, and how its words are fitted to a model."""

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
    """Which prompts of a task, or of a user's JSON Lines file, can this model be asked?

    Without a model: those of the organism, which knows every word of its tasks. With one: words are filtered to single
    tokens of it, indirect objects come in the published wordings, and what cannot be asked is refused with the reason.
    `choices` are the task's own, such as design="mixed" or held_out=True. Of a file, the first n prompts, as they are.

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
        told = shortened(str(task))
        raise KeyholeError(f"{told} is neither a file nor a task{meant}: there are {', '.join(CATALOGUE)}.")
    found = read_examples(task)
    if n is not None and not 0 <= n <= len(found):
        raise KeyholeError(f"{task} has {len(found)} prompts, so that {n} of them cannot be taken.")
    return found[:n]


def _of_task(name: str, model: "Model | None", n: int | None, seed: int, choices: dict[str, Any]) -> list[Example]:
    task = CATALOGUE[name]
    if n is not None and n > MOST:
        raise KeyholeError(f"{n:,} prompts of {name} are too many: at most {MOST:,} are made at once. Ask for fewer.")
    check_choices(name, task.make, choices)
    if model is not None:
        choices = task.fit(model, _both_sides(model, task, choices))
    found = task.make(task.n if n is None else n, seed, **choices)
    if model is not None:
        _require_readable(model, name, found)
    return found


def _both_sides(model: "Model", task: Task, choices: dict[str, Any]) -> dict[str, Any]:
    """Only a model that was trained on these tasks has held-out prompts; any other takes both sides of the line."""
    from keyhole.tasks.text.prose import knows_tasks_alone

    if "held_out" not in task.choices or knows_tasks_alone(model):
        return choices
    return {"held_out": None, **choices}


def _require_readable(model: "Model", name: str, found: Sequence[Example]) -> None:
    """Some vocabularies are small: the organism's has no word of the facts."""
    from keyhole.models.tokens.prompts import text_ids

    for example in found:
        try:
            text_ids(model, example.text)
        except KeyholeError as error:
            raise KeyholeError(f"{name} cannot be asked of {model.name}: {error}") from error


def indirect_objects(
    n: int | None = None,
    seed: int = 0,
    *,
    published: bool = False,
    design: Design = "balanced",
    order: str = "both",
    held_out: bool | None = False,
    names: Sequence[str] | None = None,
    wordings: Sequence[int] | None = None,
) -> list[Example]:
    """Who receives the object, in our wordings or in the published ones? As many as were published, unless told."""
    n = (3000 if design == "balanced" else 256) if n is None else n
    given: dict[str, Any] = {"names": names, "wordings": wordings}
    given = {"design": design, "order": order, **{key: value for key, value in given.items() if value is not None}}
    if not published:
        return ioi(n, seed, held_out=held_out, **given)
    if held_out:
        raise KeyholeError(
            "held_out is for the organism's own wordings (published=False): no training text has the published ones."
        )
    return published_ioi(n, seed, **given)


CATALOGUE: Mapping[str, Task] = {
    "ioi": Task("Who receives the object?", None, indirect_objects, fitting.fit_ioi),
    "greater_than": Task("In which year can it have ended?", 256, greater_than, fitting.fit_greater_than),
    "pronouns": Task("He or she?", 100, pronouns, fitting.fit_pronouns),
    "facts": Task("Which capital, which sport, which sum?", N_FACTS, facts, fitting.fit_facts),
    "induction": Task("What followed this word before?", 256, induction, fitting.fit_induction),
    "boxes": Task("Which box holds it?", 256, boxes, fitting.fit_boxes),
    "lists": Task("Which item of the list is of this kind?", 256, lists, fitting.fit_lists),
}
