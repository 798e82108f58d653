"""Which checkpoints of a training can be followed? Those of the hub, of folders, of snapshots; and a published study.

Each source hands over pairs (step, model), one model at a time.
"""

import copy
import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.lab.emergence import Place
from keyhole.models.load import load, require_device
from keyhole.models.model import Model
from keyhole.tasks.example import Example

ALL = "all"  # checkpoints that there are


@dataclass(frozen=True)
class Preset:
    """A published study of a model with public checkpoints: prompt, places, and the steps that were kept."""

    model: str  # its name on the hub
    prompt: Example
    places: tuple[Place, ...]
    steps: tuple[int, ...]

    def revision(self, step: int) -> str:
        """What the hub calls the checkpoint of a step."""
        return f"step{step}"


def hub_checkpoints(
    preset: Preset,
    steps: Sequence[int] | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str = torch.float32,
) -> Iterator[tuple[int, Model]]:
    """The checkpoints of a preset, one at a time: each is freed before the next is loaded."""
    steps = preset.steps if steps is None else steps
    unknown = sorted(set(steps) - set(preset.steps))
    if unknown:
        raise KeyholeError(
            f"{preset.model} has no checkpoint of step {unknown[0]}: choose from {preset.steps[0]}, "
            f"{preset.steps[1]}, ..., {preset.steps[-1]}."
        )
    revisions = {step: preset.revision(step) for step in steps}
    return revision_checkpoints(preset.model, revisions, device=device, dtype=dtype)


def list_revisions(source: str, text: str | None = None) -> tuple[str, ...]:
    """The checkpoints that a text names, first to last: some by commas, or "all" that a folder or a Pythia has.

    Those of a folder on disk are folders in it; without a text, all that are called step<number>.
    """
    folder = Path(source).expanduser()
    if text not in (None, ALL):
        revisions = tuple(part.strip() for part in str(text).split(","))
        if missing := [
            entry for entry in revisions if folder.is_dir() and not (folder / entry / "config.json").is_file()
        ]:
            raise KeyholeError(
                f"the folder {source} has no checkpoint {missing[0]!r}: put it into a folder of that name."
            )
        return revisions
    if folder.is_dir():
        names = [entry.name.removeprefix("step") for entry in folder.glob("step*") if (entry / "config.json").is_file()]
        return tuple(f"step{step}" for step in sorted(int(name) for name in names if name.isdecimal()))
    if re.fullmatch(r"EleutherAI/pythia-[^/]+", source):
        return tuple(f"step{step}" for step in PYTHIA_160M.steps)  # all sizes were kept at the same steps
    raise KeyholeError(f"which checkpoints {source} has is not known: name them by commas, first to last.")


def steps_of(revisions: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """Training steps of these revisions, or their numbers in the order given where one does not tell its step.

    >>> steps_of(["step1000", "step8000-tokens16B"]), steps_of(["step1000", "main"])
    (((1000, 8000), 'training step'), ((1, 2), 'checkpoint'))
    """
    if len(revisions) < 2 or not all(revisions):
        raise KeyholeError("give at least two --revisions, separated by commas: what emerges is a difference.")
    numbers_in_each = [re.findall(r"step[-_]?(\d+)", revision) for revision in revisions]
    if any(len(numbers) != 1 for numbers in numbers_in_each):
        return tuple(range(1, len(revisions) + 1)), "checkpoint"
    steps = tuple(int(numbers[0]) for numbers in numbers_in_each)
    if any(after <= before for before, after in pairwise(steps)):
        raise KeyholeError(f"the --revisions {', '.join(revisions)} are not in order: give them first to last.")
    return steps, "training step"


def revision_checkpoints(
    source: str,
    revisions: Mapping[int, str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str = torch.float32,
) -> Iterator[tuple[int, Model]]:
    """Checkpoints of a hub model, or those in a folder on disk, by their steps; one at a time."""
    for step, revision in revisions.items():
        yield step, load_revision(source, revision, device=device, dtype=dtype)
        gc.collect()  # captured modules refer to each other, so that the last model would linger


def load_revision(
    source: str,
    revision: str,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str = torch.float32,
) -> Model:
    """One checkpoint of a hub model, or of a folder on disk, in which it has a folder of its name."""
    folder = Path(source).expanduser()
    if folder.is_dir():
        return load(folder / revision, device=device, dtype=dtype)
    try:
        return load(source, device=device, dtype=dtype, revision=revision)
    except MissingModelError as error:
        raise MissingModelError(
            f"the checkpoint {revision} of {source} cannot be had: {error} Fetch it where the hub can be reached "
            f"(hf download {source} --revision {revision}), or train a small model with "
            "keyhole.lab.language."
        ) from error


def snapshot_checkpoints(folder: str | Path, like: Model) -> Iterator[tuple[int, Model]]:
    """Models of the architecture of `like` with the weights of a folder's files step-<number>.safetensors, in order."""
    by_number = {file.stem.removeprefix("step-"): file for file in sorted(Path(folder).glob("step-*.safetensors"))}
    unclear = next((file.name for number, file in by_number.items() if not number.isdecimal()), None)
    if unclear is not None:
        raise KeyholeError(f"{unclear} in {folder} has no step number: call it step-<number>.safetensors or move it.")
    files = {int(number): file for number, file in by_number.items()}
    if not files:
        raise KeyholeError(f"there are no snapshots in {folder}: give a folder with files step-<number>.safetensors.")
    for step in sorted(files):
        hf, stored = copy.deepcopy(like.hf), load_file(files[step])
        shapes = {name: value.shape for name, value in hf.state_dict().items()}
        tied = set(getattr(hf, "all_tied_weights_keys", {}))  # not stored twice
        wrong = sorted(name for name, value in stored.items() if shapes.get(name) != value.shape)
        wrong += sorted(set(shapes) - set(stored) - tied)
        if wrong:
            raise KeyholeError(
                f"{files[step].name} does not fit {like.name}, for one in {wrong[0]}: give its own files."
            )
        hf.load_state_dict(stored, strict=False)
        yield step, replace(load((hf, like.tokenizer)), name=f"{like.name}, step {step}")


def _pythia_prompt() -> Example:
    text = "Then, Simon and Andrew were working at the restaurant. Simon decided to give a basketball to"
    words = {"S1": "Simon", "S1+1": "and", "IO": "Andrew"}
    roles = {role: (text.index(word), text.index(word) + len(word)) for role, word in words.items()}
    roles |= {"S2": (text.rindex("Simon"), text.rindex("Simon") + 5), "END": (len(text) - 2, len(text))}
    return Example("ioi", text, "Andrew", ("Simon",), ("Andrew",), roles, "BABA-1", " Andrew.")


_TABLE_2: tuple[tuple[str, tuple[tuple[int, int], ...], str, str], ...] = (
    ("previous token", ((2, 6),), "S1+1", "S1"),
    ("induction", ((4, 11), (4, 6), (5, 0)), "S2", "S1+1"),
    ("name mover", ((10, 7), (9, 4), (8, 2), (8, 10)), "END", "IO"),
    ("S-inhibition", ((7, 9), (6, 6), (7, 2)), "END", "S2"),
    ("copy suppression", ((8, 9),), "END", "S2"),
)

# Heads and token pairs of the paper's Table 2, from the circuit of Tigges et al. (2024).
_LAST_SEED = 2**31 - 1  # seeds are counted on from it, and some generators end at 2^32
PYTHIA_160M = Preset(
    model="EleutherAI/pythia-160m",
    prompt=_pythia_prompt(),
    places=tuple(Place(role, head, dest, src) for role, heads, dest, src in _TABLE_2 for head in heads),
    steps=tuple(range(1000, 144_000, 1000)),
)


def require_possible(model: str | None, device: str | None, seed: int, revisions: str | None = None) -> None:
    """Refuses what nothing could be measured with, before anything is loaded or trained."""
    if not 0 <= seed <= _LAST_SEED:
        raise KeyholeError(f"there is no seed {seed}: choose one from 0 to {_LAST_SEED}.")
    if model is not None and _is_path(model) and not Path(model).expanduser().exists():
        raise KeyholeError(f"there is no model at {model}: give a folder, a .gguf file, or a name on the hub.")
    if device is not None:
        require_device(device)
    if revisions is not None:
        if model is None:
            raise KeyholeError("--revisions are those of a --model: name one.")
        steps_of(list_revisions(model, revisions))


def _is_path(model: str) -> bool:
    return model.startswith((".", "~", "/")) or model.endswith(".gguf") or len(Path(model).parts) > 2
