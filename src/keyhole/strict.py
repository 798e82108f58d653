"""Is it what it should be? Files read strictly, by the types of records: what is not validated is not accepted."""

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
    """The text of a file, or why it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KeyholeError(f"there is no file {shortened(str(path))}.") from error
    except (OSError, ValueError) as error:  # the latter of bytes that are no text, and of a path with a NUL in it
        reason = getattr(error, "strerror", None) or error
        raise KeyholeError(f"cannot read {shortened(str(path))} as text: {reason}.") from error


def shortened(text: str, most: int = 200) -> str:
    """A text for a message: what is long is cut in the middle, so that its beginning and end are seen.

    >>> shortened("a" * 500, 20)
    'aaaaaaaa ... aaaaaaa'
    """
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[: most - 5 - half]} ... {text[-half:]}"


def quoted(value: Any, most: int = 80) -> str:
    """A value of a file for a message, as Python writes it, shortened.

    >>> quoted("Mary"), quoted([1, 2])
    ("'Mary'", '[1, 2]')
    """
    try:
        return shortened(repr(value), most)
    except ValueError:  # Python writes out no whole number of thousands of digits
        return f"a {type(value).__name__} with a number of thousands of digits"


def printable(text: str) -> str:
    r"""A text without control characters, which terminals obey and some files cannot hold: U+FFFD stands for each.

    >>> printable("a\x1b[2J") == "a\ufffd[2J"
    True
    """
    return _CONTROL.sub("\ufffd", text)


def parse_json(text: str) -> Any:
    """A JSON document; NaN and infinity are none of JSON's numbers, and half a character is none of a text's."""
    try:
        found = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _HALF.search(text):  # the other half may stand beside it
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError as error:
        raise KeyholeError(f"it has half of a character ({error.object[error.start]!a}): write it as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise KeyholeError(f"it is not valid JSON ({shortened(str(error))}).") from error


def require(condition: bool, reason: str) -> None:
    """Go on only if this holds; a reason may quote the file, which is shortened."""
    if not condition:
        raise KeyholeError(shortened(reason, _LONGEST))


def require_fields(record: Any, names: Collection[str], what: str) -> None:
    """Is it an object with exactly these fields?"""
    if not (isinstance(record, dict) and record.keys() == set(names)):  # told only then: files have many records
        raise KeyholeError(f"{what} should have exactly {', '.join(sorted(names))}.")


def is_whole(value: Any) -> bool:
    """Is it a whole number? True and False count nothing."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_index(value: Any, below: int | None = None) -> bool:
    """Can it number something, of which there may be so many?"""
    return is_whole(value) and value >= 0 and (below is None or value < below)


def is_number(value: Any) -> bool:
    """Is it a finite number, of a size that a float can have?"""
    return (is_whole(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max  # NaN is not


def is_list(values: Any, kind: type) -> bool:
    """Is it a list of these alone?"""
    return isinstance(values, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """A number with a fraction or an exponent; 1e400 would be read as infinity."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{shortened(text, 40)} is larger than any number that is kept")
    return value


# Is a value of a file what a type says? Read by the type itself: records, lists, choices, numbers.

Index = Annotated[int, "from 0"]  # numbers something, of which there may be so many
Reader = Callable[[Any], Any]
_NOT = {str: "is no text", int: "is no whole number", bool: "is neither true nor false"}


class _MisfitError(Exception):
    """A value that is not of its type: why, and where, which is filled in from the inside out."""

    def __init__(self, value: Any, why: str, at: str = "") -> None:
        self.value, self.why, self.at = value, why, at

    def within(self, part: str) -> "_MisfitError":
        return _MisfitError(self.value, self.why, part + self.at)


def read(kind: type[T], value: Any, where: str = "") -> T:
    """A value of a JSON document as this type has it; or which part of it is no such thing, and why.

    Dataclasses and typed dictionaries have exactly their fields; lists become tuples, and numbers floats where these
    are asked for.

    >>> read(tuple[int, ...], [1, 2])
    (1, 2)
    >>> read(tuple[int, ...], [1, "b"], "channels")
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: channels[1] is 'b', which is no whole number.
    """
    hint: Any = kind
    try:
        found: T = _reader(hint)(value)
        return found
    except _MisfitError as misfit:
        place = (where + misfit.at).removeprefix(".") or "it"
        raise KeyholeError(shortened(f"{place} is {quoted(misfit.value, 60)}, which {misfit.why}.", _LONGEST)) from None


def fits(value: Any, hint: Any) -> bool:
    """Is this plain value of that type? Numbers may be written without a fraction."""
    try:
        _reader(hint)(value)
    except _MisfitError:
        return False
    return True


def frozen(value: Any) -> Any:
    """Lists as the tuples that records have."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


@cache
def _reader(hint: Any) -> Reader:
    """How a value of this type is read; made once, for files have many records."""
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
        return _any_of([_reader(one) for one in inside if one is not NoneType], none=NoneType in inside)
    if origin is Literal:
        return _if(
            lambda value: any(value == one and type(value) is type(one) for one in inside),
            f"is none of {', '.join(map(str, inside))}",
        )
    if origin in (tuple, list, Sequence, Collection):
        every = origin is not tuple or inside[1:] == (...,)
        return _list([_reader(one) for one in inside[: 1 if every else None]], every=every)
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
    """The first that it fits; else why it fits none, or what is wrong inside of it."""

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
    """A tuple of what each reads, or of any number of things that the only one reads."""

    def read_it(value: Any) -> Any:
        if not (isinstance(value, list | tuple) and (every or len(value) == len(readers))):
            raise _MisfitError(value, "is no list" if every else f"is no list of {len(readers)}")
        found = []
        for number, item in enumerate(value):
            try:
                found.append(readers[0 if every else number](item))
            except _MisfitError as misfit:
                raise misfit.within(f"[{number}]") from None
        return tuple(found)

    return read_it


def _object(reader: Reader) -> Reader:
    def read_it(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _MisfitError(value, "is no object")
        return _fields(value, dict.fromkeys(value, reader))

    return read_it


def _record(kind: Any) -> Reader:
    """A dataclass out of an object with exactly its fields; or a typed dictionary, which may leave some out."""
    hints, typed = get_type_hints(kind, include_extras=True), is_typeddict(kind)
    readers = {name: _reader(hints[name]) for name in (hints if typed else [one.name for one in fields(kind)])}
    may = kind.__optional_keys__ if typed else frozenset()

    def read_it(value: Any) -> Any:
        if not (isinstance(value, dict) and (value.keys() == readers.keys() or value.keys() | may == readers.keys())):
            raise _MisfitError(value, f"should have exactly the keys {', '.join(sorted(readers))}")
        found = _fields(value, readers)
        return found if typed else kind(**found)

    return read_it


def _fields(value: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    found = {}
    for name, item in value.items():
        try:
            found[name] = readers[name](item)
        except _MisfitError as misfit:
            raise misfit.within(f".{name}") from None
    return found
