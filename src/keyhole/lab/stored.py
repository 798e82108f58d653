"""How are trained weights kept? In safetensors files, named after all that decides them, so that none is trained twice.

A stop leaves the old file or the new one. Of several processes one trains, and the others wait for it.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

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
    copies = {
        name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()
    }  # views share memory
    content = save(copies, {"about": _text(about), "numbers": _text(numbers)})
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
    reason = f"{path} was trained with other settings, snapshots or device: ask for those, or give another place."
    require(same, reason)
    return tensors, numbers


@dataclass(frozen=True)
class Shelf(Generic[Key, Trained]):
    """Where are the toys of one kind kept? In a file for each setting; figures share them, and a restart keeps them."""

    recipe: int  # of the training: raise it when the same settings give other weights, and kept toys are trained again
    name: Callable[[Key], str]  # how the name of a file begins
    parts: Callable[[Trained], tuple[Mapping[str, Tensor], Mapping[str, object]]]  # tensors, and numbers found
    whole: Callable[[Key, dict[str, Tensor], dict[str, Any]], Trained]  # of exactly these parts; or it raises

    def about(self, settings: Key) -> object:
        """All that decides the weights."""
        return {"settings": settings, "recipe": self.recipe}

    def path(self, folder: Path, settings: Key) -> Path:
        """The file of a setting."""
        return weights_path(folder, self.name(settings), self.about(settings))

    def put(self, folder: Path, settings: Key, toy: Trained) -> None:
        """Keeps a toy, in the place of what was there."""
        tensors, numbers = self.parts(toy)
        store(self.path(folder, settings), tensors, self.about(settings), **numbers)

    def read(self, folder: Path, settings: Key) -> Trained | None:
        """The toy of a file, or None if it has to be trained: there is none, or a damaged one, or of another recipe."""
        try:
            return self.whole(settings, *stored(self.path(folder, settings), self.about(settings)))
        except (KeyholeError, KeyError, TypeError):  # no such file, or not exactly these parts in it
            return None

    def filled(
        self, folder: Path, wanted: Sequence[Key], train: Callable[[list[Key]], Mapping[Key, Trained]]
    ) -> list[Trained]:
        """The toy of every setting, read or else trained; `train` puts each on the shelf as soon as it is done."""
        paths = {settings: self.path(folder, settings) for settings in wanted}
        toys = gathered(paths, lambda settings: self.read(folder, settings), train)
        return [toys[settings] for settings in wanted]


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
    results: dict[Key, Trained] = {}
    while True:
        results |= {key: result for key in paths if key not in results and (result := read(key)) is not None}
        missing = [key for key in paths if key not in results]
        if not missing:
            return {key: results[key] for key in paths}
        with ExitStack() as held:
            claimed = [key for key in missing if _claimed(held, paths[key]) and read(key) is None]
            if claimed:
                results |= train(claimed)
        if not claimed:
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
