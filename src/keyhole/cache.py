"""The user's cache: folders that took long to compute, kept by name, complete or not at all.

An entry is a folder of files and a manifest with their checksums. It is written under another name and then renamed,
so that several processes may write at once. A damaged entry is removed and computed again. Where nothing can be kept
(no home, a read-only or full disk) the work goes on without a cache. Events go to the logger `keyhole.cache`.
"""

import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.files import user_cache
from keyhole.strict import parse_json, read_text

_MANIFEST = "keyhole.json"
_ABANDONED = 24 * 3600.0  # seconds: an older draft was left by a process that was stopped
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One folder of the cache."""

    path: Path
    title: str  # what it was computed from
    about: Mapping[str, Any]  # further facts that the writer stored
    size: int  # bytes
    created: float  # seconds since 1970

    @property
    def name(self) -> str:
        """Its name in the cache: a digest of everything that its content depends on."""
        return self.path.name


def key_of(**parts: str) -> str:
    """The name of an entry that depends on these parts.

    >>> key_of(content="ab", dtype="float32") == key_of(dtype="float32", content="ab") != key_of(content="ab")
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def digest(path: Path) -> str:
    """The sha256 of a file, at about 1.5 GB per second."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries() -> tuple[Entry, ...]:
    """All entries, the latest first."""
    root = user_cache()
    kept = [] if root is None or not root.is_dir() else [_entry(path) for path in root.iterdir() if _is_entry(path)]
    return tuple(sorted(kept, key=lambda entry: -entry.created))


def find(name: str) -> Entry | None:
    """The entry of this name, if it exists and its checksums match; a damaged entry is removed."""
    root = user_cache()
    if root is None or not (root / name).is_dir():
        return None
    try:
        manifest = parse_json(read_text(root / name / _MANIFEST))
        if all(digest(root / name / file) == checksum for file, checksum in manifest["files"].items()):
            return _entry(root / name)
        reason = "its checksums do not match"
    except (KeyholeError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error)
    _log.info("the cached %s is damaged (%s): it is computed again", name, reason)
    remove(root / name)
    return None


def keep(name: str, title: str, about: Mapping[str, Any], *, size: int, write: Callable[[Path], None]) -> None:
    """Keep what `write` puts into a folder, about `size` bytes; a failure is logged and not raised."""
    root = user_cache()
    if root is None:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        if shutil.disk_usage(root).free < 2 * size:
            raise OSError(f"the disk has less than {readable(2 * size)} left")
        _write(root / name, title, about, write)
    except Exception as error:  # OSError, and what libraries raise instead: the computation itself has succeeded
        _log.info("%s is not kept in %s (%s): next time it will take as long", title, root, error)
    else:
        _log.info("kept %s, %s, in %s; keyhole cache lists it", title, readable(_size(root / name)), root)


def clear(wanted: str | None = None) -> tuple[Entry, ...]:
    """Remove the entries whose name begins with `wanted` or whose title equals it (None: all); returns these."""
    removed = [
        entry
        for entry in entries()
        if wanted is None or entry.title == wanted or (wanted and entry.name.startswith(wanted))
    ]
    if wanted is not None and not removed:
        raise KeyholeError(f"the cache has no {wanted!r}: `keyhole cache` lists its entries.")
    for entry in removed:
        remove(entry.path)
    root = user_cache()
    if wanted is None and root is not None and root.is_dir():
        _sweep(root, older=0.0)
    return tuple(removed)


def remove(path: Path) -> None:
    """Remove an entry; it is renamed first, so that no process sees half of it."""
    aside = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        path.rename(aside)
    except OSError as error:
        _log.info("cannot remove %s (%s)", path, error)
        return
    shutil.rmtree(aside, ignore_errors=True)


def readable(size: int) -> str:
    """A number of bytes in MB or GB.

    >>> readable(718_000), readable(539_000_000), readable(6_170_000_000)
    ('0.7 MB', '539 MB', '6.2 GB')
    """
    if size >= 1e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.{int(0 < size < 1e7)}f} MB"


def _write(path: Path, title: str, about: Mapping[str, Any], write: Callable[[Path], None]) -> None:
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    draft.mkdir()
    try:
        write(draft)
        sums = {file.relative_to(draft).as_posix(): digest(file) for file in sorted(draft.rglob("*")) if file.is_file()}
        manifest = {"title": title, "about": dict(about), "made": time.time(), "files": sums}
        (draft / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for file in (*sums, _MANIFEST):
            (draft / file).chmod((draft / _MANIFEST).stat().st_mode)  # the user's umask: libraries write some as 0600
            with (draft / file).open("rb") as written:
                os.fsync(written.fileno())
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():  # otherwise another process was faster and wrote the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _entry(path: Path) -> Entry:
    """An entry by its manifest; one whose manifest cannot be read is listed as damaged, so that it can be cleared."""
    try:
        manifest = parse_json(read_text(path / _MANIFEST))
        return Entry(path, str(manifest["title"]), dict(manifest["about"]), _size(path), float(manifest["made"]))
    except (KeyholeError, OSError, ValueError, KeyError, TypeError):
        return Entry(path, "damaged", {}, _size(path), 0.0)


def _is_entry(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _sweep(root: Path, older: float = _ABANDONED) -> None:
    """Remove drafts that stopped processes left over."""
    for draft in root.glob(".*.part"):
        if time.time() - draft.stat().st_mtime >= older:
            shutil.rmtree(draft, ignore_errors=True)
