"""Is it what it should be? Files read strictly: what is not validated is not accepted."""

import json
import re
import sys
from collections.abc import Collection, Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from keyhole.errors import KeyholeError

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


def fits(value: Any, hint: Any) -> bool:
    """Is this plain value, `frozen`, of that type? Numbers may be written without a fraction."""
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inside
    if origin is Mapping:
        return isinstance(value, dict)
    if origin is tuple:
        several = inside[:1] * len(value) if inside[1:] == (...,) and isinstance(value, tuple) else inside
        return isinstance(value, tuple) and len(value) == len(several) and all(map(fits, value, several))
    if inside:
        return any(fits(value, one) for one in inside)
    return is_number(value) if hint is float else isinstance(value, hint) and isinstance(value, bool) == (hint is bool)


def frozen(value: Any) -> Any:
    """Lists as the tuples that records have."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """A number with a fraction or an exponent; 1e400 would be read as infinity."""
    value = float(text)
    if not isfinite(value):
        raise ValueError(f"{shortened(text, 40)} is larger than any number that is kept")
    return value
