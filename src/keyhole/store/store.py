"""What is in a store? Its prompts, circuits and signals, opened, filtered and checked.

Which rows are wanted? Tables over complete parts, read lazily: the columns and row groups that are needed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from jaxtyping import Float32

from keyhole.cache import readable
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import is_file, require_folder, write_at_once
from keyhole.store.manifest import MANIFEST, STATUSES, Manifest, Outcome, differences, manifest_from, manifest_text
from keyhole.store.parts import (
    FOLDERS,
    Damaged,
    Part,
    alone,
    damage,
    disk_size,
    has_record,
    keep_part,
    make_part,
    prepare,
    put_aside,
    strays,
    unwritable,
)
from keyhole.store.reading import CIRCUIT_TABLES, circuit_from, needed, outcome_from, part_of
from keyhole.store.schema import TABLES, arrow_schema, columns, tables
from keyhole.strict import read_text, shortened

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

# What rows should have, by column: a value, None for a missing one, or a list, of which any; or pyarrow's own.
AGAIN = "Run the command that made it again: it keeps what is whole, and makes the rest."
Where = Union[Mapping[str, Any], "pc.Expression", None]


def dataset(root: Path, manifest: Manifest, table: str, numbers: Sequence[int]) -> "ds.Dataset":
    """A table over some parts, in their order; what is read of it is checked against the checksums of its pages."""
    import pyarrow.dataset as ds

    checked = ds.ParquetFragmentScanOptions(page_checksum_verification=True)
    paths = [str(root / table / f"{manifest.name(number)}.parquet") for number in numbers]
    format_ = ds.ParquetFileFormat(default_fragment_scan_options=checked)
    return ds.dataset(paths, schema=arrow_schema(manifest, table), format=format_)


def rows_in(source: "ds.Dataset", table: str, names: Sequence[str] | None, where: "pc.Expression | None") -> "pa.Table":
    """These columns of the rows that are wanted."""
    import pyarrow as pa

    require_columns(table, source.schema.names, names or ())
    try:
        scanner = source.scanner(columns=None if names is None else list(names), filter=where)
    except (pa.ArrowException, TypeError) as error:
        raise KeyholeError(f"{table} cannot be filtered by {where}: {error}.") from error
    try:
        return scanner.to_table()
    except (pa.ArrowException, OSError) as error:
        raise KeyholeError(f"the table {table} is damaged: {' '.join(str(error).split())}. {AGAIN}") from error


def split(manifest: Manifest, table: str, where: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The conditions on a table's own columns, and those on columns of `prompts`."""
    columns_here, shared = columns(manifest, table), columns(manifest, "prompts")
    require_columns(table, [*columns_here, *shared], where)
    return (
        {name: value for name, value in where.items() if name in columns_here},
        {name: value for name, value in where.items() if name not in columns_here},
    )


def require_columns(table: str, known: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a column that a table has not."""
    for name in names:
        if name not in known:
            raise KeyholeError(f"{table} has no column {name!r}: it has {', '.join(dict.fromkeys(known))}.")


def expression(where: Mapping[str, Any], also: "pc.Expression | None" = None) -> "pc.Expression | None":
    """Values by column as one expression; True of all rows: None."""
    import pyarrow.compute as pc

    for name, value in where.items():
        column = pc.field(name)
        several = isinstance(value, list | tuple | set | frozenset | range)
        term = column.is_null() if value is None else column.isin(list(value)) if several else column == value
        also = term if also is None else also & term
    return also


# Where are the circuits of many prompts kept? In a folder of Parquet parts with a manifest; they come back exactly.


@dataclass(frozen=True)
class Check:
    """How far is a store, and is it whole?"""

    done: frozenset[int]  # numbers of the parts that are complete, every byte as it was written
    damaged: tuple[Damaged, ...]


@dataclass(eq=False)
class Store:
    """Outcomes of many prompts on a disk. Reading needs no lock, and may go on while another process writes."""

    path: Path  # its folder
    manifest: Manifest  # what it is a store of
    _writes: bool = field(default=False, repr=False)

    @contextmanager
    def writing(self) -> Iterator["Store"]:
        """Write alone: a second writer is refused, with the name of the first.

        What a writer that was stopped left half-written goes first, and files that are none of this store's go aside
        at last, so that no table tool counts them.
        """
        with alone(self.path):
            if open_store(self.path).manifest != self.manifest:
                raise KeyholeError(f"{self.path} was made anew since it was opened: open it again.")
            with unwritable(self.path):
                prepare(self.path, self.manifest)
            self._writes = True
            try:
                yield self
            finally:
                self._writes = False
            with unwritable(self.path):
                put_aside(self.path, self.manifest)

    def check(self) -> Check:
        """Which parts are complete, and what is damaged or foreign? Reads every byte."""
        checked = tables(self.manifest)
        damages = {number: damage(self.path, self.manifest, number, checked) for number in self._kept()}
        whole = frozenset(number for number, wrong in damages.items() if wrong is None)
        wrong = [damaged for damaged in damages.values() if damaged is not None]
        return Check(whole, (*wrong, *strays(self.path, self.manifest)))

    def done(self) -> frozenset[int]:
        """The numbers of the parts that are complete and whole."""
        return self.check().done

    def write(self, number: int, outcomes: Sequence[Outcome]) -> None:
        """Keep a part: the outcomes of exactly its prompts.

        Args:
            number: The index of the part.
            outcomes: What came of its prompts, in order.
        """
        self.keep(make_part(self.manifest, number, outcomes))

    def keep(self, part: Part) -> None:
        """Keep a part that was made here or elsewhere (`make_part`).

        Args:
            part: The part.
        """
        if not self._writes:
            raise KeyholeError("a store is written inside `with store.writing():`, so that only one writes at a time.")
        if part.name != self.manifest.name(part.number):
            raise KeyholeError(f"part {part.number} was made for another store: its name is {part.name}.")
        try:
            keep_part(self.path, part)
        except OSError as error:
            raise UnwritableError(
                f"cannot write part {part.number} into {self.path} ({error.strerror or error}). What was complete "
                f"stays: {self._far()}. Make room, and run the same command again: it goes on there."
            ) from error

    def __len__(self) -> int:
        """How many prompts have an outcome so far; the manifest's `n` is how many there will be."""
        return sum(len(self.manifest.span(number)) for number in self._kept())

    def __iter__(self) -> Iterator[Outcome]:
        return self.outcomes()

    def __getitem__(self, index: int) -> Outcome:
        """The outcome of a prompt, by its number in the whole run."""
        if not 0 <= index < self.manifest.n:
            raise KeyholeError(f"there is no prompt {index}: this store is of {self.manifest.n}, from 0.")
        number = index // self.manifest.part
        if not has_record(self.path, self.manifest, number):
            raise KeyholeError(f"prompt {index} has no outcome yet ({self._far()}). {AGAIN}")
        return next(self._read(number, {"prompt": index}))

    def circuit(self, index: int) -> Circuit:
        """The circuit of a prompt; one that has none is refused, with the reason.

        Args:
            index: The index of the prompt.

        >>> from tempfile import TemporaryDirectory
        >>> from keyhole.store import bulk
        >>> with TemporaryDirectory() as folder:
        ...     print(bulk("ioi", n=2, out=f"{folder}/ioi.store").circuit(0).parameters.target_text)
        ('Zoe',)
        """
        outcome = self[index]
        if outcome.circuit is None:
            reason = outcome.error or "not traced"
            raise KeyholeError(f"prompt {index} has no circuit; it is {outcome.status}: {reason}")
        return outcome.circuit

    def outcomes(self, where: Where = None) -> Iterator[Outcome]:
        """The outcomes so far, in order, one part in memory at a time; `where` is of the table `prompts`.

        One part is in memory at a time.

        Args:
            where: Which prompts: values by column of the table `prompts`, or an expression. Default: all.
        """
        for number in self._kept():
            yield from self._read(number, where)

    def circuits(self, where: Where = None) -> Iterator[tuple[int, Circuit]]:
        """The circuits so far, each with the index of its prompt.

        Args:
            where: Which prompts: values by column of the table `prompts`, or an expression. Default: all.
        """
        for outcome in self.outcomes(where):
            if outcome.circuit is not None:
                yield outcome.index, outcome.circuit

    def table(self, name: str, *, columns: Sequence[str] | None = None, where: Where = None) -> "pa.Table":
        """One of the store's tables, as pyarrow reads it.

        `where` has values by column, of this table or of `prompts`; or is an expression of this table's own columns.

        Args:
            name: Its name, such as "prompts" or "edges".
            columns: Which columns. Default: all.
            where: Which rows: values by column, of this table or of `prompts`; or an expression of this table's own
                columns. Default: all.
        """
        source = self.dataset(name)
        if isinstance(where, Mapping):
            of_table, of_prompts = split(self.manifest, name, where)
            where = expression(of_table)
            if of_prompts:
                prompts = self.table("prompts", columns=["prompt"], where=of_prompts)["prompt"]
                where = expression({"prompt": prompts.to_pylist()}, where)
        return rows_in(source, name, columns, where)

    def dataset(self, name: str) -> "ds.Dataset":
        """A table that is not read yet, for pyarrow, DuckDB or polars to read in pieces.

        Args:
            name: Its name, such as "prompts" or "edges".
        """
        if name not in tables(self.manifest):
            raise KeyholeError(f"a store has no table {name!r}: it has {', '.join(tables(self.manifest))}.")
        kept = self._kept()
        for number in kept:
            self._require_whole(number)
        return dataset(self.path, self.manifest, name, kept)

    def counts(self) -> dict[str, int]:
        """How many prompts have each status."""
        counted = Counter(self.table("prompts", columns=["status"])["status"].to_pylist())
        return {status: counted[status] for status in STATUSES}

    def __repr__(self) -> str:
        return f"<Store {self.path}: {self._far()}>"

    def __str__(self) -> str:
        counts = ", ".join(f"{count:,} {status}" for status, count in self.counts().items() if count)
        name, size = self.manifest.model.get("name"), disk_size(self.path)
        return f"{self.path}: {self._far()} of {name}, {readable(size)}\n{counts or 'no outcomes yet'}"

    def _far(self) -> str:
        kept, plan = self._kept(), self.manifest
        prompts = sum(len(plan.span(number)) for number in kept)
        return f"{len(kept):,} of {plan.parts:,} parts, {prompts:,} of {plan.n:,} prompts"

    def _kept(self) -> list[int]:
        """The parts that were completed, whatever became of them since."""
        return [number for number in range(self.manifest.parts) if has_record(self.path, self.manifest, number)]

    def _require_whole(self, number: int, checked: Collection[str] = ()) -> None:
        wrong = damage(self.path, self.manifest, number, checked)
        if wrong is not None:
            raise KeyholeError(f"{self.path} is damaged: {wrong} {AGAIN}")

    def _read(self, number: int, where: Where) -> Iterator[Outcome]:
        self._require_whole(number, TABLES)
        rows = self._rows("prompts", number, where).to_pylist()
        chosen = {"prompt": [row["prompt"] for row in rows]}
        circuits = {row["prompt"]: row for row in self._rows("circuits", number, chosen).to_pylist()}
        parts = {table: part_of(self._rows(table, number, chosen)) for table in CIRCUIT_TABLES}
        for row in rows:
            circuit = circuits.get(row["prompt"])
            yield outcome_from(
                self.manifest, row, None if circuit is None else circuit_from(self.manifest, circuit, parts)
            )

    def _rows(self, table: str, number: int, where: Where) -> "pa.Table":
        source = dataset(self.path, self.manifest, table, [number])
        if isinstance(where, Mapping):
            require_columns(table, source.schema.names, where)
            where = expression(where)
        names = needed(self.manifest, table) if table in CIRCUIT_TABLES else None
        return rows_in(source, table, names, where)


def make_store(path: Path | str, manifest: Manifest) -> Store:
    """Make a new store, or open the same one to go on with.

    A store of something else is refused, and each difference is named.

    Args:
        path: The folder.
        manifest: What the store is to hold.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.store import manifest_of
    >>> from keyhole.tasks import ioi
    >>> model = {"name": "organism", "fingerprint": "0"}
    >>> manifest = manifest_of(ioi(2), model=model, settings={}, task={}, versions={})
    >>> with TemporaryDirectory() as folder:
    ...     print(make_store(f"{folder}/ioi.store", manifest).done())
    frozenset()
    """
    root = require_folder(path)
    if not (root / MANIFEST).exists():
        names = [entry.name for entry in root.iterdir()]
        other = sorted(name for name in names if name not in FOLDERS and not name.startswith("."))
        if other:
            raise KeyholeError(f"{root} is a folder with other things ({other[0]}): give a new one for a store.")
        write_at_once(root / MANIFEST, manifest_text(manifest))
    store = open_store(root)
    if reasons := differences(store.manifest, manifest):
        raise KeyholeError(f"{root} is a store of something else: {'; '.join(reasons)}. Give another place.")
    return store


def open_store(path: Path | str) -> Store:
    """A store that was made before, to read or to go on with.

    The prompts are those of the store's manifest. A folder that is no store is refused.

    Args:
        path: The store's folder.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.store import make_store, manifest_of
    >>> from keyhole.tasks import ioi
    >>> manifest = manifest_of(ioi(2), model={"fingerprint": "0"}, settings={}, task={}, versions={})
    >>> with TemporaryDirectory() as folder:
    ...     _ = make_store(f"{folder}/ioi.store", manifest)
    ...     print(open_store(f"{folder}/ioi.store").manifest.n)
    2
    """
    root = Path(path)
    if not is_file(root / MANIFEST):
        raise KeyholeError(f"{shortened(str(root))} is no store: it has no {MANIFEST}. `keyhole bulk` makes one.")
    try:
        return Store(root, manifest_from(read_text(root / MANIFEST)))
    except KeyholeError as error:
        raise KeyholeError(f"{root} is not a store that can be read: {error}") from error


# What do a circuit's signals look like? Vectors in residual space, while the run that made it is at hand.


def signal_vectors(circuit: Circuit) -> "dict[int, Float32[np.ndarray, 'd_model']]":
    """The vector of every signal by the number of its edge, as the head compares it (`rotated`), rounded to float32."""
    from keyhole.tracing.firing import Firing
    from keyhole.tracing.why import signal_vector

    if circuit.run is None:
        raise KeyholeError("signals are vectors of the run, which this circuit came without: trace it again.")
    vectors = {}
    for number, edge in enumerate(circuit.edges):
        if edge.side not in ("dest", "src"):
            continue
        into, weight = circuit.nodes[edge.receiver], circuit.attention[edge.receiver]
        assert into.layer is not None and into.head is not None and weight is not None
        firing = Firing(into.layer, into.head, into.dest, into.src, weight, 0.0, 0, (), circuit.run)
        vectors[number] = signal_vector(firing, circuit.signal(edge)).float().cpu().numpy()
    return vectors
