"""Which trainings show how attention becomes sparse? Pythia's checkpoints, or small models trained once and kept."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from keyhole.errors import KeyholeError
from keyhole.lab.emergence import Emergence, EmergenceRow, Place, emergence
from keyhole.lab.emergence_curves import Over, together
from keyhole.lab.emergence_roles import PYTHIA_160M, bystanders, find_roles, hub_checkpoints
from keyhole.lab.job import Job, MissingModelError
from keyhole.lab.outcome import Progress
from keyhole.models.model import Model
from keyhole.qk.channels import Channels
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.lab.language import LanguageSettings, Trained

_STEPS = 1_200
_SEEDS = 3
_PYTHIA_STEPS = (*(1000 * 2**i for i in range(7)), 96_000, 128_000, 143_000)
_FEWEST = 0.3  # attention of a head with a role
Split = tuple[str, Channels, Channels]  # whose, at the first checkpoint, at the last


@dataclass(frozen=True)
class Asked:
    """What the measured trainings depend on; who watches them does not matter."""

    model: str | None
    quick: bool
    seed: int
    device: str | None
    folder: Path  # where trained models are kept
    progress: Progress = field(compare=False, repr=False)


@dataclass(frozen=True)
class Watched:
    """Trainings that were measured: heads with a role, others at the same places, and single decompositions."""

    heads: Emergence
    others: Emergence | None
    splits: tuple[Split, ...]
    about: str

    @property
    def over(self) -> Over:
        """Seeds are the independent observations; of one training, its heads."""
        return "sources" if len({row.source for row in self.heads.rows[0]}) > 1 else "places"


@dataclass(frozen=True)
class _Seed:
    heads: Emergence
    others: Emergence
    splits: tuple[Split, ...]
    accuracy: float


def watched(job: Job) -> Watched:
    """The trainings of a job, made and measured once for all figures."""
    return _watched(Asked(job.model, job.quick, job.seed, job.device, job.folder.parent / "trained", job.progress))


@lru_cache(maxsize=2)
def _watched(asked: Asked) -> Watched:
    if asked.model is None:
        return _small(asked)
    preset = PYTHIA_160M
    if asked.model.rstrip("/").rpartition("/")[2].lower() != preset.model.rpartition("/")[2]:
        raise MissingModelError(
            f"no checkpoints of {asked.model} are known: give {preset.model}, or no model, to train small ones."
        )
    steps = (preset.steps[0], preset.steps[-1]) if asked.quick else _PYTHIA_STEPS
    splits: dict[Place, list[Channels]] = {}
    models = _seen(hub_checkpoints(preset, steps, device=asked.device), preset.places, [preset.prompt], splits)
    try:
        heads = emergence(models, preset.places, preset.prompt, seed=asked.seed, source="Pythia-160M")
    except KeyholeError as error:
        raise MissingModelError(str(error)) from error
    return Watched(heads, None, _ends(splits), f"Pythia-160M, {len(steps)} of its checkpoints, intervals over heads.")


def _small(asked: Asked) -> Watched:
    """Small language models of several seeds, one after another."""
    count = 1 if asked.quick else _SEEDS
    found = [_one(asked, asked.seed + number, _part(asked.progress, number, count)) for number in range(count)]
    right = [one.accuracy for one in found]
    steps = found[0].heads.steps[-1]
    about = (
        f"Small language models trained here (seeds: {count}; 3 layers, width 64, {steps:,} steps) stood in for "
        f"Pythia-160M; they answer {min(right):.2f} to {max(right):.2f} of held-out prompts right. Intervals over "
        f"{'seeds' if count > 1 else 'heads'}."
    )
    splits = tuple(split for one in found for split in one.splits)
    return Watched(together([one.heads for one in found]), together([one.others for one in found]), splits, about)


def _part(progress: Progress, number: int, count: int) -> Progress:
    return lambda done, total: progress(number * total + done, count * total)


def _one(asked: Asked, seed: int, progress: Progress) -> _Seed:
    """One model: the heads that play a role in its end, and as many that play none, at every snapshot."""
    from keyhole.lab.language import checkpoints, held_out

    prompts = [one for group in held_out(3 if asked.quick else 16, seed=11).values() for one in group]
    trained = _trained(asked, seed, progress)
    *_, (_, finished) = checkpoints(trained)
    limits = {"heads": 1, "threshold": 0.02} if asked.quick else {"heads": 3, "threshold": _FEWEST}
    played = find_roles(finished, prompts, required=False, **limits)  # type: ignore[arg-type]
    if not played:
        raise KeyholeError(f"no head of seed {seed} plays a role, so none can be followed: train longer.")
    places = [one.place for one in played]
    splits: dict[Place, list[Channels]] = {}
    models = _seen(checkpoints(trained), places, prompts, splits)
    both = emergence(
        models,
        [*places, *bystanders(finished, played)],
        prompts,
        draws=4 if asked.quick else 20,
        source=f"seed {seed}",
    )
    busy = {(place.role, place.head) for place in places}
    named = {replace(place, role=f"{place.role}, seed {seed}"): several for place, several in splits.items()}
    return _Seed(
        _only(both, lambda row: (row.role, row.head) in busy),
        _only(both, lambda row: (row.role, row.head) not in busy),
        _ends(named),
        trained.accuracy["ioi"],
    )


def _only(emerged: Emergence, wanted: Callable[[EmergenceRow], bool]) -> Emergence:
    return Emergence(emerged.steps, tuple(tuple(row for row in rows if wanted(row)) for rows in emerged.rows))


def _seen(
    models: Iterable[tuple[int, Model]],
    places: Sequence[Place],
    prompts: Sequence[Example],
    kept: dict[Place, list[Channels]],
) -> Iterator[tuple[int, Model]]:
    """The same models; on the way each place is split over its channels in the first prompt of its task."""
    for step, model in models:
        for place in places:
            prompt = next(one for one in prompts if place.task in (None, one.task))
            run = model.run(prompt.text)
            dest, src = (prompt.position(run, str(where)) for where in (place.dest, place.src))
            kept.setdefault(place, []).append(run.channels(place.head, dest, src))
        yield step, model


def _ends(splits: dict[Place, list[Channels]]) -> tuple[Split, ...]:
    return tuple((place.role, several[0], several[-1]) for place, several in splits.items())


def _settings(asked: Asked, seed: int) -> "LanguageSettings":
    from keyhole.lab.language import LanguageSettings

    return (
        LanguageSettings(steps=60, documents=800, seed=seed)
        if asked.quick
        else LanguageSettings(steps=_STEPS, seed=seed)
    )


def _trained(asked: Asked, seed: int, progress: Progress) -> "Trained":
    """The model of a seed, read from the folder or else trained and kept there."""
    from keyhole.lab.language import Snapshot, Trained, snapshot_steps, train_language

    settings = _settings(asked, seed)
    told = hashlib.sha256(str(sorted(asdict(settings).items())).encode()).hexdigest()[:12]
    path = asked.folder / f"language-{seed}-{told}.pt"
    if not path.is_file():
        at = snapshot_steps(settings.steps, 3 if asked.quick else 12, 20)
        found = train_language(
            settings, at=at, device=asked.device or "cpu", examples=10 if asked.quick else 200, progress=progress
        )
        asked.folder.mkdir(parents=True, exist_ok=True)
        parts = [(one.step, dict(one.state), dict(one.accuracy)) for one in found.snapshots]
        torch.save({"snapshots": parts, "losses": list(found.losses)}, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)  # a stop in between leaves no half-written model
    stored = torch.load(path, weights_only=True)
    return Trained(settings, tuple(Snapshot(*part) for part in stored["snapshots"]), tuple(stored["losses"]))
