"""Does the contrast find the latents of trained payload heads? Ranks, subspaces, swaps and interactions over seeds."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.contrast.moves import Effect
from keyhole.figures import interaction_figure, intervention_figure, pca_figure, rank_grid_figure, save
from keyhole.lab.intervals import interval, told
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome, Verdict
from keyhole.lab.payload import Payload, PayloadSettings, activations, sample
from keyhole.lab.payload_features import (
    Latent,
    LatentFeature,
    Swaps,
    diagonal_share,
    interaction,
    latent_feature,
    swaps,
)
from keyhole.lab.payload_store import trained_heads
from keyhole.lab.payload_task import Latents

Setting = tuple[int, int, int]  # r1, r2, d_head
_QUICK = {"max_steps": 500, "batch": 64, "lr": 1e-2}
_GRIDS = {8: (2, 3, 4, 5, 6), 16: (4, 6, 8, 10, 12)}
_CONDITIONS = ("null", "z1", "z2", "both", "random_z1", "random_z2", "random_both", "full")
_SPREAD = "What blurs the shape is the other latent and, in keys, the payload: subspaces are not quite orthogonal."
_SEEDS = "Brackets: smallest and largest of the seeds."


def heads_of(job: Job, settings: Sequence[Setting], latents: Latents, seeds: int = 3) -> dict[Setting, list[Payload]]:
    """Trained heads of every setting, one per seed; they lie beside the figures, which share them."""
    if job.quick:
        settings, seeds = settings[:2], min(seeds, 2)
    changes = _QUICK if job.quick else {}
    cells = [
        PayloadSettings.fast(r1, r2, d_head, latents=latents, seed=job.seed + seed, **changes)
        for r1, r2, d_head in settings
        for seed in range(seeds)
    ]
    heads = trained_heads(cells, job.folder.parent / "heads", job.progress)
    return {setting: heads[i * seeds : (i + 1) * seeds] for i, setting in enumerate(settings)}


def _trained(job: Job) -> str:
    if job.quick:
        return "Trained with lr 1e-2 for 500 steps."
    return "Trained with lr 1e-3 for 4,000 steps instead of lr 1e-4 with early stopping (cc-table1)."


def feature_of(job: Job, head: Payload, latent: Latent) -> LatentFeature:
    """The latent's subspaces in a head."""
    return latent_feature(head, latent, triplets=4096 if job.quick else 40_960, seed=job.seed)


# -- ranks ---------------------------------------------------------------------------------------------------------


def ranks(job: Job, variants: Sequence[tuple[Latents, int]]) -> Outcome:
    """Are the true ranks recovered?

    The task does not change when its latents change names, so that a head trained on (r1, r2) stands for (r2, r1) too.
    """
    numbers: Numbers = {}
    lines, figures, within = [], [], []
    for latents, d_head in variants:
        grid = _GRIDS[d_head][:2] if job.quick else _GRIDS[d_head]
        heads = heads_of(job, [(a, b, d_head) for a in grid for b in grid if a <= b], latents)
        found = {
            setting: [tuple(feature_of(job, head, latent).rank for latent in ("z1", "z2")) for head in own]
            for setting, own in heads.items()
        }
        path = job.folder / f"ranks-{latents}-{d_head}.png"
        figures.append(save(_grid(found, grid, d_head, f"Recovered ranks, {latents}, d_head = {d_head}"), path))
        shares = _exact(found, d_head)
        within += [*shares["below"], *shares["at"]]
        accuracy = [head.accuracy for own in heads.values() for head in own]
        key = f"{latents} {d_head}"
        numbers |= {f"{key} exact {where}": values for where, values in shares.items() if values}
        numbers[f"{key} accuracy"] = accuracy
        signs = {"below": "<", "at": "=", "beyond": ">"}
        parts = [f"{100 * sum(v) / len(v):.0f} % ({signs[w]} {d_head})" for w, v in shares.items() if v]
        lines.append(
            f"{latents}, d_head {d_head}: heads with exact ranks, by r1 + r2: {', '.join(parts)}; accuracy "
            f"{min(accuracy):.2f} to {max(accuracy):.2f}{_of_ceiling(heads)}; {len(accuracy)} heads."
        )
    share = sum(within) / max(len(within), 1)
    verdict: Verdict = "reproduced" if share >= 0.95 else "partly" if share >= 0.8 else "not"
    note = (
        "The text claims it for r1 + r2 < d_head, the caption of Figure 11 for <=. Tokens may repeat the selected "
        "latents, so that discrete heads with few latents cannot reach 99 %: their ceiling is below. "
        f"{_trained(job)}"
    )
    return Outcome(verdict, "\n".join(lines), numbers, tuple(figures), note)


def _exact(found: dict[Setting, list[tuple[int, ...]]], d_head: int) -> dict[str, list[float]]:
    """Below, at and beyond capacity: is each head exact?"""
    shares: dict[str, list[float]] = {"below": [], "at": [], "beyond": []}
    for (r1, r2, _), own in found.items():
        where = "below" if r1 + r2 < d_head else "at" if r1 + r2 == d_head else "beyond"
        shares[where] += [float(pair == (r1, r2)) for pair in own]
    return shares


def _of_ceiling(heads: dict[Setting, list[Payload]]) -> str:
    shares = [head.accuracy / head.ceiling for own in heads.values() for head in own if head.ceiling == head.ceiling]
    return f" (at least {100 * min(shares):.0f} % of what is possible)" if shares else ""


def _grid(found: dict[Setting, list[tuple[int, ...]]], grid: Sequence[int], d_head: int, title: str) -> Figure:
    table = torch.full((len(grid), len(grid), 2), -1)
    for (r1, r2, _), own in found.items():
        median = torch.tensor(own).median(0).values
        table[grid.index(r1), grid.index(r2)] = median
        table[grid.index(r2), grid.index(r1)] = median.flip(0)
    seeds = len(next(iter(found.values())))
    return rank_grid_figure(table, grid, grid, d_head, title=f"{title}, median of {seeds} seeds")


# -- subspaces -----------------------------------------------------------------------------------------------------


def subspaces(job: Job, latents: Latents) -> Outcome:
    """Do queries and keys show the shape of their latent in its subspace, and in the same places?"""
    setting: Setting = (3, 5, 16)
    heads = heads_of(job, [setting], latents, seeds=5)[setting]
    rows = [_shape(job, head, job.folder / "pca.png" if i == 0 else None) for i, head in enumerate(heads)]
    names = ("nearest", "linear", "agree", "even")
    numbers = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    good = sum(numbers["nearest" if latents == "discrete" else "linear"]) / len(rows)
    verdict: Verdict = "reproduced" if good >= 0.9 else "partly" if good >= 0.7 else "not"
    corners = f"{told(numbers['nearest'])} of keys lie nearest to the queries of their own corner; "
    measured = (
        f"{corners if latents == 'discrete' else ''}the latent explains {told(numbers['linear'])} of the variance of "
        f"projected queries; cosine of a query with its key {told(numbers['agree'])}; shortest against longest axis "
        f"{told(numbers['even'])} (1: a regular {'cube' if latents == 'discrete' else 'ball'})."
    )
    return Outcome(verdict, measured, numbers, (job.folder / "pca.png",), f"{_SPREAD} {_SEEDS} {_trained(job)}")


def _shape(job: Job, head: Payload, path: Path | None) -> tuple[float, float, float, float]:
    batch = sample(head, 500 if job.quick else 4000, seed=job.seed)
    seen, feature = activations(head, batch), feature_of(job, head, "z1")
    row = torch.arange(len(batch.star))
    z = batch.z1[row, batch.star].double()
    r = head.settings.r1  # of the true rank, as in the paper: a wrong one shows in `ranks`
    q, k = seen.q.double() @ feature.U[:, :r], seen.k[row, batch.star].double() @ feature.V[:, :r]
    labels = ["".join("+" if x > 0 else "-" for x in one) for one in z.tolist()]
    if path is not None:
        title = f"Queries and right keys in the subspace of the first latent, {head.settings.latents}"
        save(pca_figure(q, k, labels, labels, title=title, points=1000), path)
    kinds = sorted(set(labels))
    own = torch.tensor([kinds.index(label) for label in labels])
    centres = torch.stack([q[own == i].mean(0) for i in range(len(kinds))])
    nearest = float((torch.cdist(_unit(k), _unit(centres)).argmin(1) == own).double().mean())
    fitted = torch.linalg.lstsq(z, q).solution
    linear = 1 - float((q - z @ fitted).square().sum() / (q - q.mean(0)).square().sum())
    axes = torch.linalg.svdvals(fitted)
    return nearest, linear, float((_unit(q) * _unit(k)).sum(1).mean()), float(axes[-1] / axes[0])


def _unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


# -- swaps ---------------------------------------------------------------------------------------------------------


def swapped(job: Job, settings: Sequence[Setting], seeds: int = 3) -> Outcome:
    """Does attention follow swapped latents, and more than swapped random coordinates?"""
    heads = heads_of(job, settings, "discrete", seeds)
    numbers: Numbers = {}
    panels, lines, whole, random = {}, [], [], []
    for (r1, r2, d_head), own in heads.items():
        results = [_swaps(job, head) for head in own]
        panels[f"({r1}, {r2}) in {d_head}"] = [_pooled([getattr(s, name) for s in results]) for name in _CONDITIONS]
        key = f"({r1}, {r2}) in {d_head}"
        moved = {name: [getattr(s, name).shift for s in results] for name in _CONDITIONS[1:]}
        numbers |= {f"{key} {name}": values for name, values in moved.items()}
        whole.append(sum(moved["both"]) / sum(moved["full"]))
        random.append(((r1 + r2) / d_head, sum(moved["random_both"]) / sum(moved["both"])))
        lines.append(
            f"({r1}, {r2}) in {d_head}: both latents move {told(moved['both'])} of attention, whole keys "
            f"{told(moved['full'])}, z1 {told(moved['z1'])}, z2 {told(moved['z2'])}, random of the same rank "
            f"{told(moved['random_both'])}."
        )
    path = save(intervention_figure(panels, title="Attention after swaps, mean over seeds"), job.folder / "swaps.png")
    follows = min(whole) >= 0.95  # both latents move what whole keys move
    verdict: Verdict = "reproduced" if follows and _random_grows(random) else "partly" if follows else "not"
    note = (
        "The random control of both latents is small only where r1 + r2 is well below d_head: at d_head it is the "
        "whole swap. Targets differ from the original in both latents; ten random subspaces each. "
        f"{_SEEDS} {_trained(job)}"
    )
    return Outcome(verdict, "\n".join(lines), numbers, (path,), note)


def _random_grows(shares: Sequence[tuple[float, float]]) -> bool:
    """Is the random share small where the latents fill little of the head, and larger the more they fill?"""
    values = [share for _, share in sorted(shares)]
    return values[0] < 0.75 and all(later > earlier - 0.02 for earlier, later in pairwise(values))


def _swaps(job: Job, head: Payload) -> Swaps:
    z1, z2 = feature_of(job, head, "z1"), feature_of(job, head, "z2")
    return swaps(head, z1, z2, samples=1024 if job.quick else 51_200, randoms=2 if job.quick else 10, seed=job.seed)


def _pooled(effects: Sequence[Effect]) -> Effect:
    """The mean of an effect over seeds; its intervals are over seeds too."""

    def mean(name: str) -> float:
        return float(sum(getattr(effect, name) for effect in effects) / len(effects))

    normalised, low, high = interval([effect.normalised for effect in effects])
    shift, low_shift, high_shift = interval([effect.shift for effect in effects])
    return Effect(
        name=effects[0].name,
        rank=round(mean("rank")),
        orig=mean("orig"),
        target=mean("target"),
        shift=shift,
        random=mean("random"),
        full=mean("full"),
        normalised=normalised,
        interval=(low, high),
        shift_interval=(low_shift, high_shift),
    )


# -- interactions --------------------------------------------------------------------------------------------------


def interactions(job: Job, latents: Latents) -> Outcome:
    """Do latents keep to themselves? Energy of G on its diagonal, and how symmetric it is off it."""
    settings: list[Setting] = [(3, 4, 8), (6, 6, 8), (4, 8, 16), (10, 10, 16)]
    heads = heads_of(job, settings, latents)
    numbers: Numbers = {}
    lines, figures = [], []
    diagonals: dict[bool, list[float]] = {True: [], False: []}  # by whether both latents fit
    odds: dict[bool, list[float]] = {True: [], False: []}
    for (r1, r2, d_head), own in heads.items():
        matrices = [interaction(head) for head in own]
        diagonal, odd = [diagonal_share(G) for G in matrices], [asymmetry(G) for G in matrices]
        key = f"({r1}, {r2}) in {d_head}"
        numbers |= {f"{key} diagonal": diagonal, f"{key} asymmetry": odd}
        diagonals[r1 + r2 <= d_head].append(sum(diagonal) / len(diagonal))
        odds[r1 + r2 <= d_head] += odd
        lines.append(f"{key}: {told(diagonal)} of G's energy on the diagonal, asymmetry off it {told(odd)}.")
        path = job.folder / f"interaction-{r1}-{r2}-{d_head}.png"
        title = f"G, {latents}, ranks {r1} and {r2} in {d_head} dimensions"
        figures.append(save(interaction_figure(matrices[0], (r1, r2), title=title), path))
    split = min(diagonals[True]) >= 0.9 and max(diagonals[False], default=0.0) < min(diagonals[True])
    unrelated = bool(odds[False]) and sum(odds[False]) / len(odds[False]) > 0.1
    verdict: Verdict = "reproduced" if (split if latents == "gaussian" else unrelated) else "partly"
    note = (
        "Asymmetry: share of the off-diagonal energy in (G - G^T) / 2; 0 if symmetric, .5 if both halves are unrelated."
    )
    return Outcome(verdict, "\n".join(lines), numbers, tuple(figures), f"{note} {_SEEDS} {_trained(job)}")


def asymmetry(G: Tensor) -> float:
    """How much of G's off-diagonal energy is antisymmetric?

    >>> asymmetry(torch.tensor([[5.0, 1.0], [-1.0, 5.0]]))
    1.0
    """
    off = (G - G.diagonal().diag()).double()
    return float(((off - off.T) / 2).square().sum() / off.square().sum().clamp_min(1e-30))


_SIXTEEN: list[Setting] = [(4, 4, 16), (4, 8, 16), (6, 8, 16), (8, 8, 16)]
_EIGHT: list[Setting] = [(2, 2, 8), (3, 3, 8), (3, 4, 8), (4, 4, 8)]
_runs: dict[str, Callable[[Job], Outcome]] = {
    "cc-fig2": partial(ranks, variants=[("discrete", 8)]),
    "cc-fig3": partial(subspaces, latents="discrete"),
    "cc-fig4": partial(swapped, settings=[(3, 5, 16)], seeds=5),
    "cc-fig5": partial(interactions, latents="gaussian"),
    "cc-fig11": partial(ranks, variants=[("gaussian", 8), ("discrete", 16), ("gaussian", 16)]),
    "cc-fig12": partial(subspaces, latents="gaussian"),
    "cc-fig13": partial(interactions, latents="discrete"),
    "cc-fig14": partial(swapped, settings=_SIXTEEN),
    "cc-fig15": partial(swapped, settings=_EIGHT),
}
RUNS: dict[str, Experiment] = _runs
