"""Writing files so that an interruption leaves the old one or the new one, and never half of one.

Paths are checked before long work (`require_file`, `require_folder`, `writable_folder`), so that one which cannot be
written is refused while no result is lost.
"""

import errno
import json
import math
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from keyhole.errors import KeyholeError, UnwritableError
from keyhole.strict import quoted

_NOT_XML = re.compile("[^\\t\\n\\r -\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a draft, flush it to disk, rename it; a failure (an OSError, an interruption) leaves the path as it was.

    Drafts have random names, so that several writers do not mix their content. They are opened like any new file, hence
    with the user's umask.
    """
    path = path.resolve()  # so that a link stays a link
    draft = _draft(path.parent)
    try:
        with draft.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush a folder to disk, so that a file renamed into it survives a power failure."""
    if os.name == "nt":  # folders cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at_once(path: Path | str, content: str | bytes) -> None:
    """Write a file completely or not at all; text is written as UTF-8."""
    path = Path(path)
    _require_name(path)
    if not is_folder(path.parent):
        raise UnwritableError(_no_folder(path))
    try:
        with replacing(path) as out:
            out.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UnwritableError(f"cannot write {path} ({error.strerror or error}): choose another place.") from error


def json_text(record: dict[str, Any]) -> str:
    """A record as JSON (NaN and infinity as null)."""
    return json.dumps(finite(record), ensure_ascii=False, indent=2)


def finite(value: Any) -> Any:
    """A value for JSON, which has neither NaN nor infinity: None stands for them."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_file(path: Path | str) -> bool:
    """Does this file exist? False, too, for names that no file can have (300 characters, a NUL)."""
    return os.path.isfile(path)  # pathlib raises for some names in some versions of Python


def is_folder(path: Path | str) -> bool:
    """Does this folder exist?"""
    return os.path.isdir(path)


def user_path(path: Path | str) -> Path:
    """A path with ~ replaced by the user's home; ~name of an unknown user is left as it is."""
    return Path(os.path.expanduser(path))


def require_file(path: Path | str, suffixes: Sequence[str] = ()) -> Path:
    """The path, if a file can be written there and its suffix is one of these, in capitals or not."""
    path = Path(path)
    _require_name(path)
    if is_folder(path):
        raise UnwritableError(f"{path} is a folder: name a file, such as {path / ('result' + (suffixes or [''])[0])}.")
    if suffixes and path.suffix.lower() not in suffixes:
        raise KeyholeError(f"{path.name} should end in {', '.join(suffixes[:-1])} or {suffixes[-1]}.")
    if not is_folder(path.parent):
        raise UnwritableError(_no_folder(path))
    _require_room(path.parent)
    return path


def require_folder(path: Path | str) -> Path:
    """The folder, created if needed; refused now if files cannot be written into it."""
    folder = Path(path)
    _require_name(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UnwritableError(f"{folder} is a file, where a folder is needed: give another name.") from error
    except OSError as error:
        raise UnwritableError(f"cannot make the folder {folder}: {error.strerror}. Give another one.") from error
    _require_room(folder)
    return folder


def writable_folder(path: Path | str) -> Path:
    """The folder, which is not created yet: refused now if it could not be created later."""
    folder = Path(path)
    _require_name(folder)
    existing = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not is_folder(existing):
        raise UnwritableError(f"{existing} is a file, where a folder is needed: give another name.")
    _require_room(existing)
    return folder


def user_cache() -> Path | None:
    """The user's cache folder; None if there is no home, or if KEYHOLE_CACHE is empty."""
    given = os.environ.get("KEYHOLE_CACHE")
    try:
        if given is not None:
            return user_path(given) if given else None
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # the user has no home
        return None
    return base / "keyhole"


def xml_text(text: str) -> str:
    r"""Text without the characters that XML cannot hold: tokens may be any bytes, and a file with such is unreadable.

    >>> xml_text("bell \x07, tab \t") == "bell \ufffd, tab \t"
    True
    """
    return _NOT_XML.sub("\ufffd", text)


def _require_name(path: Path) -> None:
    """Refuse a name that no file system accepts."""
    try:
        path.lstat()
    except ValueError as error:  # a NUL, or half of a character
        raise UnwritableError(f"cannot write {quoted(str(path))}: {error}. Give another name.") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            reason = f"cannot write {quoted(str(path))}: the name is too long. Give a shorter one."
            raise UnwritableError(reason) from error


def _no_folder(path: Path) -> str:
    if os.path.exists(path.parent):
        return f"{path.parent} is a file, where {path.name} needs a folder: give another name."
    return f"there is no folder {path.parent} to write {path.name} into: make it first."


def _require_room(folder: Path) -> None:
    """Try to create a file: permissions alone do not show whether the disk is read-only."""
    draft = _draft(folder)
    try:
        draft.touch(exist_ok=False)
        draft.unlink()
    except OSError as error:
        raise UnwritableError(f"cannot write into {folder} ({error.strerror}): choose another place.") from error


def _draft(folder: Path) -> Path:
    """A name that no other process uses."""
    return folder / f".{secrets.token_hex(8)}.part"
