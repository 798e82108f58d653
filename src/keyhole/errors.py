"""The one exception users meet, and what it is called where a caller may want to go on."""

from typing import Any, get_args


class KeyholeError(Exception):
    """Something the user asked for cannot be done; the message says what, why, and what to do instead."""


class NothingToTraceError(KeyholeError):
    """No circuit is there to trace: the model does not favour this answer, or no firing to begin with fires."""


class MissingModelError(KeyholeError):
    """Weights that are neither here nor to be had: the hub is out of reach, or does not know or show them."""


class UnwritableError(KeyholeError):
    """A file cannot be written there."""


def require_choice(name: str, value: object, choices: Any) -> None:
    """Refuse a value that is none of a Literal's, and say which there are.

    >>> from typing import Literal
    >>> require_choice("side", "left", Literal["dest", "src"])
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: side is one of dest, src, not 'left'.
    """
    if value not in get_args(choices):
        raise KeyholeError(f"{name} is one of {', '.join(map(str, get_args(choices)))}, not {value!r}.")
