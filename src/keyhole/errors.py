"""The exception of the library, with subclasses for cases that callers may want to handle."""

from typing import Any, get_args


class KeyholeError(Exception):
    """A request that cannot be fulfilled: the message says what is wrong, why, and what to do instead."""


class NothingToTraceError(KeyholeError):
    """There is no circuit to trace: the model does not favour this answer, or none of the given heads fires."""


class MissingModelError(KeyholeError):
    """Weights that are not on this machine and cannot be downloaded."""


class UnwritableError(KeyholeError):
    """A file or folder that cannot be written."""


def require_choice(name: str, value: object, choices: Any) -> None:
    """Refuse a value that is not among those of a Literal.

    >>> from typing import Literal
    >>> require_choice("side", "left", Literal["dest", "src"])
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: side is one of dest, src, not 'left'.
    """
    if value not in get_args(choices):
        raise KeyholeError(f"{name} is one of {', '.join(map(str, get_args(choices)))}, not {value!r}.")
