"""How are files written, so that a stop leaves the old one or the new one, and never half of one?"""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from keyhole.errors import KeyholeError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write aside, flush to disk, rename; what goes wrong (an OSError, a stop) leaves the path as it was.

    The draft's name is nobody else's, so writers may overtake each other but never mix. It is opened as any new file
    is, hence with the user's umask.
    """
    draft = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with draft.open("xb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_at_once(path: Path | str, content: str | bytes) -> None:
    """A file that appears whole or not at all; text is written as UTF-8."""
    path = Path(path)
    if not path.parent.is_dir():
        raise KeyholeError(f"there is no folder {path.parent} to write {path.name} into.")
    try:
        with replacing(path) as out:
            out.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise KeyholeError(f"cannot write {path} ({error.strerror or error}): choose another place.") from error


def user_cache() -> Path | None:
    """The user's folder for what can be made again; None if there is none, or if KEYHOLE_CACHE is set to nothing."""
    given = os.environ.get("KEYHOLE_CACHE")
    try:
        if given is not None:
            return Path(given).expanduser() if given else None
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home
        return None
    return base / "keyhole"


def require_folder(path: Path | str) -> Path:
    """The folder, made if need be; refused before long work rather than after it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise KeyholeError(f"{folder} is a file, where a folder is needed: give another name.") from error
    except OSError as error:
        raise KeyholeError(f"cannot make the folder {folder}: {error.strerror}. Give another one.") from error
    return folder
