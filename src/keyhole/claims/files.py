"""How is a claim written down? One TOML or JSON document, read strictly.

    schema = 1
    claim = "Head 1.6 moves the receiver to the end"
    kind = "moves"                     # moves, matches, needs or suffices
    head = "1.6"
    src = "IO"                         # a role; IO+1 is the token after it
    dest = "END"

    [prompts]                          # of a task; or [[prompts]]: lines of a prompts file, one table each
    task = "ioi"
    n = 24

`rewrites`, `negatives`, `unrelated` and `settings` may be left out: rewrites and negatives are then made from the
prompts. A claim that a circuit suffices names its file, from the folder of the claim's own, or has it inside.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from keyhole.brief import Head, head_name, head_named
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import from_json, load_circuit, to_json
from keyhole.claims.records import KINDS, Claim, Exchange, Rewrite, Sender, TaskPrompts
from keyhole.errors import KeyholeError
from keyhole.files import json_text, require_file, write_at_once
from keyhole.settings.claims import ClaimSettings
from keyhole.strict import is_whole, parse_json, quoted, read, read_text, require, shortened
from keyhole.tasks.example import Example
from keyhole.tasks.files import as_record, example_of

SCHEMA = 1
SUFFIXES = (".toml", ".json")
_PLAIN: Mapping[str, Any] = {  # fields that are read by their type alone
    "claim": str,
    "src": str,
    "dest": str,
    "channels": tuple[int, ...],
    "side": str,
    "loses": float | None,
    "flips": bool,
    "keeps": float,
    "unrelated": tuple[str, ...],
}


def load_claim(path: Path | str) -> Claim:
    """The claim of a .toml or .json file; the file of a circuit that it names is read, too.

    Args:
        path: The file.

    >>> load_claim("iou.toml")
    Traceback (most recent call last):
    keyhole.errors.KeyholeError: iou.toml has no claim that can be read: there is no file iou.toml.
    """
    path = Path(path)
    try:
        if path.suffix.lower() not in SUFFIXES:
            raise KeyholeError(f"a claim is a file that ends in {' or '.join(SUFFIXES)}.")
        text = read_text(path)
        return claim_of(parse_toml(text) if path.suffix.lower() == ".toml" else parse_json(text), path.parent)
    except KeyholeError as error:
        raise KeyholeError(f"{shortened(str(path))} has no claim that can be read: {error}") from error


def save_claim(claim: Claim, path: Path | str) -> Path:
    """Write a claim as a JSON file.

    Args:
        claim: The claim.
        path: Where: it ends in .json.

    >>> from tempfile import mkdtemp
    >>> from keyhole.claims import Moves
    >>> claim = Moves(claim="Head 1.6 moves IO", prompts=TaskPrompts("ioi"), head=(1, 6), src="IO")
    >>> load_claim(save_claim(claim, Path(mkdtemp()) / "claim.json")) == claim
    True
    """
    path = require_file(path, (".json", ".json"))
    write_at_once(path, json_text(document_of(claim)) + "\n")
    return path


def parse_toml(text: str) -> Any:
    """Parse a TOML document."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise KeyholeError(f"it is not valid TOML ({shortened(str(error))}).") from error


def document_of(claim: Claim) -> dict[str, Any]:
    """A claim as plain data: what its file has, with every setting.

    Args:
        claim: The claim.

    >>> from keyhole.claims import Moves, TaskPrompts
    >>> claim = Moves(claim="Head 1.6 moves IO", prompts=TaskPrompts("ioi"), head=(1, 6), src="IO")
    >>> document_of(claim)["head"], claim_of(document_of(claim)) == claim
    ('1.6', True)
    """
    document: dict[str, Any] = {"schema": SCHEMA, "kind": claim.kind}
    return document | {field.name: _plain(field.name, getattr(claim, field.name)) for field in fields(claim)}


def _plain(name: str, value: Any) -> Any:
    if name == "head":
        return head_name(value)
    if name == "rewrites":
        return [{"name": rewrite.name, "prompts": [as_record(p) for p in rewrite.prompts]} for rewrite in value]
    if isinstance(value, Circuit):
        return json.loads(to_json(value))
    if isinstance(value, Exchange):
        return {"exchange": value.role, "by": value.by}
    if isinstance(value, TaskPrompts | Sender | ClaimSettings):
        return asdict(value)
    if isinstance(value, tuple):
        return [as_record(item) if isinstance(item, Example) else item for item in value]
    return value


def claim_of(document: Any, folder: Path | None = None) -> Claim:
    """A claim from plain data, as a file has it.

    Args:
        document: The data: one object.
        folder: Where the files lie that it names; None: it may name none.

    >>> data = {"schema": 1, "kind": "moves", "claim": "It moves", "head": "1.6", "src": "IO"}
    >>> claim_of(data | {"prompts": {"task": "ioi"}}).says
    'head 1.6 moves IO to END'
    """
    require(isinstance(document, dict), f"a claim is one object, not {quoted(document)}.")
    schema = document.get("schema")
    require(
        is_whole(schema) and schema == SCHEMA,
        f"its schema is {quoted(schema)}, and this version reads {SCHEMA}.",
    )
    kind = KINDS.get(str(document.get("kind")))
    if kind is None:
        raise KeyholeError(f"its kind is {quoted(document.get('kind'))}: choose one of {', '.join(KINDS)}.")
    known = {field.name: field for field in fields(kind)}
    given = {name: value for name, value in document.items() if name not in ("schema", "kind")}
    _require_keys(given, list(known), f"a claim of the kind {kind.kind}")
    missing = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING and n not in given]
    require(not missing, f"there is no {', '.join(missing)}: a claim of the kind {kind.kind} needs it.")
    return kind(**{name: _value(name, value, folder) for name, value in given.items()})


def _value(name: str, value: Any, folder: Path | None) -> Any:
    """The value of one field."""
    if name in _PLAIN:
        return read(_PLAIN[name], value, name)
    if name == "head":
        return _head(value)
    if name == "prompts":
        return _task(value) if isinstance(value, dict) else _examples(value, name)
    if name == "rewrites":
        require(isinstance(value, list), "rewrites are a list of objects, each with a name and prompts.")
        return tuple(_rewrite(item, f"rewrites[{i}]") for i, item in enumerate(value))
    if name == "negatives":
        return _exchange(value) if isinstance(value, dict) else None if value is None else _examples(value, name)
    if name == "sender":
        return _sender(value)
    if name == "circuit":
        return _circuit(value, folder)
    assert name == "settings", name
    return _record(ClaimSettings, value, name)


def _require_keys(given: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise KeyholeError(f"unknown key {quoted(name)}: {hint}{what} has {', '.join(known)}.")


def _record(kind: Any, value: Any, name: str) -> Any:
    """A record of which fields may be left out."""
    require(isinstance(value, dict), f"{name} is {quoted(value)}, which is no object.")
    _require_keys(value, [field.name for field in fields(kind)], name)
    usual = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    usual |= {f.name: f.default_factory() for f in fields(kind) if f.default_factory is not MISSING}
    missing = [f.name for f in fields(kind) if f.name not in usual and f.name not in value]
    require(not missing, f"{name} has no {', '.join(missing)}.")
    return read(kind, usual | value, name)


def _head(value: Any) -> Head:
    head = head_named(value) if isinstance(value, str) else None
    if head is None:
        raise KeyholeError(f'head is {quoted(value)}, but should be a layer and a head in quotes, such as "1.6".')
    return head


def _task(value: Any) -> TaskPrompts:
    result: TaskPrompts = _record(TaskPrompts, value, "prompts")
    return result


def _examples(value: Any, name: str) -> tuple[Example, ...]:
    require(isinstance(value, list), f"{name} is {quoted(value)}, but should be a list of prompts.")
    examples = []
    for i, item in enumerate(value):
        try:
            examples.append(example_of(item, task="claim"))
        except KeyholeError as error:
            raise KeyholeError(f"{name}[{i}]: {error}") from error
    return tuple(examples)


def _rewrite(value: Any, where: str) -> Rewrite:
    require(isinstance(value, dict) and value.keys() == {"name", "prompts"}, f"{where} has exactly a name and prompts.")
    return Rewrite(read(str, value["name"], f"{where}.name"), _examples(value["prompts"], f"{where}.prompts"))


def _exchange(value: Any) -> Exchange:
    _require_keys(value, ("exchange", "by"), "negatives")
    require("exchange" in value, "negatives has no exchange: the role in which another word stands.")
    by = read(str, value.get("by", ""), "negatives.by")
    return Exchange(read(str, value["exchange"], "negatives.exchange"), by)


def _sender(value: Any) -> Sender:
    result: Sender = _record(Sender, value, "sender")
    return result


def _circuit(value: Any, folder: Path | None) -> Circuit:
    """A circuit that stands inside, or whose file is named."""
    if isinstance(value, dict):
        return from_json(json.dumps(value))
    if not isinstance(value, str):
        raise KeyholeError(f"circuit is {quoted(value)}, but should be the name of a circuit's file.")
    if folder is None:
        raise KeyholeError(f"circuit is {quoted(value)}: a claim that is not in a file has its circuit inside.")
    return load_circuit(folder / value)
