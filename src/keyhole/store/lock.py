"""Who writes? One process at a time, which says who it is; the lock of a process that died is nobody's."""

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import write_at_once
from keyhole.strict import parse_json, read_text

LOCK, WRITER = ".lock", ".writer.json"


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Write alone, or be told who writes. The lock file stays: one that is removed can be held twice."""
    with unwritable(root):
        try:
            lock = FileLock(root / LOCK, timeout=0).acquire()
        except Timeout as error:
            raise UnwritableError(f"{_writer(root)} writes to {root}: wait for it, or stop it, then go on.") from error
    with lock:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        told = {"pid": os.getpid(), "host": platform.node(), "since": since}
        write_at_once(root / WRITER, json.dumps(told) + "\n")
        try:
            yield
        finally:
            with suppress(OSError):
                (root / WRITER).unlink(missing_ok=True)


@contextmanager
def unwritable(root: Path) -> Iterator[None]:
    """What the disk refuses, told with its reason."""
    try:
        yield
    except OSError as error:
        told = f"cannot write into {root} ({error.strerror or error}): make room or give rights, and go on."
        raise UnwritableError(told) from error


def _writer(root: Path) -> str:
    try:
        told = parse_json(read_text(root / WRITER))
        return f"process {told['pid']} on {told['host']}, since {told['since']},"
    except (KeyholeError, KeyError, TypeError):  # it has the lock and has not yet said who it is
        return "another process"
