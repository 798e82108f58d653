"""What is an experiment told? Where to draw, which model to read, and how much time it may take."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.lab.outcome import Outcome, Progress

if TYPE_CHECKING:
    from keyhole.models.model import Model


def silent(done: int, total: int) -> None:
    """No progress is shown."""


@dataclass(frozen=True)
class Job:
    """One experiment to run. Its pictures go into `folder`, which exists; what figures share lies beside it."""

    folder: Path
    model: str | None = None  # a hub name, a folder, a .gguf file; None: what the experiment takes by itself
    quick: bool = False  # seconds instead of minutes: enough to see that it runs, too little for a claim
    device: str | None = None
    seed: int = 0
    progress: Progress = silent


Experiment = Callable[[Job], Outcome]
Numbers = dict[str, float | int | list[float]]  # what an Outcome tells beside its text


class MissingModelError(KeyholeError):
    """The experiment needs weights that are not here."""


def load_model(source: str | None, device: str | None = None, *, revision: str | None = None) -> "Model":
    """The model of that name, or the organism; MissingModelError if it cannot be had."""
    from keyhole.models.load import load

    try:
        return load(source, device=device, revision=revision)
    except KeyholeError as error:
        raise MissingModelError(str(error)) from error
