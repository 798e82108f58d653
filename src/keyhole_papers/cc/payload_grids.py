"""Over grids of true ranks: does the contrast find how many entries latents have, and what if they do not fit?

Recovered ranks as published; phase diagrams beyond capacity, which the paper sketches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any, Literal

import torch
from matplotlib.figure import Figure

from keyhole.features.contrast.study_figures import rank_axes, rank_grid_figure
from keyhole.figures.style import INK, blank, heading, tidy
from keyhole.lab.payload import Payload
from keyhole.lab.payload_features import diagonal_share, interaction, key_overlap
from keyhole.lab.payload_task import Latents, reachable
from keyhole.stats import wilson
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Grid, Ranks, Setting
from keyhole_papers.cc.payload_scores import bound
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import TOY, Finding, Findings, of_part, rows_of
from keyhole_papers.results import Verdict

Where = Literal["below", "at", "beyond"]  # capacity
_WHERE: tuple[Where, ...] = ("below", "at", "beyond")
_GRIDS = {8: (2, 3, 4, 5, 6), 16: (4, 6, 8, 10, 12)}
_PRINTED = {8: range(2, 7), 16: range(4, 13)}  # all pairs of which the paper trains one head for
_MOSTLY, _NEARLY_ALL = 0.8, 0.95  # of heads
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
class Recovered:
    """Ranks in grids of heads, and where true ones are claimed; of heads of this accuracy, if one is claimed."""

    grids: Sequence[Grid[Ranks]]  # each of one kind of latents and one size
    claimed: Sequence[Where]
    accuracy: float | None


def measure_ranks(
    job: Job, *, variants: Sequence[tuple[Latents, int]], claimed: Sequence[Where], accuracy: float | None = None
) -> Recovered:
    """The ranks of every head's contrasts."""
    printed = job.as_printed
    sizes = {
        d_head: tuple(grid)[: 2 if job.quick else None] for d_head, grid in (_PRINTED if printed else _GRIDS).items()
    }
    of, seeds = partial(payload.ranks_of, job), 1 if printed else 3
    grids = [
        payload.measured(job, of, payload.grid_of(sizes[d_head], d_head, square=printed), latents, seeds)
        for latents, d_head in variants
    ]
    return Recovered(grids, claimed, accuracy)


def recovered(record: Recovered) -> Findings:
    """Are the ranks of trained heads exact, beyond doubt more often than before training, and is the task done?"""
    heads, rows, claim = payload.every(*record.grids), list[Finding](), f"{_NEARLY_ALL:.0%} of heads"
    claimed: list[bool] = []
    raw: list[bool] = []
    for grid in record.grids:
        within, after, before = payload.every(grid), exact(grid, trained=True), exact(grid, trained=False)
        claimed += [flag for where in record.claimed for flag in after[where]]
        raw += [flag for where in record.claimed for flag in before[where]]
        rows += of_part(
            f"{within[0].settings.latents} {within[0].settings.d_head}",
            *rows_of(
                {f"exact {where}": flags for where, flags in after.items() if flags},
                {f"exact {at}": (claim, mean(after[at] or [False]) >= _NEARLY_ALL) for at in record.claimed},
            ),
            *(Finding(f"untrained exact {where}", flags) for where, flags in before.items() if flags),
            Finding("accuracy", [head.accuracy for head in within], digits=2),
            Finding("can be reached", [reachable(head.settings) for head in within], digits=2),
            Finding("reached", payload.reached(within), digits=2),
            joint=" ",
        )
    share = mean(claimed) if claimed else 0.0
    learned = bool(claimed) and wilson(sum(claimed), len(claimed))[1] > mean(raw)
    able = record.accuracy is None or all(round(head.accuracy, 2) >= record.accuracy for head in heads)
    full = share >= _NEARLY_ALL and learned and able
    return payload.of_heads(rows, heads, first=share >= _MOSTLY, full=full, remark=_note(heads, record.accuracy))


def exact(grid: Grid[Ranks], trained: bool) -> dict[Where, list[bool]]:
    """Below, at and beyond capacity: is each head exact?"""
    flags: dict[Where, list[bool]] = {where: [] for where in _WHERE}
    for setting, cell in grid.items():
        where: Where = "below" if setting.filled < 1 else "at" if setting.filled == 1 else "beyond"
        results = cell.results if trained else cell.untrained
        flags[where] += [ranks == (setting.r1, setting.r2) for ranks in results]
    return flags


def _note(heads: Sequence[Payload], accuracy: float | None) -> str:
    cut, wide = "", {head.settings.r1 for head in heads if head.settings.d_head == 16}
    if not payload.as_printed(heads):
        cut = "Cells below the diagonal are mirrored: a head trained on (r1, r2) stands for (r2, r1). "
        cut += f"d_head 16 has ranks {', '.join(map(str, sorted(wide)))} only. " if wide else ""
    cut += "Continuous latents: cc-fig11. " if all(head.settings.latents == "discrete" for head in heads) else ""
    able = "" if accuracy is None else f", and the published accuracy of {accuracy:.2f} of every head"
    return (
        "Exact ranks, by r1 + r2 below, at or beyond d_head. The text claims it below, the caption of Figure 11 at it "
        f"too; nothing unless {_MOSTLY:.0%} of heads there, and no more than partly unless beyond doubt (Wilson's "
        f"95 %) more than untrained heads{able}. W_Q B1 A1^T W_K^T has the rank of the latent for almost any weights, "
        "so that many untrained heads show it too. Tokens may repeat discrete latents, and a Gaussian one may score "
        f"below another's, so that heads with few latents cannot reach such an accuracy. {cut}"
    ).strip()


def draw_ranks(record: Recovered) -> dict[str, Figure]:
    """Tables of median ranks."""
    figures = {}
    for grid in record.grids:
        settings = payload.every(grid)[0].settings
        ranks = _ranks_in(grid)
        table = torch.full((len(ranks), len(ranks), 2), -1)
        for (r1, r2, _), cell in grid.items():
            i, j, median = ranks.index(r1), ranks.index(r2), torch.tensor(cell.results).median(0).values
            table[i, j] = median
            if Setting(r2, r1, settings.d_head) not in grid:
                table[j, i] = median.flip(0)
        seeds = len(next(iter(grid.values())).heads)
        title = f"Recovered ranks, {settings.latents}, d_head = {settings.d_head}, median of {seeds} seeds"
        figures[f"ranks-{settings.latents}-{settings.d_head}"] = rank_grid_figure(
            table, ranks, ranks, settings.d_head, title=title
        )
    return figures


def _ranks_in(grid: Grid[Any]) -> list[int]:
    return sorted({rank for r1, r2, _ in grid for rank in (r1, r2)})


@dataclass(frozen=True)
class Phases:
    """What happens to both latents in the heads of a grid of ranks, for each kind of latents."""

    grids: Mapping[Latents, Grid[Row]]


def measure_phases(job: Job) -> Phases:
    """Ranks, accuracy and subspaces over seeds, with both kinds of latents."""
    settings = payload.grid_of((3, 6) if job.quick else _RANKS, _D_HEAD)
    kinds: tuple[Latents, ...] = ("discrete", "gaussian")
    return Phases({kind: payload.measured(job, partial(_row, job), settings, kind, raw=0) for kind in kinds})


def _row(job: Job, head: Payload) -> Row:
    z1, z2 = payload.feature_of(job, head, "z1"), payload.feature_of(job, head, "z2")
    setting = Setting(head.settings.r1, head.settings.r2, head.settings.d_head)
    least, overlap = max(0, z1.rank + z2.rank - setting.d_head) / min(z1.rank, z2.rank), key_overlap(z1, z2)
    return {
        "missed": float(abs(z1.rank - setting.r1) + abs(z2.rank - setting.r2)),
        "accuracy": head.accuracy,
        "reached": payload.reached([head])[0],
        "overlap": overlap,
        "off": 1 - diagonal_share(interaction(head)),
        "least overlap": least,
        _COUNTED: overlap - least,
        "least off": 1 - bound(setting),
    }


def phases(record: Phases) -> Findings:
    """Do trained heads miss ranks beyond capacity, and share more than counting forces, with each kind of latents?"""
    rows: list[Finding] = []
    claims: dict[str, list[bool]] = {"missed": [], _COUNTED: []}
    for latents, grid in record.grids.items():
        inside, beyond = means(grid, beyond=False), means(grid, beyond=True)
        for name, flags in claims.items():
            flags.append(risen(grid, name))
        for name in inside:
            claim, holds = ("more than within, in every seed", claims[name][-1]) if name in claims else ("", None)
            within = Finding(f"{name} within", inside[name], digits=2)
            rows += of_part(latents, within, Finding(f"{name} beyond", beyond[name], claim, holds, digits=2), joint=" ")
    heads = payload.every(*record.grids.values())
    remark = (
        "Missed: ranks, |Δ1| + |Δ2|; overlap: of the key subspaces, least: what counting alone forces; off: share of "
        "G off the diagonal, least: of an even one. Both are largely forced: in d_head dimensions subspaces of ranks a "
        "and b share at least a + b - d_head, and G of rank d_head holds at most d_head / (r1 + r2) of its energy on "
        "an even diagonal. Missed ranks are not; accuracy rises with the entries, as latents repeat less. Without "
        "ranks missed of either kind nothing is shown. Each number is a mean over cells; a head trained on (r1, "
        f"r2) stands for (r2, r1) and is drawn twice, counted once. Red: r1 + r2 = d_head. {payload.SEEDS} "
        f"{payload.training_note(heads)}"
    )
    full = all(flag for flags in claims.values() for flag in flags)
    shown = payload.are_trained(heads) and any(claims["missed"])
    verdict: Verdict = "not" if not shown else "reproduced" if full else "partly"
    return Findings(rows, TOY, remark=remark, judged=verdict)


def risen(grid: Grid[Row], name: str) -> bool:
    """Is a measure larger beyond capacity, in every seed? NaN is not larger."""
    inside, beyond = means(grid, beyond=False), means(grid, beyond=True)
    return all(a < b for a, b in zip(inside[name], beyond[name], strict=True))


def means(grid: Grid[Row], *, beyond: bool) -> Means:
    """Every measure's mean over the cells that fit, or over those that do not, one value per seed."""
    cells = [cell.results for setting, cell in grid.items() if (setting.filled > 1) == beyond]
    names = next(iter(grid.values())).results[0]
    return {name: [sum(row[name] for row in seed) / len(seed) for seed in zip(*cells, strict=True)] for name in names}


def draw_phases(record: Phases) -> dict[str, Figure]:
    """A row of tables for each kind of latents."""
    return {f"phase-{latents}": _figure(grid, latents) for latents, grid in record.grids.items()}


def _figure(grid: Grid[Row], latents: Latents) -> Figure:
    figure = blank(14.5, 4.0)
    heading(figure, f"{latents.capitalize()} latents in {_D_HEAD} dimensions (mirrored at the diagonal)")
    ranks = _ranks_in(grid)
    for axis, (name, title) in zip(figure.subplots(1, len(_PANELS)), _PANELS.items(), strict=True):
        table = torch.full((len(ranks), len(ranks)), float("nan"))
        for (r1, r2, _), cell in grid.items():
            i, j = ranks.index(r1), ranks.index(r2)
            table[i, j] = table[j, i] = sum(row[name] for row in cell.results) / len(cell.results)  # either may be r1
        most = max(1.0, float(table.nan_to_num().max()))
        axis.imshow(table.tolist(), cmap="Blues", origin="lower", aspect="auto", vmin=0, vmax=most)
        for i, j in table.isfinite().nonzero().tolist():
            value = float(table[i, j])
            text = f"{value:.1f}" if name == "missed" else f"{value:.2f}".lstrip("0")
            shade = "white" if value > 0.6 * most else INK
            axis.text(j, i, text, ha="center", va="center", fontsize=8, color=shade)
        tidy(axis, title, x="r2", y="r1")
        rank_axes(axis, ranks, ranks, _D_HEAD)
    return figure


_eight = partial(measure_ranks, variants=[("discrete", 8)], claimed=["below"], accuracy=0.99)
_larger = partial(
    measure_ranks, variants=[("gaussian", 8), ("discrete", 16), ("gaussian", 16)], claimed=["below", "at"]
)
RUNS: dict[str, Attempt] = {
    "cc-fig2": Experiment(_eight, recovered, draw_ranks, heeds=AS_PRINTED),
    "cc-fig11": Experiment(_larger, recovered, draw_ranks, heeds=AS_PRINTED),
    "cc-phase": Experiment(measure_phases, phases, draw_phases),
}
