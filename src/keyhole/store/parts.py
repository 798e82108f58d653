"""What is a part of a store? Parquet files and the record that completes them, written by one process alone.

Who writes? One process at a time, which says who it is; the lock of a process that died is nobody's.
"""

import hashlib
import json
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from keyhole.cache import digest
from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import replacing, sync_folder, write_at_once
from keyhole.store.manifest import Manifest, Outcome, prompts_digest
from keyhole.store.rows import Rows, rows_of
from keyhole.store.schema import SIGNALS, TABLES, arrow_schema, tables
from keyhole.strict import is_index, parse_json, quoted, read_text, require, require_fields

if TYPE_CHECKING:
    import pyarrow as pa

LOCK, WRITER = ".lock", ".writer.json"


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Write alone, or refuse with the name of who does. The lock file stays: if it were removed, two could hold it."""
    with unwritable(root):
        try:
            lock = FileLock(root / LOCK, timeout=0).acquire()
        except Timeout as error:
            raise UnwritableError(f"{_writer(root)} writes to {root}: wait for it, or stop it, then go on.") from error
    with lock:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        writer = {"pid": os.getpid(), "host": platform.node(), "since": since}
        write_at_once(root / WRITER, json.dumps(writer) + "\n")
        try:
            yield
        finally:
            with suppress(OSError):
                (root / WRITER).unlink(missing_ok=True)


@contextmanager
def unwritable(root: Path) -> Iterator[None]:
    """What the disk refuses, with its reason."""
    try:
        yield
    except OSError as error:
        message = f"cannot write into {root} ({error.strerror or error}): make room or give rights, and go on."
        raise UnwritableError(message) from error


def _writer(root: Path) -> str:
    try:
        writer = parse_json(read_text(root / WRITER))
        return f"process {writer['pid']} on {writer['host']}, since {writer['since']},"
    except (KeyholeError, KeyError, TypeError):  # it has the lock and has not yet said who it is
        return "another process"


# How do rows become a Parquet file? Typed, finite and in range, or refused; the same rows give the same bytes.


def table_of(manifest: Manifest, table: str, rows: Rows) -> "pa.Table":
    """A table's rows as pyarrow has them. What a column cannot hold is refused, not wrapped or rounded to nothing."""
    import pyarrow as pa

    schema = arrow_schema(manifest, table)
    arrays = []
    for column in schema:
        try:
            arrays.append(pa.array(rows[column.name], column.type))
        except (pa.ArrowException, OverflowError, TypeError, UnicodeEncodeError) as error:
            raise KeyholeError(f"column {column.name} of {table} cannot hold what was found: {error}.") from error
        _require_sound(table, column.name, rows, arrays[-1])
    return pa.table(arrays, schema=schema)


def parquet_of(table: "pa.Table") -> bytes:
    """A table as a Parquet file, with checksums inside and no date.

    Floats are split into streams of bytes, which compress better than numbers that never repeat; all else, which
    repeats, into dictionaries.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    floats = [_path(column) for column in table.schema if pa.types.is_floating(_inside(column.type))]
    others = [_path(column) for column in table.schema if not pa.types.is_floating(_inside(column.type))]
    out = pa.BufferOutputStream()
    pq.write_table(
        table,
        out,
        compression="zstd",
        use_dictionary=others,
        use_byte_stream_split=floats,
        write_page_checksum=True,
    )
    return bytes(out.getvalue())


def _require_sound(table: str, name: str, rows: Rows, array: "pa.Array") -> None:
    """All numbers of a store are finite, and its integers count or number something."""
    import pyarrow as pa
    import pyarrow.compute as pc

    nested = pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type)
    flat = pc.list_flatten(array) if nested else array
    if pa.types.is_floating(flat.type):
        sound, kind = pc.is_finite(flat), "finite numbers"
    elif pa.types.is_integer(flat.type):
        sound, kind = pc.greater_equal(flat, pa.scalar(0, flat.type)), "numbers from 0"
    else:
        return
    at = pc.index(sound, pa.scalar(False)).as_py()
    if at >= 0:
        row = pc.list_parent_indices(array)[at].as_py() if nested else at
        raise KeyholeError(f"{name} of {table} holds {kind}, but prompt {rows['prompt'][row]} has {flat[at].as_py()}.")


def _inside(kind: Any) -> Any:
    import pyarrow as pa

    return kind.value_type if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) else kind


def _path(column: "pa.Field") -> str:
    """What Parquet calls a column: the elements of a list are a level of their own."""
    return str(column.name) if _inside(column.type) == column.type else f"{column.name}.list.element"


# What is a part of a store? A block of prompts as Parquet files, one per table, and a record that completes them.
#
# Files are named after everything that decides them (`Manifest.key`), written aside, flushed and renamed; the record,
# with sizes and checksums, comes last. A stop anywhere leaves a part that is complete, or one that is made again.

RECORDS = "parts"


@dataclass(frozen=True)
class Part:
    """A part as it will lie on the disk; it can be made in one process and written in another."""

    number: int
    name: str
    files: Mapping[str, bytes]  # Parquet, by table
    rows: Mapping[str, int]


@dataclass(frozen=True)
class Damaged:
    """A file of a store that is not what it should be; its part is made again by the same command."""

    number: int | None  # None: of a file that is none of this store's
    path: Path
    reason: str

    def __str__(self) -> str:
        part = "" if self.number is None else f"part {self.number}: "
        return f"{part}{self.path.parent.name}/{self.path.name} {self.reason}"


def make_part(manifest: Manifest, number: int, outcomes: Sequence[Outcome]) -> Part:
    """The outcomes of one part's prompts, as files.

    They are refused if they are not the prompts that the manifest has there.

    Args:
        manifest: The store's manifest.
        number: The index of the part.
        outcomes: What came of its prompts, in order.

    >>> from keyhole.store import Outcome, manifest_of
    >>> from keyhole.tasks import ioi
    >>> manifest = manifest_of(ioi(1), model={"fingerprint": "0"}, settings={}, task={}, versions={})
    >>> make_part(manifest, 0, [Outcome(0, ioi(1)[0], "failed", error="no reason")]).number
    0
    """
    in_order = sorted(outcomes, key=lambda outcome: outcome.index)
    span = manifest.span(number)
    if [outcome.index for outcome in in_order] != list(span):
        raise KeyholeError(f"part {number} has prompts {span.start} to {span.stop - 1}, each once; not these.")
    if prompts_digest([outcome.example for outcome in in_order]) != manifest.prompts[number]:
        raise KeyholeError(f"the prompts of part {number} are not those that this store was made for.")
    contents = {table: table_of(manifest, table, rows) for table, rows in rows_of(manifest, in_order).items()}
    files = {name: parquet_of(table) for name, table in contents.items()}
    return Part(number, manifest.name(number), files, {name: table.num_rows for name, table in contents.items()})


def keep_part(root: Path, part: Part) -> None:
    """Write a part: its files, and then the record that completes it. What the disk refuses is an OSError."""
    files = {}
    for table, content in part.files.items():
        path = root / table / f"{part.name}.parquet"
        with replacing(path) as out:
            out.write(content)
        sync_folder(path.parent)
        checksum = hashlib.sha256(content).hexdigest()
        files[table] = {"rows": part.rows[table], "bytes": len(content), "sha256": checksum}
    record = record_path(root, part.name)
    with replacing(record) as out:
        out.write(json.dumps({"part": part.number, "files": files}, indent=1).encode() + b"\n")
    sync_folder(record.parent)


def record_path(root: Path, name: str) -> Path:
    """Where a part's record is."""
    return root / RECORDS / f"{name}.json"


def has_record(root: Path, manifest: Manifest, number: int) -> bool:
    """Was this part completed, whatever became of it since?"""
    return record_path(root, manifest.name(number)).exists()


def damage(root: Path, manifest: Manifest, number: int, checked: Collection[str] = ()) -> Damaged | None:
    """What is wrong with a part that has a record? Sizes are compared always, checksums of these tables."""
    name = manifest.name(number)
    record = record_path(root, name)
    try:
        files = _read_record(record, manifest, number)
    except KeyholeError as error:
        return Damaged(number, record, f"is damaged: {error}")
    for table, file in files.items():
        path = root / table / f"{name}.parquet"
        if not path.is_file():
            return Damaged(number, path, "is missing.")
        if path.stat().st_size != file["bytes"]:
            return Damaged(number, path, f"is damaged: it has {path.stat().st_size} bytes of {file['bytes']}.")
        if table in checked and digest(path) != file["sha256"]:
            return Damaged(number, path, "is damaged: its checksum is another than when it was written.")
    return None


def _read_record(path: Path, manifest: Manifest, number: int) -> dict[str, dict[str, Any]]:
    record = parse_json(read_text(path))
    require_fields(record, {"part", "files"}, "a record")
    require(record["part"] == number, f"it is of part {quoted(record['part'])}.")
    require_fields(record["files"], tables(manifest), "its files")
    for file in record["files"].values():
        require_fields(file, {"rows", "bytes", "sha256"}, "a file")
        require(is_index(file["rows"]) and is_index(file["bytes"]), "a file's size is no number.")
    return dict(record["files"])


# What lies in a store's folder that should not? Drafts of writers that were stopped, and parts of other stores.

ASIDE = "aside"
FOLDERS = (*TABLES, SIGNALS, RECORDS, ASIDE)


def prepare(root: Path, manifest: Manifest) -> None:
    """Make the folders, and remove drafts: who holds the lock may, for nobody else is writing then."""
    for name in (*tables(manifest), RECORDS):
        (root / name).mkdir(exist_ok=True)
        for draft in (root / name).glob(".*.part"):
            draft.unlink(missing_ok=True)
    sync_folder(root)


def strays(root: Path, manifest: Manifest) -> Iterator[Damaged]:
    """Files among the parts that are none of this store's, which a table tool would count."""
    names = {manifest.name(number) for number in range(manifest.parts)}
    for folder in FOLDERS[:-1]:
        for path in sorted((root / folder).glob("[!.]*")):
            if path.stem not in names:
                yield Damaged(None, path, f"is of another model, setting or prompts: it will be put into {ASIDE}/.")


def put_aside(root: Path, manifest: Manifest) -> None:
    """Move strays out of the way; nothing is removed that might be somebody's."""
    for stray in list(strays(root, manifest)):
        place = root / ASIDE / stray.path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        stray.path.replace(place / stray.path.name)
        sync_folder(place)


def disk_size(root: Path) -> int:
    """Bytes of all that a store keeps."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
