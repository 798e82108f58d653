"""What do a payload head's scores go by? Which entries of latents meet in them, and whether attention follows swaps.

The matrix G, its diagonal, and its symmetry off it; key coordinates swapped in subspaces of latents and random ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from keyhole.features.contrast.figures import interaction_figure, intervention_figure
from keyhole.features.contrast.moves import Effect
from keyhole.lab.payload import Payload
from keyhole.lab.payload_features import Swaps, diagonal_share, interaction, swaps
from keyhole.lab.payload_task import Latents
from keyhole.stats import interval
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Cell, Grid, Setting
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, of_part, rows_of

_SETTINGS = [Setting(3, 4, 8), Setting(6, 6, 8), Setting(4, 8, 16), Setting(10, 10, 16)]
_DIAGONAL = 0.9  # of G's energy where it is called diagonal
_UNRELATED = 0.25  # asymmetry half-way between symmetric (0) and unrelated halves (.5)
_CONDITIONS = ("null", "z1", "z2", "both", "random_z1", "random_z2", "random_both", "full")
_LEFT = 0.02  # attention that may stay on the original when "all" of it moves
_MOVED = 0.9  # of the attention that the right token can get
_FAR_LESS = 0.6  # of what both latents move


@dataclass(frozen=True)
class Interactions:
    """G in the heads of every setting, and beside discrete latents that of continuous ones."""

    latents: Latents
    grid: Grid[Tensor]
    continuous: Grid[Tensor] = field(default_factory=dict)


def measure_interactions(job: Job, latents: Latents) -> Interactions:
    """Which entries meet, in trained heads and before training?"""
    kinds: tuple[Latents, ...] = (latents, "gaussian") if latents == "discrete" else (latents,)
    return Interactions(latents, *(payload.measured(job, interaction, _SETTINGS, kind) for kind in kinds))


def diagonal(record: Interactions) -> Findings:
    """Do latents keep to themselves where they fit, and share directions where they do not?"""
    shares = {setting: [diagonal_share(G) for G in cell.results] for setting, cell in record.grid.items()}
    within = [share for setting, values in shares.items() if setting.filled <= 1 for share in values]
    beyond = [share for setting, values in shares.items() if setting.filled > 1 for share in values]
    rows: list[Finding] = []
    for setting, cell in record.grid.items():
        claim, holds = f"at least {_DIAGONAL}", min(shares[setting]) >= _DIAGONAL
        if setting.filled > 1:
            claim, holds = "less than where they fit", max(shares[setting]) < min(within, default=0.0)
        rows += of_part(
            str(setting),
            Finding("diagonal", shares[setting], claim, holds),
            Finding("bound", bound(setting)),
            Finding("asymmetry", _asymmetries(cell)),
            Finding("untrained diagonal", diagonal_share(cell.untrained[0])),
            joint=" ",
        )
    remark = (
        "Diagonal: share of G's energy; bound: what an even one can hold. That entries appear off it beyond capacity "
        "is forced: G has rank d_head at most, and an even diagonal then holds at most d_head / (r1 + r2) of its "
        "energy; an uneven one may hold more."
    )
    first = bool(within) and min(within) >= _DIAGONAL
    full = first and bool(beyond) and max(beyond) < min(within)
    return payload.of_heads(rows, payload.every(record.grid), first=first, full=full, remark=remark)


def symmetry(record: Interactions) -> Findings:
    """Beyond capacity, is G less symmetric than with continuous latents of the same setting, and by much?"""
    rows, opposite, above, least = list[Finding](), list[str](), list[bool](), list[float]()
    for setting, cell in record.grid.items():
        here, beside = _asymmetries(cell), _asymmetries(record.continuous[setting])
        claim, holds = "", None
        if setting.filled > 1:
            above.append(min(here) > max(beside))
            least.append(sum(here) / len(here))
            claim = f"in every seed more than in every continuous one, and {_UNRELATED} in the mean"
            holds = above[-1] and least[-1] >= _UNRELATED
        elif sum(here) < sum(beside):
            opposite.append(str(setting))
        rows += of_part(
            str(setting),
            Finding("asymmetry", here, claim, holds),
            Finding("continuous asymmetry", beside),
            Finding("untrained asymmetry", asymmetry(cell.untrained[0])),
            Finding("diagonal", [diagonal_share(G) for G in cell.results]),
            joint=" ",
        )
    within = f" Within capacity it is the other way round: {' and '.join(opposite)}." if opposite else ""
    remark = (
        "Asymmetry: share of the off-diagonal energy in (G - G^T) / 2; 0 if symmetric, .5 if both halves are "
        "unrelated. The verdict is about settings beyond capacity, where G has entries off its diagonal: nothing "
        f"unless every seed exceeds continuous ones, partly if mostly symmetric still.{within}"
    )
    first, heads = bool(above) and all(above), payload.every(record.grid, record.continuous)
    return payload.of_heads(rows, heads, first=first, full=first and min(least) >= _UNRELATED, remark=remark)


def draw_interactions(record: Interactions) -> dict[str, Figure]:
    """G of every setting's first seed."""
    figures = {}
    for (r1, r2, d_head), cell in record.grid.items():
        title = f"G, {record.latents}, ranks {r1} and {r2} in {d_head} dimensions"
        figures[f"interaction-{r1}-{r2}-{d_head}"] = interaction_figure(cell.results[0], (r1, r2), title=title)
    return figures


@dataclass(frozen=True)
class Swapped:
    """What swaps move in the heads of every setting, beside so many random subspaces."""

    grid: Grid[Swaps]
    randoms: int


def measure_swaps(job: Job, settings: Sequence[Setting], seeds: int = 3) -> Swapped:
    """Swaps of the latents' coordinates in every head."""
    randoms = 2 if job.quick else 10

    def swapped(head: Payload) -> Swaps:
        z1, z2 = payload.feature_of(job, head, "z1"), payload.feature_of(job, head, "z2")
        return swaps(head, z1, z2, samples=1024 if job.quick else 51_200, randoms=randoms, seed=job.seed)

    return Swapped(payload.measured(job, swapped, settings, "discrete", seeds=seeds), randoms)


def moved(record: Swapped) -> Findings:
    """Do trained heads follow both latents, and random coordinates far less?"""
    heads, shares = payload.every(record.grid), _random_shares(record.grid)
    most = "had, in so much noise" if payload.as_printed(heads) else "can get"
    both = f"{_LEFT} or less left on the original, and {_MOVED} of what the right token {most} moved"
    rows = [Finding("random_both, of both", shares, f"{_FAR_LESS} at first, and no fall", _far_less(shares))]
    first, beyond = True, True
    for setting, cell in record.grid.items():
        follows = all(_follows(head, s) for head, s in zip(cell.heads, cell.results, strict=True))
        beyond &= setting.filled >= 1 or all(s.both.interval[0] > 0 for s in cell.results)
        first &= follows
        shifts = {name: [getattr(s, name).shift for s in cell.results] for name in _CONDITIONS[1:]}
        claims = {"both": (both, follows)}
        rows += of_part(
            str(setting),
            *rows_of(shifts, claims),
            Finding("left", [s.both.orig for s in cell.results]),
            Finding("before", [s.null.orig for s in cell.results]),
            Finding("untrained both", cell.untrained[0].both.shift),
            joint=" ",
        )
    remark = (
        "Numbers are attention that moves, and what both latents leave on the original. The random control of both "
        "latents is small only where r1 + r2 is well below d_head: at d_head it is the whole swap; shares of it are in "
        "the order in which latents fill the head. More than partly also asks that every head's swap exceeds random "
        "ones below d_head (95 % over samples). Targets differ from the original in both latents; "
        f"{record.randoms} random subspaces each."
    )
    return payload.of_heads(rows, heads, first=first, full=beyond and _far_less(shares), remark=remark)


def _follows(head: Payload, s: Swaps) -> bool:
    much = s.both.shift >= _MOVED * due(head, s) and s.both.shift >= 0.95 * s.full.shift
    return s.both.orig <= _LEFT and much


def _far_less(shares: Sequence[float]) -> bool:
    return shares[0] < _FAR_LESS and grows(shares)


def due(head: Payload, swapped: Swaps) -> float:
    """The attention that the right token can get: in the printed noise, which takes some of it, what it had."""
    return swapped.null.orig if payload.as_printed([head]) else payload.attended(head.settings)


def _random_shares(grid: Grid[Swaps]) -> list[float]:
    """What random coordinates move of what both latents do, the more the latents fill of the head."""
    filled = [grid[setting].results for setting in sorted(grid, key=lambda setting: setting.filled)]
    return [
        sum(s.random_both.shift for s in effects) / (sum(s.both.shift for s in effects) or math.nan)
        for effects in filled
    ]


def grows(values: Sequence[float]) -> bool:
    """Does it rise from first to last and never fall? One value may stand alone.

    >>> grows([0.5, 0.5, 0.9]), grows([0.5, 0.4, 0.9]), grows([0.5, 0.5])
    (True, False, False)
    """
    return len(values) == 1 or (values[-1] > values[0] and all(later >= earlier for earlier, later in pairwise(values)))


def draw_swaps(record: Swapped) -> dict[str, Figure]:
    """Bars of every condition, a panel for each setting."""
    panels = {
        str(setting): [_pooled([getattr(s, name) for s in cell.results]) for name in _CONDITIONS]
        for setting, cell in record.grid.items()
    }
    return {"swaps": intervention_figure(panels, title="Attention after swaps, mean over seeds")}


def _pooled(effects: Sequence[Effect]) -> Effect:
    """The mean of an effect over seeds; its intervals are over seeds too."""

    def mean(name: str) -> float:
        return float(sum(getattr(effect, name) for effect in effects) / len(effects))

    normalised, *bounds = interval([effect.normalised for effect in effects])
    shift, *shifts = interval([effect.shift for effect in effects])
    means: dict[str, Any] = {name: mean(name) for name in ("orig", "target", "random", "full")}
    pooled = replace(effects[0], rank=round(mean("rank")), shift=shift, normalised=normalised, **means)
    return replace(pooled, interval=(bounds[0], bounds[1]), shift_interval=(shifts[0], shifts[1]))


def bound(setting: Setting) -> float:
    """How much of its energy can G hold on an even diagonal? tr(G)^2 <= rank |G|^2, and |diagonal|^2 = tr(G)^2 / r.

    >>> bound(Setting(6, 6, 8)), bound(Setting(3, 4, 8))
    (0.6666666666666666, 1.0)
    """
    return min(1.0, setting.d_head / (setting.r1 + setting.r2))


def asymmetry(G: Tensor) -> float:
    """How much of G's off-diagonal energy is antisymmetric?

    >>> import torch
    >>> asymmetry(torch.tensor([[5.0, 1.0], [-1.0, 5.0]]))
    1.0
    """
    off = (G - G.diagonal().diag()).double()
    return float(((off - off.T) / 2).square().sum() / off.square().sum().clamp_min(1e-30))


def _asymmetries(cell: Cell[Tensor]) -> list[float]:
    return [asymmetry(G) for G in cell.results]


_SIXTEEN = [Setting(r1, r2, 16) for r1, r2 in ((4, 4), (4, 8), (6, 8), (8, 8))]
_EIGHT = [Setting(r1, r2, 8) for r1, r2 in ((2, 2), (3, 3), (3, 4), (4, 4))]
_both, _sixteen, _eight = (
    partial(measure_swaps, settings=settings, seeds=seeds)
    for settings, seeds in (([Setting(3, 5, 16)], 5), (_SIXTEEN, 3), (_EIGHT, 3))
)
RUNS: dict[str, Attempt] = {
    "cc-fig4": Experiment(_both, moved, draw_swaps, heeds=AS_PRINTED),
    "cc-fig14": Experiment(_sixteen, moved, draw_swaps, heeds=AS_PRINTED),
    "cc-fig15": Experiment(_eight, moved, draw_swaps, heeds=AS_PRINTED),
}
_gaussian, _discrete = (partial(measure_interactions, latents=latents) for latents in ("gaussian", "discrete"))
RUNS |= {
    "cc-fig5": Experiment(_gaussian, diagonal, draw_interactions, heeds=AS_PRINTED),
    "cc-fig13": Experiment(_discrete, symmetry, draw_interactions, heeds=AS_PRINTED),
}
