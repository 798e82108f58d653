"""What can be chosen about some work? A record: each field has its default, one line of help, and the values it takes.

Functions of the library, options of commands, requests to the server and stores read the same record, so that a choice
is written down once. Nothing here loads torch: help must stay quick.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from keyhole.errors import KeyholeError

Value = TypeVar("Value")
Record = TypeVar("Record")
Returned = TypeVar("Returned")
Taken = ParamSpec("Taken")


def option(
    default: Value,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    names: tuple[str, ...] = (),
    panel: str | None = None,
    metavar: str | None = None,
    was: str | None = None,
) -> Value:
    """A field of a record: its default, its help, and the bounds of a number.

    `names`, `panel` and `metavar` are for the command line: how its option is spelt, where that is not the field's own
    name, the section of help it stands in, and what stands for its value there. `was` is the field's old name, which
    works for one release (`takes_old_names`).
    """
    about = {"help": help, "least": least, "most": most, "names": names, "panel": panel, "metavar": metavar, "was": was}
    described: Value = field(default=default, metadata=about)  # type: ignore[call-overload]
    return described


@dataclass(frozen=True)
class Choice:
    """One field of a record of settings."""

    name: str
    kinds: tuple[Any, ...]  # of its values: types, and Literals with the words that it takes; None apart
    optional: bool  # may it be None?
    default: Any
    about: Mapping[str, Any]  # what `option` was given

    @property
    def words(self) -> tuple[str, ...]:
        """The words that it takes; none, where it takes other values."""
        return tuple(word for kind in self.kinds if get_origin(kind) is Literal for word in get_args(kind))

    def require(self, value: Any) -> None:
        """Refuse what is none of its words, where it takes words, and a number out of its bounds."""
        others = tuple(get_origin(kind) or kind for kind in self.kinds if get_origin(kind) is not Literal)
        fits = value in self.words or isinstance(value, others) or (float in others and isinstance(value, int))
        if self.words and not fits and not (self.optional and value is None):
            raise KeyholeError(f"{self.name} is one of {', '.join(map(str, self.words))}, not {value!r}.")
        if isinstance(value, int | float):
            least, most = self.about.get("least"), self.about.get("most")
            if (least is not None and not value >= least) or (most is not None and not value <= most):
                raise KeyholeError(f"{self.name} is {value}, but should be {bounds(least, most)}.")


def choices_of(record: type[Any]) -> tuple[Choice, ...]:
    """The fields of a record, in their order.

    >>> from keyhole.studies.curves.settings import CurveSettings
    >>> [(choice.name, choice.default, choice.words) for choice in choices_of(CurveSettings)][2]
    ('tokens', 'dropped', ('dropped', 'kept'))
    """
    kind: Any = record
    return _choices(kind)


@cache  # records are made often, and their types are slow to read
def _choices(record: Any) -> tuple[Choice, ...]:
    hints, choices = get_type_hints(record), []
    for each in fields(record):
        hint = hints[each.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        plain = tuple(kind for kind in kinds if kind is not NoneType)
        choices.append(Choice(each.name, plain, NoneType in kinds, each.default, each.metadata))
    return tuple(choices)


def require_choices(settings: Any) -> None:
    """Refuse settings of which a field has a value that it does not take."""
    for choice in choices_of(type(settings)):
        choice.require(getattr(settings, choice.name))


def chosen(settings: Record | None, usual: type[Record], keywords: Mapping[str, Any]) -> Record:
    """Settings with some fields given as keywords of a function; a keyword that is no field is refused by name."""
    names = [choice.name for choice in choices_of(usual)]
    keywords = with_new_names(keywords, old_names(usual))
    for name in keywords:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise KeyholeError(f"there is no setting {name!r}: {hint}{usual.__name__} has {', '.join(names)}.")
    return replace(settings or usual(), **keywords)  # type: ignore[type-var]


def bounds(least: float | None, most: float | None) -> str:
    """Where a number may lie, in words.

    >>> bounds(1, None), bounds(19, 999)
    ('at least 1', 'between 19 and 999')
    """
    if least is None or most is None:
        return f"at least {least}" if most is None else f"at most {most}"
    return f"between {least} and {most}"


# What has another name now? Old names work for one release, and say what to write instead.


def old_names(record: type[Any]) -> dict[str, str]:
    """The fields of a record that have been renamed: old name -> new name."""
    return {choice.about["was"]: choice.name for choice in choices_of(record) if choice.about.get("was")}


def with_new_names(keywords: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Keywords by their new names; an old one warns."""
    for old in renamed.keys() & keywords.keys():
        _warn(old, renamed[old])
    return {renamed.get(name, name): value for name, value in keywords.items()}


def takes_old_names(record: type[Record]) -> type[Record]:
    """A record whose renamed fields can be given and read by their old names."""
    renamed, init = old_names(record), record.__init__

    @wraps(init)
    def begin(self: Any, *values: Any, **keywords: Any) -> None:
        init(self, *values, **with_new_names(keywords, renamed))

    def read(self: Any, name: str) -> Any:  # asked only for what is no attribute
        if name not in renamed:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        _warn(name, renamed[name])
        return getattr(self, renamed[name])

    record.__init__ = begin  # type: ignore[assignment, method-assign]
    record.__getattr__ = read  # type: ignore[attr-defined]
    return record


def old_keyword(
    old: str, new: str, reading: Callable[[Any], Any] = lambda value: value
) -> Callable[[Callable[Taken, Returned]], Callable[Taken, Returned]]:
    """A function whose parameter has a new name: what is given by the old one is read as the new one is meant."""

    def adapted(function: Callable[Taken, Returned]) -> Callable[Taken, Returned]:
        @wraps(function)
        def call(*values: Taken.args, **keywords: Taken.kwargs) -> Returned:
            if old in keywords:
                _warn(old, new)
                keywords[new] = reading(keywords.pop(old))
            return function(*values, **keywords)

        return call

    return adapted


def _warn(old: str, new: str) -> None:
    message = f"{old} is called {new} now; the old name goes with the next release."
    warnings.warn(message, FutureWarning, stacklevel=3)
