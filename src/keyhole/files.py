"""How are files written, so that a stop leaves the old one or the new one, and never half of one?

Places are asked for before long work (`require_file`, `require_folder`, `writable_folder`): what cannot be written is
refused while nothing is lost by it.
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
    """Write aside, flush to disk, rename; what goes wrong (an OSError, a stop) leaves the path as it was.

    The draft's name is nobody else's, so writers may overtake each other but never mix. It is opened as any new file
    is, hence with the user's umask.
    """
    path = path.resolve()  # a link stays a link
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
    """Flush a folder to disk, so that a file that was renamed into it is there after a power cut, too."""
    if os.name == "nt":  # where folders cannot be opened, and renames are the file system's own affair
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at_once(path: Path | str, content: str | bytes) -> None:
    """A file that appears whole or not at all; text is written as UTF-8."""
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
    """The same for JSON, which has neither NaN nor infinity: null stands for them."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_file(path: Path | str) -> bool:
    """Is there a file? A name that no file can have (300 characters, a NUL) is that of none."""
    return os.path.isfile(path)  # where pathlib raises, for some names and some versions of Python


def is_folder(path: Path | str) -> bool:
    """The same for a folder."""
    return os.path.isdir(path)


def user_path(path: Path | str) -> Path:
    """A path with its ~ as the user's home; ~nobody, who has none, is a name like any other."""
    return Path(os.path.expanduser(path))


def require_file(path: Path | str, suffixes: Sequence[str] = ()) -> Path:
    """The path, if a file can be written there; where its suffix decides the format (capitals or not), one of these."""
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
    """The folder, made if need be; refused before long work rather than after it."""
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
    """The folder, not made yet if there is none: refused before long work where it could not be made after it."""
    folder = Path(path)
    _require_name(folder)
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not is_folder(there):
        raise UnwritableError(f"{there} is a file, where a folder is needed: give another name.")
    _require_room(there)
    return folder


def user_cache() -> Path | None:
    """The user's folder for what can be made again; None if there is none, or if KEYHOLE_CACHE is set to nothing."""
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
    except RuntimeError:  # nobody's home
        return None
    return base / "keyhole"


def xml_text(text: str) -> str:
    r"""Text that XML can hold: tokens may be any bytes, and some make a file that nobody reads.

    >>> xml_text("bell \x07, tab \t") == "bell \ufffd, tab \t"
    True
    """
    return _NOT_XML.sub("\ufffd", text)


def _require_name(path: Path) -> None:
    """Refuse what no file system takes for a name, before it is looked at."""
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
    """Whether a file can be made in a folder is known by making one: its rights do not tell of a read-only disk."""
    draft = _draft(folder)
    try:
        draft.touch(exist_ok=False)
        draft.unlink()
    except OSError as error:
        raise UnwritableError(f"cannot write into {folder} ({error.strerror}): choose another place.") from error


def _draft(folder: Path) -> Path:
    """A name that is nobody else's."""
    return folder / f".{secrets.token_hex(8)}.part"
