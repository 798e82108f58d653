"""Which checkpoints of a training can be followed? Those of the hub, of folders, of snapshots; and a published study.

Each source hands over pairs (step, model), one model at a time.
"""

import copy
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.lab.training.emergence import Place
from keyhole.models.loading.load import load
from keyhole.models.model import Model
from keyhole.tasks.example import Example


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
    preset: Preset, steps: Sequence[int] | None = None, *, device: str | torch.device | None = None
) -> Iterator[tuple[int, Model]]:
    """The checkpoints of a preset, one at a time: each is freed before the next is loaded."""
    steps = preset.steps if steps is None else steps
    unknown = sorted(set(steps) - set(preset.steps))
    if unknown:
        raise KeyholeError(
            f"{preset.model} has no checkpoint of step {unknown[0]}: choose from {preset.steps[0]}, "
            f"{preset.steps[1]}, ..., {preset.steps[-1]}."
        )
    for step in steps:
        yield step, _load(preset, step, device)
        gc.collect()  # captured modules refer to each other, so that the last model would linger


def folder_steps(folder: str | Path) -> tuple[int, ...]:
    """Which checkpoints does a folder on disk hold, each in a folder step<number> of its own?"""
    names = [one.name.removeprefix("step") for one in Path(folder).glob("step*") if (one / "config.json").is_file()]
    return tuple(sorted(int(name) for name in names if name.isdecimal()))


def folder_checkpoints(
    folder: str | Path, steps: Sequence[int], *, device: str | torch.device | None = None
) -> Iterator[tuple[int, Model]]:
    """The checkpoints in folders step<number> of this one, one at a time as those of the hub."""
    for step in steps:
        yield step, load(Path(folder) / f"step{step}", device=device)
        gc.collect()


def _load(preset: Preset, step: int, device: str | torch.device | None) -> Model:
    try:
        return load(preset.model, device=None if device is None else str(device), revision=preset.revision(step))
    except MissingModelError as error:
        raise MissingModelError(
            f"the checkpoint {preset.revision(step)} of {preset.model} cannot be had: {error} Fetch it where the hub "
            f"can be reached (hf download {preset.model} --revision {preset.revision(step)}), or train a small model "
            "with keyhole.lab.training.language."
        ) from error


def snapshot_checkpoints(folder: str | Path, like: Model) -> Iterator[tuple[int, Model]]:
    """Models of the architecture of `like` with the weights of a folder's files step-<number>.safetensors, in order."""
    found = {file.stem.removeprefix("step-"): file for file in sorted(Path(folder).glob("step-*.safetensors"))}
    unclear = next((file.name for number, file in found.items() if not number.isdecimal()), None)
    if unclear is not None:
        raise KeyholeError(f"{unclear} in {folder} has no step number: call it step-<number>.safetensors or move it.")
    files = {int(number): file for number, file in found.items()}
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
PYTHIA_160M = Preset(
    model="EleutherAI/pythia-160m",
    prompt=_pythia_prompt(),
    places=tuple(Place(role, head, dest, src) for role, heads, dest, src in _TABLE_2 for head in heads),
    steps=tuple(range(1000, 144_000, 1000)),
)
