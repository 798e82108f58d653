"""What happens to two latents that do not fit into a head? Phase diagrams beyond capacity, which the paper sketches."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.style import INK, RED, blank, heading, tidy
from keyhole.lab.experiments.payload import feature_of, heads_of
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome, Verdict
from keyhole.lab.payload import Payload
from keyhole.lab.payload_features import diagonal_share, interaction, key_overlap
from keyhole.lab.payload_task import Latents

_RANKS = (2, 3, 4, 5, 6, 7, 8)
_D_HEAD = 8
_PANELS = {
    "missed": "ranks missed, |Δ1| + |Δ2|",
    "accuracy": "accuracy",
    "overlap": "overlap of the key subspaces",
    "off": "share of G off the diagonal",
}


def phase(job: Job) -> Outcome:
    """Where do recovered ranks, accuracy and separate subspaces break down? Mean over seeds, both kinds of latents."""
    ranks = (3, 6) if job.quick else _RANKS
    numbers: Numbers = {}
    lines, figures, rises = [], [], []
    kinds: tuple[Latents, ...] = ("discrete", "gaussian")
    for latents in kinds:
        heads = heads_of(job, [(a, b, _D_HEAD) for a in ranks for b in ranks if a <= b], latents)
        rows = {(r1, r2): [_measure(job, head) for head in own] for (r1, r2, _), own in heads.items()}
        tables = {name: _table(rows, name, ranks) for name in _PANELS}
        figure = _figure(tables, ranks, f"{latents.capitalize()} latents in {_D_HEAD} dimensions")
        figures.append(save(figure, job.folder / f"phase-{latents}.png"))
        inside = {n: _mean(rows, n, lambda total: total <= _D_HEAD) for n in _PANELS}
        beyond = {n: _mean(rows, n, lambda total: total > _D_HEAD) for n in _PANELS}
        numbers |= {f"{latents} {name} within": value for name, value in inside.items()}
        numbers |= {f"{latents} {name} beyond": value for name, value in beyond.items()}
        rises.append(all(not inside[n] >= beyond[n] for n in ("missed", "overlap", "off")))
        told = ", ".join(f"{text.partition(',')[0]} {inside[n]:.2f} and {beyond[n]:.2f}" for n, text in _PANELS.items())
        lines.append(f"{latents}: within and beyond capacity, {told}.")
    verdict: Verdict = "reproduced" if all(rises) else "partly" if any(rises) else "not"
    return Outcome(verdict, "\n".join(lines), numbers, tuple(figures), "Mean over seeds; red: r1 + r2 = d_head.")


def _measure(job: Job, head: Payload) -> dict[str, float]:
    z1, z2 = feature_of(job, head, "z1"), feature_of(job, head, "z2")
    return {
        "missed": float(abs(z1.rank - head.settings.r1) + abs(z2.rank - head.settings.r2)),
        "accuracy": head.accuracy,
        "overlap": key_overlap(z1, z2),
        "off": 1 - diagonal_share(interaction(head)),
    }


def _mean(rows: dict[tuple[int, int], list[dict[str, float]]], name: str, where: Callable[[int], bool]) -> float:
    values = [row[name] for (r1, r2), own in rows.items() if where(r1 + r2) for row in own]
    return sum(values) / len(values) if values else float("nan")


def _table(rows: dict[tuple[int, int], list[dict[str, float]]], name: str, ranks: tuple[int, ...]) -> Tensor:
    table = torch.full((len(ranks), len(ranks)), float("nan"))
    for (r1, r2), own in rows.items():
        mean = sum(row[name] for row in own) / len(own)
        i, j = ranks.index(r1), ranks.index(r2)
        table[i, j] = table[j, i] = mean  # the task is the same when its latents change names
    return table


def _figure(tables: dict[str, Tensor], ranks: tuple[int, ...], title: str) -> Figure:
    figure = blank(14.5, 4.0)
    heading(figure, title)
    for axis, (name, table) in zip(figure.subplots(1, len(tables)), tables.items(), strict=True):
        most = max(1.0, float(table.nan_to_num().max()))
        axis.imshow(table.tolist(), cmap="Blues", origin="lower", aspect="auto", vmin=0, vmax=most)
        _border(axis, ranks)
        for i, j in table.isfinite().nonzero().tolist():
            value = float(table[i, j])
            text = f"{value:.1f}" if name == "missed" else f"{value:.2f}".lstrip("0")
            shade = "white" if value > 0.6 * most else INK
            axis.text(j, i, text, ha="center", va="center", fontsize=8, color=shade)
        tidy(axis, _PANELS[name], x="r2", y="r1")
        axis.set_xticks(range(len(ranks)), [str(r) for r in ranks])
        axis.set_yticks(range(len(ranks)), [str(r) for r in ranks])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    return figure


def _border(axis: Any, ranks: tuple[int, ...]) -> None:
    """r1 + r2 = d_head along the edges of cells."""
    for i, r1 in enumerate(ranks):
        for j, (r2, following) in enumerate(pairwise(ranks)):
            if r1 + r2 <= _D_HEAD < r1 + following:
                axis.plot([j + 0.5] * 2, [i - 0.5, i + 0.5], color=RED, linewidth=2)
                axis.plot([i - 0.5, i + 0.5], [j + 0.5] * 2, color=RED, linewidth=2)


RUNS: dict[str, Experiment] = {"cc-phase": phase}
