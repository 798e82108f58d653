"""What do a payload head's scores go by, and do queries and keys take the shape of their latent?

The matrix G, its diagonal, and its symmetry off it; key coordinates swapped in subspaces of latents and random ones;
cubes of signs, balls of Gaussians.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.features.contrast.clouds import pca_figure
from keyhole.features.contrast.figures import interaction_figure, intervention_figure
from keyhole.features.contrast.moves import Effect
from keyhole.features.contrast.subspace import random_bases
from keyhole.lab.payload import Payload
from keyhole.lab.payload_features import (
    LatentPoints,
    Shape,
    Swaps,
    asymmetry,
    diagonal_share,
    interaction,
    latent_points,
    shape,
    swaps,
)
from keyhole.lab.payload_task import Latents, attended, purpose_seed
from keyhole.stats import interval
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Cell, Grid, Setting
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Claim, Finding, Findings, of_part, rows_of

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
    heads, filled = payload.every(record.grid), sorted(record.grid, key=lambda setting: setting.filled)
    shares = [  # what random coordinates move of what both latents do, the more the latents fill of the head
        sum(s.random_both.shift for s in effects) / (sum(s.both.shift for s in effects) or math.nan)
        for effects in (record.grid[setting].results for setting in filled)
    ]
    far_less = shares[0] < _FAR_LESS and grows(shares)
    most = "had, in so much noise" if payload.as_printed(heads) else "can get"
    both = f"{_LEFT} or less left on the original, and {_MOVED} of what the right token {most} moved"
    rows = [Finding("random_both, of both", shares, f"{_FAR_LESS} at first, and no fall", far_less)]
    first, beyond = True, True
    for setting, cell in record.grid.items():
        follows = all(
            s.both.orig <= _LEFT and s.both.shift >= max(_MOVED * due(head, s), 0.95 * s.full.shift)
            for head, s in zip(cell.heads, cell.results, strict=True)
        )
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
    return payload.of_heads(rows, heads, first=first, full=beyond and far_less, remark=remark)


def due(head: Payload, swapped: Swaps) -> float:
    """The attention that the right token can get: in the printed noise, which takes some of it, what it had."""
    return swapped.null.orig if payload.as_printed([head]) else attended(head.settings)


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
    normalised, *bounds = interval([effect.normalised for effect in effects])
    shift, *shifts = interval([effect.shift for effect in effects])
    means: dict[str, Any] = {
        name: mean(getattr(effect, name) for effect in effects) for name in ("orig", "target", "random", "full", "rank")
    }
    means["rank"] = round(means["rank"])
    pooled = replace(effects[0], shift=shift, normalised=normalised, **means)
    return replace(pooled, interval=(bounds[0], bounds[1]), shift_interval=(shifts[0], shifts[1]))


def bound(setting: Setting) -> float:
    """How much of its energy can G hold on an even diagonal? tr(G)^2 <= rank |G|^2, and |diagonal|^2 = tr(G)^2 / r.

    >>> bound(Setting(6, 6, 8)), bound(Setting(3, 4, 8))
    (0.6666666666666666, 1.0)
    """
    return min(1.0, setting.d_head / (setting.r1 + setting.r2))


def _asymmetries(cell: Cell[Tensor]) -> list[float]:
    return [asymmetry(G) for G in cell.results]


_BOUNDS = {"nearest": 0.95, "linear": 0.8, "even": 0.7, "agree": 0.8}
_NEEDED = ("nearest", "linear")  # without which nothing is shown; corners are of discrete latents alone
_DRAWS = 100  # random subspaces of a head
_QUANTILE = 0.95  # of them, that must be exceeded
_BLUR = "What blurs the shape is the other latent and, in keys, the payload: subspaces are not quite orthogonal."


@dataclass(frozen=True)
class Shapes:
    """The shape of the first latent in its subspace, by head, beside two controls; and the first head's points."""

    latents: Latents
    heads: Sequence[Payload]
    shapes: Sequence[Shape]
    untrained: Sequence[Shape]
    limits: Sequence[Shape]  # what nearly all random subspaces are below
    cloud: LatentPoints

    @property
    def claimed(self) -> list[str]:
        """The measures that the verdict asks for."""
        return [name for name in _BOUNDS if name != "nearest" or self.latents == "discrete"]

    def beyond(self, name: str) -> bool:
        """Does every head's measure exceed what nearly all random subspaces of it show?"""
        return all(
            getattr(shape, name) > getattr(most, name) for shape, most in zip(self.shapes, self.limits, strict=True)
        )


def measure_shapes(job: Job, latents: Latents) -> Shapes:
    """Shapes in the subspace of the first latent, in that of untrained heads and in random ones."""
    ((_, heads),) = payload.heads_of(job, [Setting(3, 5, 16)], latents, seeds=5).items()
    clouds = [in_feature(job, head) for head in heads]
    raw = [shape(in_feature(job, head)) for head in payload.untrained(heads)]
    limits = [limit(in_random(job, head)) for head in heads]
    return Shapes(latents, heads, [shape(points) for points in clouds], raw, limits, cloud=clouds[0])


def points(job: Job, head: Payload) -> LatentPoints:
    """Fresh samples of a head."""
    return latent_points(head, 500 if job.quick else 4000, job.seed)


def in_feature(job: Job, head: Payload) -> LatentPoints:
    """The same in the subspace of the first latent; of its true rank, as in the paper: `ranks` tells others."""
    feature, r = payload.feature_of(job, head, "z1"), head.settings.r1
    return points(job, head).within(feature.U[:, :r], feature.V[:, :r])


def in_random(job: Job, head: Payload) -> list[Shape]:
    """The shapes in random subspaces of the latent's rank, each one for queries and keys alike."""
    settings, points_of_head = head.settings, points(job, head)
    bases = random_bases(settings.d_head, settings.r1, _DRAWS, purpose_seed(job.seed + settings.seed, "bases"))
    return [shape(points_of_head.within(basis, basis)) for basis in bases]


def limit(random: Sequence[Shape]) -> Shape:
    """What 95 % of these shapes are below, measure by measure."""
    columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in _columns(random).items()}
    return Shape(**{name: float(values.quantile(_QUANTILE)) for name, values in columns.items()})


def shapes(record: Shapes) -> Findings:
    """Do queries and keys of trained heads show the shape of their latent, more than in random subspaces?"""
    columns = _columns(record.shapes)
    claims: dict[str, Claim] = {}
    for name in record.claimed:
        claim = f"{_BOUNDS[name]} in the mean, and in every seed more than in random subspaces"
        claims[name] = claim, record.beyond(name) and mean(columns[name]) >= _BOUNDS[name]
    rows = rows_of(columns, claims)
    rows += of_part("untrained", *rows_of(_columns(record.untrained)), joint=" ")
    rows += of_part(f"random {_QUANTILE:.0%}", *rows_of(_columns(record.limits)), joint=" ")
    needed = [name for name in record.claimed if name in _NEEDED]
    remark = (
        "Nearest: keys at their own corner (signs of the latent); linear: variance explained by the latent; even: "
        "shortest against longest axis (1: a regular cube or ball); agree: cosine of a query with its key. Of queries "
        f"and keys the worse is reported. Random: {_QUANTILE:.0%} of {_DRAWS} subspaces of the same rank, each one for "
        f"queries and keys alike, are below. Nothing without {' and '.join(needed)}, partly without another. {_BLUR}"
    )
    first, full = (all(claims[name][1] for name in names) for names in (needed, record.claimed))
    return payload.of_heads(rows, record.heads, first=first, full=full, remark=remark)


def _columns(shapes: Sequence[Shape]) -> dict[str, list[float]]:
    return {name: [getattr(shape, name) for shape in shapes] for name in _BOUNDS}


def draw_shapes(record: Shapes) -> dict[str, Figure]:
    """The first head's queries and keys in their subspaces."""
    title = f"Queries and right keys in the subspace of the first latent, {record.latents}"
    points = record.cloud
    return {"pca": pca_figure(points.q, points.k, points.labels, points.labels, title=title, points=1000)}


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
_cubes, _balls = (partial(measure_shapes, latents=latents) for latents in ("discrete", "gaussian"))
RUNS |= {
    "cc-fig3": Experiment(_cubes, shapes, draw_shapes, heeds=AS_PRINTED),
    "cc-fig12": Experiment(_balls, shapes, draw_shapes, heeds=AS_PRINTED),
}
