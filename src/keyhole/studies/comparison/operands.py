"""What can be compared? A store, a family or a selection of it, one circuit, or a published circuit, by a short text.

ioi.store                 all circuits of a store
ioi.store:1               family 1 of `keyhole families ioi.store`
ioi.store[order=ABBA]     prompts with this label; several are parted by commas
ioi.store#129             the circuit of prompt 129
mary.json                 a circuit file
eap.mib                   a circuit file of EAP-IG or MIB (.mib, or its .json)
published:gpt2-ioi        a published circuit

The second part counts terms: which ones both sides have, and how often.
"""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.exports import is_mib, read_mib
from keyhole.errors import KeyholeError
from keyhole.files import is_folder
from keyhole.store.manifest import label_columns, traced_prompts
from keyhole.store.store import Store, open_store
from keyhole.strict import shortened
from keyhole.studies.comparison.score import Score, overlap
from keyhole.studies.comparison.signals import Member, draw, member
from keyhole.studies.comparison.unified import Published, Unified, published, published_in, unify
from keyhole.studies.families.agreement import medoid
from keyhole.studies.families.distances import Granularity, in_common, jaccard
from keyhole.studies.families.sets import Sets, Term, circuit_sets, store_sets

if TYPE_CHECKING:
    from keyhole.studies.families.record import Families

PREFIX = "published:"
MOST = 5000  # circuits among which a representative is looked for: a sample, where there are more
_PARTS = re.compile(r"(?P<path>.+?)(?:\[(?P<where>[^\[\]]*)\]|:(?P<family>\d+)|#(?P<prompt>\d+))?")


@dataclass(frozen=True, repr=False)
class Operand:
    """One side of a comparison: prompts of a store, a circuit in hand, or a published circuit."""

    label: str
    store: Store | None = None
    prompts: tuple[int, ...] = ()  # of the store, that have a circuit
    medoid: int | None = None  # their representative, where it is known already
    circuit: Member | None = None
    reference: Published | None = None

    @property
    def model(self) -> Mapping[str, str]:
        """The name of the model, and of its weights where they are known."""
        if self.store is not None:
            return self.store.manifest.model
        return {"name": self.reference.model} if self.reference is not None else self._own.circuit.model

    def sets(self, granularity: Granularity) -> Sets:
        """Its circuits as sets."""
        if self.store is not None:
            return store_sets(self.store, granularity, prompts=self.prompts)
        return circuit_sets([self._own.circuit], granularity)

    def unified(self) -> Unified:
        """Its circuits as one."""
        return unify([self._own.circuit]) if self.store is None else unify(self.store, prompts=self.prompts)

    def representative(self) -> Member:
        """The circuit with the least mean Jaccard distance to the others, over edges with channels."""
        if self.store is None:
            return self._own
        return member(self.store, self.prompts[0] if len(self.prompts) == 1 else self._medoid())

    def members(self, n: int, *, seed: int, but: Sequence[int | None]) -> list[Member]:
        """At most n of its circuits, without some."""
        return [] if self.store is None else draw(self.store, self.prompts, n, seed=seed, but=but)

    @property
    def sampled(self) -> bool:
        """Is its representative that of a sample alone? All pairs of very many circuits are too many."""
        return self.medoid is None and len(self.prompts) > MOST

    def _medoid(self) -> int:
        if self.medoid is not None:
            return self.medoid
        assert self.store is not None
        chosen = random.Random(0).sample(self.prompts, min(MOST, len(self.prompts)))
        return medoid_of(store_sets(self.store, "channels", prompts=chosen))

    @property
    def _own(self) -> Member:
        assert self.circuit is not None, "an operand without a store is a circuit"
        return self.circuit


def medoid_of(sets: Sets) -> int:
    """The prompt whose set has the least summed Jaccard distance to the others; of equals, the first."""
    at, _ = medoid(jaccard(sets.matrix), np.arange(len(sets)))
    return int(sets.prompts[at])


Comparable = str | Path | Store | Circuit | Published | Operand


def operand(given: Comparable, known: "dict[Path, Families] | None" = None) -> Operand:
    """The side that a text or an object means; `known`: families of stores that need not be found again."""
    if isinstance(given, Operand):
        return given
    if isinstance(given, Published):
        return Operand(PREFIX + given.name, reference=given)
    if isinstance(given, Circuit):
        return Operand("a circuit", circuit=Member.of(given))
    if isinstance(given, Store):
        return _whole(given, str(given.path))
    text = str(given)
    if text.startswith(PREFIX):
        return operand(published(text.removeprefix(PREFIX)))
    if is_folder(text):
        return _whole(open_store(text), text)
    if text.lower().endswith((".json", ".mib")) and is_mib(text):
        return Operand(text, reference=published_in(read_mib(text)))
    if text.endswith(".json"):
        return Operand(text, circuit=Member.of(Circuit.load(text)))
    return _part_of(text, {} if known is None else known)


def store_of(text: str) -> Store | None:
    """The store that a text names, whichever part of it; None: it names none."""
    if is_folder(text):
        return open_store(text)
    parts = _PARTS.fullmatch(text)
    return None if parts is None or not is_folder(parts["path"]) else open_store(parts["path"])


def select(store: Store, where: Mapping[str, str], label: str) -> Operand:
    """The prompts of a store that have these labels, or these values of other columns of its table `prompts`."""
    names = {name: column for name in where for column in label_columns(store, {name: ""})}
    for name, column in names.items():
        if column == name and name not in store.dataset("prompts").schema.names:
            listed = ", ".join(store.manifest.labels) or "no labels at all"
            raise KeyholeError(f"prompts of {store.path} have no label {name!r}: they have {listed}.")
    conditions = {names[name]: value for name, value in where.items()}
    prompts = _traced(store, conditions)
    if not prompts:
        values = {name: _values(store, column) for name, column in names.items()}
        listed = "; ".join(f"{name} is one of {', '.join(some)}" for name, some in values.items())
        raise KeyholeError(f"{label} selects no prompt with a circuit: {listed}.")
    return Operand(label, store, prompts)


def _part_of(text: str, known: "dict[Path, Families]") -> Operand:
    parts, store = _PARTS.fullmatch(text), store_of(text)
    if parts is None or store is None:
        raise KeyholeError(
            f"{shortened(text)} cannot be compared: there is no such store or circuit. Give a store, a family "
            "(ioi.store:1), prompts of it (ioi.store[order=ABBA]), one of its circuits (ioi.store#129), a circuit "
            f"file (.json, or .mib of EAP-IG and MIB), or {PREFIX}gpt2-ioi."
        )
    if parts["prompt"] is not None:
        number = int(parts["prompt"])
        store.circuit(number)  # refused with the reason, if there is none
        return Operand(text, store, (number,), number)
    if parts["where"] is not None:
        return select(store, _conditions(parts["where"], text), text)
    return _family(store, int(parts["family"]), text, known)


def _family(store: Store, number: int, text: str, known: "dict[Path, Families]") -> Operand:
    from keyhole.studies.families.families import families

    path = store.path.resolve()
    if path not in known:
        known[path] = families(store)
    for family in known[path].families:
        if family.number == number:
            return Operand(text, store, tuple(family.members), family.representative)
    numbers = ", ".join(str(family.number) for family in known[path].families)
    raise KeyholeError(f"{store.path} has no family {number}: `keyhole families` finds {numbers}.")


def _conditions(text: str, whole: str) -> dict[str, str]:
    conditions = {}
    for piece in text.split(","):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if not (name and equals and value):
            raise KeyholeError(f"{whole}: prompts are selected as in ioi.store[order=ABBA], not by {piece.strip()!r}.")
        conditions[name] = value
    return conditions


def _whole(store: Store, label: str) -> Operand:
    prompts = _traced(store, {})
    if not prompts:
        raise KeyholeError(f"{store.path} has no circuits to compare: {store}.")
    return Operand(label, store, prompts)


def _traced(store: Store, where: Mapping[str, str]) -> tuple[int, ...]:
    """The prompts that have a circuit, of those with these values."""
    return tuple(traced_prompts(store, dict(where)).tolist())


def _values(store: Store, column: str, most: int = 8) -> list[str]:
    values = sorted({str(value) for value in store.table("prompts", columns=[column])[column].to_pylist()})
    return [*values[:most], *(["..."] if len(values) > most else [])]


# Which terms do two sets of circuits share, how often, and which has one alone?

FEWEST = 5  # circuits of a half


@dataclass(frozen=True)
class TermRow:
    """One term and the share of circuits that have it, of each set."""

    term: Term
    a: float
    b: float


@dataclass(frozen=True)
class Halves:
    """The likeness of random halves of one side, and of a half of each: smaller sets are less alike, so sizes agree."""

    circuits: int
    within_a: float
    within_b: float
    between: float


@dataclass(frozen=True)
class TermComparison:
    """Two sets of circuits at one granularity."""

    granularity: Granularity
    circuits: tuple[int, int]
    threshold: float
    rows: tuple[TermRow, ...]  # every term that either has; the largest difference first
    score: Score  # a against b as the reference, of terms in at least this share of circuits
    likeness: float  # sum of the smaller frequencies over that of the larger: 1 where all are equal
    halves: Halves | None  # to compare likeness with; None: there are too few circuits

    @property
    def only_a(self) -> tuple[TermRow, ...]:
        """Terms that no circuit of b has."""
        return tuple(row for row in self.rows if not row.b)

    @property
    def only_b(self) -> tuple[TermRow, ...]:
        """Terms that no circuit of a has."""
        return tuple(row for row in self.rows if not row.a)

    @property
    def shared(self) -> tuple[TermRow, ...]:
        """Terms that circuits of both have."""
        return tuple(row for row in self.rows if row.a and row.b)


def frequencies(sets: Sets) -> dict[Term, float]:
    """The share of circuits that have each term."""
    if not len(sets.prompts):
        raise KeyholeError("there are no circuits to count terms of: ask for other prompts.")
    counts = np.asarray((sets.matrix != 0).sum(axis=0)).ravel() / len(sets.prompts)
    return dict(zip(sets.terms, counts.tolist(), strict=True))


def likeness(of_a: Mapping[Term, float], of_b: Mapping[Term, float]) -> float:
    """The sum of the smaller frequencies over the sum of the larger.

    >>> from keyhole.circuits.records import Component
    >>> one, other = (Term(Component("head", 9, head)) for head in (6, 9))
    >>> likeness({one: 1.0, other: 0.5}, {one: 0.75})
    0.5
    """
    terms = list(dict.fromkeys([*of_a, *of_b]))  # no set: its order, and with it rounding, differs from run to run
    first, second = (np.array([shares.get(term, 0.0) for term in terms]) for shares in (of_a, of_b))
    return float(in_common(first, second))


def halves(a: Sets, b: Sets, *, draws: int = 5, seed: int = 0) -> Halves | None:
    """How alike are random halves of one side, and how alike halves of both sides? Means over draws."""
    size = min(len(a.prompts), len(b.prompts)) // 2
    if size < FEWEST:
        return None
    rng, values = np.random.default_rng(seed), []
    for _ in range(draws):
        from_a, from_b = (rng.permutation(len(sets.prompts))[: 2 * size] for sets in (a, b))
        first, second = (_some(a, rows) for rows in (from_a[:size], from_a[size:]))
        third, fourth = (_some(b, rows) for rows in (from_b[:size], from_b[size:]))
        values.append((likeness(first, second), likeness(third, fourth), likeness(first, third)))
    return Halves(size, *(float(value) for value in np.mean(values, axis=0)))


def _some(sets: Sets, rows: Int[np.ndarray, "rows"]) -> dict[Term, float]:
    return frequencies(replace(sets, prompts=sets.prompts[rows], matrix=sets.matrix[rows]))


def compare_terms(a: Sets, b: Sets, *, threshold: float) -> TermComparison:
    """The terms of two sets of circuits at one granularity, with their frequencies."""
    if a.granularity != b.granularity:
        raise KeyholeError(f"{a.granularity} and {b.granularity} are other things, and cannot be compared.")
    of_a, of_b = frequencies(a), frequencies(b)
    terms = list(dict.fromkeys([*of_a, *of_b]))
    rows = [TermRow(term, of_a.get(term, 0.0), of_b.get(term, 0.0)) for term in terms]
    rows = sorted((row for row in rows if row.a or row.b), key=lambda row: (-abs(row.a - row.b), repr(row.term)))
    often = [{term for term, share in shares.items() if share and share >= threshold} for shares in (of_a, of_b)]
    return TermComparison(
        granularity=a.granularity,
        circuits=(len(a.prompts), len(b.prompts)),
        threshold=threshold,
        rows=tuple(rows),
        score=overlap(often[0], often[1]),
        likeness=likeness(of_a, of_b),
        halves=halves(a, b),
    )
