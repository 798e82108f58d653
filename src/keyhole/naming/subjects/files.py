"""How are features kept, to be named or looked for later? Their directions and whose they are, as one document."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from keyhole.brief import brief
from keyhole.errors import KeyholeError
from keyhole.files import json_text, require_file, write_at_once
from keyhole.models.numbers.stamps import require_same_weights
from keyhole.naming.subject import Subject, SubjectKind
from keyhole.strict import is_index, is_number, parse_json, quoted, read_text, require, require_fields

if TYPE_CHECKING:
    from keyhole.models.model import Model

SCHEMA = 1
_FIELDS = ("id", "kind", "head", "query", "key", "query_offset", "key_offset", "about")


@dataclass(frozen=True, eq=False)
class StoredSubjects:
    """What was kept, of which model."""

    __repr__ = brief

    model: Mapping[str, str]  # its name and fingerprint
    subjects: tuple[Subject, ...]

    def of(self, model: "Model") -> tuple[Subject, ...]:
        """The subjects, if they are of these weights: in others, the same numbers are other directions."""
        refusal = f"these features are of {self.model['name']}, and {model.name} has other weights."
        require_same_weights(model.fingerprint(), self.model["fingerprint"], refusal)
        return self.subjects


def save_subjects(subjects: Sequence[Subject], model: "Model", path: str | Path) -> None:
    """Write subjects of one model as .json; the file appears whole or not at all."""
    document = {
        "schema": SCHEMA,
        "model": {"name": model.name, "fingerprint": model.fingerprint()},
        "subjects": [_plain(one) for one in subjects],
    }
    write_at_once(require_file(path, (".json",)), json_text(document) + "\n")


def load_subjects(path: str | Path) -> StoredSubjects:
    """Read them; anything damaged, foreign or of another schema is refused with the reason."""
    try:
        document = parse_json(read_text(path))
        require_fields(document, ("schema", "model", "subjects"), "the document")
        require(
            document["schema"] == SCHEMA,
            f"its schema is {quoted(document['schema'])}, and this version reads {SCHEMA}.",
        )
        require_fields(document["model"], ("name", "fingerprint"), "the model")
        require(all(isinstance(one, str) for one in document["model"].values()), "the model's name is no text.")
        require(isinstance(document["subjects"], list) and bool(document["subjects"]), "it has no features.")
        found = tuple(_subject(one) for one in document["subjects"])
        require(len({one.id for one in found}) == len(found), "two features have the same id.")
    except KeyholeError as error:
        raise KeyholeError(f"{path} holds no features that can be read: {error}") from error
    return StoredSubjects(document["model"], found)


def holds_subjects(path: str | Path) -> bool:
    """Is this such a file, and not a circuit? What is wrong with it is told when it is read."""
    try:
        document = parse_json(read_text(path))
    except KeyholeError:
        return False
    return isinstance(document, dict) and "subjects" in document


def _plain(one: Subject) -> dict[str, Any]:
    sides = {"query": one.query.tolist(), "key": one.key.tolist()}
    offsets = {"query_offset": one.query_offset, "key_offset": one.key_offset}
    return {"id": one.id, "kind": one.kind, "head": list(one.head), **sides, **offsets, "about": dict(one.about)}


def _subject(record: Any) -> Subject:
    require_fields(record, _FIELDS, "a feature")
    head, about = record["head"], record["about"]
    require(isinstance(record["id"], str) and record["kind"] in get_args(SubjectKind), "a feature has no id or kind.")
    require(isinstance(head, list) and len(head) == 2 and all(map(is_index, head)), "a feature's head is none.")
    require(isinstance(about, dict) and all(isinstance(x, str) for x in about.values()), "what it is about is no text.")
    require(is_number(record["query_offset"]) and is_number(record["key_offset"]), "an offset is no number.")
    offsets = float(record["query_offset"]), float(record["key_offset"])
    query, key = _direction(record["query"]), _direction(record["key"])
    return Subject(record["id"], record["kind"], (head[0], head[1]), query, key, *offsets, about)


def _direction(values: Any) -> Tensor:
    require(isinstance(values, list) and bool(values) and all(map(is_number, values)), "a direction is no numbers.")
    return torch.tensor([float(value) for value in values])
