"""Does the contrast find how many entries the latents of a payload head have? Grids of true and recovered ranks."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean

import torch
from matplotlib.figure import Figure

from keyhole.figures import rank_grid_figure, save
from keyhole.lab.payload.task import Latents
from keyhole.lab.payload.toy import Payload
from keyhole.reproduce.cc.payload import (
    Setting,
    are_trained,
    as_trained,
    feature_of,
    heads_of,
    reachable,
    reached,
    told_training,
    untrained,
)
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.stats import wilson

_GRIDS = {8: (2, 3, 4, 5, 6), 16: (4, 6, 8, 10, 12)}
_MOSTLY, _NEARLY_ALL = 0.8, 0.95  # of heads
_SIGNS = {"below": "<", "at": "=", "beyond": ">"}
_Found = dict[Setting, list[tuple[int, ...]]]


def ranks(
    job: Job, variants: Sequence[tuple[Latents, int]], claimed: Sequence[str], accuracy: float | None = None
) -> Outcome:
    """Are the true ranks recovered where that is `claimed`: below capacity, or at it too? With this accuracy, if given?

    The task does not change when its latents change names, so that a head trained on (r1, r2) stands for (r2, r1) too.
    """
    numbers: Numbers = {}
    lines, figures, every = [], [], []
    within: list[float] = []
    raw: list[float] = []
    for latents, d_head in variants:
        grid = _GRIDS[d_head][:2] if job.quick else _GRIDS[d_head]
        heads = heads_of(job, [(a, b, d_head) for a in grid for b in grid if a <= b], latents)
        found = {setting: [_ranks(job, head) for head in own] for setting, own in heads.items()}
        path = job.folder / f"ranks-{latents}-{d_head}.png"
        figures.append(save(_grid(found, grid, d_head, f"Recovered ranks, {latents}, d_head = {d_head}"), path))
        exact, control = _exact(found), _exact(_untrained(job, heads))
        within += [value for where in claimed for value in exact[where]]
        raw += [value for where in claimed for value in control[where]]
        own = [head for heads_here in heads.values() for head in heads_here]
        every += own
        key = f"{latents} {d_head}"
        numbers |= {f"{key} exact {where}": values for where, values in exact.items() if values}
        numbers |= {f"{key} untrained exact {where}": values for where, values in control.items() if values}
        numbers |= {f"{key} accuracy": [head.accuracy for head in own], f"{key} reached": reached(own)}
        lines.append(
            f"{latents}, d_head {d_head}: heads with exact ranks, by r1 + r2: {_shares(exact, d_head)}; untrained "
            f"heads: {_shares(control, d_head)}. {_accuracy(own)}; {len(own)} heads."
        )
    verdict = as_trained(judged(within, raw, every, accuracy), every)
    return Outcome(verdict, "\n".join(lines), numbers, tuple(figures), _note(variants, every, accuracy))


def judged(
    exact: Sequence[float], untrained: Sequence[float], heads: Sequence[Payload], accuracy: float | None = None
) -> Verdict:
    """Are the ranks of trained heads exact, beyond doubt more often than before training, and is the task done?"""
    if not exact or not are_trained(heads) or mean(exact) < _MOSTLY:
        return "not"
    learned = wilson(round(sum(exact)), len(exact))[1] > mean(untrained)
    as_told = accuracy is None or all(round(head.accuracy, 2) >= accuracy for head in heads)
    return "reproduced" if mean(exact) >= _NEARLY_ALL and learned and as_told else "partly"


def _ranks(job: Job, head: Payload) -> tuple[int, ...]:
    return tuple(feature_of(job, head, latent).rank for latent in ("z1", "z2"))


def _untrained(job: Job, heads: dict[Setting, list[Payload]]) -> _Found:
    """One head of every setting before training."""
    return {setting: [_ranks(job, untrained(own[:1])[0])] for setting, own in heads.items()}


def _exact(found: _Found) -> dict[str, list[float]]:
    """Below, at and beyond capacity: is each head exact?"""
    shares: dict[str, list[float]] = {where: [] for where in _SIGNS}
    for (r1, r2, d_head), own in found.items():
        where = "below" if r1 + r2 < d_head else "at" if r1 + r2 == d_head else "beyond"
        shares[where] += [float(pair == (r1, r2)) for pair in own]
    return shares


def _shares(exact: dict[str, list[float]], d_head: int) -> str:
    return ", ".join(f"{100 * sum(v) / len(v):.0f} % ({_SIGNS[w]} {d_head})" for w, v in exact.items() if v)


def _accuracy(heads: Sequence[Payload]) -> str:
    values, possible = [head.accuracy for head in heads], [reachable(head.settings) for head in heads]
    return (
        f"Accuracy {min(values):.2f} to {max(values):.2f} where {min(possible):.2f} to {max(possible):.2f} can be "
        f"reached, at least {100 * min(reached(heads)):.0f} % of it"
    )


def _note(variants: Sequence[tuple[Latents, int]], heads: Sequence[Payload], accuracy: float | None) -> str:
    cut = "d_head 16 has ranks 4, 6, 8, 10 and 12 only. " if any(d_head == 16 for _, d_head in variants) else ""
    cut += "Continuous latents: cc-fig11. " if all(latents == "discrete" for latents, _ in variants) else ""
    as_told = "" if accuracy is None else f", and the published accuracy of {accuracy:.2f} of every head"
    return (
        "The text claims it for r1 + r2 < d_head, the caption of Figure 11 for <=; the verdict asks for "
        f"{_MOSTLY:.0%} of heads there, and for more than partly for {_NEARLY_ALL:.0%}, beyond doubt (Wilson's 95 %) "
        f"more than of untrained heads{as_told}. W_Q B1 A1^T W_K^T has the rank of the latent for almost any weights, "
        "so that many untrained heads show it too. Tokens may repeat discrete latents, and a Gaussian one may score "
        "below another's, so that heads with few latents cannot reach such an accuracy. Cells below the diagonal are "
        f"mirrored: a head trained on (r1, r2) stands for (r2, r1). {cut}{told_training(heads)}"
    )


def _grid(found: _Found, grid: Sequence[int], d_head: int, title: str) -> Figure:
    table = torch.full((len(grid), len(grid), 2), -1)
    for (r1, r2, _), own in found.items():
        median = torch.tensor(own).median(0).values
        table[grid.index(r1), grid.index(r2)] = median
        table[grid.index(r2), grid.index(r1)] = median.flip(0)
    seeds = len(next(iter(found.values())))
    return rank_grid_figure(table, grid, grid, d_head, title=f"{title}, median of {seeds} seeds")


_runs: dict[str, Callable[[Job], Outcome]] = {
    "cc-fig2": partial(ranks, variants=[("discrete", 8)], claimed=["below"], accuracy=0.99),
    "cc-fig11": partial(ranks, variants=[("gaussian", 8), ("discrete", 16), ("gaussian", 16)], claimed=["below", "at"]),
}
RUNS: dict[str, Attempt] = _runs
