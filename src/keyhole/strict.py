"""Is it what it should be? Files read strictly: what is not validated is not accepted."""

import json
import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from keyhole.errors import KeyholeError

_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_text(path: Path | str) -> str:
    """The text of a file, or why it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KeyholeError(f"there is no file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise KeyholeError(f"cannot read {path} as text: {getattr(error, 'strerror', None) or error}.") from error


def parse_json(text: str) -> Any:
    """A JSON document; NaN and infinity are none of JSON's numbers, and half a character is none of a text's."""
    try:
        found = json.loads(text, parse_constant=_refuse)
        if _HALF.search(text):  # the other half may stand beside it
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError as error:
        raise KeyholeError(f"it has half of a character ({error.object[error.start]!a}): write it as UTF-8.") from error
    except (ValueError, RecursionError) as error:
        raise KeyholeError(f"it is not valid JSON ({error}).") from error


def require(condition: bool, reason: str) -> None:
    """Go on only if this holds."""
    if not condition:
        raise KeyholeError(reason)


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
