"""What can be chosen about some work? A record: each field has its default, one line of help, and the values it takes.

Functions of the library, options of commands, requests to the server and stores read the same record, so that a choice
is written down once. Nothing here loads torch: help must stay quick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from keyhole.errors import KeyholeError

Value = TypeVar("Value")
Record = TypeVar("Record")


def option(
    default: Value,
    help: str,
    *,
    least: float | None = None,
    most: float | None = None,
    names: tuple[str, ...] = (),
    panel: str | None = None,
    metavar: str | None = None,
) -> Value:
    """A field of a record: its default, its help, and the bounds of a number.

    `names`, `panel` and `metavar` are for the command line: how its option is spelt, where that is not the field's own
    name, the section of help it stands in, and what stands for its value there.
    """
    about = {"help": help, "least": least, "most": most, "names": names, "panel": panel, "metavar": metavar}
    made: Value = field(default=default, metadata=about)  # type: ignore[call-overload]
    return made


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
    hints, found = get_type_hints(record), []
    for each in fields(record):
        hint = hints[each.name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        plain = tuple(kind for kind in kinds if kind is not NoneType)
        found.append(Choice(each.name, plain, NoneType in kinds, each.default, each.metadata))
    return tuple(found)


def require_choices(settings: Any) -> None:
    """Refuse settings of which a field has a value that it does not take."""
    for choice in choices_of(type(settings)):
        choice.require(getattr(settings, choice.name))


def chosen(settings: Record | None, usual: type[Record], keywords: Mapping[str, Any]) -> Record:
    """Settings with some fields given as keywords of a function; a keyword that is no field is refused by name."""
    names = [choice.name for choice in choices_of(usual)]
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
