"""What is an experiment told? Where to draw, which model to read, how, and how much time it may take."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from keyhole.errors import KeyholeError
from keyhole.naming.namers import require_namers
from keyhole.progress import Progress, silent
from keyhole_papers.choices import AS_USUAL, Choices, Dtype
from keyhole_papers.results import Result

if TYPE_CHECKING:
    import torch

    from keyhole.models.model import Model


@dataclass(frozen=True)
class Asked:
    """What a study depends on; who watches it does not matter."""

    model: str | None
    device: str | None
    quick: bool
    seed: int
    choices: Choices
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
    choices: Choices = AS_USUAL

    @property
    def asked(self) -> Asked:
        """What studies are made once for, whichever figure needs them first."""
        return Asked(self.model, self.device, self.quick, self.seed, self.choices, self.progress)


Attempt = Callable[[Job], Result]  # at a published item; an Experiment, as a rule


@lru_cache(maxsize=1)  # a large model does not fit twice
def loaded(model: str | None, device: str | None, dtype: Dtype) -> "Model":
    """The model that is asked for, loaded once for all experiments on it."""
    from keyhole.models.loading.load import load  # a list of experiments needs no transformers

    return load(model, device=device, dtype=torch_dtype(dtype))


def torch_dtype(name: Dtype) -> "torch.dtype | Literal['auto']":
    """What torch calls it; auto is transformers' word."""
    import torch

    return "auto" if name == "auto" else getattr(torch, name)  # type: ignore[no-any-return]


def require_runnable(model: str | None, device: str | None, seed: int, choices: Choices) -> None:
    """Refuses what no experiment could run with, before any has begun."""
    from keyhole.lab.training.checkpoints import require_possible  # a list of experiments needs no transformers

    if choices.dtype not in get_args(Dtype):
        raise KeyholeError(f"there is no dtype {choices.dtype!r}: choose one of {', '.join(get_args(Dtype))}.")
    require_namers(choices.namers)
    require_possible(model, device, seed, choices.revisions)
