"""How are trained weights kept? In safetensors files, named after all that decides them, so that none is trained twice.

A stop leaves the old file or the new one. Of several processes one trains, and the others wait for it.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.files import replacing
from keyhole.strict import require

Key = TypeVar("Key", bound=Hashable)
Trained = TypeVar("Trained")


def digest(about: object) -> str:
    """A short name for settings and whatever else decides weights."""
    return hashlib.sha256(_text(about).encode()).hexdigest()[:12]


def weights_path(folder: Path, name: str, about: object) -> Path:
    """Where are weights kept that all of this decides?"""
    return folder / f"{name}-{digest(about)}.safetensors"


def store(path: Path, tensors: Mapping[str, Tensor], about: object, **numbers: object) -> None:
    """Tensors by name, what decided them, and numbers found on the way, in one file."""
    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}  # views share memory
    content = save(own, {"about": _text(about), "numbers": _text(numbers)})
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as out:
        out.write(content)


def stored(path: Path, about: object) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the numbers of a file, if these weights are in it."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata()
            numbers = dict(json.loads(facts["numbers"]))
            # copied: what is mapped would change with its file
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            same = facts["about"] == _text(about)
    except Exception as error:  # a damaged file raises whatever its bytes happen to say
        raise KeyholeError(f"{path} holds no trained weights: remove it, or give another place.") from error
    told = f"{path} was trained with other settings, snapshots or device: ask for those, or give another place."
    require(same, told)
    return tensors, numbers


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


def _text(about: object) -> str:
    return json.dumps(about, sort_keys=True, default=asdict)
