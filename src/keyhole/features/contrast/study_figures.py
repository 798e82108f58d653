"""Which pictures show a study? Interventions, and spectra, embeddings and attributions of the selected heads."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.brief import Head, head_name, model_label
from keyhole.errors import KeyholeError, UnwritableError
from keyhole.features.contrast.attribution import attribute
from keyhole.features.contrast.clouds import Label, pca_figure, umap_figure
from keyhole.features.contrast.figures import attribution_figure, intervention_figure
from keyhole.features.contrast.finding import choose
from keyhole.features.contrast.lists import RankRow
from keyhole.features.contrast.moves import Effect
from keyhole.features.contrast.ranks import RankCurve, rank_figure, spectrum_figure
from keyhole.features.contrast.studies import Study
from keyhole.figures.style import KINDS, save_as

_MOST_HEADS = 6  # of which pictures are drawn; tables have them all
_MOST_LABELS = 12  # with a colour of their own


def draw_study(
    study: Study, folder: Path, *, umap: bool = False, kinds: Sequence[str] = KINDS
) -> tuple[list[Path], list[str]]:
    """Draw everything that the study has: the files, and a note for each picture that could not be made.

    `kinds`: png, svg, pdf; each picture is written as each of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    heads = study.selected[:_MOST_HEADS]
    shown = {head_name(head): study.swaps[head] for head in heads if head in study.swaps}
    written: list[Path] = []
    notes: list[str] = []

    def add(draw: Callable[..., list[Path]], *arguments: Any, **options: Any) -> None:
        try:
            written.extend(draw(*arguments, **options))
        except UnwritableError:
            raise
        except KeyholeError as error:  # a picture that cannot be made must not cost the study
            notes.append(str(error))

    if shown:
        add(_interventions, study, shown, folder, kinds)
    for head in heads:
        for name in study.features:
            stem = folder / f"{_slug(name)}-{head_name(head)}"
            add(_spectrum, study, name, head, stem, kinds)
            add(_embeddings, study, name, head, stem, kinds, umap=umap)
        if any(feature.rank for feature in study.of(head)):
            add(_attribution, study, head, folder / f"attribution-{head_name(head)}", kinds)
    return written, list(dict.fromkeys(notes))


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "feature"


def _interventions(
    study: Study, shown: dict[str, tuple[Effect, ...]], folder: Path, kinds: Sequence[str]
) -> list[Path]:
    title = (
        f"Attention when a feature's coordinates change places, {model_label(study.model)}, {study.tested} test samples"
    )
    return save_as(intervention_figure(shown, title=title), folder / "interventions", kinds)


def _spectrum(study: Study, name: str, head: Head, stem: Path, kinds: Sequence[str]) -> list[Path]:
    features = study.features[name]
    at = features.at(head)
    null = None if features.threshold is None else features.threshold[at].expand(features.S.shape[-1])
    figure = spectrum_figure(features.S[at], null, title=f"Contrast of {name} in head {head_name(head)}")
    return save_as(figure, stem.with_name(f"spectrum-{stem.name}"), kinds)


def draw_sweep(rows: Mapping[str, Sequence[RankRow]], folder: Path, kinds: Sequence[str] = KINDS) -> list[Path]:
    """Ranks against the number of entities, a picture per feature."""
    written = []
    for name, ranks in rows.items():
        curves = []
        for head in list(dict.fromkeys(row.head for row in ranks))[:_MOST_HEADS]:
            mine = [row for row in ranks if row.head == head]
            columns = ([row.entities for row in mine], [row.energy for row in mine], [row.null for row in mine])
            curves.append(RankCurve(head_name(head), *(tuple(column) for column in columns)))
        figure = rank_figure(curves, title=f"Rank of {name} against the number of entities")
        written += save_as(figure, folder / f"ranks-{_slug(name)}", kinds)
    return written


def coordinates(study: Study, name: str, head: Head, rank: int) -> tuple[Tensor, Tensor, list[Label]]:
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
    return q, keys, _few([fit.resolved.labels[int(i)] or "all" for i in chosen])


def _few(labels: list[str]) -> list[Label]:
    """Numbers as numbers, so that they are in order; of many texts, the rarer ones together."""
    if all(text.isdecimal() for text in labels):
        return [int(text) for text in labels]
    common = {text for text, _ in Counter(labels).most_common(_MOST_LABELS)}
    return [text if text in common else "others" for text in labels]


def _embeddings(study: Study, name: str, head: Head, stem: Path, kinds: Sequence[str], *, umap: bool) -> list[Path]:
    # Three components are drawn even where the rank is lower, as in the paper: what lies beyond it should be shapeless.
    q, keys, labels = coordinates(study, name, head, max(3, study.features[name].rank(head, study.settings.rank)))
    ordered = all(isinstance(text, int) for text in labels)
    title = f"Queries and right keys in the {name} subspace of head {head_name(head)}"
    figure = pca_figure(q, keys, labels, labels, title=title, ordered=ordered)
    written = save_as(figure, stem.with_name(f"pca-{stem.name}"), kinds)
    if umap:
        figure = umap_figure(q, keys, labels, labels, title=title, ordered=ordered)
        written += save_as(figure, stem.with_name(f"umap-{stem.name}"), kinds)
    return written


def _attribution(study: Study, head: Head, stem: Path, kinds: Sequence[str]) -> list[Path]:
    """The row of the first test sample, split over the study's features."""
    test = study.test
    slot = int(choose(test, half=study.half)[0])
    prompt, at = test.slots.query[slot].tolist()
    run = test.model.run(test.resolved.prompts[prompt].ids)
    split = attribute(run, [feature for feature in study.of(head) if feature.rank], at, frame=test.frame)
    sites = zip(test.slots.keys[slot].tolist(), test.slots.sign[slot].tolist(), strict=True)
    visible = [(key, sign) for (owner, key), sign in sites if owner == prompt and sign and key >= split.first]
    right, others = ([key for key, sign in visible if sign == side] for side in (1, -1))
    title = f"Logits of head {head_name(head)} from “{run.tokens[at].strip()}”, one prompt"
    if right and others:  # the same quantity as the tables' share of gap, of this row
        gap, through = split.gap(right, others)
        title += f": of the gap of {gap:.2f} between right and other keys {through:.2f} passes through the features"
    marked = [key - split.first for key in right]
    tokens = [token.strip() or "·" for token in run.tokens[split.first : at + 1]]
    if not tokens:
        raise KeyholeError("there is no key to attribute to.")
    figure = attribution_figure(tokens, split.parts, split.logits, list(split.names), marked=marked, title=title)
    return save_as(figure, stem, kinds)
