"""What is an experiment told? Where to draw, which model to read, and how much time it may take."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.loading.device import require_device
from keyhole.progress import Progress, silent
from keyhole.reproduce.outcome import Outcome

if TYPE_CHECKING:
    from keyhole.models.model import Model

_LAST_SEED = 2**31 - 1  # experiments count on from it, and some generators end at 2^32


@dataclass(frozen=True)
class Asked:
    """What a study depends on; who watches it does not matter."""

    model: str | None
    device: str | None
    quick: bool
    seed: int
    progress: Progress = field(compare=False, repr=False)


@dataclass(frozen=True)
class Job:
    """One experiment to run. Its pictures go into `folder`, which exists; what figures share lies beside it."""

    folder: Path
    model: str | None = None  # a hub name, a folder, a .gguf file; None: what the experiment takes by itself
    quick: bool = False  # seconds instead of minutes: enough to see that it runs, too little for a claim
    device: str | None = None
    seed: int = 0
    progress: Progress = silent

    @property
    def asked(self) -> Asked:
        """What studies are made once for, whichever figure needs them first."""
        return Asked(self.model, self.device, self.quick, self.seed, self.progress)


Attempt = Callable[[Job], Outcome]  # at a published item; an Experiment, as a rule
Numbers = dict[str, float | int | list[float]]  # what an Outcome tells beside its text


@lru_cache(maxsize=1)  # a large model does not fit twice
def loaded(model: str | None, device: str | None) -> "Model":
    """The model that is asked for, loaded once for all experiments on it."""
    from keyhole.models.loading.load import load  # a list of experiments needs no transformers

    return load(model, device=device)


def require_possible(model: str | None, device: str | None, seed: int) -> None:
    """Refuses what no experiment could run with, before any has begun."""
    if not 0 <= seed <= _LAST_SEED:
        raise KeyholeError(f"there is no seed {seed}: choose one from 0 to {_LAST_SEED}.")
    if model is not None and _is_path(model) and not Path(model).expanduser().exists():
        raise KeyholeError(f"there is no model at {model}: give a folder, a .gguf file, or a name on the hub.")
    if device is not None:
        require_device(device)


def _is_path(model: str) -> bool:
    return model.startswith((".", "~", "/")) or model.endswith(".gguf") or len(Path(model).parts) > 2
