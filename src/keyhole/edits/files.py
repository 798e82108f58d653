"""How are edits kept, and how are they typed? One JSON document, and short texts such as 3.6:0,2*0.5."""

import json
import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.edits.records import KINDS, ChannelEdit, Edit, Source, WriteEdit
from keyhole.errors import KeyholeError
from keyhole.files import write_at_once
from keyhole.strict import parse_json, quoted, read, read_text, require, require_fields, shortened

if TYPE_CHECKING:
    from keyhole.models.model import Model

SCHEMA = 1
_TYPED = re.compile(r"(?P<layer>\d+)\.(?P<head>\d+)(:(?P<channels>\d+(,\d+)*))?\*(?P<factor>[-+0-9.e]+)", re.IGNORECASE)
_MLP = re.compile(r"mlp(?P<layer>\d+)\*(?P<factor>[-+0-9.e]+)", re.IGNORECASE)


def to_json(edits: Sequence[Edit], model: "Model | None" = None) -> str:
    """Edits as a JSON document; with the model that they are for, if it is given."""
    about = {} if model is None else {"name": model.name, "fingerprint": model.fingerprint()}
    return json.dumps({"schema": SCHEMA, "model": about, "edits": [plain(edit) for edit in edits]}, indent=1) + "\n"


def plain(edit: Edit) -> dict[str, Any]:
    """An edit as plain data."""
    return {"kind": edit.kind, **asdict(edit)}


def save_edits(path: Path | str, edits: Sequence[Edit], model: "Model | None" = None) -> None:
    """Write edits to a JSON file.

    Args:
        path: Where.
        edits: A list of edits.
        model: The model that they are for: they are refused for others then.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.edits import ChannelEdit
    >>> with TemporaryDirectory() as folder:
    ...     save_edits(f"{folder}/edits.json", [ChannelEdit(head=(3, 6), channels=(0,))])
    ...     print(*load_edits(f"{folder}/edits.json"))
    channels 0 of head 3.6 x 0
    """
    write_at_once(Path(path), to_json(edits, model))


def load_edits(path: Path | str) -> tuple[Edit, ...]:
    """The edits of a JSON file.

    What a record leaves out has its default: {"kind": "channels", "head": [3, 6], "channels": [0]} removes a channel.

    Args:
        path: The file.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.edits import ChannelEdit
    >>> with TemporaryDirectory() as folder:
    ...     save_edits(f"{folder}/edits.json", [ChannelEdit(head=(3, 6), channels=(0,))])
    ...     print(*load_edits(f"{folder}/edits.json"))
    channels 0 of head 3.6 x 0
    """
    try:
        return edits_of_json(read_text(path))
    except KeyholeError as error:
        raise KeyholeError(f"{shortened(str(path))} has no edits that can be read: {error}") from error


def edits_of_json(text: str) -> tuple[Edit, ...]:
    """The edits of a JSON document.

    >>> text = '{"schema": 1, "model": {}, "edits": [{"kind": "channels", "head": [3, 6], "channels": [0]}]}'
    >>> print(*edits_of_json(text))
    channels 0 of head 3.6 x 0
    """
    document = parse_json(text)
    require_fields(document, ("schema", "model", "edits"), "the document")
    require(
        document["schema"] == SCHEMA, f"its schema is {quoted(document['schema'])}, and this version reads {SCHEMA}."
    )
    model = read(dict[str, str], document["model"], "model").get("fingerprint", "")
    require(isinstance(document["edits"], list), "edits is no list.")
    return tuple(edit_of(record, model, f"edits[{i}]") for i, record in enumerate(document["edits"]))


def edit_of(record: Any, model: str = "", where: str = "the edit") -> Edit:
    """One edit of plain data."""
    require(isinstance(record, dict), f"{where} is {quoted(record)}, which is no object.")
    kind = KINDS.get(str(record.get("kind")))
    require(kind is not None, f"{where} has the kind {quoted(record.get('kind'))}: choose one of {', '.join(KINDS)}.")
    assert kind is not None
    given = {name: value for name, value in record.items() if name != "kind"}
    given["model"] = given.get("model") or model
    result: Edit = read(kind, _filled(kind, given), where)
    return result


def _filled(kind: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """A record with the defaults of what it leaves out, and so the records within it."""
    full = {f.name: _plain(f.default) for f in fields(kind) if f.default is not MISSING} | given
    for name in {"dest", "src", "writer"} & full.keys():
        if isinstance(full[name], dict):
            full[name] = _source_or_place(full[name])
    if isinstance(full.get("writers"), list):
        full["writers"] = [_source_or_place(w) if isinstance(w, dict) else w for w in full["writers"]]
    return full


def _source_or_place(record: dict[str, Any]) -> dict[str, Any]:
    everywhere: dict[str, Any] = {"tokens": None, "start": 0}
    if "kind" not in record:
        return everywhere | record
    src = record.get("src", {})
    return {"layer": 0, "head": None} | record | {"src": everywhere | src if isinstance(src, dict) else src}


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value


def typed_edit(text: str) -> Edit:
    """An edit as it is typed: HEAD:CHANNELS*FACTOR, HEAD*FACTOR (all that a head writes) or mlpLAYER*FACTOR.

    >>> print(typed_edit("3.6:0,2*0.5")); print(typed_edit("3.6*0")); print(typed_edit("mlp2*0"))
    channels 0,2 of head 3.6 x 0.5
    head 3.6 x 0
    mlp 2 x 0
    """
    for pattern in (_TYPED, _MLP):
        if (match := pattern.fullmatch(text.strip())) is not None:
            parts = match.groupdict()
            factor, layer = _factor(parts["factor"], text), int(parts["layer"])
            if "head" not in parts:
                return WriteEdit(writer=Source("mlp", layer), factor=factor)
            head = (layer, int(parts["head"]))
            if parts["channels"] is None:
                return WriteEdit(writer=Source("head", *head), factor=factor)
            return ChannelEdit(head=head, channels=tuple(map(int, parts["channels"].split(","))), factor=factor)
    raise KeyholeError(
        f"{quoted(text)} is no edit: give a .json file of edits, or for example 3.6:0,2*0 (channels of a head times a "
        "factor), 3.6*0 (a head) or mlp2*0 (an MLP)."
    )


def _factor(number: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise KeyholeError(f"{quoted(text)} has the factor {quoted(number)}, which is no number.") from None


def read_edits(texts: Sequence[str]) -> tuple[Edit, ...]:
    """Edits as given at the command line: each a file of edits, or an edit as it is typed."""
    edits: list[Edit] = []
    for text in texts:
        if _TYPED.fullmatch(text.strip()) or _MLP.fullmatch(text.strip()) or Path(text).suffix != ".json":
            edits.append(typed_edit(text))
        else:
            edits += load_edits(text)
    return tuple(edits)
