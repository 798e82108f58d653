"""What is to be named, or looked for? A circuit, a store, a head, features; one channel, edge or feature of them.

3.1              a head            3.1:4, 3.1:4-      a channel of it, and its opposite
mary.json        a circuit         mary.json#12       an edge of it
features.json    features          features.json#3    one of them
ioi.store        a store
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.files import load_circuit
from keyhole.contrast.found import Found, FoundHead
from keyhole.contrast.studies import Study
from keyhole.discover.one_head import HeadFeatures
from keyhole.errors import KeyholeError
from keyhole.files import is_file, is_folder
from keyhole.models.heads import Head, head_named
from keyhole.models.organism import source_named
from keyhole.naming.attached.same import distinct
from keyhole.naming.subject import Subject
from keyhole.naming.subjects import channel_subjects, signal_subjects, store_subjects
from keyhole.naming.subjects.features import contrast_subjects, discovered_subjects
from keyhole.naming.subjects.files import StoredSubjects, holds_subjects, load_subjects
from keyhole.progress import Progress, silent
from keyhole.store.model import model_of
from keyhole.store.reading import Where
from keyhole.store.store import Store, open_store
from keyhole.strict import shortened

if TYPE_CHECKING:
    from keyhole.models.model import Model

FeaturesFound = Found | FoundHead | Study | HeadFeatures
Known = Circuit | Store | Head | StoredSubjects | FeaturesFound | Sequence[Subject] | str  # a text: one of something
What = Known | Path
MOST = 100
_AS_MANY_TERMS = 4  # terms are taken up for every subject that is wanted: many share a direction
_PROMPTS = 20  # of which a term's direction is made: in one channel any would do


def read(what: What) -> Known:
    """What a text names: a head, a store's folder, a file; one channel, edge or feature needs the model first."""
    if not isinstance(what, str | Path) or is_one(str(what)):
        return what if not isinstance(what, Path) else str(what)
    if head := head_named(str(what)):
        return head
    path = Path(what)
    if is_folder(path):
        return open_store(path)
    if not is_file(path):
        raise KeyholeError(
            f"there is no {shortened(str(path))}: give a circuit or features (.json), a store of circuits, or a head "
            "such as 3.1."
        )
    return load_subjects(path) if holds_subjects(path) else load_circuit(path)


def is_one(text: str) -> bool:
    """Is it one channel (3.1:4), edge (mary.json#12) or feature (features.json#3)?"""
    return "#" in text or (":" in text and text[:1].isdecimal())


def subjects_of(
    what: What, model: "Model", *, most: int = MOST, where: Where = None, progress: Progress = silent
) -> list[Subject]:
    """What is to be named, the most frequent or strongest first: one subject for every direction."""
    what = read(what)
    if isinstance(what, Store):
        found = store_subjects(what, model, most=_AS_MANY_TERMS * most, each=_PROMPTS, where=where, progress=progress)
    elif isinstance(what, Circuit):
        found = sorted(signal_subjects(what, model), key=lambda one: -strength(what, one))
    elif isinstance(what, StoredSubjects):
        found = list(what.of(model))
    elif isinstance(what, FeaturesFound):
        found = feature_subjects(model, what)
    elif isinstance(what, tuple) and len(what) == 2 and all(isinstance(i, int) for i in what):
        found = channel_subjects(model, what)  # type: ignore[arg-type]
    elif isinstance(what, str):
        found = [read_what(model, what)]  # type: ignore[list-item]
    else:
        found = list(what)  # type: ignore[arg-type]
    if not found:
        raise KeyholeError("there is nothing to name: no edge is a signal into a head, and no feature has a dimension.")
    return distinct(found)[:most]


def feature_subjects(model: "Model", what: FeaturesFound) -> list[Subject]:
    """Features of a contrast, in the heads that were selected or in one; or those that were discovered in a head."""
    if isinstance(what, HeadFeatures):
        return discovered_subjects(model, what)
    if isinstance(what, FoundHead):
        return contrast_subjects(model, [what.feature], what.study.settings.frame)
    study = what.study if isinstance(what, Found) else what
    features = [feature for head in study.selected for feature in study.of(head)]
    return contrast_subjects(model, features, study.settings.frame)


def read_what(model: "Model", text: str) -> Subject | Head:
    """What an operand of `keyhole where` names: a head, or one channel, edge or feature."""
    path, mark, number = text.rpartition("#")
    if mark:
        return _feature(model, path, number) if holds_subjects(path) else _edge(model, path, number)
    name, colon, channel = text.partition(":")
    head = head_named(name)
    if head is None or (colon and not channel.removesuffix("-").isdecimal()):
        raise KeyholeError(f"{text!r} is no head such as 3.1, channel such as 3.1:4 or edge such as mary.json#12.")
    if not colon:
        return head
    both = channel_subjects(model, head, [int(channel.removesuffix("-"))])
    return both[channel.endswith("-")]


def made_by(what: What) -> Mapping[str, str] | None:
    """The name and fingerprint of the model that a circuit, a store or features are of; None: they do not say."""
    if isinstance(what, str) and "#" in what:
        what = read(what.rpartition("#")[0])
    if isinstance(what, Store):
        return what.manifest.model
    return what.model if isinstance(what, Circuit | StoredSubjects) else None


def model_for(what: Known, model: "Model | None") -> "Model":
    """The model in hand, that of a circuit's run, or the one that a store, a circuit or a file names."""
    from keyhole.models.loading.load import load

    if isinstance(what, Store):
        return model_of(what, model)
    if model is not None:
        return model
    if isinstance(what, FeaturesFound):
        raise KeyholeError("these features do not say whose they are: give the model that they were found in.")
    if isinstance(what, Circuit) and what.run is not None:
        return what.run.model
    return load(source_named((made_by(what) or {}).get("name")))


def strength(circuit: Circuit, subject: Subject) -> float:
    """How much of the answer is handed on by the edge of a signal; else by how much the attention weight drops."""
    edge = circuit.edges[int(subject.about["edge"])]
    return edge.weight if edge.influence is None else edge.influence


def _feature(model: "Model", path: str, number: str) -> Subject:
    found = load_subjects(path).of(model)
    if not (number.isdecimal() and int(number) < len(found)):
        raise KeyholeError(f"{path} has features #0 to #{len(found) - 1}, and not #{number}.")
    return found[int(number)]


def _edge(model: "Model", path: str, number: str) -> Subject:
    circuit = load_circuit(Path(path))
    found = {one.about["edge"]: one for one in signal_subjects(circuit, model)}
    if number in found:
        return found[number]
    if not (number.isdecimal() and int(number) < len(circuit.edges)):
        raise KeyholeError(f"{path} has edges #0 to #{len(circuit.edges) - 1}, and not #{number}.")
    signals = ", ".join(f"#{one}" for one in list(found)[:8])
    raise KeyholeError(f"edge #{number} of {path} is no signal into a head: these are, {signals} and so on.")
