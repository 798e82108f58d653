"""Do query-key features of lists and boxes look and act as published? On the organism, or on any model of --model."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.contrast.attribution import attribute
from keyhole.contrast.boxes import lexical_contrast, order_contrast
from keyhole.contrast.collect import collect
from keyhole.contrast.features import find_features
from keyhole.contrast.lists import lists_contrast
from keyhole.contrast.report import label
from keyhole.contrast.sites import Contrast
from keyhole.contrast.study import Head, Study
from keyhole.contrast.sweep import sweep_ranks
from keyhole.figures import attribution_figure, intervention_figure, joint_pca, pca_figure, save, umap_figure
from keyhole.figures.ranks import plateau
from keyhole.figures.study import draw_sweep
from keyhole.lab.contrast_studies import aligned, points, projected, stand_in, studied, verdict, wording
from keyhole.lab.intervals import told
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.models.model import Model
from keyhole.tasks.words import CATEGORIES

_SHOWN = 3  # heads of which pictures are drawn


def subspaces(job: Job, id: str) -> Outcome:
    """Do queries and keys of one label meet in the feature's subspace, and of which rank is it?"""
    study = studied(job, "lists" if id == "cc-fig6a" else "boxes")
    numbers: Numbers = {}
    lines, figures, shares = [], [], []
    for name, features in study.features.items():
        ranks = [features.rank(head, study.rank) for head in study.selected]
        share = [aligned(*projected(study, name, head)) for head in study.selected]
        kinds = len(set(points(study, name, study.selected[0])[2]))
        shares.append(max(share) > 2 / kinds)
        numbers |= {f"{name} ranks": list(map(float, ranks)), f"{name} aligned": share}
        figures += [_cloud(job, study, name, head) for head in study.selected[:_SHOWN]]
        lines.append(
            f"{name}: rank {_span(ranks)}; {told(share, 2)} of keys point where the queries of their "
            f"label do (chance {1 / kinds:.2f})."
        )
        if id == "cc-fig8" and not job.quick:
            figures += _umap(job, study, name)
    if id == "cc-fig6a" and (single := _single_ranks(study)):
        numbers["ranks of single categories"] = single
        lines.append(f"Contrasts of one category have rank {_span([int(r) for r in single])}, which the design forces.")
    heads = f"Heads {', '.join(map(label, study.selected))}."
    return Outcome(
        verdict(job, id, all(shares)), "\n".join([*lines, heads]), numbers, tuple(figures), stand_in(job, id)
    )


def _span(ranks: Sequence[int]) -> str:
    return str(min(ranks)) if min(ranks) == max(ranks) else f"{min(ranks)} to {max(ranks)}"


def _single_ranks(study: Study) -> list[float]:
    """Within one category the query hardly varies, so that E[q k^T] is nearly an outer product of means."""
    fit = study.fits["category"]
    kinds = sorted({name for name in fit.resolved.labels if name})
    each = [find_features(fit, label=kind, permutations=0) for kind in kinds if fit.resolved.labels.count(kind) >= 20]
    return [float(features.rank(head, "energy")) for features in each for head in study.selected]


def _cloud(job: Job, study: Study, name: str, head: Head) -> Path:
    q, k, labels = projected(study, name, head, max(3, study.features[name].rank(head, study.rank)))
    title = f"{name} in head {label(head)} of {study.model}"
    figure = pca_figure(q, k, labels, labels, title=title, ordered=name == "order")
    return save(figure, job.folder / f"pca-{name}-{label(head)}.png")


def _umap(job: Job, study: Study, name: str) -> list[Path]:
    """Left out where umap-learn is not installed."""
    try:
        import umap  # noqa: F401
    except ImportError:
        return []
    head = study.selected[0]
    q, k, labels = projected(study, name, head)
    title = f"{name} in head {label(head)} of {study.model}"
    figure = umap_figure(q, k, labels, labels, title=title, ordered=name == "order", points=1000)
    return [save(figure, job.folder / f"umap-{name}-{label(head)}.png")]


def categories(job: Job) -> Outcome:
    """Do keys of more categories cluster? Keys only, nearest centre of other samples."""
    study = studied(job, "lists")
    model = study.test.model
    how = wording(model, job.model) | {"per_category": 1 if job.model is None else 5}
    n = 60 if job.quick else 400
    fit = collect(model, lists_contrast(model, n, seed=2 * job.seed, categories=tuple(CATEGORIES), **how))
    features = find_features(fit, permutations=0)
    head = study.selected[0]
    layer, index = features.at(head)
    r = max(3, features.rank(head, "energy"))
    samples = fit.layer(head[0])
    first = (fit.slots.sign == 1).long().argmax(1)
    k = samples.keys[torch.arange(len(first)), first, index // samples.group].double().cpu()
    k = k @ features.V[layer, index, :, :r].double()
    labels = [name or "" for name in fit.resolved.labels]
    share = _nearest(k, labels)
    title = f"Keys of {len(set(labels))} categories in head {label(head)} of {study.model}"
    path = save(pca_figure(k[:0], k, [], labels, title=title), job.folder / "keys.png")
    measured = f"Head {label(head)}, rank {r}: {share:.2f} of keys lie nearest to the centre of their category."
    note = f"{len(set(labels))} categories instead of 13. {stand_in(job, 'cc-fig6b')}"
    return Outcome(verdict(job, "cc-fig6b", share > 0.8), measured, {"nearest": share}, (path,), note)


def _nearest(k: Tensor, labels: list[str]) -> float:
    """Centres come from one half of the points, the other half is asked."""
    kinds = sorted(set(labels))
    own = torch.tensor([kinds.index(name) for name in labels])
    half = torch.arange(len(k)) // len(kinds) % 2 == 0
    centres = torch.stack([k[half & (own == i)].mean(0) for i in range(len(kinds))])
    return float((torch.cdist(k[~half], centres).argmin(1) == own[~half]).double().mean())


def swapped(job: Job, id: str, heads: slice) -> Outcome:
    """Does attention follow swapped features, more than random ones, and more with all of them?"""
    study = studied(job, "lists" if id in ("cc-fig7", "cc-fig19") else "boxes")
    chosen = study.selected[heads] or study.selected
    numbers: Numbers = {}
    lines, holds = [], []
    for head in chosen:
        effects = {effect.name: effect for effect in study.swaps[head]}
        whole = effects["both" if "both" in effects else "category"]
        parts = [effects[name] for name in study.features if name in effects and effects[name] is not whole]
        holds.append(whole.interval[0] > 0 and all(whole.shift > part.shift for part in parts))
        numbers |= {f"{label(head)} {e.name}": e.shift for e in effects.values()}
        numbers[f"{label(head)} random"] = whole.random
        told_parts = "".join(f", {part.name} {part.shift:.2f}" for part in parts)
        low, high = whole.interval
        lines.append(
            f"{label(head)}: {whole.name} (rank {whole.rank}) moves {whole.shift:.2f} of attention{told_parts}, random "
            f"{whole.random:.2f}, whole keys {whole.full:.2f}; between random and whole {whole.normalised:.2f} "
            f"[{low:.2f}, {high:.2f}]."
        )
    shown = {label(head): study.swaps[head] for head in chosen[:8]}
    title = f"Attention after swaps of key coordinates, {study.model}"
    path = save(intervention_figure(shown, title=title), job.folder / "swaps.png")
    note = f"{_about(study, heads)}Brackets: 95 % over samples. {stand_in(job, id)}"
    return Outcome(verdict(job, id, sum(holds) >= len(holds) / 2), "\n".join(lines), numbers, (path,), note)


def _about(study: Study, heads: slice) -> str:
    """What a reader must know of the heads."""
    passed = "" if study.passed else "No head passed the published selection; these look most at the right keys. "
    others = "" if study.selected[heads] else "No other heads passed the selection, so these are the same. "
    d_head = next(iter(study.features.values())).U.shape[-2]
    small = f"With d_head = {d_head}, random subspaces of this rank move attention too. " if d_head < 64 else ""
    return passed + others + small


def attributions(job: Job) -> Outcome:
    """How much of a row's logits goes through order and lexical features?"""
    study = studied(job, "boxes")
    head, test = study.selected[0], study.test
    rows = []
    figures: list[Path] = []
    for slot in range(min(len(test.slots), 4 if job.quick else 32)):
        prompt, at = test.slots.query[slot].tolist()
        run = test.model.run(test.resolved.prompts[prompt].ids)
        split = attribute(run, study.of(head), at, frame=test.frame)
        keys, sign = test.slots.keys[slot][:, 1] - split.first, test.slots.sign[slot]
        gaps = [float(part[keys[sign == 1]].mean() - part[keys[sign == -1]].mean()) for part in split.parts]
        rows.append([split.explained, split.explained_differences, *gaps])
        if slot == 0:
            tokens = [token.strip() or "·" for token in run.tokens[split.first : at + 1]]
            title = f"Logits of head {label(head)} of {study.model}"
            marked = keys[sign == 1].tolist()
            names = list(split.names)
            figure = attribution_figure(tokens, split.parts, split.logits, names, marked=marked, title=title)
            figures.append(save(figure, job.folder / "attribution.png"))
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = ["explained", "explained differences", *(f"{name} gap" for name in study.features)]
    numbers = dict(zip(names, columns, strict=True))
    measured = (
        f"Head {label(head)}, {len(rows)} prompts: features explain {told(columns[0], 2)} of the logits and "
        f"{told(columns[1], 2)} of their differences; right box against others: order {told(columns[2], 2)}, lexical "
        f"{told(columns[3], 2)}."
    )
    holds = sum(columns[3]) > sum(columns[2])
    note = f"Brackets: smallest and largest of the prompts. {stand_in(job, 'cc-fig10')}"
    return Outcome(verdict(job, "cc-fig10", holds), measured, numbers, tuple(figures), note)


def sweep(job: Job) -> Outcome:
    """Does the rank stop growing with the number of boxes?"""
    study = studied(job, "boxes")
    model = study.test.model
    counts = (2, 3) if job.quick else (2, 3, 4, 5, 6, 7, 8, 9)
    n = 60 if job.model is None and job.quick else 400 if job.model is None else 1000
    how = {"n": n, "seed": 2 * job.seed, **wording(model, job.model)}
    crossed = partial(lexical_contrast, cross=True)
    makers: dict[str, Callable[..., Contrast]] = {"order": order_contrast, "lexical": crossed}
    numbers: Numbers = {}
    rows, lines, flat = {}, [], []
    for name, make in makers.items():
        rows[name] = sweep_ranks(
            model,
            partial(_with_boxes, make, model, how),
            counts,
            study.selected[:8],
            progress=job.progress,
            permutations=20 if job.quick else 200,
        )
        for head in study.selected[:8]:
            own = [row for row in rows[name] if row.head == head]
            ranks = [row.energy for row in own]
            start = plateau(counts, ranks)
            flat.append(start is not None)
            numbers[f"{name} {label(head)}"] = [float(rank) for rank in ranks]
            lines.append(
                f"{name} in {label(head)}: {', '.join(map(str, ranks))}"
                + (f", steady from {start} boxes." if start else ", still changing.")
            )
    figures = tuple(draw_sweep(rows, job.folder))
    measured = "\n".join([f"Ranks at 99 % energy with {counts[0]} to {counts[-1]} boxes.", *lines])
    return Outcome(
        verdict(job, "cc-fig16", sum(flat) > len(flat) / 2), measured, numbers, figures, stand_in(job, "cc-fig16")
    )


def _with_boxes(make: Callable[..., Contrast], model: Model, how: dict[str, Any], count: int) -> Contrast:
    return make(model, n_boxes=count, **how)


def unprojected(job: Job) -> Outcome:
    """What do the first components of whole queries and keys show?"""
    study = studied(job, "boxes")
    head = study.selected[0]
    shares, figures = {}, []
    for name in study.features:
        q, k, labels = points(study, name, head)
        placed = joint_pca(q, k)
        shares[name] = aligned(placed.queries, placed.keys, labels)
        title = f"Whole queries and keys of head {label(head)}, by {name}"
        figure = pca_figure(q, k, labels, labels, title=title, ordered=name == "order")
        figures.append(save(figure, job.folder / f"pca-{name}.png"))
        shares[f"{name} projected"] = aligned(*projected(study, name, head))
    measured = (
        f"Head {label(head)}, keys that point where their label's queries do, in three components of everything: order "
        f"{shares['order']:.2f}, lexical {shares['lexical']:.2f}; in the features' own subspaces: order "
        f"{shares['order projected']:.2f}, lexical {shares['lexical projected']:.2f}."
    )
    chance = 1 / len(set(points(study, "order", head)[2]))
    holds = shares["order"] > 2 * chance and shares["lexical"] < shares["lexical projected"] - 0.1
    return Outcome(verdict(job, "cc-fig17", holds), measured, shares, tuple(figures), stand_in(job, "cc-fig17"))


def _swaps(id: str, heads: slice) -> Experiment:
    return partial(swapped, id=id, heads=heads)


def _all(ids: Sequence[str]) -> dict[str, Experiment]:
    return {id: partial(subspaces, id=id) for id in ids}


RUNS: dict[str, Experiment] = {
    **_all(["cc-fig6a", "cc-fig8"]),
    "cc-fig6b": categories,
    "cc-fig7": _swaps("cc-fig7", slice(3)),
    "cc-fig9": _swaps("cc-fig9", slice(2)),
    "cc-fig10": attributions,
    "cc-fig16": sweep,
    "cc-fig17": unprojected,
    "cc-fig18": _swaps("cc-fig18", slice(2, None)),
    "cc-fig19": _swaps("cc-fig19", slice(3)),
    "cc-fig20": _swaps("cc-fig20", slice(None)),
}
