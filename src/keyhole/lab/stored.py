"""How are small models trained, and how are their weights kept?

In safetensors files, named after all that decides them, so that none is trained twice. A stop leaves the old file or
the new one. Of several processes one trains, and the others wait for it.
"""

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
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


# How does a small GPT-2 begin, and how does it learn? `tools/train_organism.py` reads this where little is installed:
# keep imports above to torch, and to what transformers needs.

BOS, PAD = 0, 2  # ids of the organism's words
_BETAS = (0.9, 0.98)


@dataclass(frozen=True)
class Training:
    """The shape of a GPT-2, and how it is trained."""

    width: int = 64
    layers: int = 3
    heads: int = 4
    positions: int = 64
    steps: int = 2_000
    batch: int = 64
    peak_rate: float = 3e-3
    warm_up: int = 100
    hold: float = 0.6  # of the steps before the rate begins to fall
    weight_decay: float = 0.1
    seed: int = 0


def gpt2_shape(settings: Training, words: int) -> dict[str, Any]:
    """What transformers' GPT2Config is given for a model without dropout; a document ends where the next begins."""
    return {
        "vocab_size": words,
        "n_positions": settings.positions,
        "n_embd": settings.width,
        "n_layer": settings.layers,
        "n_head": settings.heads,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **dict.fromkeys(("bos_token_id", "eos_token_id"), BOS),
    }


def learning_rate(step: int, settings: Training) -> float:
    """Warm-up, a long hold (induction is found late and suddenly), then a cosine to a hundredth of the peak."""
    if step < settings.warm_up:
        return settings.peak_rate * (step + 1) / settings.warm_up
    hold = settings.hold * settings.steps
    done = max(0.0, step - hold) / max(settings.steps - hold, 1)
    return settings.peak_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer_of(hf: Any, settings: Training, *, fused: bool = True) -> torch.optim.Optimizer:
    """AdamW that leaves biases and norms undecayed."""
    matrices = [p for p in hf.parameters() if p.dim() >= 2]
    others = [p for p in hf.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.peak_rate, betas=_BETAS, fused=fused)
