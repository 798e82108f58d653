"""What can be chosen of a task, and is this a choice?"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from keyhole.errors import KeyholeError
from keyhole.strict import fits, frozen

_SPELLED = {int: "a whole number", str: "a text", bool: "true or false", NoneType: "nothing"}


def choices_of(make: Callable[..., Any]) -> dict[str, Any]:
    """What can be chosen of a task, and of which type it is: its generator's keywords.

    >>> from keyhole.tasks import boxes
    >>> list(choices_of(boxes))
    ['held_out', 'n_boxes', 'things', 'letters', 'query', 'wording']
    """
    hints = get_type_hints(make)
    parameters = inspect.signature(make).parameters.values()
    return {p.name: hints[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_choices(task: str, make: Callable[..., Any], choices: Mapping[str, Any]) -> None:
    """Refuse what cannot be chosen, before a generator meets it."""
    hints = choices_of(make)
    for name, value in choices.items():
        if name not in hints:
            raise KeyholeError(f"{task} has no choice {name!r}: one can choose {', '.join(hints) or 'nothing'}.")
        if not _fits(value, hints[name]):
            raise KeyholeError(f"{name}={value!r:.60} is no choice of {task}: it takes {_spelled(hints[name])}.")


def _fits(value: Any, hint: Any) -> bool:
    """Is a choice of its type? A word is no list of words."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Sequence, Collection):
        several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return several and all(_fits(each, inside[0]) for each in value)
    if origin is UnionType:
        return any(_fits(value, one) for one in inside)
    return fits(frozen(value), hint)


def _spelled(hint: Any) -> str:
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(inside)
    if origin is UnionType:
        return " or ".join(_spelled(one) for one in inside)
    if origin is tuple:
        return f"{len(inside)} whole numbers"
    if origin is Mapping:
        return "names with lists of texts"
    return f"a list of {_SPELLED[inside[0]].split()[-1]}s" if inside else _SPELLED[hint]
