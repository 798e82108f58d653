"""How are toys that several figures share trained only once? They are kept on disk, and a stopped sweep goes on."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from keyhole.lab.outcome import Progress
from keyhole.lab.stored import store
from keyhole.lab.svf import SVF, SVFSettings, SVFWeights
from keyhole.lab.svf_train import train

_WEIGHTS = ("W", "b", "W_Q", "W_K")
_KEPT = 26  # snapshots of a training
RECIPE = 1  # to be raised whenever training changes: models of another recipe are trained again


def snapshots(steps: int) -> list[int]:
    """Steps at which models are kept: 0, and in even ratios up to the end.

    >>> snapshots(300)[:5], snapshots(300)[-1]
    ([0, 1, 2, 3, 4], 300)
    """
    ratio = 200 ** (1 / (_KEPT - 2))
    return sorted({0, *(round(steps / ratio**k) for k in range(_KEPT - 1))})


def trained_models(configs: Sequence[SVFSettings], folder: Path, device: str, progress: Progress) -> list[SVF]:
    """The model of every setting, read from the folder or else trained and kept there; a damaged file is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    models = {config: _read(_path(folder, config), config) for config in dict.fromkeys(configs)}
    wanted = sorted(models, key=lambda config: config.steps)  # equal numbers of steps share their snapshots: one call
    for steps, group in groupby(wanted, lambda config: config.steps):
        alike = list(group)
        sweep = folder / f"sweep-{device.replace(':', '')}-{_digest(alike)}"
        begun = _begun(sweep, alike, [config for config in alike if models[config] is None])
        if begun:
            for new in train(begun, snapshots=snapshots(steps), device=device, progress=progress, checkpoint=sweep):
                _write(new, _path(folder, new.settings))
                models[new.settings] = new
        shutil.rmtree(sweep, ignore_errors=True)
    return [model for config in configs if (model := models[config]) is not None]


def _begun(sweep: Path, alike: Sequence[SVFSettings], missing: Sequence[SVFSettings]) -> list[SVFSettings]:
    """Which models does this sweep train? Those it began with: another figure may have trained some in the meantime."""
    if not missing:
        return []
    plan = sweep / "plan.json"
    try:
        numbers = json.loads(plan.read_text())
        begun = [alike[n] for n in numbers]
    except (OSError, ValueError, TypeError, IndexError):
        begun = []
    if set(missing) <= set(begun):
        return begun
    shutil.rmtree(sweep, ignore_errors=True)  # begun for fewer models than are missing now: of no use
    sweep.mkdir(parents=True)
    plan.write_text(json.dumps([alike.index(config) for config in missing]))
    return list(missing)


def _digest(configs: Sequence[SVFSettings]) -> str:
    told = json.dumps([dataclasses.asdict(config) for config in configs], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _path(folder: Path, settings: SVFSettings) -> Path:
    return folder / f"svf-{settings.N}-{settings.H}-{settings.seed}-{_digest([settings])}.pt"


def _write(model: SVF, path: Path) -> None:
    parts: dict[str, Any] = {name: getattr(model, name) for name in (*_WEIGHTS, "losses")} | {"recipe": RECIPE}
    parts["snapshots"] = [(step, vars(weights)) for step, weights in model.snapshots]
    store(parts, path)


def _read(path: Path, settings: SVFSettings) -> SVF | None:
    """The model in a file, or None if there is none that can be used."""
    if not path.is_file():
        return None
    try:
        parts = torch.load(path, weights_only=True)
        alike = parts.pop("recipe", 1) == RECIPE
        kept = tuple((step, SVFWeights(**weights)) for step, weights in parts.pop("snapshots"))
        whole = [step for step, _ in kept] == snapshots(settings.steps)
        return SVF(settings=settings, snapshots=kept, **parts) if whole and alike else None
    except Exception:  # torch names no exception for a damaged file
        return None
