"""What happens to two latents that do not fit into a head? Phase diagrams beyond capacity, which the paper sketches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure

from keyhole.figures.style import INK, RED, blank, heading, tidy
from keyhole.lab.payload.features import diagonal_share, interaction, key_overlap
from keyhole.lab.payload.task import Latents
from keyhole.lab.payload.toy import Payload
from keyhole.stats import told
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Grid, Setting
from keyhole_papers.cc.payload_interactions import bound
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_RANKS = (2, 3, 4, 5, 6, 7, 8)
_D_HEAD = 8
_PANELS = {
    "missed": "ranks missed, |Δ1| + |Δ2|",
    "accuracy": "accuracy",
    "overlap": "overlap of the key subspaces",
    "off": "share of G off the diagonal",
}
_COUNTED = "overlap beyond counting"  # what subspaces share beyond what their ranks force

Row = Mapping[str, float]  # what was measured in one head
Means = Mapping[str, Sequence[float]]  # over cells, by seed


@dataclass(frozen=True)
class Phases:
    """What happens to both latents in the heads of a grid of ranks, for each kind of latents."""

    grids: Mapping[Latents, Grid[Row]]


def measure(job: Job) -> Phases:
    """Ranks, accuracy and subspaces over seeds, with both kinds of latents."""
    settings = payload.grid_of((3, 6) if job.quick else _RANKS, _D_HEAD)
    kinds: tuple[Latents, ...] = ("discrete", "gaussian")
    return Phases({kind: payload.measured(job, partial(_row, job), settings, kind, raw=0) for kind in kinds})


def _row(job: Job, head: Payload) -> Row:
    z1, z2 = payload.feature_of(job, head, "z1"), payload.feature_of(job, head, "z2")
    own = Setting(head.settings.r1, head.settings.r2, head.settings.d_head)
    least, overlap = max(0, z1.rank + z2.rank - own.d_head) / min(z1.rank, z2.rank), key_overlap(z1, z2)
    return {
        "missed": float(abs(z1.rank - own.r1) + abs(z2.rank - own.r2)),
        "accuracy": head.accuracy,
        "reached": payload.reached([head])[0],
        "overlap": overlap,
        "off": 1 - diagonal_share(interaction(head)),
        "least overlap": least,
        _COUNTED: overlap - least,
        "least off": 1 - bound(own),
    }


def judge(record: Phases) -> Verdict:
    """Do trained heads miss ranks beyond capacity, and share more than counting forces, with each kind of latents?"""
    missed, shared = ([risen(grid, name) for grid in record.grids.values()] for name in ("missed", _COUNTED))
    if not payload.are_trained(payload.every(*record.grids.values())) or not any(missed):
        return "not"
    return "reproduced" if all(missed) and all(shared) else "partly"


def risen(grid: Grid[Row], name: str) -> bool:
    """Is a measure larger beyond capacity, in every seed? NaN is not larger."""
    inside, beyond = means(grid, beyond=False), means(grid, beyond=True)
    return all(a < b for a, b in zip(inside[name], beyond[name], strict=True))


def means(grid: Grid[Row], *, beyond: bool) -> Means:
    """Every measure's mean over the cells that fit, or over those that do not, one value per seed."""
    cells = [cell.found for setting, cell in grid.items() if (setting.filled > 1) == beyond]
    names = next(iter(grid.values())).found[0]
    return {name: [sum(row[name] for row in seed) / len(seed) for seed in zip(*cells, strict=True)] for name in names}


def tell(record: Phases) -> Told:
    """Where do recovered ranks, accuracy and separate subspaces break down?"""
    numbers: Numbers = {}
    lines = []
    for latents, grid in record.grids.items():
        inside, beyond = means(grid, beyond=False), means(grid, beyond=True)
        numbers |= {f"{latents} {name} within": [*values] for name, values in inside.items()}
        numbers |= {f"{latents} {name} beyond": [*values] for name, values in beyond.items()}
        lines.append(f"{latents}: {_told(inside, beyond)}")
    note = (
        "Overlap and off-diagonal share are largely forced by counting: in d_head dimensions subspaces of ranks a "
        "and b share at least a + b - d_head, and G of rank d_head holds at most d_head / (r1 + r2) of its energy on "
        "an even diagonal. Missed ranks are not; accuracy rises with the entries, as latents repeat less. The "
        "verdict asks that missed ranks rise in every seed, and for more than partly that overlap rises by more than "
        "counting forces. Each number is a mean over cells; a head trained on (r1, "
        f"r2) stands for (r2, r1) and is drawn twice, counted once. Red: r1 + r2 = d_head. {payload.SEEDS} "
        f"{payload.told_training(payload.every(*record.grids.values()))}"
    )
    return Told("\n".join(lines), numbers, note)


def _told(inside: Means, beyond: Means) -> str:
    parts = [f"{text.partition(',')[0]} {told(inside[n], 2)} and {told(beyond[n], 2)}" for n, text in _PANELS.items()]
    return (
        f"within and beyond capacity, {'; '.join(parts)}. Beyond it, counting alone gives an overlap of at "
        f"least {told(beyond['least overlap'], 2)} (here {told(beyond[_COUNTED], 2)} more, within capacity "
        f"{told(inside[_COUNTED], 2)}) and, for an even diagonal, an off-diagonal share of at least "
        f"{told(beyond['least off'], 2)}."
    )


def draw(record: Phases) -> dict[str, Figure]:
    """A row of tables for each kind of latents."""
    return {f"phase-{latents}": _figure(grid, latents) for latents, grid in record.grids.items()}


def _figure(grid: Grid[Row], latents: Latents) -> Figure:
    figure = blank(14.5, 4.0)
    heading(figure, f"{latents.capitalize()} latents in {_D_HEAD} dimensions (mirrored at the diagonal)")
    ranks = sorted({rank for r1, r2, _ in grid for rank in (r1, r2)})
    for axis, (name, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        table = torch.full((len(ranks), len(ranks)), float("nan"))
        for (r1, r2, _), cell in grid.items():
            i, j = ranks.index(r1), ranks.index(r2)
            table[i, j] = table[j, i] = sum(row[name] for row in cell.found) / len(cell.found)  # either may be r1
        most = max(1.0, float(table.nan_to_num().max()))
        axis.imshow(table.tolist(), cmap="Blues", origin="lower", aspect="auto", vmin=0, vmax=most)
        _border(axis, ranks)
        for i, j in table.isfinite().nonzero().tolist():
            value = float(table[i, j])
            text = f"{value:.1f}" if name == "missed" else f"{value:.2f}".lstrip("0")
            shade = "white" if value > 0.6 * most else INK
            axis.text(j, i, text, ha="center", va="center", fontsize=8, color=shade)
        tidy(axis, title, x="r2", y="r1")
        axis.set_xticks(range(len(ranks)), [str(r) for r in ranks])
        axis.set_yticks(range(len(ranks)), [str(r) for r in ranks])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def _border(axis: Any, ranks: Sequence[int]) -> None:
    """r1 + r2 = d_head along the edges of cells."""
    for i, r1 in enumerate(ranks):
        for j, (r2, following) in enumerate(pairwise(ranks)):
            if r1 + r2 <= _D_HEAD < r1 + following:
                axis.plot([j + 0.5] * 2, [i - 0.5, i + 0.5], color=RED, linewidth=2)
                axis.plot([i - 0.5, i + 0.5], [j + 0.5] * 2, color=RED, linewidth=2)


RUNS: dict[str, Attempt] = {"cc-phase": Experiment(measure, judge, tell, draw)}
