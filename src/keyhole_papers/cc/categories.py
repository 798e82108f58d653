"""Do keys cluster by category, beyond the words they were seen with? Words that made no feature and no centre."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.features.contrast.clouds import pca_figure
from keyhole.features.contrast.collect import Collected, collect
from keyhole.features.contrast.finding import FEWEST, Features, find_features
from keyhole.features.contrast.lists import lists_contrast
from keyhole.features.contrast.sites import Contrast, Sample, Site
from keyhole.features.contrast.studies import find_spans
from keyhole.features.contrast.subspace import random_bases
from keyhole.models.model import Model
from keyhole.models.tokens import one_token_words
from keyhole.tasks.corpus import knows_tasks_alone
from keyhole.tasks.words import CATEGORIES, THIRTEEN
from keyhole_papers.cc import DRAWS, MOST, Points, Subject, points, projected, studied, subject, wording
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, of_part

_GROUPS = (  # that the published figure names: related categories
    ("countries", "states", "cities"),
    ("male names", "female names"),
    ("animals", "birds"),
    ("foods", "liquids", "fruits"),
)
_RELATED = {pair for group in _GROUPS for pair in combinations(sorted(group), 2)}
_LEAST_WORDS = 6  # of one token; of a category with fewer, all words are taken and their last tokens looked at
_SHUFFLES, _LEVEL = 10_000, 0.05  # of the categories' places, beside related ones


@dataclass(frozen=True)
class Clusters:
    """How many keys of unseen words lie nearest to the centre of their category, in one head."""

    head: Head
    rank: int
    nearest: float
    random: list[float]  # in random subspaces of the same rank
    whole: float  # in whole keys
    related: list[int]  # places of related pairs among all pairs of centres, nearest first
    p: float  # of places so near, with categories shuffled; NaN without related pairs


@dataclass(frozen=True)
class Categories:
    """Clusters in every head, and the keys of the first one."""

    subject: Subject
    kinds: Sequence[str]  # of the paper's thirteen
    lists: int
    spans: bool  # of single categories' contrasts, as printed; else all together are decomposed
    found: Sequence[Clusters]
    cloud: Points


def measure(job: Job) -> Categories:
    """Clusters of the paper's categories. Keys only."""
    model, about, printed = (
        studied(job.asked, "lists").test.model,
        subject(job, "lists", "cc-fig6b"),
        job.choices.as_printed,
    )
    kinds, n = kinds_of(model), lists_of(job, model)
    how: dict[str, Any] = wording(model, job.model) | {"per_category": 1 if job.model is None else 5}
    how["categories"] = kinds
    words = [{word for own in kinds.values() for word in own[side::2]} for side in (0, 1)]
    seen, asked = (
        collect(model, only(lists_contrast(model, n, seed=2 * job.seed + side, **how), words[side])) for side in (0, 1)
    )
    find = find_spans if printed else find_features
    features = find(seen, centre="none", permutations=0)  # the paper's contrast
    found = [_clusters(job, features, seen, asked, head) for head in about.heads]
    return Categories(about, [*kinds], n, printed, found, projected(features, about.heads[0], asked, least=3))


def kinds_of(model: Model) -> dict[str, Sequence[str]]:
    """The paper's categories that a model can be asked about, with words of one token where it has enough."""
    alone = knows_tasks_alone(model)
    kinds: dict[str, Sequence[str]] = {}
    for kind, words in THIRTEEN.items():
        if kind in CATEGORIES or not alone:
            single = one_token_words(model, words)
            kinds[kind] = single if len(single) >= _LEAST_WORDS else words
    return kinds


def lists_of(job: Job, model: Model) -> int:
    """How many lists make the feature, and as many its test."""
    if job.choices.as_printed:  # a contrast for each category needs as many samples as there are dimensions
        return 2 * len(THIRTEEN) * max(FEWEST, model.dims.d_head) if job.quick else 2000
    return 160 if job.quick else 400


def only(contrast: Contrast, words: set[str]) -> Contrast:
    """The same contrast without keys of other words, and without samples that lose a side."""

    def kept(sites: tuple[Site, ...]) -> tuple[Site, ...]:
        return tuple(site for site in sites if _word(contrast, site) in words)

    def whole(sample: Sample) -> bool:
        return bool(kept(sample.positive) and kept(sample.negative))

    samples = tuple(
        replace(sample, positive=kept(sample.positive), negative=kept(sample.negative))
        for sample in contrast.samples
        if whole(sample)
    )
    return replace(contrast, samples=samples)


def _word(contrast: Contrast, site: Site) -> str:
    start, end = site.place.span or (0, 0)
    return str(contrast.prompts[site.prompt])[start:end]


def _clusters(job: Job, features: Features, seen: Collected, asked: Collected, head: Head) -> Clusters:
    layer, index = features.at(head)
    r = max(3, features.rank(head, "energy"))
    basis = features.V[layer, index, :, :r].double()
    (_, k, labels), (_, k_asked, asked_labels) = points(seen, head), points(asked, head)

    def share(basis: Tensor) -> float:
        return nearest(k @ basis, labels, k_asked @ basis, asked_labels)

    random = [share(one) for one in random_bases(len(basis), r, DRAWS, job.seed)]
    order = _by_distance(k_asked @ basis, asked_labels)
    places, p = nearness(order, seed=job.seed)
    whole = torch.eye(len(basis), dtype=basis.dtype)
    return Clusters(head, r, share(basis), random, share(whole), places, p)


def nearest(k: Tensor, labels: list[str], asked: Tensor, asked_labels: list[str]) -> float:
    """How many of the asked keys lie nearest to the centre of their label, made of other keys?

    >>> k = torch.tensor([[0.0], [1.0]])
    >>> nearest(k, ["a", "b"], k + 0.1, ["a", "b"])
    1.0
    """
    kinds = sorted(set(labels))
    centres = torch.stack([k[[name == kind for name in labels]].mean(0) for kind in kinds])
    found = torch.cdist(asked, centres).argmin(1).tolist()
    return sum(kinds[int(i)] == name for i, name in zip(found, asked_labels, strict=True)) / len(asked_labels)


def _by_distance(k: Tensor, labels: list[str]) -> list[tuple[str, str]]:
    """Pairs of labels by the distance of their centres."""
    centres = {kind: k[[name == kind for name in labels]].mean(0) for kind in sorted(set(labels))}
    return sorted(combinations(centres, 2), key=lambda pair: float((centres[pair[0]] - centres[pair[1]]).norm()))


def nearness(order: Sequence[tuple[str, str]], *, seed: int = 0) -> tuple[list[int], float]:
    """The places of related pairs among all, nearest first, and how often shuffled categories have them as near.

    >>> nearness([("fruits", "liquids"), ("fruits", "sports"), ("liquids", "sports")])[0]
    [1]
    """
    place = {frozenset(pair): number for number, pair in enumerate(order, start=1)}
    related = [pair for pair in order if pair in _RELATED]
    if not related:
        return [], math.nan
    kinds, rng = sorted({kind for pair in order for kind in pair}), Random(seed)

    def total(names: Sequence[str]) -> int:
        called = dict(zip(kinds, names, strict=True))
        return sum(place[frozenset((called[a], called[b]))] for a, b in related)

    own = total(kinds)
    nearer = sum(total(rng.sample(kinds, len(kinds))) <= own for _ in range(_SHUFFLES))
    return [place[frozenset(pair)] for pair in related], (1 + nearer) / (1 + _SHUFFLES)


def findings(record: Categories) -> Findings:
    """Does the median head place most keys, and more than any random subspace?

    Of the published model all thirteen categories are asked for, and that related ones lie nearer to each other than
    shuffled ones would.
    """
    found, about, pairs = record.found, record.subject, len(record.kinds) * (len(record.kinds) - 1) // 2
    whole, near = len(record.kinds) == len(THIRTEEN), median(one.p for one in found) <= _LEVEL
    above = median(one.nearest - max(one.random) for one in found)
    holds = median(one.nearest for one in found) >= MOST and above > 0
    asked = f"in the median head {MOST}, and more than in all {DRAWS} random subspaces"
    beside: tuple[tuple[str, bool | None], ...] = (("", None), ("", None))
    if about.published:
        beside = (f"all {len(THIRTEEN)}", whole), (f"at most {_LEVEL:g} in the median head", near)
    rows = [
        Finding("nearest", [one.nearest for one in found], asked, holds, digits=2),
        Finding("whole", [one.whole for one in found], digits=2),
        Finding("categories", len(record.kinds), *beside[0]),
        Finding("related p", [one.p for one in found], *beside[1]),
    ]
    for one in found:
        places = Finding(f"related, by distance among {pairs} pairs", one.related)
        random = Finding("random", one.random, digits=2)
        rows += of_part(head_name(one.head), Finding("rank", one.rank), random, places, joint=" ")
    missing = [kind for kind in THIRTEEN if kind not in record.kinds]
    some = f" (without {', '.join(missing)}, of which the model knows no lists), so at most partly" if missing else ""
    how = "the span of single categories' directions, as printed" if record.spans else "the contrast of all together"
    remark = (
        f"{len(record.kinds)} of the paper's {len(THIRTEEN)} categories{some}; "
        f"{record.lists:,} lists{'' if record.lists == 2000 else ' instead of 2,000'} for the feature ({how}) and its "
        "centres, as many for keys of other words (half of each category), of which those nearest to the centre of "
        "their category are counted; whole: in whole keys. P: how often related categories lie as near to each other "
        f"with categories shuffled ({_SHUFFLES:,} times). Contrasts are uncentred, as in the paper. Brackets: smallest "
        "and largest of the heads, or of random subspaces."
    )
    passed = holds and about.passed
    return about.findings(rows, holds=passed and ((whole and near) or not about.published), part=passed, remark=remark)


def draw(record: Categories) -> dict[str, Figure]:
    """Keys of the first head."""
    _, k, labels = record.cloud
    head, model = head_name(record.subject.heads[0]), record.subject.model
    title = f"Keys of unseen words of {len(set(labels))} categories in head {head} of {model}"
    return {"keys": pca_figure(k[:0], k, [], labels, title=title)}


RUNS: dict[str, Attempt] = {"cc-fig6b": Experiment(measure, findings, draw, heeds=AS_PRINTED)}
