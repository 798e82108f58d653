"""What happens to two latents that do not fit into a head? Phase diagrams beyond capacity, which the paper sketches."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.style import INK, RED, blank, heading, tidy
from keyhole.lab.payload.features import diagonal_share, interaction, key_overlap
from keyhole.lab.payload.task import Latents
from keyhole.lab.payload.toy import Payload
from keyhole.reproduce.cc.payload import SEEDS, are_trained, feature_of, heads_of, reached, told_training
from keyhole.reproduce.cc.payload_interactions import bound
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.stats import told

_RANKS = (2, 3, 4, 5, 6, 7, 8)
_D_HEAD = 8
_PANELS = {
    "missed": "ranks missed, |Δ1| + |Δ2|",
    "accuracy": "accuracy",
    "overlap": "overlap of the key subspaces",
    "off": "share of G off the diagonal",
}
_COUNTED = "overlap beyond counting"  # what subspaces share beyond what their ranks force

Rows = Mapping[tuple[int, int], Sequence[Mapping[str, float]]]  # by ranks, one per seed


def phase(job: Job) -> Outcome:
    """Where do recovered ranks, accuracy and separate subspaces break down? Over seeds, with both kinds of latents."""
    ranks = (3, 6) if job.quick else _RANKS
    numbers: Numbers = {}
    lines, figures, rises = [], [], []
    every: list[Payload] = []
    kinds: tuple[Latents, ...] = ("discrete", "gaussian")
    for latents in kinds:
        heads = heads_of(job, [(a, b, _D_HEAD) for a in ranks for b in ranks if a <= b], latents)
        rows = {(r1, r2): [_measure(job, head) for head in own] for (r1, r2, _), own in heads.items()}
        every += [head for own in heads.values() for head in own]
        tables = {name: _table(rows, name, ranks) for name in _PANELS}
        title = f"{latents.capitalize()} latents in {_D_HEAD} dimensions (mirrored at the diagonal)"
        figures.append(save(_figure(tables, ranks, title), job.folder / f"phase-{latents}.png"))
        inside, beyond = within_and_beyond(rows)
        numbers |= {f"{latents} {name} within": values for name, values in inside.items()}
        numbers |= {f"{latents} {name} beyond": values for name, values in beyond.items()}
        rises.append((risen(inside, beyond, "missed"), risen(inside, beyond, _COUNTED)))
        lines.append(f"{latents}: {_told(inside, beyond)}")
    return Outcome(judged(every, rises), "\n".join(lines), numbers, tuple(figures), _note(every))


def judged(heads: Sequence[Payload], rises: Sequence[tuple[bool, bool]]) -> Verdict:
    """Do trained heads miss ranks beyond capacity, and share more than counting forces, with each kind of latents?"""
    if not are_trained(heads) or not any(missed for missed, _ in rises):
        return "not"
    return "reproduced" if all(missed and shared for missed, shared in rises) else "partly"


def risen(inside: Mapping[str, Sequence[float]], beyond: Mapping[str, Sequence[float]], name: str) -> bool:
    """Is a measure larger beyond capacity, in every seed? NaN is not larger."""
    return all(a < b for a, b in zip(inside[name], beyond[name], strict=True))


def _told(inside: dict[str, list[float]], beyond: dict[str, list[float]]) -> str:
    parts = [f"{text.partition(',')[0]} {told(inside[n], 2)} and {told(beyond[n], 2)}" for n, text in _PANELS.items()]
    return (
        f"within and beyond capacity, {'; '.join(parts)}. Beyond it, counting alone gives an overlap of at "
        f"least {told(beyond['least overlap'], 2)} (here {told(beyond[_COUNTED], 2)} more, within capacity "
        f"{told(inside[_COUNTED], 2)}) and, for an even diagonal, an off-diagonal share of at least "
        f"{told(beyond['least off'], 2)}."
    )


def _note(heads: Sequence[Payload]) -> str:
    return (
        "Overlap and off-diagonal share are largely forced by counting: in d_head dimensions subspaces of ranks a "
        "and b share at least a + b - d_head, and G of rank d_head holds at most d_head / (r1 + r2) of its energy on "
        "an even diagonal. Missed ranks are not; accuracy rises with the entries, as latents repeat less. The "
        "verdict asks that missed ranks rise in every seed, and for more than partly that overlap rises by more than "
        "counting forces. Each number is a mean over cells; a head trained on (r1, "
        f"r2) stands for (r2, r1) and is drawn twice, counted once. Red: r1 + r2 = d_head. {SEEDS} "
        f"{told_training(heads)}"
    )


def _measure(job: Job, head: Payload) -> dict[str, float]:
    z1, z2 = feature_of(job, head, "z1"), feature_of(job, head, "z2")
    r1, r2, d_head = head.settings.r1, head.settings.r2, head.settings.d_head
    least, overlap = max(0, z1.rank + z2.rank - d_head) / min(z1.rank, z2.rank), key_overlap(z1, z2)
    return {
        "missed": float(abs(z1.rank - r1) + abs(z2.rank - r2)),
        "accuracy": head.accuracy,
        "reached": reached([head])[0],
        "overlap": overlap,
        "off": 1 - diagonal_share(interaction(head)),
        "least overlap": least,
        _COUNTED: overlap - least,
        "least off": 1 - bound((r1, r2, d_head)),
    }


def within_and_beyond(rows: Rows) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Every measure's mean over the cells that fit and over those that do not, one value per seed."""

    def means(chosen: Callable[[int], bool]) -> dict[str, list[float]]:
        cells = [own for (r1, r2), own in rows.items() if chosen(r1 + r2)]
        names = next(iter(rows.values()))[0]
        return {name: [_mean([row[name] for row in seed]) for seed in zip(*cells, strict=True)] for name in names}

    return means(lambda total: total <= _D_HEAD), means(lambda total: total > _D_HEAD)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _table(rows: Rows, name: str, ranks: tuple[int, ...]) -> Tensor:
    table = torch.full((len(ranks), len(ranks)), float("nan"))
    for (r1, r2), own in rows.items():
        i, j = ranks.index(r1), ranks.index(r2)
        table[i, j] = table[j, i] = _mean([row[name] for row in own])  # the same task when latents change names
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


RUNS: dict[str, Attempt] = {"cc-phase": phase}
