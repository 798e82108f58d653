"""Which pictures show a study? Interventions, and spectra, embeddings and attributions of the selected heads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from keyhole.contrast.attribution import attribute
from keyhole.contrast.features import choose
from keyhole.contrast.report import label, selected_swaps
from keyhole.contrast.study import Head, Study
from keyhole.contrast.sweep import RankRow
from keyhole.errors import KeyholeError
from keyhole.figures.attribution import attribution_figure
from keyhole.figures.embedding import pca_figure, umap_figure
from keyhole.figures.interventions import intervention_figure
from keyhole.figures.ranks import RankCurve, rank_figure, spectrum_figure
from keyhole.figures.style import save

_MOST_HEADS = 6  # of which pictures are drawn; tables have them all


def draw_study(study: Study, folder: Path, *, umap: bool = False) -> list[Path]:
    """Draw everything that the study has; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    heads = study.selected[:_MOST_HEADS]
    shown = {label(head): selected_swaps(study)[label(head)] for head in heads}
    title = f"Attention when a feature's coordinates change places, {study.model}"
    written = [save(intervention_figure(shown, title=title), folder / "interventions.png")]
    for head in heads:
        for name, features in study.features.items():
            stem = f"{name.replace(' ', '-')}-{label(head)}"
            at = features.at(head)
            null = None if features.threshold is None else features.threshold[at].expand(features.S.shape[-1])
            spectrum = spectrum_figure(features.S[at], null, title=f"Contrast of {name} in head {label(head)}")
            written.append(save(spectrum, folder / f"spectrum-{stem}.png"))
            written += _embeddings(study, name, head, folder / stem, umap=umap)
        if any(feature.rank for feature in study.of(head)):
            written.append(_attribution(study, head, folder / f"attribution-{label(head)}.png"))
    return written


def draw_sweep(rows: Mapping[str, Sequence[RankRow]], folder: Path) -> list[Path]:
    """Ranks against the number of entities, a picture per feature."""
    written = []
    for name, own in rows.items():
        curves = []
        for head in dict.fromkeys(row.head for row in own):
            mine = [row for row in own if row.head == head]
            columns = ([row.entities for row in mine], [row.energy for row in mine], [row.null for row in mine])
            curves.append(RankCurve(label(head), *(tuple(column) for column in columns)))
        figure = rank_figure(curves, title=f"Rank of {name} against the number of entities")
        written.append(save(figure, folder / f"ranks-{name}.png"))
    return written


def coordinates(study: Study, name: str, head: Head, rank: int) -> tuple[Tensor, Tensor, list[str]]:
    """Queries and their positive keys in the feature's subspace, with the labels of the contrast that made it."""
    features, fit = study.features[name], study.fits[name]
    chosen = choose(fit, half=None if study.half is None else 1 - study.half)
    positive = fit.slots.sign[chosen] == 1
    chosen, first = chosen[positive.any(1)], positive.long().argmax(1)[positive.any(1)]
    samples = fit.layer(head[0]).of(chosen)
    layer, index = features.at(head)
    U, V = features.U[layer, index, :, :rank], features.V[layer, index, :, :rank]
    q = samples.queries[:, index].double().cpu() @ U
    keys = samples.keys[torch.arange(len(chosen)), first, index // samples.group].double().cpu() @ V
    return q, keys, [fit.resolved.labels[int(i)] or "all" for i in chosen]


def _embeddings(study: Study, name: str, head: Head, stem: Path, *, umap: bool) -> list[Path]:
    # Three components are drawn even where the rank is lower, as in the paper: what lies beyond it should be shapeless.
    q, keys, labels = coordinates(study, name, head, max(3, study.features[name].rank(head, study.rank)))
    ordered = all(text.isdecimal() for text in labels)
    title = f"Queries and right keys in the {name} subspace of head {label(head)}"
    figure = pca_figure(q, keys, labels, labels, title=title, ordered=ordered)
    written = [save(figure, stem.with_name(f"pca-{stem.name}.png"))]
    if umap:
        figure = umap_figure(q, keys, labels, labels, title=title, ordered=ordered)
        written.append(save(figure, stem.with_name(f"umap-{stem.name}.png")))
    return written


def _attribution(study: Study, head: Head, path: Path) -> Path:
    """The row of the first test sample, split over the study's features."""
    test = study.test
    slot = int(choose(test, half=study.half)[0])
    prompt, at = test.slots.query[slot].tolist()
    run = test.model.run(test.resolved.prompts[prompt].ids)
    split = attribute(run, study.of(head), at, frame=test.frame)
    right = test.slots.keys[slot][test.slots.sign[slot] == 1]
    marked = [int(key) - split.first for owner, key in right.tolist() if owner == prompt]
    explained = f"{100 * split.explained_differences:.0f} % of the differences explained"
    title = f"Logits of head {label(head)} from “{run.tokens[at].strip()}”: {explained}"
    tokens = [token.strip() or "·" for token in run.tokens[split.first : at + 1]]
    if not tokens:
        raise KeyholeError("there is no key to attribute to.")
    figure = attribution_figure(tokens, split.parts, split.logits, list(split.names), marked=marked, title=title)
    return save(figure, path)
