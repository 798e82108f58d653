"""Which trainings show how attention becomes sparse? Pythia's checkpoints, or small models trained once and kept."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import MissingModelError
from keyhole.lab.stored import alone, weights_path
from keyhole.lab.training.checkpoints import PYTHIA_160M, folder_checkpoints, folder_steps, hub_checkpoints
from keyhole.lab.training.curves import Over, together
from keyhole.lab.training.emergence import Emergence, EmergenceRow, Place, emergence, rotated_terms
from keyhole.lab.training.roles import IOI_ROLES, RULE, bystanders, find_roles
from keyhole.models.model import Model
from keyhole.progress import Progress
from keyhole.qk.channels import Channels
from keyhole.qk.sparsity import sparsity
from keyhole.reproduce.job import Asked, Job
from keyhole.tasks import ioi
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.lab.training.language import Trained

_STEPS = 2_000
_SEEDS = 8  # in some no head plays a role clearly
_PYTHIA_STEPS = (*(1000 * 2**i for i in range(7)), 96_000, 128_000, 143_000)
_FEWEST = 0.3  # attention of a head with a role


@dataclass(frozen=True)
class _View:
    """One relative attention over the channels of its head, and the same over rotated ones."""

    own: Channels
    turned: Channels  # one rotation, to be drawn
    spread: float  # S(v) over rotations, on average


@dataclass(frozen=True)
class Split:
    """One relative attention of one head at the first checkpoint and at the last."""

    name: str  # whose
    first: Channels
    last: Channels
    rotated: Channels  # the last, with its terms in rotated channels
    spread: float  # S(v) of the last in rotated channels, mean over rotations


@dataclass(frozen=True)
class Watched:
    """Trainings that were measured: heads with a role, others at the same places, and single decompositions."""

    heads: Emergence
    others: Emergence | None
    splits: tuple[Split, ...]
    about: str = ""

    @property
    def over(self) -> Over:
        """Seeds are the independent observations; of one training, its heads."""
        return "sources" if len({row.source for row in self.heads.rows[0]}) > 1 else "places"


def watched(job: Job) -> Watched:
    """The trainings of a job, made and measured once for all figures."""
    return _watched(job.asked, job.folder.parent / "trained")


@lru_cache(maxsize=2)
def _watched(asked: Asked, folder: Path) -> Watched:
    if asked.model is None:
        return _small(asked, folder)
    preset = PYTHIA_160M
    if asked.model.rstrip("/").rpartition("/")[2].lower() != preset.model.rpartition("/")[2]:
        raise MissingModelError(
            f"no checkpoints of {asked.model} are known: give {preset.model}, or no model, to train small ones."
        )
    steps, models = _pythia(asked.model, quick=asked.quick, device=asked.device)
    views: dict[Place, list[_View]] = {}
    seen = _seen(models, preset.places, [preset.prompt], views, seed=asked.seed)
    heads = emergence(seen, preset.places, preset.prompt, seed=asked.seed, source="Pythia-160M")
    about = f"Pythia-160M, {len(steps)} of its checkpoints, on the published prompt; intervals over heads."
    return Watched(heads, None, _ends(views), about)


def _pythia(source: str, *, quick: bool, device: str | None) -> tuple[tuple[int, ...], Iterator[tuple[int, Model]]]:
    """Steps and models of Pythia-160M, from a folder of that name if there is one, else from the hub."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        steps = (PYTHIA_160M.steps[0], PYTHIA_160M.steps[-1]) if quick else _PYTHIA_STEPS
        return steps, hub_checkpoints(PYTHIA_160M, steps, device=device)
    steps = folder_steps(folder)
    if len(steps) < 2:
        raise MissingModelError(
            f"the folder {source} has {len(steps)} checkpoints of a training, and a change needs two: put each into a "
            f"folder step<number> in it, or give {PYTHIA_160M.model} to read those of the hub."
        )
    steps = (steps[0], steps[-1]) if quick else steps
    return steps, folder_checkpoints(folder, steps, device=device)


def _small(asked: Asked, folder: Path) -> Watched:
    """Small language models of several seeds, one after another; those in which no head has a role are left out."""
    count = 1 if asked.quick else _SEEDS
    right: list[float] = []
    found: dict[int, Watched] = {}
    for number in range(count):
        seed = asked.seed + number
        trained = _trained(asked, folder, seed, _part(asked.progress, number, count))
        right.append(trained.accuracy["ioi"])
        one = _one(asked, seed, trained)
        found |= {} if one is None else {seed: one}
    if not found:
        raise MissingModelError(
            f"in none of the {count} small models trained here does a head look clearly where a role needs it, so none "
            f"can be followed: give {PYTHIA_160M.model}, or another seed."
        )
    several = list(found.values())
    heads, others = (together([getattr(one, group) for one in several]) for group in ("heads", "others"))
    splits = tuple(split for one in several for split in one.splits)
    return Watched(heads, others, splits, _about(asked, right, sorted(found), heads))


def _about(asked: Asked, right: Sequence[float], kept: Sequence[int], heads: Emergence) -> str:
    idle = [str(seed) for seed in range(asked.seed, asked.seed + len(right)) if seed not in kept]
    told = (
        f"Small language models trained here (seeds: {len(right)}; 3 layers, width 64, {heads.steps[-1]:,} steps) "
        f"stood in for Pythia-160M; they answer {min(right):.2f} to {max(right):.2f} of held-out prompts right. "
    )
    if asked.quick:
        told += "A quick run takes the heads that look most at the places of the roles, whether or not they play them. "
    else:
        told += f"{RULE} Heads were found for: {', '.join(heads.roles)}. "
    told += f"No head of seed {' or '.join(idle)} has one. " if idle else ""
    told += f"Prompts: {len(_prompts(asked))} held-out indirect objects in the organism's own wordings. "
    return told + f"Intervals over {'seeds' if len(kept) > 1 else 'heads'}."


def _part(progress: Progress, number: int, count: int) -> Progress:
    return lambda done, total: progress(number * total + done, count * total)


def _prompts(asked: Asked) -> list[Example]:
    """In the wordings that the small models were trained on: they know no others."""
    each = 2 if asked.quick else 16
    return ioi(each, 11, order="ABBA", held_out=True) + ioi(each, 12, order="BABA", held_out=True)


def _one(asked: Asked, seed: int, trained: "Trained") -> Watched | None:
    """One training: heads that play a role in its end, and as many that play none, at every snapshot."""
    from keyhole.lab.training.language import checkpoints

    prompts = _prompts(asked)
    *_, (_, finished) = checkpoints(trained)
    heads, threshold = (1, 0.02) if asked.quick else (3, _FEWEST)
    played = find_roles(
        finished, prompts, IOI_ROLES, heads=heads, threshold=threshold, required=False, clear=not asked.quick
    )
    if not played:
        return None
    places = [one.place for one in played]
    views: dict[Place, list[_View]] = {}
    both = emergence(
        _seen(checkpoints(trained), places, prompts, views, seed=seed),
        [*places, *bystanders(finished, played, seed=seed)],
        prompts,
        draws=4 if asked.quick else 20,
        seed=seed,
        source=f"seed {seed}",
    )
    busy = {(place.role, place.head) for place in places}
    named = {replace(place, role=f"{place.role}, seed {seed}"): several for place, several in views.items()}
    return Watched(
        _only(both, lambda row: (row.role, row.head) in busy),
        _only(both, lambda row: (row.role, row.head) not in busy),
        _ends(named),
    )


def _only(emerged: Emergence, wanted: Callable[[EmergenceRow], bool]) -> Emergence:
    return Emergence(emerged.steps, tuple(tuple(row for row in rows if wanted(row)) for rows in emerged.rows))


def _seen(
    models: Iterable[tuple[int, Model]],
    places: Sequence[Place],
    prompts: Sequence[Example],
    kept: dict[Place, list[_View]],
    *,
    seed: int,
) -> Iterator[tuple[int, Model]]:
    """The same models; on the way each place is split over its channels in the first prompt of its task."""
    for step, model in models:
        for place in places:
            kept.setdefault(place, []).append(_view(model, place, prompts, seed))
        yield step, model
        del model  # else it would be here while the next is loaded


def _view(model: Model, place: Place, prompts: Sequence[Example], seed: int) -> _View:
    prompt = next(one for one in prompts if place.task in (None, one.task))
    run = model.run(prompt.text)
    dest, src = (prompt.position(run, str(where)) for where in (place.dest, place.src))
    own, drawn = run.channels(place.head, dest, src), rotated_terms(run, place.head, dest, src, seed=seed)
    spread = sum(sparsity(terms) for terms in drawn) / len(drawn)
    return _View(own, replace(own, relative_terms=drawn[0]), spread)


def _ends(views: dict[Place, list[_View]]) -> tuple[Split, ...]:
    return tuple(
        Split(place.role, several[0].own, several[-1].own, several[-1].turned, several[-1].spread)
        for place, several in views.items()
    )


def _trained(asked: Asked, folder: Path, seed: int, progress: Progress) -> "Trained":
    """The model of a seed, read from the folder or else trained and kept there."""
    from keyhole.lab.training import language

    full = language.LanguageSettings(steps=_STEPS, seed=seed)
    settings = replace(full, steps=60, documents=800) if asked.quick else full
    device, examples = asked.device or "cpu", 10 if asked.quick else 200
    at = language.snapshot_steps(settings.steps, 3 if asked.quick else 12, 20)
    path = weights_path(folder, f"language-{seed}", (settings, at, examples, device))
    with alone(path):
        if not path.is_file():
            trained = language.train_language(settings, at=at, device=device, examples=examples, progress=progress)
            language.save_trained(trained, path)
    return language.read_trained(settings, path)
