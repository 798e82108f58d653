"""Strict reading of files: values are checked against the types of the records that they become."""

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from keyhole.errors import KeyholeError

T = TypeVar("T")
_LONGEST = 1000  # characters of a reason
_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f]")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_text(path: Path | str) -> str:
    """The text of a file, which is refused if it cannot be read as UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KeyholeError(f"there is no file {shortened(str(path))}.") from error
    except (OSError, ValueError) as error:  # ValueError: bytes that are not UTF-8, or a path with a NUL
        reason = getattr(error, "strerror", None) or error
        raise KeyholeError(f"cannot read {shortened(str(path))} as text: {reason}.") from error


def shortened(text: str, most: int = 200) -> str:
    """A text for a message, at most `most` characters: a long one is cut in the middle.

    >>> shortened("a" * 500, 20)
    'aaaaaaaa ... aaaaaaa'
    """
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[: most - 5 - half]} ... {text[-half:]}"


def quoted(value: Any, most: int = 80) -> str:
    """A value for a message, as Python writes it, shortened.

    >>> quoted("Mary"), quoted([1, 2])
    ("'Mary'", '[1, 2]')
    """
    try:
        return shortened(repr(value), most)
    except ValueError:  # Python refuses to write integers of thousands of digits
        return f"a {type(value).__name__} with a number of thousands of digits"


def printable(text: str) -> str:
    r"""A text with U+FFFD for control characters, which terminals obey and some files cannot hold.

    >>> printable("a\x1b[2J") == "a\ufffd[2J"
    True
    """
    return _CONTROL.sub("\ufffd", text)


def parse_json(text: str) -> Any:
    """Parse a JSON document; NaN, infinity and unpaired surrogates are refused."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _HALF.search(text):  # unless the other half stands beside it
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise KeyholeError(f"it has half of a character ({error.object[error.start]!a}): write it as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise KeyholeError(f"it is not valid JSON ({shortened(str(error))}).") from error


def require(condition: bool, reason: str) -> None:
    """Raise a KeyholeError with this reason, shortened, unless the condition holds."""
    if not condition:
        raise KeyholeError(shortened(reason, _LONGEST))


def require_fields(record: Any, names: Collection[str], title: str) -> None:
    """Refuse a value that is not an object with exactly these fields; `title` names it in the error."""
    if not (
        isinstance(record, dict) and record.keys() == set(names)
    ):  # the message is built only on failure: files have many records
        raise KeyholeError(f"{title} should have exactly {', '.join(sorted(names))}.")


def is_whole(value: Any) -> bool:
    """Is it an integer, and not True or False?"""
    return isinstance(value, int) and not isinstance(value, bool)


def is_index(value: Any, below: int | None = None) -> bool:
    """Is it an index, from 0 to below `below`?"""
    return is_whole(value) and value >= 0 and (below is None or value < below)


def is_number(value: Any) -> bool:
    """Is it a number that a float can hold, and not NaN or infinite?"""
    return (is_whole(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max  # NaN is not


def is_list(values: Any, kind: type) -> bool:
    """Is it a list of values of this type?"""
    return isinstance(values, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """Convert a number with a fraction or an exponent; 1e400, which Python reads as infinity, is refused."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{shortened(text, 40)} is larger than any number that is kept")
    return value


# Values read by a type: records, lists, choices, numbers.

Index = Annotated[int, "from 0"]  # an integer that is not negative
Reader = Callable[[Any], Any]
_NOT = {str: "is no text", int: "is no whole number", bool: "is neither true nor false"}


class _MisfitError(Exception):
    """A value that is not of its type: the reason, and the path to it, which grows from the inside out."""

    def __init__(self, value: Any, why: str, at: str = "") -> None:
        self.value, self.why, self.at = value, why, at

    def within(self, part: str) -> "_MisfitError":
        return _MisfitError(self.value, self.why, part + self.at)


def read(kind: type[T], value: Any, where: str = "") -> T:
    """Convert a value of a JSON document to a type; the error says which part does not fit, and why.

    Objects become dataclasses or typed dictionaries and must have exactly their fields; lists become tuples, and
    integers floats where the type is float. `where` names the value in errors.

    >>> read(tuple[int, ...], [1, 2])
    (1, 2)
    >>> read(tuple[int, ...], [1, "b"], "channels")
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: channels[1] is 'b', which is no whole number.
    """
    hint: Any = kind
    try:
        result: T = _reader(hint)(value)
        return result
    except _MisfitError as misfit:
        place = (where + misfit.at).removeprefix(".") or "it"
        raise KeyholeError(shortened(f"{place} is {quoted(misfit.value, 60)}, which {misfit.why}.", _LONGEST)) from None


def fits(value: Any, hint: Any) -> bool:
    """Does a plain value fit a type? Integers fit float."""
    try:
        _reader(hint)(value)
    except _MisfitError:
        return False
    return True


def frozen(value: Any) -> Any:
    """Lists, at any depth, as tuples."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


@cache
def _reader(hint: Any) -> Reader:
    """The function that reads values of this type; cached, because files have many records."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if hint is float:
        return _number
    if hint == Index:
        return _if(is_index, "is no whole number from 0 on")
    if origin is NotRequired:
        return _reader(inside[0])
    if is_dataclass(hint) or is_typeddict(hint):
        return _record(hint)
    if origin in (Union, UnionType):
        return _any_of([_reader(option) for option in inside if option is not NoneType], none=NoneType in inside)
    if origin is Literal:
        return _if(
            lambda value: any(value == word and type(value) is type(word) for word in inside),
            f"is none of {', '.join(map(str, inside))}",
        )
    if origin in (tuple, list, Sequence, Collection):
        every = origin is not tuple or inside[1:] == (...,)
        return _list([_reader(kind) for kind in inside[: 1 if every else None]], every=every)
    if origin in (Mapping, dict):
        return _object(_reader(inside[1]))
    good = lambda value: isinstance(value, hint) and isinstance(value, bool) == (hint is bool)  # noqa: E731
    return _if(good, _NOT.get(hint, f"is no {hint.__name__}"))


def _if(good: Callable[[Any], bool], why: str) -> Reader:
    def read_it(value: Any) -> Any:
        if not good(value):
            raise _MisfitError(value, why)
        return value

    return read_it


def _number(value: Any) -> float:
    if not is_number(value):
        raise _MisfitError(value, "is no number")
    return float(value)


def _any_of(readers: Sequence[Reader], *, none: bool) -> Reader:
    """Read by the first reader that fits; the error names a part inside the value, if a reader got that far."""

    def read_it(value: Any) -> Any:
        if none and value is None:
            return None
        misfits = []
        for reader in readers:
            try:
                return reader(value)
            except _MisfitError as misfit:
                misfits.append(misfit)
        inside = next((misfit for misfit in misfits if misfit.at), None)
        raise inside or _MisfitError(misfits[0].value, " and ".join(misfit.why for misfit in misfits))

    return read_it


def _list(readers: Sequence[Reader], *, every: bool) -> Reader:
    """Read a tuple, with a reader per item or, with `every`, the same one for all."""

    def read_it(value: Any) -> Any:
        if not (isinstance(value, list | tuple) and (every or len(value) == len(readers))):
            raise _MisfitError(value, "is no list" if every else f"is no list of {len(readers)}")
        items = []
        for number, item in enumerate(value):
            try:
                items.append(readers[0 if every else number](item))
            except _MisfitError as misfit:
                raise misfit.within(f"[{number}]") from None
        return tuple(items)

    return read_it


def _object(reader: Reader) -> Reader:
    def read_it(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _MisfitError(value, "is no object")
        return _fields(value, dict.fromkeys(value, reader))

    return read_it


def _record(kind: Any) -> Reader:
    """Read an object as a dataclass, with exactly its fields, or as a typed dictionary, which may leave some out."""
    hints, typed = get_type_hints(kind, include_extras=True), is_typeddict(kind)
    readers = {name: _reader(hints[name]) for name in (hints if typed else [field.name for field in fields(kind)])}
    may = kind.__optional_keys__ if typed else frozenset()

    def read_it(value: Any) -> Any:
        if not (isinstance(value, dict) and (value.keys() == readers.keys() or value.keys() | may == readers.keys())):
            raise _MisfitError(value, f"should have exactly the keys {', '.join(sorted(readers))}")
        values = _fields(value, readers)
        return values if typed else kind(**values)

    return read_it


def _fields(value: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    values = {}
    for name, item in value.items():
        try:
            values[name] = readers[name](item)
        except _MisfitError as misfit:
            raise misfit.within(f".{name}") from None
    return values
