"""Which trainings show how attention becomes sparse? Pythia's checkpoints, or small models trained once and kept."""

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from keyhole.errors import KeyholeError, MissingModelError
from keyhole.lab.checkpoints import PYTHIA_160M, list_revisions, load_revision, revision_checkpoints, steps_of
from keyhole.lab.emergence import Emergence, EmergenceRow, Place, emergence, rotated_terms
from keyhole.lab.roles import IOI_ROLES, RULE, bystanders, find_roles
from keyhole.lab.stored import alone, weights_path
from keyhole.lab.training_curves import Over, curve, emergence_figure, together
from keyhole.models.model import Model
from keyhole.progress import Progress, silent
from keyhole.qk.channels import Channels, sparsity
from keyhole.report import Picture, Report, Reported, Section, Table
from keyhole.tasks.catalogue import prompts_for
from keyhole.tasks.copying import ioi
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from keyhole.lab.language import Trained

_STEPS = 2_000
_SEEDS = 8  # in some no head plays a role clearly
_PYTHIA_STEPS = (*(1000 * 2**i for i in range(7)), 96_000, 128_000, 143_000)
_WINDOW = 8  # checkpoints that the paper averages over; of fewer than two windows, none are averaged
PROMPTS = 32  # of indirect objects, for a model whose heads are chosen by role
_SHOWN = ("sparsity", "ambient", "refactor", "n_recon", "n_recon_refactor", "attention")
_FEWEST = 0.3  # attention of a head with a role


@dataclass(frozen=True)
class Source:
    """Which training is followed, and how; who watches does not matter."""

    model: str | None = None  # None: small ones, trained here
    revisions: str | None = None  # its checkpoints, by commas, or all; None: some that are known to exist
    device: str | None = None
    dtype: torch.dtype | Literal["auto"] = torch.float32
    quick: bool = False  # one seed and few steps, or the first checkpoint and the last
    seed: int = 0
    progress: Progress = field(default=silent, compare=False, repr=False)


@dataclass(frozen=True)
class _View:
    """One relative attention over the channels of its head, and the same over rotated ones."""

    singular: Channels
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
class Watched(Reported):
    """Trainings that were measured: heads with a role, others at the same places, and single decompositions."""

    heads: Emergence
    others: Emergence | None
    splits: tuple[Split, ...]
    about: str = ""
    published: bool = False  # the published model, and its heads of Table 2
    unit: str = "training step"  # what the steps are

    @property
    def over(self) -> Over:
        """Seeds are the independent observations; of one training, its heads."""
        return "sources" if len({row.source for row in self.heads.rows[0]}) > 1 else "places"

    @property
    def window(self) -> int:
        """Checkpoints that curves are averaged over: the paper's, where there are enough of them."""
        return _WINDOW if len(self.heads.steps) >= 2 * _WINDOW else 1

    def report(self) -> Report:
        """The measures at every checkpoint, means over the heads."""
        curves, steps = self._curves(), self.heads.steps
        columns = (f">{self.unit}", ">S(v)", ">ambient", ">refactor", ">N_recon", ">refactored", ">attention")
        rows = [(step, *(points[i][0] for points in curves.values())) for i, step in enumerate(steps)]
        note = "- where these heads prefer no token: N_recon counts the channels of a relative attention above 0."
        missing = any(math.isnan(value) for row in rows for value in row)
        picture = Picture(
            lambda: emergence_figure(self.heads, window=self.window, over=self.over, unit=self.unit),
            "S(v), N_recon and attention of heads over a training",
        )
        return Report(
            "Sparse attention in training",
            self.about,
            [Section("Heads with a role", [picture, Table(columns, rows), note if missing else ""])],
            Table(columns, rows),
            picture,
        )

    def record(self) -> dict[str, Any]:
        """The curves, each point as (mean, low, high)."""
        return {"about": self.about, "unit": self.unit, "steps": list(self.heads.steps), **self._curves()}

    def _curves(self) -> dict[str, list[tuple[float, float, float]]]:
        curves = {name: curve(self.heads, name, window=self.window, over=self.over) for name in _SHOWN}
        return {name: [(point.mean, point.low, point.high) for point in points] for name, points in curves.items()}


@lru_cache(maxsize=2)
def watched(training: Source, folder: Path, prompts: int = PROMPTS) -> Watched:
    """The trainings, made and measured once and kept in a folder; by so many prompts where heads are sought."""
    if training.model is None:
        return _small(training, folder)
    return _revisions(training, training.model, prompts)


def _revisions(training: Source, source: str, prompts: int) -> Watched:
    """Checkpoints of one model: the published heads of Pythia-160M, of others those that play a role at the end."""
    published = _last(source) == _last(PYTHIA_160M.model)
    if not published and training.revisions is None:
        raise MissingModelError(
            f"no checkpoints of {source} are known: give {PYTHIA_160M.model}, --revisions, or no model, to train small "
            "ones."
        )
    revisions = _listed(training, source)
    steps, unit = steps_of(revisions)
    how: dict[str, Any] = {"device": training.device, "dtype": training.dtype}
    examples: Sequence[Example]
    if published:
        places, examples, name = PYTHIA_160M.places, (PYTHIA_160M.prompt,), "Pythia-160M"
        about = (
            f"Pythia-160M, {len(steps)} of its {len(PYTHIA_160M.steps)} checkpoints, the heads and prompt of Table 2"
        )
    else:
        finished = load_revision(source, revisions[-1], **how)
        chosen = prompts_for("ioi", finished, prompts, training.seed)
        examples, name = chosen.examples, source
        places = _played(finished, examples, f"{source} at {revisions[-1]}")
        listed = ", ".join(f"{place.role} {place.head[0]}.{place.head[1]}" for place in places)
        about = f"{source}, {len(steps)} checkpoints, {chosen.about}; heads chosen by role at the last: {listed}"
        del finished
        gc.collect()
    if unit != "training step":
        about += "; not every revision tells its step, so they are numbered as given"
    views: dict[Place, list[_View]] = {}
    models = revision_checkpoints(source, dict(zip(steps, revisions, strict=True)), **how)
    watched_models = _viewing(
        _counted(models, len(steps), training.progress), places, examples, views, seed=training.seed
    )
    heads = emergence(watched_models, places, examples, seed=training.seed, source=name)
    result = Watched(heads, None, _ends(views), published=published, unit=unit)
    smooth = f"; curves averaged over {result.window} checkpoints" if result.window > 1 else ""
    return replace(result, about=f"{about}{smooth}. Intervals over heads.")


def _last(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()


def _listed(training: Source, source: str) -> tuple[str, ...]:
    """The checkpoints that are followed: those chosen, of a folder all, of the hub's Pythia some."""
    chosen, on_disk = training.revisions, Path(source).expanduser().is_dir()
    if chosen is None and not on_disk:
        revisions = tuple(PYTHIA_160M.revision(step) for step in _PYTHIA_STEPS)
    else:
        revisions = list_revisions(source, chosen)
    if on_disk and len(revisions) < 2:
        raise MissingModelError(
            f"the folder {source} has {len(revisions)} checkpoints of a training, and a change needs two: put each "
            f"into a folder step<number> in it, or give {PYTHIA_160M.model} to read those of the hub."
        )
    return (revisions[0], revisions[-1]) if training.quick else revisions


def _played(model: Model, examples: Sequence[Example], said: str) -> tuple[Place, ...]:
    played = find_roles(model, examples, IOI_ROLES, heads=3, required=False)
    if not played:
        raise KeyholeError(
            f"no head of {said} plays a role in indirect objects: none looks at a role's token clearly more than at "
            "the others. Choose a later checkpoint or a larger model."
        )
    return tuple(player.place for player in played)


def _counted(models: Iterable[tuple[int, Model]], count: int, progress: Progress) -> Iterator[tuple[int, Model]]:
    """The same models, with progress told after each."""
    done = iter(range(1, count + 1))
    for step, model in models:  # `enumerate` would keep the model while the next is loaded, as this would without del
        yield step, model
        del model
        progress(next(done), count)


def _small(training: Source, folder: Path) -> Watched:
    """Small language models of several seeds, one after another; those in which no head has a role are left out."""
    count = 1 if training.quick else _SEEDS
    right: list[float] = []
    trainings: dict[int, Watched] = {}
    for number in range(count):
        seed = training.seed + number
        trained = _trained(training, folder, seed, _part(training.progress, number, count))
        right.append(trained.accuracy["ioi"])
        measured = _one_training(training, seed, trained)
        trainings |= {} if measured is None else {seed: measured}
    if not trainings:
        raise MissingModelError(
            f"in none of the {count} small models trained here does a head look clearly where a role needs it, so none "
            f"can be followed: give {PYTHIA_160M.model}, or another seed."
        )
    several = list(trainings.values())
    heads, others = (together([getattr(measured, group) for measured in several]) for group in ("heads", "others"))
    splits = tuple(split for measured in several for split in measured.splits)
    return Watched(heads, others, splits, _about(training, right, sorted(trainings), heads))


def _about(training: Source, right: Sequence[float], kept: Sequence[int], heads: Emergence) -> str:
    idle = [str(seed) for seed in range(training.seed, training.seed + len(right)) if seed not in kept]
    carried = {(row.source, row.head) for row in heads.rows[0]}
    text = (
        f"Small language models trained here (seeds: {len(right)}; 3 layers, width 64, {heads.steps[-1]:,} steps) "
        f"stood in for Pythia-160M; they answer {min(right):.2f} to {max(right):.2f} of held-out prompts right. "
    )
    if training.quick:
        text += "A quick run takes the heads that look most at the places of the roles, whether or not they play them. "
    else:
        text += f"{RULE} Heads were found for: {', '.join(heads.roles)}. "
    text += f"No head of seed {' or '.join(idle)} has one. " if idle else ""
    text += f"Prompts: {len(_prompts(training))} held-out indirect objects in the organism's own wordings. "
    text += f"All of this is carried by {_several(len(carried), 'head')} of {_several(len(kept), 'small model')}. "
    return text + f"Intervals over {'seeds' if len(kept) > 1 else 'heads'}."


def _several(count: int, noun: str) -> str:
    return f"one {noun}" if count == 1 else f"{count} {noun}s"


def _part(progress: Progress, number: int, count: int) -> Progress:
    return lambda done, total: progress(number * total + done, count * total)


def _prompts(training: Source) -> list[Example]:
    """In the wordings that the small models were trained on: they know no others."""
    each = 2 if training.quick else 16
    return ioi(each, 11, order="ABBA", held_out=True) + ioi(each, 12, order="BABA", held_out=True)


def _one_training(training: Source, seed: int, trained: "Trained") -> Watched | None:
    """One training: heads that play a role in its end, and as many that play none, at every snapshot."""
    from keyhole.lab import language

    checkpoints = partial(language.checkpoints, trained, dtype=training.dtype)
    prompts = _prompts(training)
    *_, (_, finished) = checkpoints()
    heads, threshold = (1, 0.02) if training.quick else (3, _FEWEST)
    played = find_roles(
        finished, prompts, IOI_ROLES, heads=heads, threshold=threshold, required=False, clear=not training.quick
    )
    if not played:
        return None
    places = [one.place for one in played]
    views: dict[Place, list[_View]] = {}
    both = emergence(
        _viewing(checkpoints(), places, prompts, views, seed=seed),
        [*places, *bystanders(finished, played, seed=seed)],
        prompts,
        draws=4 if training.quick else 20,
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


def _viewing(
    models: Iterable[tuple[int, Model]],
    places: Sequence[Place],
    prompts: Sequence[Example],
    kept: dict[Place, list[_View]],
    *,
    seed: int,
) -> Iterator[tuple[int, Model]]:
    """The same models; on the way each place is split over its channels in the first prompt of its task.

    Of the views of a place the first and the last are kept.
    """
    for step, model in models:
        for place in places:
            kept[place] = [*kept.get(place, [])[:1], _view(model, place, prompts, seed)]
        yield step, model
        del model  # else it would be here while the next is loaded


def _view(model: Model, place: Place, prompts: Sequence[Example], seed: int) -> _View:
    prompt = next(example for example in prompts if place.task in (None, example.task))
    run = model.run(prompt.text)
    dest, src = (prompt.position(run, str(where)) for where in (place.dest, place.src))
    singular, drawn = run.channels(place.head, dest, src), rotated_terms(run, place.head, dest, src, seed=seed)
    spread = sum(sparsity(terms) for terms in drawn) / len(drawn)
    return _View(singular, replace(singular, relative_terms=drawn[0]), spread)


def _ends(views: dict[Place, list[_View]]) -> tuple[Split, ...]:
    return tuple(
        Split(place.role, several[0].singular, several[-1].singular, several[-1].turned, several[-1].spread)
        for place, several in views.items()
    )


def _trained(training: Source, folder: Path, seed: int, progress: Progress) -> "Trained":
    """The model of a seed, read from the folder or else trained and kept there."""
    from keyhole.lab import language

    full = language.LanguageSettings(steps=_STEPS, seed=seed)
    settings = replace(full, steps=60, documents=800) if training.quick else full
    device, examples = training.device or "cpu", 10 if training.quick else 200
    at = language.snapshot_steps(settings.steps, 3 if training.quick else 12, 20)
    path = weights_path(folder, f"language-{seed}", (settings, at, examples, device))
    with alone(path):
        if not path.is_file():
            trained = language.train_language(settings, at=at, device=device, examples=examples, progress=progress)
            language.save_trained(trained, path)
    return language.read_trained(settings, path)
