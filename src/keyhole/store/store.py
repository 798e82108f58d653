"""Where are the circuits of many prompts kept? In a folder of Parquet parts with a manifest, and come back exactly."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import require_folder, write_at_once
from keyhole.store.back import ROWS_OF_A_CIRCUIT, Row, by_prompt, circuit_from, outcome_from
from keyhole.store.lock import alone
from keyhole.store.manifest import MANIFEST, Manifest, differences, manifest_from, manifest_text
from keyhole.store.outcome import STATUSES, Outcome
from keyhole.store.parts import Damaged, Part, damage, is_begun, keep_part, make_part
from keyhole.store.reading import Where, read_table
from keyhole.store.schema import tables
from keyhole.strict import read_text

if TYPE_CHECKING:
    import pyarrow as pa

AGAIN = "Run the command that made it again: it keeps what is whole, and makes the rest."


@dataclass(frozen=True)
class Check:
    """How far is a store, and is it whole?"""

    done: frozenset[int]  # numbers of the parts that are complete, every file as it was written
    damaged: tuple[Damaged, ...]


@dataclass(eq=False)
class Store:
    """Outcomes of many prompts on a disk. Reading needs no lock, and may go on while another process writes."""

    path: Path
    manifest: Manifest
    _writes: bool = field(default=False, repr=False)

    @contextmanager
    def writing(self) -> Iterator["Store"]:
        """Write alone; a second writer is refused, and told who the first is."""
        with alone(self.path):
            self._writes = True
            try:
                yield self
            finally:
                self._writes = False

    def check(self) -> Check:
        """Which parts are complete, and what is damaged? Reads every byte."""
        begun = [number for number in range(self.manifest.parts) if is_begun(self.path, self.manifest, number)]
        found = {number: damage(self.path, self.manifest, number, thorough=True) for number in begun}
        whole = frozenset(number for number, wrong in found.items() if wrong is None)
        return Check(whole, tuple(wrong for wrong in found.values() if wrong is not None))

    def done(self) -> frozenset[int]:
        """The numbers of the parts that are complete and whole."""
        return self.check().done

    def write(self, number: int, outcomes: Sequence[Outcome]) -> None:
        """Keep a part: the outcomes of exactly its prompts."""
        self.keep(make_part(self.manifest, number, outcomes))

    def keep(self, part: Part) -> None:
        """Keep a part that was made elsewhere (`make_part`)."""
        if not self._writes:
            raise KeyholeError("a store is written inside `with store.writing():`, so that only one writes at a time.")
        try:
            keep_part(self.path, part)
        except OSError as error:
            raise UnwritableError(
                f"cannot write part {part.number} into {self.path} ({error.strerror or error}). What was complete "
                f"stays: {self._far()}. Make room, and run the same command again: it goes on there."
            ) from error

    def __len__(self) -> int:
        """How many prompts have an outcome so far; the manifest's `n` is how many there will be."""
        return sum(len(self.manifest.span(number)) for number in self._complete())

    def __iter__(self) -> Iterator[Outcome]:
        return self.outcomes()

    def __getitem__(self, index: int) -> Outcome:
        """The outcome of a prompt, by its number in the whole run."""
        return next(self._read(self._part_of(index), {"prompt": index}))

    def circuit(self, index: int) -> Circuit:
        """The circuit of a prompt; one that has none is refused, and told why there is none."""
        found = self[index]
        if found.circuit is None:
            why = f": {found.error}" if found.error else "."
            raise KeyholeError(f"prompt {index} has no circuit, its status is {found.status}{why}")
        return found.circuit

    def outcomes(self, where: Where = None) -> Iterator[Outcome]:
        """The outcomes so far, in order, a part in memory at a time; `where` is of the table `prompts`."""
        for number in self._complete():
            yield from self._read(number, where)

    def circuits(self, where: Where = None) -> Iterator[tuple[int, Circuit]]:
        """The circuits so far, each with the number of its prompt; `where` is of the table `prompts`."""
        for outcome in self.outcomes(where):
            if outcome.circuit is not None:
                yield outcome.index, outcome.circuit

    def table(self, name: str, *, columns: Sequence[str] | None = None, where: Where = None) -> "pa.Table":
        """A table as pyarrow has it: these columns, and the rows that `where` asks for."""
        if name not in tables(self.manifest):
            raise KeyholeError(f"a store has no table {name!r}: it has {', '.join(tables(self.manifest))}.")
        return read_table(self.path, self.manifest, name, self._complete(), columns, where)

    def counts(self) -> dict[str, int]:
        """How many prompts have each status."""
        found = Counter(self.table("prompts", columns=["status"])["status"].to_pylist())
        return {status: found[status] for status in STATUSES}

    def __repr__(self) -> str:
        return f"<Store {self.path}: {self._far()}>"

    def _far(self) -> str:
        begun = [number for number in range(self.manifest.parts) if is_begun(self.path, self.manifest, number)]
        prompts = sum(len(self.manifest.span(number)) for number in begun)
        return f"{len(begun)} of {self.manifest.parts} parts, {prompts} of {self.manifest.n} prompts"

    def _complete(self) -> list[int]:
        """The parts that can be read; a damaged one is refused rather than passed over."""
        begun = [number for number in range(self.manifest.parts) if is_begun(self.path, self.manifest, number)]
        for number in begun:
            self._require_whole(number)
        return begun

    def _require_whole(self, number: int) -> None:
        wrong = damage(self.path, self.manifest, number, thorough=False)
        if wrong is not None:
            raise KeyholeError(f"{self.path} is damaged: {wrong} {AGAIN}")

    def _part_of(self, index: int) -> int:
        if not 0 <= index < self.manifest.n:
            raise KeyholeError(f"there is no prompt {index}: this store is of {self.manifest.n}, from 0.")
        number = index // self.manifest.part
        if not is_begun(self.path, self.manifest, number):
            raise KeyholeError(f"prompt {index} has no outcome yet ({self._far()}). {AGAIN}")
        self._require_whole(number)
        return number

    def _read(self, number: int, where: Where) -> Iterator[Outcome]:
        rows = self._rows("prompts", number, where)
        asked: Where = {"prompt": [row["prompt"] for row in rows]}
        circuits = {row["prompt"]: row for row in self._rows("circuits", number, asked)}
        own = {table: by_prompt(self._rows(table, number, asked)) for table in ROWS_OF_A_CIRCUIT}
        for row in rows:
            told = circuits.get(row["prompt"])
            mine = {table: found[row["prompt"]] for table, found in own.items()}
            circuit = None if told is None else circuit_from(self.manifest, told, mine)
            yield outcome_from(self.manifest, row, circuit)

    def _rows(self, table: str, number: int, where: Where) -> list[Row]:
        return list(read_table(self.path, self.manifest, table, [number], None, where).to_pylist())


def make_store(path: Path | str, manifest: Manifest) -> Store:
    """A new store, or the same one to go on with; one of something else is refused, each difference named."""
    root = require_folder(path)
    if not (root / MANIFEST).exists():
        write_at_once(root / MANIFEST, manifest_text(manifest))
    store = open_store(root)
    if other := differences(store.manifest, manifest):
        raise KeyholeError(f"{root} is a store of something else: {'; '.join(other)}. Give another place.")
    return store


def open_store(path: Path | str) -> Store:
    """A store that was made before, to read or to go on with."""
    root = Path(path)
    if not (root / MANIFEST).is_file():
        raise KeyholeError(f"{root} is no store: it has no {MANIFEST}. `keyhole bulk` makes one.")
    try:
        return Store(root, manifest_from(read_text(root / MANIFEST)))
    except KeyholeError as error:
        raise KeyholeError(f"{root} is not a store that can be read: {error}") from error
