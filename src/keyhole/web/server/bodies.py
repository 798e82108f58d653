"""What may be asked, which kinds of work are there, and how does an answer become JSON?

What does a request ask for? Its fields, read strictly: what is unknown, missing or of another kind is refused.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.files import finite
from keyhole.strict import parse_json
from keyhole.web.server.jobs import Told, Work
from keyhole.web.server.kept import Kept

_NONE: Any = object()
_SEEDS = (1 << 32) - 1


def parse_body(content: bytes) -> dict[str, Any]:
    """The JSON object that a request is."""
    try:
        found = parse_json(content.decode("utf-8") or "{}")
    except UnicodeDecodeError as error:
        raise KeyholeError("the request is not valid UTF-8.") from error
    except RecursionError as error:
        raise KeyholeError("the request is nested too deeply.") from error
    if not isinstance(found, dict):
        raise KeyholeError("a request is a JSON object.")
    return found


class Body:
    """The fields of one request, taken one by one; `done` refuses those that nobody took.

    >>> body = Body({"layer": 3, "top": "x"})
    >>> body.integer("layer"), body.integer("head", 0)
    (3, 0)
    >>> body.integer("top")
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: top should be a whole number, not 'x'.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values, self._taken = values, set[str]()

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def take(self, name: str, default: Any = _NONE) -> Any:
        """A field as it is; null is the same as none."""
        self._taken.add(name)
        found = self.values.get(name)
        if found is None and default is _NONE:
            raise KeyholeError(f"this request needs {name}.")
        return default if found is None else found

    def integer(self, name: str, default: Any = _NONE, *, least: int | None = None, most: int | None = None) -> Any:
        """A whole number, within bounds."""
        found = self.take(name, default)
        if found is default:
            return found
        if not isinstance(found, int) or isinstance(found, bool):
            raise KeyholeError(f"{name} should be a whole number, not {_short(found)}.")
        if (least is not None and found < least) or (most is not None and found > most):
            raise KeyholeError(f"{name} is {found}, and should be {_range(least, most)}.")
        return found

    def seed(self) -> int:
        """Where drawing begins: a number that every generator takes."""
        return int(self.integer("seed", 0, least=0, most=_SEEDS))

    def number(self, name: str, default: Any = _NONE) -> Any:
        """A number."""
        found = self.take(name, default)
        if found is not default and (not isinstance(found, int | float) or isinstance(found, bool)):
            raise KeyholeError(f"{name} should be a number, not {_short(found)}.")
        return found

    def flag(self, name: str, default: bool | None = False) -> Any:
        """True or false."""
        found = self.take(name, default)
        if found is not default and not isinstance(found, bool):
            raise KeyholeError(f"{name} should be true or false, not {_short(found)}.")
        return found

    def text(self, name: str, default: Any = _NONE) -> Any:
        """A text."""
        found = self.take(name, default)
        if found is not default and not isinstance(found, str):
            raise KeyholeError(f"{name} should be a text, not {_short(found)}.")
        return found

    def choice(self, name: str, choices: Sequence[str], default: Any = _NONE) -> Any:
        """One of a few texts."""
        found = self.take(name, default)
        if found not in choices:
            raise KeyholeError(f"{name} is one of {', '.join(choices)}, not {_short(found)}.")
        return found

    def tau(self) -> Any:
        """A threshold: "dynamic" or a number."""
        found = self.take("tau", "dynamic")
        return found if found == "dynamic" else self.number("tau")

    def words(self, name: str) -> Any:
        """Token ids and words: a list of them, one of them, or None."""
        found = self.take(name, None)
        listed = found if isinstance(found, list) else [] if found is None else [found]
        if any(isinstance(one, bool) or not isinstance(one, int | str) for one in listed):
            raise KeyholeError(f"{name} should be words or token ids, not {_short(found)}.")
        return listed or None

    def texts(self, name: str, *, most: int, longest: int) -> Any:
        """A list of at most so many texts of at most so many characters each, or None."""
        found = self.take(name, None)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise KeyholeError(f"{name} should be a list of texts, not {_short(found)}.")
        if len(found) > most:
            raise KeyholeError(f"{name} has {len(found)} texts, and at most {most} are taken.")
        if any(len(one) > longest for one in found):
            raise KeyholeError(f"{name} has a text of more than {longest:,} characters: give shorter ones.")
        return found

    def integers(self, name: str, default: Any = _NONE) -> Any:
        """A list of whole numbers."""
        found = self.take(name, default)
        if found is not default and not (
            isinstance(found, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in found)
        ):
            raise KeyholeError(f"{name} should be a list of whole numbers, not {_short(found)}.")
        return found

    def inner(self, name: str) -> "Body":
        """An object inside."""
        found = self.take(name)
        if not isinstance(found, dict):
            raise KeyholeError(f"{name} should be an object, not {_short(found)}.")
        return Body(found)

    def done(self) -> None:
        """Refuse what nobody asked for: a misspelt option would otherwise be left out in silence."""
        if unknown := sorted(set(self.values) - self._taken):
            raise KeyholeError(f"this request has no {unknown[0]!r}: it takes {', '.join(sorted(self._taken))}.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _range(least: int | None, most: int | None) -> str:
    if least is None or most is None:
        return f"at least {least}" if most is None else f"at most {most}"
    return f"between {least} and {most}"


# How does an answer become JSON? As the library spells it: NaN and infinity as null, tensors as lists.


def spell(value: Any) -> bytes:
    """A value as one line of JSON.

    >>> spell({"a": float("nan"), "b": (1, "é")}).decode()
    '{"a":null,"b":[1,"é"]}'
    """
    plain = finite(_listed(value))
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def _listed(value: Any) -> Any:
    """Arrays and tensors as lists, wherever they are."""
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


# Which kinds of work are there? Each calls one function of the library, and is loaded when first asked for.

Answer = Callable[[Kept, Body, Told], Any]


@dataclass(frozen=True)
class Kind:
    """One kind of work: where it is done, and whether it takes less than a few seconds on small models."""

    module: str
    function: str
    quick: bool = True

    def work(self, kept: Kept, values: dict[str, Any]) -> Work:
        """What the worker calls."""

        def call(told: Told) -> bytes:
            body = Body(values)
            function: Answer = getattr(import_module(f"keyhole.web.server.{self.module}"), self.function)
            return spell(function(kept, body, told))

        return call


KINDS = {
    "load": Kind("prompt", "load"),
    "run": Kind("prompt", "run"),
    "answers": Kind("prompt", "answers"),
    "heads": Kind("prompt", "heads"),
    "pattern": Kind("prompt", "pattern"),
    "firing": Kind("prompt", "firing"),
    "intervene": Kind("finding", "intervene"),
    "mlp": Kind("prompt", "mlp"),
    "trace": Kind("stores", "trace", quick=False),
    "story": Kind("stores", "story", quick=False),
    "faithfulness": Kind("asked", "faithfulness", quick=False),
    "effects": Kind("asked", "effects", quick=False),
    "like": Kind("asked", "like"),
    "verify": Kind("stores", "verify", quick=False),
    "names": Kind("stores", "names"),
    "naming": Kind("finding", "naming"),
    "compare": Kind("stores", "compare", quick=False),
    "where": Kind("finding", "where", quick=False),
    "stores": Kind("stores", "stores"),
    "outcomes": Kind("stores", "outcomes"),
    "circuit": Kind("stores", "circuit"),
    "families": Kind("stores", "families", quick=False),
    "sinks": Kind("stores", "sinks", quick=False),
    "contrast": Kind("finding", "contrast", quick=False),
}
