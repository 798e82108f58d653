"""Which payload heads do the toy's figures share, and were they trained? A head that was not shows nothing.

Trained as Table 1 prints it, they are judged by themselves: do the printed settings give the printed results?
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

from keyhole.lab.payload import VALIDATION, Payload, PayloadSettings, train, trained_heads
from keyhole.lab.payload_features import Latent, LatentFeature, latent_feature
from keyhole.lab.payload_task import Latents, reachable
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import TOY, Finding, Findings, holds_of, of_part
from keyhole_papers.results import Verdict

T = TypeVar("T")
QUICK = {"max_steps": 500, "batch": 64, "lr": 1e-2}
TRAINED = 0.97  # of the accuracy that can be reached
IN_NOISE = 0.85  # the same of heads in the printed noise, which takes some of it: they have .90 to .97
SEEDS = "Brackets: smallest and largest of the seeds."
_TABLE = {"d": 32, "batch": 256, "lr": 1e-4, "weight_decay": 0.01, "check_every": 200, "patience": 5}
_VALIDATED = (20, 512)


class Setting(NamedTuple):
    """How many entries both latents have, and the head dimensions."""

    r1: int
    r2: int
    d_head: int

    def __str__(self) -> str:
        return f"({self.r1}, {self.r2}) in {self.d_head}"

    @property
    def filled(self) -> float:
        """Entries for each dimension: more than 1 do not fit."""
        return (self.r1 + self.r2) / self.d_head


class Ranks(NamedTuple):
    """How many dimensions the contrast of each latent has."""

    z1: int
    z2: int


@dataclass(frozen=True)
class Cell(Generic[T]):
    """The results in the heads of one setting, one per seed, and in the first of them before training."""

    heads: Sequence[Payload]
    results: Sequence[T]
    untrained: Sequence[T] = ()


Grid = Mapping[Setting, Cell[T]]


def measured(
    job: Job, of: Callable[[Payload], T], settings: Sequence[Setting], latents: Latents, seeds: int = 3, raw: int = 1
) -> Grid[T]:
    """The same of every trained head, and of so many of each setting before training."""
    return {
        setting: Cell(heads, [of(head) for head in heads], [of(head) for head in untrained(heads[:raw])])
        for setting, heads in heads_of(job, settings, latents, seeds).items()
    }


def heads_of(job: Job, settings: Sequence[Setting], latents: Latents, seeds: int = 3) -> dict[Setting, list[Payload]]:
    """Trained heads of every setting, one per seed; they lie beside the figures, which share them."""
    if job.quick:
        settings, seeds = settings[:2], min(seeds, 2)
    changes = QUICK if job.quick else {}
    preset = PayloadSettings.printed if job.as_printed else PayloadSettings.fast
    cells = [
        preset(r1, r2, d_head, latents=latents, seed=job.seed + seed, **changes)
        for r1, r2, d_head in settings
        for seed in range(seeds)
    ]
    heads = trained_heads(cells, job.folder.parent / "heads", job.progress)
    return {setting: heads[i * seeds : (i + 1) * seeds] for i, setting in enumerate(settings)}


def grid_of(ranks: Sequence[int], d_head: int, *, square: bool = False) -> list[Setting]:
    """Every pair of ranks once: latents may change names, so that a head of (r1, r2) stands for (r2, r1) too.

    A `square` has both, as the paper's figures.
    """
    return [Setting(a, b, d_head) for a in ranks for b in ranks if square or a <= b]


def every(*grids: Grid[Any]) -> list[Payload]:
    """All heads of these grids."""
    return [head for grid in grids for cell in grid.values() for head in cell.heads]


def untrained(heads: Iterable[Payload]) -> list[Payload]:
    """The same heads after a single step: what a measure shows before anything is learned."""
    return [train([replace(head.settings, max_steps=1, check_every=None)])[0] for head in heads]


def feature_of(job: Job, head: Payload, latent: Latent) -> LatentFeature:
    """The latent's subspaces in a head; as printed, a negative's latent is never the query's."""
    triplets, differ = 4096 if job.quick else 40_960, job.as_printed
    return latent_feature(head, latent, triplets=triplets, differ=differ, seed=job.seed)


def ranks_of(job: Job, head: Payload) -> Ranks:
    """The ranks of both latents in a head."""
    return Ranks(feature_of(job, head, "z1").rank, feature_of(job, head, "z2").rank)


def reached(heads: Iterable[Payload]) -> list[float]:
    """Every head's accuracy as a share of what it can reach."""
    return [head.accuracy / reachable(head.settings) for head in heads]


def are_trained(heads: Iterable[Payload]) -> bool:
    """Does every head do its task? In the printed noise, as far as that lets it, and having stopped by itself."""
    return all(
        share >= IN_NOISE and head.trained < head.settings.max_steps if as_printed([head]) else share >= TRAINED
        for head, share in ((head, reached([head])[0]) for head in heads)
    )


def as_printed(heads: Iterable[Payload]) -> bool:
    """Were all of them trained with the settings, and on the data, that the paper prints?"""
    for settings in (head.settings for head in heads):
        kind, steps = {"latents": settings.latents, "seed": settings.seed}, settings.max_steps  # which are not printed
        printed = PayloadSettings.printed(settings.r1, settings.r2, settings.d_head, **kind)
        if settings != replace(printed, max_steps=steps):
            return False
    return True


def as_trained(verdict: Verdict, heads: Sequence[Payload]) -> Verdict:
    """The verdict on trained heads; if trained in another way than printed, a part of the claim at most."""
    if not are_trained(heads):
        return "not"
    return verdict if as_printed(heads) or verdict != "reproduced" else "partly"


def training_note(heads: Sequence[Payload]) -> str:
    """How the heads were trained, and how far they came."""
    shares, settings = reached(heads), heads[0].settings
    far = f"accuracy {min(shares):.0%} to {max(shares):.0%} of what can be reached"
    if as_printed(heads):
        steps = [head.trained for head in heads]
        return (
            f"Trained as printed, with lr {settings.lr:g}, noise and maps of standard Gaussians, until "
            f"{settings.patience} validations brought no gain ({min(steps):,} to {max(steps):,} steps): {far} without "
            f"noise; the verdict needs {IN_NOISE:.0%} of every head, and that it stopped by itself."
        )
    printed = PayloadSettings.printed(settings.r1, settings.r2, settings.d_head)
    noise = f" and noise {settings.noise:g} instead of {printed.noise:g}" if settings.noise != printed.noise else ""
    return (
        f"Trained with lr {settings.lr:g} for {settings.max_steps:,} steps instead of lr {printed.lr:g} with early "
        f"stopping (cc-table1){noise}: {far}; the verdict needs {TRAINED:.0%} of every head, and is partly at most: "
        "settings are not the printed ones (--as-printed)."
    )


def of_heads(rows: Sequence[Finding], heads: Sequence[Payload], *, first: bool, full: bool, remark: str) -> Findings:
    """Findings in trained heads: nothing without the first claim, and in full only as printed."""
    verdict = as_trained("reproduced" if full else "partly", heads) if first else "not"
    return Findings(rows, TOY, remark=f"{remark} {SEEDS} {training_note(heads)}", judged=verdict)


_SIZES = [Setting(3, 5, 16), Setting(3, 4, 8)]  # both printed sizes of the head


@dataclass(frozen=True)
class Printed:
    """Heads trained as printed, and whether both ranks of each are the true ones."""

    exact: Grid[bool]


def measure(job: Job) -> Printed:
    """Heads with the printed settings, and their ranks; as printed, on the data of the text too."""
    changes: dict[str, Any] = {"max_steps": 400, "lr": 1e-2, "batch": 64} if job.quick else {}
    preset = PayloadSettings.printed if job.as_printed else PayloadSettings.paper
    grid = {}
    for x in _SIZES:
        cells = [preset(*x, seed=job.seed + i, **changes) for i in range(1 if job.quick else 3)]
        heads = trained_heads(cells, job.folder.parent / "heads", job.progress)
        grid[x] = Cell(heads, [ranks_of(job, head) == (x.r1, x.r2) for head in heads])
    return Printed(grid)


def table(record: Printed) -> Findings:
    """Do heads trained with the printed settings stop by themselves, do their task and show the true ranks?"""
    heads = every(record.exact)
    changed, printed = differ([head.settings for head in heads]), as_printed(heads)
    least = IN_NOISE if printed else TRAINED
    rows = [Finding("settings that are not as printed", ", ".join(changed) or "none", "none", not changed)]
    for setting, cell in record.exact.items():
        stopped = all(head.trained < head.settings.max_steps for head in cell.heads)
        rows += of_part(
            str(setting),
            Finding("steps", [float(head.trained) for head in cell.heads], "an early stop", stopped, digits=0),
            Finding("accuracy", [head.accuracy for head in cell.heads]),
            Finding("can be reached", reachable(cell.heads[0].settings)),
            Finding("reached", reached(cell.heads), f"{least:.0%} or more without noise", are_trained(cell.heads)),
            Finding("exact ranks", cell.results, "all", all(cell.results)),
            joint=" ",
        )
    data = "Noise and maps of standard Gaussians, as in the text."
    if not printed:
        data = (
            f"Noise of {heads[0].settings.noise:g} and scaled maps as in the authors' code; the text has standard "
            "Gaussians for both (--as-printed)."
        )
    holds = all(holds_of(rows))
    verdict: Verdict = "not" if not are_trained(heads) else "reproduced" if holds else "partly"
    return Findings(rows, TOY, unless="every head is trained", remark=f"{SEEDS} {data}", judged=verdict)


def differ(cells: Sequence[PayloadSettings]) -> list[str]:
    """Which settings of these cells, as they were trained, are not the printed ones?"""
    names = [name for name, value in _TABLE.items() if any(getattr(cell, name) != value for cell in cells)]
    return names if VALIDATION == _VALIDATED else [*names, "validation"]


RUNS: dict[str, Attempt] = {"cc-table1": Experiment(measure, table, heeds=AS_PRINTED)}
