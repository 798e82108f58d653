"""How are trained weights kept? A stop leaves the old file or the new one, and two processes train none twice."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from filelock import FileLock, Timeout

from keyhole.files import replacing

Key = TypeVar("Key", bound=Hashable)
Trained = TypeVar("Trained")


def store(parts: dict[str, Any], path: Path) -> None:
    """Tensors and numbers by name, in one file."""
    with replacing(path) as out:
        torch.save(parts, out)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Waits until no other process works on that file, and keeps others waiting."""
    with FileLock(_lock(path)):
        yield


def gathered(
    paths: Mapping[Key, Path],
    read: Callable[[Key], Trained | None],
    train: Callable[[list[Key]], Mapping[Key, Trained]],
) -> dict[Key, Trained]:
    """What belongs to every key: read, or else trained here, or by another process meanwhile.

    Of what is missing, only that is trained which nobody else has begun. Then the others are waited for, one at a time
    and holding nothing, so that no two processes wait for each other; what one has given up is trained here.
    """
    found: dict[Key, Trained] = {}
    while True:
        found |= {key: one for key in paths if key not in found and (one := read(key)) is not None}
        missing = [key for key in paths if key not in found]
        if not missing:
            return {key: found[key] for key in paths}
        with ExitStack() as held:
            own = [key for key in missing if _claimed(held, paths[key]) and read(key) is None]
            if own:
                found |= train(own)
        if not own:
            with alone(paths[missing[0]]):
                pass


def _claimed(held: ExitStack, path: Path) -> bool:
    try:
        held.enter_context(FileLock(_lock(path), timeout=0))
    except Timeout:
        return False
    return True


def _lock(path: Path) -> Path:
    """Beside the file, out of sight; it stays, for a lock that is removed can be held twice."""
    folder = path.parent / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{path.name}.lock"
