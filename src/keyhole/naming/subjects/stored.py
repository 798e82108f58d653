"""Which signals come again and again in a store? One subject for each, made of all the prompts that have it.

Two signals are the same if the same component writes into the same channels of the same head, on the same side: tokens
do not count. Their coordinates are added up over prompts, so that the common part of them is named.
"""

from collections import Counter
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import crc32

from torch import Tensor

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.writer import Component, SideName
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import fresh_run
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.pairs import paired
from keyhole.naming.subjects.signals import (
    coordinates,
    signal_edges,
    told_basis,
    told_channels,
    told_coordinates,
)
from keyhole.progress import Progress, silent
from keyhole.qk.omega import Basis
from keyhole.store.model import model_of
from keyhole.store.reading import Where
from keyhole.store.store import Store

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
    into, who = circuit.nodes[edge.target], circuit.nodes[edge.source].writer
    assert into.layer is not None and into.head is not None and edge.side in ("dest", "src")
    writer = Component(who.kind, who.layer, who.head if who.kind == "head" else None)
    channels, basis = tuple(sorted(edge.channels)), circuit.parameters.basis
    return _Term((into.layer, into.head), edge.side, channels, writer, basis)
