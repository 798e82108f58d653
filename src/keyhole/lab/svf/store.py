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

from keyhole.lab.stored import alone, gathered, store
from keyhole.lab.svf.toy import SVF, SVFSettings, SVFWeights
from keyhole.lab.svf.train import train
from keyhole.progress import Progress

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
    paths = {config: _path(folder, config) for config in configs}
    alike = {
        steps: list(group)  # equal numbers of steps share their snapshots: one call
        for steps, group in groupby(sorted(paths, key=lambda config: config.steps), lambda config: config.steps)
    }
    sweeps = {steps: folder / f"sweep-{device.replace(':', '')}-{_digest(group)}" for steps, group in alike.items()}

    def trained(missing: list[SVFSettings]) -> dict[SVFSettings, SVF]:
        models = {}
        for steps in dict.fromkeys(config.steps for config in missing):
            with alone(sweeps[steps]):  # another process may have begun it for other models
                begun = _begun(sweeps[steps], alike[steps], [config for config in missing if config.steps == steps])
                new = train(
                    begun, snapshots=snapshots(steps), device=device, progress=progress, checkpoint=sweeps[steps]
                )
                for model in new:
                    _write(model, paths[model.settings])
                    models[model.settings] = model
                shutil.rmtree(sweeps[steps], ignore_errors=True)
        return models

    found = gathered(paths, lambda config: _read(paths[config], config), trained)
    for sweep in sweeps.values():
        if sweep.is_dir():  # others have trained all of it since it was stopped
            with alone(sweep):
                shutil.rmtree(sweep, ignore_errors=True)
    return [found[config] for config in configs]


def _begun(sweep: Path, alike: Sequence[SVFSettings], missing: Sequence[SVFSettings]) -> list[SVFSettings]:
    """Which models does this sweep train? Those it began with: another figure may have trained some in the meantime."""
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
