"""How are the superposition toys trained, once, and kept?

How are many SVF toys trained at once? Equal shapes share one batched step; an interrupted sweep goes on later.
"""

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.files import require_folder
from keyhole.lab.stored import Shelf, alone, digest, store, stored
from keyhole.lab.svf import (
    RECORD,
    SVF,
    SVFSettings,
    SVFWeights,
    constants,
    generator,
    gradients,
    initial,
    losses,
    views,
)
from keyhole.models.load import require_device
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress
from keyhole.strict import parse_json, read_text

_ALIKE = ("N", "D", "H", "m", "batch", "steps", "query_mode", "cosine", "attention")
_SAVE_SECONDS = 10.0
_CPU_NUMBERS, _GPU_NUMBERS = 2**18, 2**28  # drawn at once for a batch: beyond, it falls out of the cache or the memory
_B1, _B2, _EPS = 0.9, 0.999, 1e-8
_Saved = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and the step


def train(
    configs: Sequence[SVFSettings],
    *,
    snapshots: Sequence[int] = (),
    device: str | torch.device = "cpu",
    shared_data: bool = False,
    progress: Progress | None = None,
    checkpoint: Path | str | None = None,
) -> list[SVF]:
    """Trains every configuration, those of equal shape together, each as it would train alone.

    Every seed has its own data, so configurations that share a seed share random numbers; `shared_data` gives all the
    same ones, which is cheaper but no spread over seeds. `snapshots` are numbers of steps. `progress(done, total)`
    counts steps of models. With a `checkpoint` folder the sweep is saved as it goes, and the same call continues it;
    on the same machine the result is, to the bit, that of a sweep never interrupted.

    Args:
        configs: The toys, one setting each.
        snapshots: Steps after which weights are kept.
        device: Where they are trained.
        shared_data: Give all toys the same random numbers.
        progress: Called with how many steps of models are done, and of how many.
        checkpoint: A folder in which the sweep is saved as it goes.

    >>> [model.W.shape for model in train([SVFSettings.fast(steps=1)])]
    [torch.Size([10, 20])]
    """
    kept = _require(configs, snapshots)
    place = require_device(device)
    plan = digest([configs, sorted(kept), shared_data, place.type])  # short, however many configurations there are
    groups = list(_groups(configs, place))
    folder = None if checkpoint is None else require_folder(checkpoint)
    files = [None if folder is None else folder / f"{n:04d}.svf" for n in range(len(groups))]
    # all are read before any training: a foreign folder is refused at once
    saved = [None if file is None or not file.exists() else stored(file, plan) for file in files]
    done, total = 0, sum(c.steps for c in configs)
    trained: dict[int, SVF] = {}
    with exact_matmul():
        for group, file, state in zip(groups, files, saved, strict=True):
            sweep = _Sweep([configs[i] for i in group], place, shared_data, state)
            for step in sweep.run(kept):
                sweep.require_finite()
                if file is not None and sweep.due(step):
                    store(file, sweep.state(), plan, step=sweep.step)
                if progress is not None:
                    progress(done + step * len(group), total)
            done += sweep.settings.steps * len(group)
            trained.update(zip(group, sweep.models(kept), strict=True))
    return [trained[i] for i in range(len(configs))]


class _Sweep:
    """One group in training: flat weights, Adam's moments and the random streams."""

    def __init__(
        self, configs: Sequence[SVFSettings], device: torch.device, shared: bool, saved: _Saved | None
    ) -> None:
        self.configs, self.settings = configs, configs[0]
        self.constants = constants(configs, device)
        seeds = [0 if shared else c.seed for c in configs]
        distinct = list(dict.fromkeys(seeds))  # in the order of the models, whose streams they are if all differ
        self.streams = [generator(seed, "data", device) for seed in distinct]
        self.stream_of = torch.tensor([distinct.index(seed) for seed in seeds], device=device)
        s, queries = self.settings, int(self.settings.query_mode == "indep" and self.settings.attention)
        shape = (len(distinct), _block(device), s.m + queries, s.batch // s.m, s.N)
        self.uniform = torch.empty(shape, device=device)
        self.flat = torch.stack([initial(c) for c in configs]).to(device)
        self.first, self.second = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.step, self.losses, self.snapshots = 0, list[Tensor](), dict[int, Tensor]()
        self.saved = time.monotonic()
        if saved is not None:
            tensors, numbers = saved
            self._restore(tensors, numbers["step"], device)

    def run(self, snapshots: frozenset[int]) -> Iterator[int]:
        """Trains to the end and hands over the step now and then, where the state is whole."""
        w, s, c = views(self.flat, self.settings), self.settings, self.constants
        if self.step == 0 and 0 in snapshots:
            self.snapshots[0] = self.flat.clone()
        while self.step < s.steps:
            f = self._features()
            query = None if not s.attention else f[:, s.m - 1] if s.query_mode == "last" else f[:, s.m]
            keys, last = f[:, : s.m], self.step == s.steps - 1
            if last or self.step % RECORD == 0:
                self.losses.append(losses(w, keys, query, c))
            self._adam(gradients(w, keys, query, c))
            self.step += 1
            if self.step in snapshots:
                self.snapshots[self.step] = self.flat.clone()
            if last or self.step % RECORD == 0:
                yield self.step

    def _features(self) -> Tensor:
        """ReLU(1 - u/p): one uniform number decides whether a feature is present, and how much of it."""
        within = self.step % self.uniform.shape[1]
        if within == 0:
            for uniform, stream in zip(self.uniform, self.streams, strict=True):
                uniform.uniform_(generator=stream)
        u = self.uniform[:, within]
        if len(self.streams) < len(self.configs):
            u = u[self.stream_of]
        return torch.addcmul(u.new_ones(()), u, self.constants.slope).relu_()

    def _adam(self, gradient: Tensor) -> None:
        """AdamW on every number of every model, lr along its cosine."""
        s, n = self.settings, self.step + 1
        turn = math.pi * self.step / max(s.steps - 1, 1)
        lr = self.constants.lr * (math.cos(turn / 2) if s.cosine == "quarter" else (1 + math.cos(turn)) / 2)
        self.flat.mul_(1 - lr * self.constants.weight_decay)
        self.first.lerp_(gradient, 1 - _B1)
        self.second.mul_(_B2).addcmul_(gradient, gradient, value=1 - _B2)
        size = self.second.sqrt().div_(math.sqrt(1 - _B2**n)).add_(_EPS)
        self.flat.sub_(self.first / size * (lr / (1 - _B1**n)))

    def due(self, step: int) -> bool:
        """Is it time to save? A fast sweep should not spend its time on the disk."""
        if step < self.settings.steps and time.monotonic() - self.saved < _SAVE_SECONDS:
            return False
        self.saved = time.monotonic()
        return True

    def state(self) -> dict[str, Tensor]:
        """All that the rest of training depends on beside the step, and what it has found so far."""
        return {
            "numbers": torch.stack([self.flat, self.first, self.second]),
            "streams": torch.stack([stream.get_state() for stream in self.streams]),
            "losses": torch.stack(self.losses),
            **{str(step): flat for step, flat in self.snapshots.items()},
        }

    def _restore(self, state: dict[str, Tensor], step: int, device: torch.device) -> None:
        self.step, self.losses = step, list(state.pop("losses").to(device))
        for current, saved in zip((self.flat, self.first, self.second), state.pop("numbers"), strict=True):
            current.copy_(saved)
        for stream, saved in zip(self.streams, state.pop("streams"), strict=True):
            stream.set_state(saved.clone())  # torch crashes on a row inside a larger tensor
        self.snapshots = {int(step): flat.to(device) for step, flat in state.items()}

    def require_finite(self) -> None:
        """Refuses to go on, or to save, when a model is lost."""
        if not bool(self.flat.isfinite().all()):
            raise KeyholeError(
                f"training diverged within {self.step:,} steps: some weights are not finite. Use a smaller lr or lam."
            )

    def models(self, snapshots: frozenset[int]) -> list[SVF]:
        """The trained models, in the order of their settings."""
        losses_of_each, end = torch.stack(self.losses, 1).cpu(), self.flat.cpu()
        kept = [(step, self.snapshots[step].cpu()) for step in sorted(snapshots)]
        return [
            SVF(
                config,
                **vars(views(end[n].clone(), config)),
                losses=losses_of_each[n].clone(),
                snapshots=tuple((step, views(flat[n].clone(), config)) for step, flat in kept),
            )
            for n, config in enumerate(self.configs)
        ]


def _groups(configs: Sequence[SVFSettings], device: torch.device) -> Iterator[list[int]]:
    """Which configurations share a batch? Those of one shape, as many as the memory likes."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, config in enumerate(configs):
        alike.setdefault(tuple(getattr(config, name) for name in _ALIKE), []).append(i)
    for indices in alike.values():
        numbers = configs[indices[0]].batch * configs[indices[0]].N * _block(device)  # drawn for one model
        most = max(1, (_CPU_NUMBERS if device.type == "cpu" else _GPU_NUMBERS) // numbers)
        for start in range(0, len(indices), most):
            yield indices[start : start + most]


def _block(device: torch.device) -> int:
    """Steps whose random numbers are drawn at once: launching one draw per stream and step would starve a GPU.

    It divides RECORD, so that a sweep is saved with no numbers drawn ahead.
    """
    return 10 if device.type == "cuda" else 1


def _require(configs: Sequence[SVFSettings], snapshots: Sequence[int]) -> frozenset[int]:
    if isinstance(configs, SVFSettings):
        raise KeyholeError("train takes a list of SVFSettings, and one was given: write train([settings]).")
    if not configs:
        raise KeyholeError("there is nothing to train: give at least one SVFSettings.")
    shortest = min(config.steps for config in configs)
    for step in snapshots:
        if not 0 <= step <= shortest:
            raise KeyholeError(f"there can be no snapshot after {step} steps: give steps from 0 to {shortest}.")
    return frozenset(snapshots)


# How are toys that several figures share trained only once? They are kept on disk, and a stopped sweep goes on.

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
