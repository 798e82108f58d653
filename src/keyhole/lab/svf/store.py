"""How are toys that several figures share trained only once? They are kept on disk, and a stopped sweep goes on."""

import json
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from keyhole.errors import KeyholeError
from keyhole.lab.stored import alone, digest, gathered, store, stored, weights_path
from keyhole.lab.svf.toy import SVF, SVFSettings, SVFWeights
from keyhole.lab.svf.train import train
from keyhole.progress import Progress
from keyhole.strict import parse_json, read_text

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
    sweeps = {steps: folder / f"sweep-{device.replace(':', '')}-{digest(group)}" for steps, group in alike.items()}

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
        begun = [alike[n] for n in parse_json(read_text(plan))]
    except (KeyholeError, TypeError, IndexError):
        begun = []
    if set(missing) <= set(begun):
        return begun
    shutil.rmtree(sweep, ignore_errors=True)  # begun for fewer models than are missing now: of no use
    sweep.mkdir(parents=True)
    plan.write_text(json.dumps([alike.index(config) for config in missing]))
    return list(missing)


def _about(settings: SVFSettings) -> object:
    return {"settings": settings, "recipe": RECIPE}


def _path(folder: Path, settings: SVFSettings) -> Path:
    return weights_path(folder, f"svf-{settings.N}-{settings.H}-{settings.seed}", _about(settings))


def _write(model: SVF, path: Path) -> None:
    tensors = {name: getattr(model, name) for name in (*_WEIGHTS, "losses")}
    for step, weights in model.snapshots:
        tensors |= {f"{step}.{name}": tensor for name, tensor in vars(weights).items()}
    store(path, tensors, _about(model.settings))


def _read(path: Path, settings: SVFSettings) -> SVF | None:
    """The model in a file, or None if there is none that can be used."""
    try:
        tensors, _ = stored(path, _about(settings))
        kept = tuple(
            (step, SVFWeights(**{name: tensors.pop(f"{step}.{name}") for name in _WEIGHTS}))
            for step in snapshots(settings.steps)
        )
        return SVF(settings=settings, snapshots=kept, **tensors)
    except (KeyholeError, KeyError, TypeError):  # no such file, or not exactly these tensors in it
        return None
