"""How are toys that several figures share trained only once? They are kept on disk, and a stopped sweep goes on."""

import json
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.lab.stored import Shelf, alone, digest
from keyhole.lab.svf.toy import SVF, SVFSettings, SVFWeights
from keyhole.lab.svf.train import train
from keyhole.progress import Progress
from keyhole.strict import parse_json, read_text

_WEIGHTS = ("W", "b", "W_Q", "W_K")
_KEPT = 26  # snapshots of a training


def snapshots(steps: int) -> list[int]:
    """Steps at which models are kept: 0, and in even ratios up to the end.

    >>> snapshots(300)[:5], snapshots(300)[-1]
    ([0, 1, 2, 3, 4], 300)
    """
    ratio = 200 ** (1 / (_KEPT - 2))
    return sorted({0, *(round(steps / ratio**k) for k in range(_KEPT - 1))})


def trained_models(configs: Sequence[SVFSettings], folder: Path, device: str, progress: Progress) -> list[SVF]:
    """The model of every setting, read from the folder or else trained and kept there; a damaged file is missing."""
    alike = {
        steps: list(group)  # equal numbers of steps share their snapshots: one call
        for steps, group in groupby(
            sorted(dict.fromkeys(configs), key=lambda config: config.steps), lambda config: config.steps
        )
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
                    TOYS.put(folder, model.settings, model)
                    models[model.settings] = model
                shutil.rmtree(sweeps[steps], ignore_errors=True)
        return models

    models = TOYS.filled(folder, configs, trained)
    for sweep in sweeps.values():
        if sweep.is_dir():  # others have trained all of it since it was stopped
            with alone(sweep):
                shutil.rmtree(sweep, ignore_errors=True)
    return models


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


def _parts(model: SVF) -> tuple[dict[str, Tensor], dict[str, object]]:
    tensors = {name: getattr(model, name) for name in (*_WEIGHTS, "losses")}
    for step, weights in model.snapshots:
        tensors |= {f"{step}.{name}": tensor for name, tensor in vars(weights).items()}
    return tensors, {}


def _whole(settings: SVFSettings, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> SVF:
    kept = tuple(
        (step, SVFWeights(**{name: tensors.pop(f"{step}.{name}") for name in _WEIGHTS}))
        for step in snapshots(settings.steps)
    )
    return SVF(settings=settings, snapshots=kept, **tensors)


TOYS = Shelf[SVFSettings, SVF](
    recipe=1, name=lambda settings: f"svf-{settings.N}-{settings.H}-{settings.seed}", parts=_parts, whole=_whole
)
