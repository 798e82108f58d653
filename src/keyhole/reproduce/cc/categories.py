"""Do keys cluster by category, beyond the words they were seen with? Words that made no feature and no centre."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.contrast.data.sites import Contrast, Sample, Site
from keyhole.contrast.features.finding import Features, find_features
from keyhole.contrast.features.subspace import random_bases
from keyhole.contrast.onepass.collect import Collected, collect
from keyhole.contrast.recipes.lists import lists_contrast
from keyhole.contrast.report import label
from keyhole.contrast.studies import Head
from keyhole.figures import pca_figure
from keyhole.reproduce.cc.studies import DRAWS, Points, points, projected, studied, wording
from keyhole.reproduce.cc.subject import MOST, Subject, subject
from keyhole.reproduce.experiment import Experiment, Told
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Verdict
from keyhole.stats import told
from keyhole.tasks.text.words import CATEGORIES

_PUBLISHED = 13  # categories
_RELATED = {("fruits", "liquids")}  # of the published groups (places, names, animals, food), those with two here


@dataclass(frozen=True)
class Clusters:
    """How many keys of unseen words lie nearest to the centre of their category, in one head."""

    head: Head
    rank: int
    nearest: float
    random: list[float]  # in random subspaces of the same rank
    whole: float  # in whole keys
    related: list[int]  # places of related pairs among all pairs of centres, nearest first


@dataclass(frozen=True)
class Categories:
    """Clusters in every head, and the keys of the first one."""

    subject: Subject
    lists: int
    found: Sequence[Clusters]
    cloud: Points


def measure(job: Job) -> Categories:
    """Clusters of more categories. Keys only."""
    model, n, about = (
        studied(job.asked, "lists").test.model,
        160 if job.quick else 400,
        subject(job, "lists", "cc-fig6b"),
    )
    how: dict[str, Any] = wording(model, job.model) | {"per_category": 1 if job.model is None else 5}
    how["categories"] = tuple(CATEGORIES)
    words = [{word for own in CATEGORIES.values() for word in own[side::2]} for side in (0, 1)]
    seen, asked = (
        collect(model, only(lists_contrast(model, n, seed=2 * job.seed + side, **how), words[side])) for side in (0, 1)
    )
    features = find_features(seen, centre="none", permutations=0)  # the paper's contrast
    found = [_clusters(job, features, seen, asked, head) for head in about.heads]
    return Categories(about, n, found, projected(features, about.heads[0], asked, least=3))


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
    places = [order.index(pair) + 1 for pair in order if pair in _RELATED]
    return Clusters(head, r, share(basis), random, share(torch.eye(len(basis), dtype=basis.dtype)), places)


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


def judge(record: Categories) -> Verdict:
    """Does the median head place most keys, and more than any random subspace? Of all categories published?"""
    above = median(one.nearest - max(one.random) for one in record.found)
    holds = median(one.nearest for one in record.found) >= MOST and above > 0 and record.subject.passed
    enough = len(CATEGORIES) >= _PUBLISHED or not record.subject.published
    return record.subject.verdict(holds and enough, part=holds)


def tell(record: Categories) -> Told:
    """Do keys of more categories cluster?"""
    found, pairs = record.found, len(CATEGORIES) * (len(CATEGORIES) - 1) // 2
    numbers: Numbers = {"nearest": [one.nearest for one in found], "whole": [one.whole for one in found]}
    numbers |= {f"{label(one.head)} random": one.random for one in found}
    lines = [
        f"Head {label(one.head)}, rank {one.rank}: {one.nearest:.2f} of keys lie nearest to the centre of their "
        f"category; random subspaces of that rank {told(one.random, 2)}, whole keys {one.whole:.2f}; fruits and "
        f"liquids are the pair {one.related[0]} of {pairs} by distance."
        for one in found
    ]
    note = (
        f"{record.subject.selection}{len(CATEGORIES)} categories instead of {_PUBLISHED}, so at most partly; "
        f"{record.lists} lists instead of 2,000 for the feature and its centres, as many for keys of other words (half "
        f"of each category). The verdict asks that the median head places {MOST} of these keys and more than all "
        f"{DRAWS} random subspaces. Whether related categories lie side by side is not judged: of the published groups "
        "only food has two categories here. Contrasts are uncentred, as in the paper. Brackets: smallest and largest "
        f"of the random subspaces. {record.subject.stand_in}"
    )
    return Told("\n".join(lines), numbers, note)


def draw(record: Categories) -> dict[str, Figure]:
    """Keys of the first head."""
    _, k, labels = record.cloud
    head, model = label(record.subject.heads[0]), record.subject.model
    title = f"Keys of unseen words of {len(set(labels))} categories in head {head} of {model}"
    return {"keys": pca_figure(k[:0], k, [], labels, title=title)}


RUNS: dict[str, Attempt] = {"cc-fig6b": Experiment(measure, judge, tell, draw)}
