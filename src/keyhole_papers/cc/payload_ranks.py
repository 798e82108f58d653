"""Does the contrast find how many entries the latents of a payload head have? Grids of true and recovered ranks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Literal

import torch
from matplotlib.figure import Figure

from keyhole.figures.contrast.ranks import rank_grid_figure
from keyhole.lab.payload.task import Latents
from keyhole.lab.payload.toy import Payload
from keyhole.stats import wilson
from keyhole_papers.cc import payload
from keyhole_papers.cc.payload import Grid, Ranks, Setting
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

Where = Literal["below", "at", "beyond"]  # capacity
_SIGNS: dict[Where, str] = {"below": "<", "at": "=", "beyond": ">"}
_GRIDS = {8: (2, 3, 4, 5, 6), 16: (4, 6, 8, 10, 12)}
_PRINTED = {8: range(2, 7), 16: range(4, 13)}  # all pairs of which the paper trains one head for
_MOSTLY, _NEARLY_ALL = 0.8, 0.95  # of heads


@dataclass(frozen=True)
class Recovered:
    """Ranks in grids of heads, and where true ones are claimed; of heads of this accuracy, if one is told."""

    grids: Sequence[Grid[Ranks]]  # each of one kind of latents and one size
    claimed: Sequence[Where]
    accuracy: float | None


def measure(
    job: Job, *, variants: Sequence[tuple[Latents, int]], claimed: Sequence[Where], accuracy: float | None = None
) -> Recovered:
    """The ranks of every head's contrasts."""
    printed = job.choices.as_printed
    sizes = {
        d_head: tuple(grid)[: 2 if job.quick else None] for d_head, grid in (_PRINTED if printed else _GRIDS).items()
    }
    of, seeds = partial(payload.ranks_of, job), 1 if printed else 3
    grids = [
        payload.measured(job, of, payload.grid_of(sizes[d_head], d_head, square=printed), latents, seeds)
        for latents, d_head in variants
    ]
    return Recovered(grids, claimed, accuracy)


def judge(record: Recovered) -> Verdict:
    """Are the ranks of trained heads exact, beyond doubt more often than before training, and is the task done?"""
    heads = payload.every(*record.grids)
    found, raw = (
        [value for grid in record.grids for where in record.claimed for value in exact(grid, trained)[where]]
        for trained in (True, False)
    )
    if not found or mean(found) < _MOSTLY:
        return "not"
    learned = wilson(round(sum(found)), len(found))[1] > mean(raw)
    as_told = record.accuracy is None or all(round(head.accuracy, 2) >= record.accuracy for head in heads)
    return payload.as_trained("reproduced" if mean(found) >= _NEARLY_ALL and learned and as_told else "partly", heads)


def exact(grid: Grid[Ranks], trained: bool) -> dict[Where, list[float]]:
    """Below, at and beyond capacity: is each head exact?"""
    shares: dict[Where, list[float]] = {where: [] for where in _SIGNS}
    for setting, cell in grid.items():
        where: Where = "below" if setting.filled < 1 else "at" if setting.filled == 1 else "beyond"
        own = cell.found if trained else cell.untrained
        shares[where] += [float(ranks == (setting.r1, setting.r2)) for ranks in own]
    return shares


def tell(record: Recovered) -> Told:
    """How many heads have the true ranks, and how well they do their task."""
    numbers: Numbers = {}
    lines = []
    for grid in record.grids:
        heads, found, control = payload.every(grid), exact(grid, True), exact(grid, False)
        latents, d_head = heads[0].settings.latents, heads[0].settings.d_head
        key = f"{latents} {d_head}"
        numbers |= {f"{key} exact {where}": values for where, values in found.items() if values}
        numbers |= {f"{key} untrained exact {where}": values for where, values in control.items() if values}
        numbers |= {f"{key} accuracy": [head.accuracy for head in heads], f"{key} reached": payload.reached(heads)}
        lines.append(
            f"{latents}, d_head {d_head}: heads with exact ranks, by r1 + r2: {_shares(found, d_head)}; untrained "
            f"heads: {_shares(control, d_head)}. {_accuracy(heads)}; {len(heads)} heads."
        )
    return Told("\n".join(lines), numbers, _note(payload.every(*record.grids), record.accuracy))


def _shares(exact: Mapping[Where, Sequence[float]], d_head: int) -> str:
    return ", ".join(f"{100 * sum(v) / len(v):.0f} % ({_SIGNS[w]} {d_head})" for w, v in exact.items() if v)


def _accuracy(heads: Sequence[Payload]) -> str:
    values, possible = [head.accuracy for head in heads], [payload.reachable(head.settings) for head in heads]
    return (
        f"Accuracy {min(values):.2f} to {max(values):.2f} where {min(possible):.2f} to {max(possible):.2f} can be "
        f"reached, at least {100 * min(payload.reached(heads)):.0f} % of it"
    )


def _note(heads: Sequence[Payload], accuracy: float | None) -> str:
    cut, wide = "", {head.settings.r1 for head in heads if head.settings.d_head == 16}
    if not payload.as_printed(heads):
        cut = "Cells below the diagonal are mirrored: a head trained on (r1, r2) stands for (r2, r1). "
        cut += f"d_head 16 has ranks {', '.join(map(str, sorted(wide)))} only. " if wide else ""
    cut += "Continuous latents: cc-fig11. " if all(head.settings.latents == "discrete" for head in heads) else ""
    as_told = "" if accuracy is None else f", and the published accuracy of {accuracy:.2f} of every head"
    return (
        "The text claims it for r1 + r2 < d_head, the caption of Figure 11 for <=; the verdict asks for "
        f"{_MOSTLY:.0%} of heads there, and for more than partly for {_NEARLY_ALL:.0%}, beyond doubt (Wilson's 95 %) "
        f"more than of untrained heads{as_told}. W_Q B1 A1^T W_K^T has the rank of the latent for almost any weights, "
        "so that many untrained heads show it too. Tokens may repeat discrete latents, and a Gaussian one may score "
        f"below another's, so that heads with few latents cannot reach such an accuracy. {cut}"
        f"{payload.told_training(heads)}"
    )


def draw(record: Recovered) -> dict[str, Figure]:
    """Tables of median ranks."""
    figures = {}
    for grid in record.grids:
        own = payload.every(grid)[0].settings
        ranks = sorted({rank for r1, r2, _ in grid for rank in (r1, r2)})
        table = torch.full((len(ranks), len(ranks), 2), -1)
        for (r1, r2, _), cell in grid.items():
            i, j, median = ranks.index(r1), ranks.index(r2), torch.tensor(cell.found).median(0).values
            table[i, j] = median
            if Setting(r2, r1, own.d_head) not in grid:
                table[j, i] = median.flip(0)
        seeds = len(next(iter(grid.values())).heads)
        title = f"Recovered ranks, {own.latents}, d_head = {own.d_head}, median of {seeds} seeds"
        figures[f"ranks-{own.latents}-{own.d_head}"] = rank_grid_figure(table, ranks, ranks, own.d_head, title=title)
    return figures


_one = partial(measure, variants=[("discrete", 8)], claimed=["below"], accuracy=0.99)
_others = partial(measure, variants=[("gaussian", 8), ("discrete", 16), ("gaussian", 16)], claimed=["below", "at"])
RUNS: dict[str, Attempt] = {
    "cc-fig2": Experiment(_one, judge, tell, draw, heeds=AS_PRINTED),
    "cc-fig11": Experiment(_others, judge, tell, draw, heeds=AS_PRINTED),
}
