"""What does a text or a file name? A circuit, a store, a head, features; one channel, edge or feature of them.

3.1              a head            3.1:4, 3.1:4-      a channel of it, and its opposite
mary.json        a circuit         mary.json#12       an edge of it
features.json    features          features.json#3    one of them
ioi.store        a store
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from keyhole.brief import Head, brief, head_named
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import load_circuit
from keyhole.errors import KeyholeError
from keyhole.features.contrast.found import Found, FoundHead
from keyhole.features.contrast.studies import Study
from keyhole.features.discovery.one_head import HeadFeatures
from keyhole.files import is_file, is_folder, json_text, require_file, write_at_once
from keyhole.models.numbers import require_same_weights
from keyhole.models.organism import source_named
from keyhole.naming.subjects.kinds import (
    channel_subjects,
    contrast_subjects,
    discovered_subjects,
    signal_subjects,
    store_subjects,
)
from keyhole.naming.subjects.subject import About, Subject, SubjectKind, distinct
from keyhole.progress import Progress, silent
from keyhole.settings.stores import NameSettings
from keyhole.store.model import model_of
from keyhole.store.store import Store, Where, open_store
from keyhole.strict import Index, parse_json, read, read_text, require, shortened

if TYPE_CHECKING:
    from keyhole.models.model import Model


# How are features stored, to be named or looked for later? Directions and the model they belong to, as one document.

SCHEMA = 2  # in schema 1 all of `about` was text


class _Record(TypedDict):
    id: str
    kind: SubjectKind
    head: tuple[Index, Index]
    query: tuple[float, ...]
    key: tuple[float, ...]
    query_offset: float
    key_offset: float
    about: About


class _Document(TypedDict):
    schema: int
    model: Mapping[str, str]
    subjects: tuple[_Record, ...]


@dataclass(frozen=True, eq=False)
class StoredSubjects:
    """Subjects of a file, with the model that they belong to."""

    __repr__ = brief

    model: Mapping[str, str]  # its name and fingerprint
    subjects: tuple[Subject, ...]

    def of(self, model: "Model") -> tuple[Subject, ...]:
        """The subjects, if they belong to these weights: in others, the same numbers are other directions."""
        refusal = f"these features are of {self.model['name']}, and {model.name} has other weights."
        require_same_weights(model.fingerprint(), self.model["fingerprint"], refusal)
        return self.subjects


def save_subjects(subjects: Sequence[Subject], model: "Model", path: str | Path) -> None:
    """Write subjects of one model as .json; the file appears whole or not at all."""
    document = {
        "schema": SCHEMA,
        "model": {"name": model.name, "fingerprint": model.fingerprint()},
        "subjects": [_plain(subject) for subject in subjects],
    }
    write_at_once(require_file(path, (".json",)), json_text(document) + "\n")


def load_subjects(path: str | Path) -> StoredSubjects:
    """Read subjects; a damaged or foreign file, or one of a later schema, is refused with the reason."""
    try:
        plain = parse_json(read_text(path))
        if isinstance(plain, dict) and plain.get("schema") == 1:
            plain = {**plain, "schema": SCHEMA, "subjects": with_numbers(plain.get("subjects"))}
        document = read(_Document, plain)
        require(document["schema"] == SCHEMA, f"its schema is {document['schema']}, and 1 to {SCHEMA} are read here.")
        model, subjects = document["model"], tuple(_subject(subject) for subject in document["subjects"])
        require(model.keys() == {"name", "fingerprint"}, "the model should have exactly a name and a fingerprint.")
        require(bool(subjects), "it has no features.")
        require(len({subject.id for subject in subjects}) == len(subjects), "two features have the same id.")
    except KeyholeError as error:
        raise KeyholeError(f"{path} holds no features that can be read: {error}") from error
    return StoredSubjects(model, subjects)


_NUMBERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("edge", "prompts", "dimension", "feature"), int),
    "share": float,
    "channels": lambda text: [int(channel) for channel in text.split(",")],
    "coordinates": lambda text: [float(value) for value in text.split(",")],
    "also": lambda text: text.split("; "),
}


def with_numbers(records: Any) -> Any:
    """Records of schema 1 whose `about` has numbers as later ones do; what fits no schema is left to the reader."""
    try:
        abouts = [{key: _NUMBERS.get(key, str)(text) for key, text in record["about"].items()} for record in records]
        return [{**record, "about": about} for record, about in zip(records, abouts, strict=True)]
    except (TypeError, KeyError, ValueError, AttributeError):
        return records


def holds_subjects(path: str | Path) -> bool:
    """Is this a file of subjects, and not a circuit? Whether it is damaged shows when it is read."""
    try:
        document = parse_json(read_text(path))
    except KeyholeError:
        return False
    return isinstance(document, dict) and "subjects" in document


def _plain(subject: Subject) -> dict[str, Any]:
    plain = {name: getattr(subject, name) for name in _Record.__annotations__}
    return plain | {"query": subject.query.tolist(), "key": subject.key.tolist(), "about": subject.about}


def _subject(record: _Record) -> Subject:
    require(bool(record["query"] and record["key"]), f"the feature {record['id']} has a direction without numbers.")
    values: dict[str, Any] = {**record}
    return Subject(**values | {side: torch.tensor(values[side]) for side in ("query", "key")})


# What can be named, or looked for?

FeaturesFound = Found | FoundHead | Study | HeadFeatures
Nameable = Circuit | Store | Head | StoredSubjects | FeaturesFound | Sequence[Subject] | str  # a text: a part, 3.1:4
_AS_MANY_TERMS = 4  # for every subject that is wanted, since many terms share a direction
_PROMPTS = 20  # over which a term's coordinates are summed; in one channel a single prompt would do


def open_nameable(nameable: Nameable | Path) -> Nameable:
    """Open what a text or path names: a head, a store's folder, a file. A part such as 3.1:4 stays a text.

    >>> open_nameable("3.1"), open_nameable("3.1:4")
    ((3, 1), '3.1:4')
    """
    if not isinstance(nameable, str | Path) or is_part(str(nameable)):
        return nameable if not isinstance(nameable, Path) else str(nameable)
    if head := head_named(str(nameable)):
        return head
    path = Path(nameable)
    if is_folder(path):
        return open_store(path)
    if not is_file(path):
        raise KeyholeError(
            f"there is no {shortened(str(path))}: give a circuit or features (.json), a store of circuits, or a head "
            "such as 3.1."
        )
    return load_subjects(path) if holds_subjects(path) else load_circuit(path)


def is_part(text: str) -> bool:
    """Does a text name one channel (3.1:4), edge (mary.json#12) or feature (features.json#3)?"""
    return "#" in text or (":" in text and text[:1].isdecimal())


def subjects_of(
    nameable: Nameable | Path,
    model: "Model",
    *,
    most: int = NameSettings.most,
    where: Where = None,
    progress: Progress = silent,
) -> list[Subject]:
    """The subjects of a circuit, store, head or file: one for every direction, the most frequent or strongest first."""
    nameable = open_nameable(nameable)
    if isinstance(nameable, Store):
        subjects = store_subjects(
            nameable, model, most=_AS_MANY_TERMS * most, each=_PROMPTS, where=where, progress=progress
        )
    elif isinstance(nameable, Circuit):
        subjects = sorted(signal_subjects(nameable, model), key=lambda subject: -strength(nameable, subject))
    elif isinstance(nameable, StoredSubjects):
        subjects = list(nameable.of(model))
    elif isinstance(nameable, FeaturesFound):
        subjects = feature_subjects(model, nameable)
    elif isinstance(nameable, tuple) and len(nameable) == 2 and all(isinstance(i, int) for i in nameable):
        subjects = channel_subjects(model, nameable)  # type: ignore[arg-type]
    elif isinstance(nameable, str):
        subjects = [read_what(model, nameable)]  # type: ignore[list-item]
    else:
        subjects = list(nameable)  # type: ignore[arg-type]
    if not subjects:
        raise KeyholeError("there is nothing to name: no edge is a signal into a head, and no feature has a dimension.")
    return distinct(subjects)[:most]


def feature_subjects(model: "Model", result: FeaturesFound) -> list[Subject]:
    """The features of a contrast, in one head or in all that were selected; or the discovered features of a head."""
    if isinstance(result, HeadFeatures):
        return discovered_subjects(model, result)
    if isinstance(result, FoundHead):
        return contrast_subjects(model, [result.feature], result.study.settings.frame)
    study = result.study if isinstance(result, Found) else result
    features = [feature for head in study.selected for feature in study.of(head)]
    return contrast_subjects(model, features, study.settings.frame)


def read_what(model: "Model", text: str) -> Subject | Head:
    """The head, channel, edge or feature that an operand of `keyhole where` names.

    >>> import keyhole
    >>> read_what(keyhole.load(), "3.1:4-").id
    '3.1:4-'
    """
    path, mark, number = text.rpartition("#")
    if mark:
        return _feature(model, path, number) if holds_subjects(path) else _edge(model, path, number)
    name, colon, channel = text.partition(":")
    head = head_named(name)
    if head is None or (colon and not channel.removesuffix("-").isdecimal()):
        raise KeyholeError(
            f"{text!r} names nothing that can be looked for: give a head such as 3.1, a channel such as 3.1:4 or an "
            "edge such as mary.json#12."
        )
    if not colon:
        return head
    signs = channel_subjects(model, head, [int(channel.removesuffix("-"))])
    return signs[channel.endswith("-")]


def made_by(nameable: Nameable | Path) -> Mapping[str, str] | None:
    """The name and fingerprint of the model that a circuit, store or file belongs to; None: it is not recorded."""
    if isinstance(nameable, str) and "#" in nameable:
        nameable = open_nameable(nameable.rpartition("#")[0])
    if isinstance(nameable, Store):
        return nameable.manifest.model
    return nameable.model if isinstance(nameable, Circuit | StoredSubjects) else None


def model_for(nameable: Nameable, model: "Model | None") -> "Model":
    """The given model, that of a circuit's run, or the one that a store, circuit or file names."""
    from keyhole.models.load import load

    if isinstance(nameable, Store):
        return model_of(nameable, model)
    if model is not None:
        return model
    if isinstance(nameable, FeaturesFound):
        raise KeyholeError("these features do not record their model: give the model that they were found in.")
    if isinstance(nameable, Circuit) and nameable.run is not None:
        return nameable.run.model
    return load(source_named((made_by(nameable) or {}).get("name")))


def strength(circuit: Circuit, subject: Subject) -> float:
    """The share of the answer that passes through a signal's edge; without one, the drop of the attention weight."""
    edge = circuit.edges[subject.about["edge"]]
    return edge.weight if edge.influence is None else edge.influence


def _feature(model: "Model", path: str, number: str) -> Subject:
    features = load_subjects(path).of(model)
    if not (number.isdecimal() and int(number) < len(features)):
        raise KeyholeError(f"{path} has features #0 to #{len(features) - 1}, and not #{number}.")
    return features[int(number)]


def _edge(model: "Model", path: str, number: str) -> Subject:
    circuit = load_circuit(Path(path))
    subjects = {subject.about["edge"]: subject for subject in signal_subjects(circuit, model)}
    if number.isdecimal() and int(number) in subjects:
        return subjects[int(number)]
    if not (number.isdecimal() and int(number) < len(circuit.edges)):
        raise KeyholeError(f"{path} has edges #0 to #{len(circuit.edges) - 1}, and not #{number}.")
    signals = ", ".join(f"#{edge}" for edge in list(subjects)[:8])
    raise KeyholeError(f"edge #{number} of {path} is not a signal into a head. Signals are {signals} and so on.")
