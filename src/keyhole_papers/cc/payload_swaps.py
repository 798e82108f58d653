"""Does attention follow the latents of a payload head? Key coordinates swapped in their subspaces and random ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from keyhole.contrast.edits.moves import Effect
from keyhole.figures.contrast.interventions import intervention_figure
from keyhole.lab.payload.features import Swaps, swaps
from keyhole.lab.payload.toy import Payload
from keyhole.stats import interval, told
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Grid, Setting
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_CONDITIONS = ("null", "z1", "z2", "both", "random_z1", "random_z2", "random_both", "full")
_LEFT = 0.02  # attention that may stay on the original when "all" of it moves
_MOVED = 0.9  # of the attention that the right token can get
_FAR_LESS = 0.6  # of what both latents move


@dataclass(frozen=True)
class Swapped:
    """What swaps move in the heads of every setting, beside so many random subspaces."""

    grid: Grid[Swaps]
    randoms: int


def measure(job: Job, settings: Sequence[Setting], seeds: int = 3) -> Swapped:
    """Swaps of the latents' coordinates in every head."""
    randoms = 2 if job.quick else 10

    def swapped(head: Payload) -> Swaps:
        z1, z2 = payload.feature_of(job, head, "z1"), payload.feature_of(job, head, "z2")
        return swaps(head, z1, z2, samples=1024 if job.quick else 51_200, randoms=randoms, seed=job.seed)

    return Swapped(payload.measured(job, swapped, settings, "discrete", seeds=seeds), randoms)


def judge(record: Swapped) -> Verdict:
    """Do trained heads follow both latents, and random coordinates far less?"""
    pairs = [pair for cell in record.grid.values() for pair in zip(cell.heads, cell.found, strict=True)]
    follows = all(
        s.both.orig <= _LEFT and s.both.shift >= _MOVED * due(head, s) and s.both.shift >= 0.95 * s.full.shift
        for head, s in pairs
    )
    if not follows:
        return "not"
    shares = _random_shares(record.grid)
    beyond = all(s.both.interval[0] > 0 for x, cell in record.grid.items() if x.filled < 1 for s in cell.found)
    held = beyond and shares[0] < _FAR_LESS and grows(shares)
    return payload.as_trained("reproduced" if held else "partly", payload.every(record.grid))


def due(head: Payload, found: Swaps) -> float:
    """The attention that the right token can get: in the printed noise, which takes some of it, what it had."""
    return found.null.orig if payload.as_printed([head]) else payload.attended(head.settings)


def _random_shares(grid: Grid[Swaps]) -> list[float]:
    """What random coordinates move of what both latents do, the more the latents fill of the head."""
    filled = [grid[setting].found for setting in sorted(grid, key=lambda setting: setting.filled)]
    return [sum(s.random_both.shift for s in own) / sum(s.both.shift for s in own) for own in filled]


def grows(values: Sequence[float]) -> bool:
    """Does it rise from first to last and never fall? One value may stand alone.

    >>> grows([0.5, 0.5, 0.9]), grows([0.5, 0.4, 0.9]), grows([0.5, 0.5])
    (True, False, False)
    """
    return len(values) == 1 or (values[-1] > values[0] and all(later >= earlier for earlier, later in pairwise(values)))


def tell(record: Swapped) -> Told:
    """Does attention follow swapped latents, and more than swapped random coordinates?"""
    numbers: Numbers = {}
    lines = []
    for setting, cell in record.grid.items():
        moved = {name: [getattr(s, name).shift for s in cell.found] for name in _CONDITIONS[1:]}
        left, before, raw = [s.both.orig for s in cell.found], [s.null.orig for s in cell.found], cell.untrained[0]
        numbers |= {f"{setting} {name}": values for name, values in moved.items()}
        numbers |= {f"{setting} left": left, f"{setting} untrained both": raw.both.shift}
        lines.append(
            f"{setting}: both latents move {told(moved['both'])} of attention and leave {told(left)} of {told(before)} "
            f"on the original; whole keys {told(moved['full'])}, z1 {told(moved['z1'])}, z2 {told(moved['z2'])}, "
            f"random of the same rank {told(moved['random_both'])}; in an untrained head both move "
            f"{raw.both.shift:.3f}."
        )
    every = payload.every(record.grid)
    most = "had, in so much noise" if payload.as_printed(every) else "can get"
    note = (
        "The random control of both latents is small only where r1 + r2 is well below d_head: at d_head it is the "
        f"whole swap. The verdict asks that both leave at most {_LEFT} on the original and move {_MOVED} of what the "
        f"right token {most} (else not); and, for more than partly, that every head's swap exceeds random ones below "
        f"d_head (95 % over samples), that random ones move less than {_FAR_LESS} of it where the latents fill least, "
        "and that this share grows and never falls the more they fill. Targets differ from the original in both "
        f"latents; {record.randoms} random subspaces each. {payload.SEEDS} {payload.told_training(every)}"
    )
    return Told("\n".join(lines), numbers, note)


def draw(record: Swapped) -> dict[str, Figure]:
    """Bars of every condition, a panel for each setting."""
    panels = {
        str(setting): [_pooled([getattr(s, name) for s in cell.found]) for name in _CONDITIONS]
        for setting, cell in record.grid.items()
    }
    return {"swaps": intervention_figure(panels, title="Attention after swaps, mean over seeds")}


def _pooled(effects: Sequence[Effect]) -> Effect:
    """The mean of an effect over seeds; its intervals are over seeds too."""

    def mean(name: str) -> float:
        return float(sum(getattr(effect, name) for effect in effects) / len(effects))

    normalised, *own = interval([effect.normalised for effect in effects])
    shift, *moved = interval([effect.shift for effect in effects])
    means: dict[str, Any] = {name: mean(name) for name in ("orig", "target", "random", "full")}
    pooled = replace(effects[0], rank=round(mean("rank")), shift=shift, normalised=normalised, **means)
    return replace(pooled, interval=(own[0], own[1]), shift_interval=(moved[0], moved[1]))


_SIXTEEN = [Setting(r1, r2, 16) for r1, r2 in ((4, 4), (4, 8), (6, 8), (8, 8))]
_EIGHT = [Setting(r1, r2, 8) for r1, r2 in ((2, 2), (3, 3), (3, 4), (4, 4))]
RUNS: dict[str, Attempt] = {
    "cc-fig4": Experiment(partial(measure, settings=[Setting(3, 5, 16)], seeds=5), judge, tell, draw, heeds=AS_PRINTED),
    "cc-fig14": Experiment(partial(measure, settings=_SIXTEEN), judge, tell, draw, heeds=AS_PRINTED),
    "cc-fig15": Experiment(partial(measure, settings=_EIGHT), judge, tell, draw, heeds=AS_PRINTED),
}
