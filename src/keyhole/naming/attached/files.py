"""How are names stored? One JSON document, read back strictly: what is not validated is not accepted."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from keyhole.errors import KeyholeError
from keyhole.files import require_file, write_at_once
from keyhole.naming.named import Naming
from keyhole.strict import fits, frozen, parse_json, quoted, read_text, require, require_fields

SCHEMA = 1
T = TypeVar("T")


def save_naming(naming: Naming, path: str | Path) -> None:
    """Write names as .json; the file appears whole or not at all."""
    write_at_once(require_file(path, (".json",)), to_json(naming))


def load_naming(path: str | Path) -> Naming:
    """Read names; anything damaged, foreign or of another schema is refused with the reason."""
    try:
        return from_json(read_text(path))
    except KeyholeError as error:
        raise KeyholeError(f"{path} holds no names that can be read: {error}") from error


def to_json(naming: Naming) -> str:
    """Names as a JSON document; `from_json` gives back an equal record."""
    return json.dumps(plain(naming), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def plain(naming: Naming) -> dict[str, Any]:
    """The same document as plain data."""
    return {"schema": SCHEMA, "naming": asdict(naming)}


def from_json(text: str) -> Naming:
    """Names from their JSON document."""
    document = parse_json(text)
    require_fields(document, ("schema", "naming"), "the document")
    require(
        document["schema"] == SCHEMA, f"its schema is {quoted(document['schema'])}, and this version reads {SCHEMA}."
    )
    naming = _record(Naming, document["naming"])
    ids = [one.id for one in naming.signals]
    require(len(set(ids)) == len(ids), "two signals have the same id.")
    for named in naming.signals:
        for one in named.examples:
            require(0 <= one.src <= one.dest < len(one.tokens), f"an example of {named.id} has no such tokens.")
    return naming


def _record(kind: type[T], value: Any) -> T:
    """A plain object as a record of this kind, field by field."""
    what = kind.__name__
    assert is_dataclass(kind)
    require_fields(value, [one.name for one in fields(kind)], f"a record of kind {what}")
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], item, f"{what}.{name}") for name, item in value.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        return _record(hint, value)
    inside = get_args(hint)
    if get_origin(hint) is tuple and inside[1:] == (...,) and is_dataclass(inside[0]):
        require(isinstance(value, list), f"{where} should be a list.")
        return tuple(_value(inside[0], item, where) for item in value)
    if get_origin(hint) is Mapping:
        good = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
        require(good, f"{where} should be an object of texts.")
        return value
    plain = frozen(value)
    require(fits(plain, hint), f"{where} is {quoted(value)}, which it cannot be.")
    return (
        float(plain)
        if hint is float or (isinstance(hint, UnionType) and float in inside and plain is not None)
        else plain
    )
