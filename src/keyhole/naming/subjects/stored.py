"""Which signals recur in a store, what is read from a text or a file, and what would there be by chance?

Which signals come again and again in a store? One subject for each, made of all the prompts that have it.

Two signals are the same if the same component writes into the same channels of the same head, on the same side: tokens
do not count. Their coordinates are added up over prompts, so that the common part of them is named.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from keyhole.brief import Head, head_name, head_named
from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.files import load_circuit
from keyhole.circuits.records import Component, SideName
from keyhole.errors import KeyholeError
from keyhole.features.contrast.found import Found, FoundHead
from keyhole.features.contrast.studies import Study
from keyhole.features.discovery.one_head import HeadFeatures
from keyhole.files import is_file, is_folder
from keyhole.intervene.cuts import fresh_run
from keyhole.models.numbers import exact_matmul
from keyhole.models.organism import source_named
from keyhole.naming.corpus.kept import salt
from keyhole.naming.subjects.files import (
    StoredSubjects,
    channel_subjects,
    contrast_subjects,
    coordinates,
    discovered_subjects,
    holds_subjects,
    load_subjects,
    signal_edges,
    signal_subjects,
    told_basis,
    told_channels,
    told_coordinates,
)
from keyhole.naming.subjects.subject import Subject, basis_of, distinct, paired
from keyhole.progress import Progress, silent
from keyhole.qk.omega import Basis, omega
from keyhole.store.model import model_of
from keyhole.store.store import Store, Where, open_store
from keyhole.strict import shortened

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class _Term:
    head: Head
    side: SideName
    channels: tuple[int, ...]  # in the order of their numbers
    writer: Component  # constants without the head whose they are
    basis: Basis

    @property
    def key(self) -> tuple[Any, ...]:
        layer, head, *_ = self.writer.key
        return self.head, self.side, self.channels, self.writer.kind, layer, head, self.basis

    @property
    def writer_name(self) -> str:
        return str(self.writer) if self.writer.kind == "head" else f"{self.writer.kind} {self.writer.layer}"

    def __str__(self) -> str:
        return f"{head_name(self.head)} {self.side} {told_channels(self.channels)} <- {self.writer_name}"


def store_subjects(
    store: Store,
    model: "Model | None" = None,
    *,
    most: int | None = 200,
    each: int = 50,
    where: Where = None,
    progress: Progress = silent,
) -> list[Subject]:
    """The signals of a store, those that most prompts have first; `most` of them, each made of at most so many prompts.

    `where` is of the store's table `prompts`. Prompts are run again, with the model that made the store.
    """
    found = model_of(store, model)
    counts: Counter[_Term] = Counter()
    having: dict[_Term, list[int]] = {}
    for prompt, circuit in store.circuits(where):
        for term in sorted({_term(circuit, edge) for _, edge in signal_edges(circuit)}, key=attrgetter("key")):
            counts[term] += 1
            having.setdefault(term, []).append(prompt)
    if not counts:
        raise KeyholeError(f"{store.path} has no signals to name: none of its circuits has an edge into a head.")
    chosen = sorted(counts, key=lambda term: (-counts[term], term.key))[:most]
    wanted: dict[int, set[_Term]] = {}
    for term in chosen:
        for prompt in sorted(having[term], key=_shuffled)[:each]:  # neighbours are alike; terms share prompts
            wanted.setdefault(prompt, set()).add(term)
    sums = _sums(store, found, wanted, progress)
    return [_subject(found, term, sums[term], counts[term]) for term in chosen]


def _shuffled(prompt: int) -> tuple[int, int]:
    """An order of prompts that has nothing to do with that of a store, and is always the same."""
    return crc32(str(prompt).encode()), prompt


def _sums(store: Store, model: "Model", wanted: dict[int, set[_Term]], progress: Progress) -> dict[_Term, Tensor]:
    sums: dict[_Term, Tensor] = {}
    with exact_matmul():
        chosen = store.circuits({"prompt": sorted(wanted)})  # each part of the store is read once
        for done, (prompt, circuit) in enumerate(chosen, start=1):
            run = fresh_run(circuit, model)
            for _, edge in signal_edges(circuit):
                term = _term(circuit, edge)
                if term in wanted[prompt]:
                    signal = replace(circuit.signal(edge), channels=term.channels)
                    own = coordinates(run, term.head, signal).double()
                    sums[term] = sums[term] + own if term in sums else own
            progress(done, len(wanted))
    return sums


def _subject(model: "Model", term: _Term, total: Tensor, prompts: int) -> Subject:
    directions = paired(model, term.head, term.side, term.channels, coordinates=total, basis=term.basis)
    about = {
        "side": term.side,
        "channels": told_channels(term.channels),
        "writer": term.writer_name,
        "prompts": str(prompts),
        "coordinates": told_coordinates(total),
        **told_basis(term.basis),
    }
    return Subject(str(term), "signal", term.head, *directions, about=about)


def _term(circuit: Circuit, edge: Edge) -> _Term:
    into, who = circuit.nodes[edge.receiver], circuit.nodes[edge.sender].writer
    assert into.layer is not None and into.head is not None and edge.side in ("dest", "src")
    writer = Component(who.kind, who.layer, who.head if who.kind == "head" else None)
    channels, basis = tuple(sorted(edge.channels)), circuit.parameters.basis
    return _Term((into.layer, into.head), edge.side, channels, writer, basis)


# What would be named if there were nothing to name? Random directions, of the heads and sides of real ones.


def random_subjects(model: "Model", like: Sequence[Subject], seed: int = 0) -> list[Subject]:
    """For each of these a random direction in the same head, on the same side, paired by Omega as a signal is.

    Its coordinates in u_k (dest) or v_k (src) are those of a uniformly random unit vector of all that the head reads.
    So are those of a random vector in a random subspace, whatever its rank: a control of a signal of any rank.
    """
    found = []
    for number, one in enumerate(like):
        basis = basis_of(one.about)
        om = omega(model, one.head[0], basis)
        sigma, rank = om.sigma[one.head[1]], int(om.rank[one.head[1]])
        rng = np.random.default_rng(int(salt(seed, one.id, "random")))
        drawn = torch.from_numpy(rng.standard_normal(rank)).to(sigma.device)
        side: SideName = "src" if one.about.get("side") == "src" else "dest"
        coordinates = drawn * sigma[:rank].double() if side == "dest" else drawn  # a_k / sigma_k is what u_k has
        directions = paired(model, one.head, side, range(rank), coordinates=coordinates, basis=basis)
        about = {"side": side, "like": one.id}
        name = f"{head_name(one.head)} random {number}"
        found.append(Subject(name, "random", one.head, *directions, about=about))
    return found


# What is to be named, or looked for? A circuit, a store, a head, features; one channel, edge or feature of them.
#
# 3.1              a head            3.1:4, 3.1:4-      a channel of it, and its opposite
# mary.json        a circuit         mary.json#12       an edge of it
# features.json    features          features.json#3    one of them
# ioi.store        a store

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
    from keyhole.models.load import load

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
