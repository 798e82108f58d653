"""What do keys look like that made no feature? Clusters of categories, and the first components of everything."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.features.contrast.alternatives import find_spans
from keyhole.features.contrast.clouds import joint_pca, pca_figure
from keyhole.features.contrast.collect import Collected, collect
from keyhole.features.contrast.finding import FEWEST, Features, find_features
from keyhole.features.contrast.lists import lists_contrast
from keyhole.features.contrast.sites import Contrast, Site
from keyhole.features.contrast.subspace import random_bases
from keyhole.models.model import Model
from keyhole.models.tokens import one_token_words
from keyhole.tasks.corpus import knows_tasks_alone
from keyhole.tasks.words import CATEGORIES, THIRTEEN
from keyhole_papers import cc
from keyhole_papers.cc import CROSSED, DRAWS, MOST, Points, Subject, points, projected, studied, subject, wording
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import NO_CLAIMS, Claim, Finding, Findings, of_part, rows_of

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
    heads: Sequence[Clusters]
    cloud: Points


def measure(job: Job) -> Categories:
    """Clusters of the paper's categories: keys of words that made neither the feature nor the centres."""
    model, about = studied(job, "lists").test.model, subject(job, "lists", "cc-fig6b")
    kinds, n = kinds_of(model), 160 if job.quick else 400
    if job.as_printed:  # a contrast for each category needs as many samples as there are dimensions
        n = 2 * len(THIRTEEN) * max(FEWEST, model.dims.d_head) if job.quick else 2000
    how: dict[str, Any] = wording(model, job.model) | {"per_category": 1 if job.model is None else 5}
    how["categories"] = kinds
    words = [{word for kind in kinds.values() for word in kind[side::2]} for side in (0, 1)]
    fit, test = (
        collect(model, only(lists_contrast(model, n, seed=2 * job.seed + side, **how), words[side])) for side in (0, 1)
    )
    find = find_spans if job.as_printed else find_features
    features = find(fit, centre="none", permutations=0)  # the paper's contrast
    heads = [_clusters(job, features, fit, test, head) for head in about.heads]
    return Categories(about, [*kinds], n, job.as_printed, heads, projected(features, about.heads[0], test, least=3))


def kinds_of(model: Model) -> dict[str, Sequence[str]]:
    """The paper's categories of which a model knows lists, with words of one token where it has enough."""
    alone = knows_tasks_alone(model)
    kinds: dict[str, Sequence[str]] = {}
    for kind, words in THIRTEEN.items():
        if kind in CATEGORIES or not alone:
            single = one_token_words(model, words)
            kinds[kind] = single if len(single) >= _LEAST_WORDS else words
    return kinds


def only(contrast: Contrast, words: set[str]) -> Contrast:
    """The same contrast without keys of other words, and without samples that lose a side."""

    def kept(sites: tuple[Site, ...]) -> tuple[Site, ...]:
        return tuple(site for site in sites if _word(contrast, site) in words)

    samples = []
    for sample in contrast.samples:
        positive, negative = kept(sample.positive), kept(sample.negative)
        if positive and negative:
            samples.append(replace(sample, positive=positive, negative=negative))
    return replace(contrast, samples=tuple(samples))


def _word(contrast: Contrast, site: Site) -> str:
    start, end = site.place.span or (0, 0)
    return str(contrast.prompts[site.prompt])[start:end]


def _clusters(job: Job, features: Features, fit: Collected, test: Collected, head: Head) -> Clusters:
    layer, index = features.at(head)
    r = max(3, features.rank(head, "energy"))
    basis = features.V[layer, index, :, :r].double()
    (_, k, labels), (_, k_test, test_labels) = points(fit, head), points(test, head)

    def share(basis: Tensor) -> float:
        return nearest(k @ basis, labels, k_test @ basis, test_labels)

    random = [share(other) for other in random_bases(len(basis), r, DRAWS, job.seed)]
    places, p = nearness(_by_distance(k_test @ basis, test_labels), seed=job.seed)
    whole = torch.eye(len(basis), dtype=basis.dtype)
    return Clusters(head, r, share(basis), random, share(whole), places, p)


def nearest(k: Tensor, labels: list[str], test: Tensor, test_labels: list[str]) -> float:
    """How many of the test's keys lie nearest to the centre of their label, made of other keys?

    >>> k = torch.tensor([[0.0], [1.0]])
    >>> nearest(k, ["a", "b"], k + 0.1, ["a", "b"])
    1.0
    """
    centres = _centres(k, labels)
    kinds, places = [*centres], torch.cdist(test, torch.stack([*centres.values()])).argmin(1).tolist()
    return sum(kinds[int(i)] == name for i, name in zip(places, test_labels, strict=True)) / len(test_labels)


def _centres(k: Tensor, labels: list[str]) -> dict[str, Tensor]:
    return {kind: k[[name == kind for name in labels]].mean(0) for kind in sorted(set(labels))}


def _by_distance(k: Tensor, labels: list[str]) -> list[tuple[str, str]]:
    """Pairs of labels by the distance of their centres."""
    centres = _centres(k, labels)
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

    real = total(kinds)
    nearer = sum(total(rng.sample(kinds, len(kinds))) <= real for _ in range(_SHUFFLES))
    return [place[frozenset(pair)] for pair in related], (1 + nearer) / (1 + _SHUFFLES)


def findings(record: Categories) -> Findings:
    """Does the median head place most keys, and more than any random subspace?

    The published model should know all thirteen categories, and related ones should lie nearer than shuffled ones.
    """
    heads, about, pairs = record.heads, record.subject, len(record.kinds) * (len(record.kinds) - 1) // 2
    whole, near = len(record.kinds) == len(THIRTEEN), median(head.p for head in heads) <= _LEVEL
    above = median(head.nearest - max(head.random) for head in heads)
    holds = median(head.nearest for head in heads) >= MOST and above > 0
    claim = f"in the median head {MOST}, and more than in all {DRAWS} random subspaces"
    of_published: dict[str, Claim] = {
        "categories": (f"all {len(THIRTEEN)}", whole),
        "related p": (f"at most {_LEVEL:g} in the median head", near),
    }
    rows = [
        Finding("nearest", [head.nearest for head in heads], claim, holds, digits=2),
        Finding("whole", [head.whole for head in heads], digits=2),
        *rows_of(
            {"categories": len(record.kinds), "related p": [head.p for head in heads]},
            of_published if about.published else NO_CLAIMS,
        ),
    ]
    for head in heads:
        places = Finding(f"related, by distance among {pairs} pairs", head.related)
        random = Finding("random", head.random, digits=2)
        rows += of_part(head_name(head.head), Finding("rank", head.rank), random, places, joint=" ")
    missing = [kind for kind in THIRTEEN if kind not in record.kinds]
    some = f" (without {', '.join(missing)}, of which the model knows no lists), so at most partly" if missing else ""
    how = "the span of single categories' directions, as printed" if record.spans else "the contrast of all together"
    remark = (
        f"{len(record.kinds)} of the paper's {len(THIRTEEN)} categories{some}; {record.lists:,} lists"
        f"{'' if record.lists == 2000 else ' instead of 2,000'} for the feature ({how}) and its centres, as many for "
        "keys of other words (half of each category), of which those nearest to the centre of their category are "
        "counted; whole: in whole keys. P: how often related categories lie as near to each other with categories "
        f"shuffled ({_SHUFFLES:,} times). Contrasts are uncentred, as in the paper. Brackets: smallest and largest of "
        "the heads, or of random subspaces."
    )
    passed = holds and about.passed
    return about.findings(rows, holds=passed and ((whole and near) or not about.published), part=passed, remark=remark)


def draw(record: Categories) -> dict[str, Figure]:
    """Keys of the first head."""
    _, k, labels = record.cloud
    head, model = head_name(record.subject.heads[0]), record.subject.model
    title = f"Keys of unseen words of {len(set(labels))} categories in head {head} of {model}"
    return {"keys": pca_figure(k[:0], k, [], labels, title=title)}


_LESS = 0.1  # of keys, where a claim says that something is not shown


@dataclass(frozen=True)
class Aligned:
    """How many keys point where the queries of their label do, by head."""

    components: Sequence[float]  # in three components of everything
    subspace: Sequence[float]  # of the feature
    random: Sequence[float]  # in the best of many random subspaces of three dimensions
    cloud: Points  # of the first head

    @property
    def shown(self) -> bool:
        """Do the first components show it in the median head, unlike random subspaces?"""
        return median(self.components) >= MOST and median(self.components) > median(self.random)

    @property
    def hidden(self) -> bool:
        """Does its subspace show it, unlike random ones, and the first components clearly less?"""
        share = median(self.subspace)
        return share >= MOST and share > median(self.random) and median(self.components) <= share - _LESS


@dataclass(frozen=True)
class Unprojected:
    """Alignment by feature."""

    subject: Subject
    features: Mapping[str, Aligned]


def measure_unprojected(job: Job) -> Unprojected:
    """Alignment in whole queries and keys, and in subspaces, on samples that made no feature."""
    study, fresh, features = studied(job, "boxes"), cc.held_out(job, "boxes"), dict[str, Aligned]()
    for name, of in study.features.items():
        whole = [points(fresh[name], head) for head in study.selected]
        both = [(of_head, joint_pca(of_head.q, of_head.k)) for of_head in whole]
        features[name] = Aligned(
            components=[cc.aligned(new.queries, new.keys, old.labels) for old, new in both],
            subspace=[cc.aligned(*projected(of, head, fresh[name])) for head in study.selected],
            random=[max(cc.aligned_at_random(*old, new.keys.shape[1], seed=job.seed)) for old, new in both],
            cloud=whole[0],
        )
    return Unprojected(subject(job, "boxes", "cc-fig17"), features)


def unprojected(record: Unprojected) -> Findings:
    """Is the order shown, and the thing hidden?"""
    order, lexical = record.features["order"], record.features["lexical"]
    shown = f"{MOST} in the median head, more than random subspaces"
    hidden = f"{MOST} in its own subspace, more than random ones, and {_LESS} less in the components"
    claims: dict[str, Claim] = {"order": (shown, order.shown), "lexical": (hidden, lexical.hidden)}
    rows: list[Finding] = []
    for name, of in record.features.items():
        shares = {name: of.components, f"{name} projected": of.subspace, f"{name} random": of.random}
        rows += rows_of(shares, claims, digits=2)
    about = record.subject
    remark = (
        "Numbers are keys that point where the queries of their label do, on prompts that made no feature: in three "
        f"components of everything, in the feature's own subspace (projected), in the best of {DRAWS} random "
        f"subspaces of three dimensions. Brackets: smallest and largest of the heads. {CROSSED} {about.means}"
    )
    return about.findings(rows, part=order.shown or lexical.hidden, remark=remark)


def draw_unprojected(record: Unprojected) -> dict[str, Figure]:
    """The first components of the first head."""
    title = f"Whole queries and keys of head {head_name(record.subject.heads[0])}, by"
    return {
        f"pca-{name}": cc.cloud(of.cloud, f"{title} {name}", ordered=name == "order")
        for name, of in record.features.items()
    }


RUNS: dict[str, Attempt] = {
    "cc-fig6b": Experiment(measure, findings, draw, heeds=AS_PRINTED),
    "cc-fig17": Experiment(measure_unprojected, unprojected, draw_unprojected, heeds=AS_PRINTED),
}
