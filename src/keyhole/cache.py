"""What does Keyhole keep on this machine? Folders that took long to make, by name, whole or not at all.

An entry is a folder of files and a manifest with their checksums. It is written aside and renamed, so that several
processes may write at once; what is damaged is removed and made again; and where nothing can be kept (no home, a
read-only or full disk) the work goes on without it. What happens is told to the logger `keyhole.cache`.
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
_ABANDONED = 24 * 3600.0  # seconds after which a draft belongs to a process that was stopped
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """One folder of the cache."""

    path: Path
    title: str  # what it was made of
    about: Mapping[str, Any]  # what else is to be remembered
    size: int  # bytes
    made: float  # seconds since 1970

    @property
    def name(self) -> str:
        """What it is called in the cache: a digest of everything that its content depends on."""
        return self.path.name


def key_of(**parts: str) -> str:
    """A name for what these parts determine.

    >>> key_of(content="ab", dtype="float32") == key_of(dtype="float32", content="ab") != key_of(content="ab")
    True
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def digest(path: Path) -> str:
    """The sha256 of a file: 1.5 GB a second or so."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entries() -> tuple[Entry, ...]:
    """All that is kept, the latest first."""
    root = user_cache()
    found = [] if root is None or not root.is_dir() else [_entry(path) for path in root.iterdir() if _is_entry(path)]
    return tuple(sorted(found, key=lambda entry: -entry.made))


def find(name: str) -> Entry | None:
    """The entry of this name if it is there, every file as it was written; a damaged one is removed."""
    root = user_cache()
    if root is None or not (root / name).is_dir():
        return None
    try:
        told = parse_json(read_text(root / name / _MANIFEST))
        if all(digest(root / name / file) == checksum for file, checksum in told["files"].items()):
            return _entry(root / name)
        reason = "its checksums do not fit"
    except (KeyholeError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error)
    _log.info("the cached %s is damaged (%s): it is made again", name, reason)
    remove(root / name)
    return None


def keep(name: str, title: str, about: Mapping[str, Any], *, size: int, write: Callable[[Path], None]) -> None:
    """Keep what `write` puts into a folder, about `size` bytes; what goes wrong is told, and is no error."""
    root = user_cache()
    if root is None:
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        if shutil.disk_usage(root).free < 2 * size:
            raise OSError(f"the disk has less than {readable(2 * size)} left")
        _write(root / name, title, about, write)
    except Exception as error:  # OSError and whatever libraries make of it: the work itself is done
        _log.info("%s is not kept in %s (%s): next time it will take as long", title, root, error)
    else:
        _log.info("kept %s, %s, in %s; keyhole cache lists it", title, readable(_size(root / name)), root)


def clear(wanted: str | None = None) -> tuple[Entry, ...]:
    """Remove the entries whose name begins so or whose title is this, or all of them; returns what was removed."""
    found = [
        one for one in entries() if wanted is None or one.title == wanted or (wanted and one.name.startswith(wanted))
    ]
    if wanted is not None and not found:
        raise KeyholeError(f"the cache has no {wanted!r}: `keyhole cache` lists what there is.")
    for entry in found:
        remove(entry.path)
    root = user_cache()
    if wanted is None and root is not None and root.is_dir():
        _sweep(root, older=0.0)
    return tuple(found)


def remove(path: Path) -> None:
    """Remove an entry; renamed first, so that nobody finds half of it."""
    aside = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        path.rename(aside)
    except OSError as error:
        _log.info("cannot remove %s (%s)", path, error)
        return
    shutil.rmtree(aside, ignore_errors=True)


def readable(size: int) -> str:
    """Bytes for people.

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
        told = {"title": title, "about": dict(about), "made": time.time(), "files": sums}
        (draft / _MANIFEST).write_text(json.dumps(told, indent=1), encoding="utf-8")
        for file in (*sums, _MANIFEST):
            (draft / file).chmod((draft / _MANIFEST).stat().st_mode)  # the user's umask: libraries write some as 0600
            with (draft / file).open("rb") as written:
                os.fsync(written.fileno())
        try:
            draft.rename(path)
        except OSError:
            if not path.is_dir():  # else another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _entry(path: Path) -> Entry:
    """What the manifest says; an entry whose manifest cannot be read is listed too, so that it can be cleared."""
    try:
        told = parse_json(read_text(path / _MANIFEST))
        return Entry(path, str(told["title"]), dict(told["about"]), _size(path), float(told["made"]))
    except (KeyholeError, OSError, ValueError, KeyError, TypeError):
        return Entry(path, "damaged", {}, _size(path), 0.0)


def _is_entry(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _sweep(root: Path, older: float = _ABANDONED) -> None:
    """Remove drafts of processes that were stopped."""
    for draft in root.glob(".*.part"):
        if time.time() - draft.stat().st_mtime >= older:
            shutil.rmtree(draft, ignore_errors=True)
