"""What is a part of a store? A block of prompts as Parquet files, one per table, and a record that completes them.

Files are named after everything that decides them (`Manifest.key`), written aside, flushed and renamed; the record,
with sizes and checksums, comes last. A stop anywhere leaves a part that is complete, or one that is made again.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.cache import digest
from keyhole.errors import KeyholeError
from keyhole.files import replacing, sync_folder
from keyhole.store.files import parquet_of, table_of
from keyhole.store.manifest import Manifest, prompts_digest
from keyhole.store.outcome import Outcome
from keyhole.store.rows import rows_of
from keyhole.store.schema import tables
from keyhole.strict import is_index, parse_json, quoted, read_text, require, require_fields

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
    """A part's outcomes as files; refused if they are not the prompts that the manifest has there."""
    found = sorted(outcomes, key=lambda one: one.index)
    span = manifest.span(number)
    if [one.index for one in found] != list(span):
        raise KeyholeError(f"part {number} has prompts {span.start} to {span.stop - 1}, each once; not these.")
    if prompts_digest([one.example for one in found]) != manifest.prompts[number]:
        raise KeyholeError(f"the prompts of part {number} are not those that this store was made for.")
    made = {table: table_of(manifest, table, rows) for table, rows in rows_of(manifest, found).items()}
    files = {name: parquet_of(table) for name, table in made.items()}
    return Part(number, manifest.name(number), files, {name: table.num_rows for name, table in made.items()})


def keep_part(root: Path, part: Part) -> None:
    """Write a part: its files, and then the record that completes it. What the disk refuses is an OSError."""
    told = {}
    for table, content in part.files.items():
        path = root / table / f"{part.name}.parquet"
        with replacing(path) as out:
            out.write(content)
        sync_folder(path.parent)
        checksum = hashlib.sha256(content).hexdigest()
        told[table] = {"rows": part.rows[table], "bytes": len(content), "sha256": checksum}
    record = record_path(root, part.name)
    with replacing(record) as out:
        out.write(json.dumps({"part": part.number, "files": told}, indent=1).encode() + b"\n")
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
    for table, told in files.items():
        path = root / table / f"{name}.parquet"
        if not path.is_file():
            return Damaged(number, path, "is missing.")
        if path.stat().st_size != told["bytes"]:
            return Damaged(number, path, f"is damaged: it has {path.stat().st_size} bytes of {told['bytes']}.")
        if table in checked and digest(path) != told["sha256"]:
            return Damaged(number, path, "is damaged: its checksum is another than when it was written.")
    return None


def _read_record(path: Path, manifest: Manifest, number: int) -> dict[str, dict[str, Any]]:
    told = parse_json(read_text(path))
    require_fields(told, {"part", "files"}, "a record")
    require(told["part"] == number, f"it is of part {quoted(told['part'])}.")
    require_fields(told["files"], tables(manifest), "its files")
    for file in told["files"].values():
        require_fields(file, {"rows", "bytes", "sha256"}, "a file")
        require(is_index(file["rows"]) and is_index(file["bytes"]), "a file's size is no number.")
    return dict(told["files"])
