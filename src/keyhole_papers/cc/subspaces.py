"""Do queries and keys of one category, place or thing meet in their feature's subspace? On samples that made none.

And the first components of whole queries and keys: they show places perhaps, things hardly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median

from matplotlib.figure import Figure

from keyhole.brief import head_name
from keyhole.features.contrast.clouds import joint_pca, umap_figure
from keyhole.features.contrast.collect import Collected
from keyhole.features.contrast.finding import find_features
from keyhole.features.contrast.studies import Study
from keyhole_papers import cc
from keyhole_papers.cc import CROSSED, DRAWS, MOST, Points, Subject, Task, subject
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, of_part

_APART = 0.95  # of points, where a component tells queries from keys
_LESS = 0.1  # of keys, where a claim says that something is not shown
_SHOWN = 3  # heads of which pictures are drawn
_RANKS = {"order": (2, 3), "lexical": (9, 10)}  # published
_FIVE = (
    "The contrast of all categories together has one dimension less than there are: with pairs weighed alike it holds "
    "means of keys about their common mean, which sum to zero. The paper spans five directions, one per category "
    "(--as-printed)."
)


@dataclass(frozen=True)
class Meeting:
    """How the queries and keys of one feature lie in its subspace, by head."""

    ranks: Sequence[int]
    aligned: Sequence[float]  # keys that point where the queries of their label do
    random: Sequence[Sequence[float]]  # the same in random subspaces of that rank
    kinds: int  # of labels
    clouds: Sequence[Points]  # of the first heads
    whole: Points | None = None  # of the first head, for a picture of all dimensions

    @property
    def meets(self) -> bool:
        """Do most keys lie with their queries in the median head, and more than in all random subspaces?"""
        above = [own - max(others) for own, others in zip(self.aligned, self.random, strict=True)]
        return median(self.aligned) >= MOST and median(above) > 0


@dataclass(frozen=True)
class Subspaces:
    """Every feature of a task; of categories also what single ones give."""

    subject: Subject
    features: Mapping[str, Meeting]
    single: Sequence[int] = ()  # ranks of contrasts of one category
    apart: Sequence[float] = ()  # points that the first component tells apart, by head


def measure(job: Job, id: str, task: Task) -> Subspaces:
    """Every feature of the task's heads, on samples that made none."""
    study, fresh, about = cc.studied(job.asked, task), cc.held_out(job.asked, task), subject(job, task, id)
    whole = task == "boxes" and not job.quick
    features = {name: _meeting(job, study, name, fresh[name], whole) for name in study.features}
    if task == "boxes":
        return Subspaces(about, features)
    apart = [sides(cc.projected(study.features["category"], head, fresh["category"])) for head in about.heads]
    return Subspaces(about, features, _single_ranks(study), apart)


def _meeting(job: Job, study: Study, name: str, fresh: Collected, whole: bool) -> Meeting:
    features, heads, fit = study.features[name], study.selected, study.fits[name]
    ranks = [features.rank(head, "energy") for head in heads]
    seen = [cc.points(fresh, head) for head in heads]
    return Meeting(
        ranks=ranks,
        aligned=[cc.aligned(*cc.projected(features, head, fresh)) for head in heads],
        random=[cc.aligned_at_random(*own, r, seed=job.seed) for own, r in zip(seen, ranks, strict=True)],
        kinds=len(set(seen[0].labels)),
        clouds=[cc.projected(features, head, fit, least=3) for head in heads[:_SHOWN]],
        whole=cc.projected(features, heads[0], fit) if whole else None,
    )


def _single_ranks(study: Study) -> list[int]:
    """Within one category the query hardly varies, so that E[q k^T] is nearly an outer product of means."""
    fit = study.fits["category"]
    kinds = sorted({name for name in fit.resolved.labels if name})
    enough = [kind for kind in kinds if fit.resolved.labels.count(kind) >= 20]
    each = [find_features(fit, label=kind, centre="none", permutations=0) for kind in enough]  # the paper's contrast
    return [features.rank(head, "energy") for features in each for head in study.selected]


def sides(seen: Points) -> float:
    """How many points lie on their side of the middle between mean query and mean key, along the first component?

    >>> import torch
    >>> sides(Points(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([[9.0, 1.0], [9.0, 2.0]]), ["a", "b"]))
    1.0
    """
    placed = joint_pca(seen.q, seen.k, 1)
    x, y = placed.queries[:, 0], placed.keys[:, 0]
    middle, above = (x.mean() + y.mean()) / 2, bool(x.mean() > y.mean())
    right = int(((x > middle) == above).sum()) + int(((y > middle) != above).sum())
    return right / (len(x) + len(y))


def findings(record: Subspaces) -> Findings:
    """Do keys meet their queries, and are the published model's ranks and sides as published?"""
    about, rows, heads = record.subject, list[Finding](), [head_name(head) for head in record.subject.heads]
    meets = f"in the median head {MOST} and more than in all {DRAWS} random subspaces"
    for name, own in record.features.items():
        randoms = (Finding(f"random {head}", other, digits=2) for head, other in zip(heads, own.random, strict=True))
        rows += of_part(
            name,
            Finding("ranks", own.ranks, *_published(record, name)),
            Finding("aligned", own.aligned, meets, own.meets, digits=2),
            *randoms,
            Finding("chance", 1 / own.kinds, digits=2),
            joint=" ",
        )
    why = f"{CROSSED} "
    if record.apart:
        why = "" if about.spans else f"{_FIVE} "
        why += "Contrasts of one category have rank 1 by design, which is not asked for. "
        asked, holds = (
            (f"{_APART} in the median head", median(record.apart) >= _APART) if about.published else ("", None)
        )
        rows += [
            Finding("ranks of single categories", record.single),
            Finding("told apart by PC 1", record.apart, asked, holds, digits=2),
        ]
    meet = [own.meets for own in record.features.values()]
    every = all(row.holds for row in rows if row.holds is not None)
    remark = (
        "Aligned: keys that point where the queries of their label do, on prompts that made no feature; random: the "
        f"same in random subspaces of that rank, each one for queries and keys alike. {why}{about.means} Brackets: "
        f"smallest and largest of the heads, {', '.join(heads)}, or of random subspaces."
    )
    return about.findings(rows, holds=every and about.passed, part=any(meet), remark=remark)


def _published(record: Subspaces, name: str) -> tuple[str, bool | None]:
    """Of the published model, the published ranks are asked for."""
    if name not in _RANKS or not record.subject.published:
        return "", None
    low, high = _RANKS[name]
    return f"{low} or {high} in the median head", median(record.features[name].ranks) in _RANKS[name]


def draw(record: Subspaces) -> dict[str, Figure]:
    """Clouds of the first heads; one without a projection to three where umap-learn is installed."""
    figures = {}
    heads = [head_name(head) for head in record.subject.heads]
    for name, own in record.features.items():
        titles = [f"{name} in head {head} of {record.subject.model}" for head in heads]
        for head, title, points in zip(heads, titles, own.clouds, strict=False):
            figures[f"pca-{name}-{head}"] = cc.cloud(points, title, ordered=name == "order")
        if own.whole is not None and find_spec("umap"):
            q, k, labels = own.whole
            shown = umap_figure(q, k, labels, labels, title=titles[0], ordered=name == "order", points=1000)
            figures[f"umap-{name}-{heads[0]}"] = shown
    return figures


@dataclass(frozen=True)
class Aligned:
    """How many keys point where the queries of their label do, by head."""

    components: Sequence[float]  # in three components of everything
    own: Sequence[float]  # in the feature's own subspace
    random: Sequence[float]  # in the best of many random subspaces of three dimensions
    cloud: Points  # of the first head

    @property
    def shown(self) -> bool:
        """Do the first components show it in the median head, unlike random subspaces?"""
        return median(self.components) >= MOST and median(self.components) > median(self.random)

    @property
    def hidden(self) -> bool:
        """Does its own subspace show it, unlike random ones, and the first components clearly less?"""
        own = median(self.own)
        return own >= MOST and own > median(self.random) and median(self.components) <= own - _LESS


@dataclass(frozen=True)
class Unprojected:
    """Alignment by feature."""

    subject: Subject
    found: Mapping[str, Aligned]


def measure_unprojected(job: Job) -> Unprojected:
    """Alignment in whole queries and keys, and in subspaces, on samples that made no feature."""
    study, fresh = cc.studied(job.asked, "boxes"), cc.held_out(job.asked, "boxes")
    found = {}
    for name, features in study.features.items():
        seen = [cc.points(fresh[name], head) for head in study.selected]
        placed = [joint_pca(q, k) for q, k, _ in seen]
        both = [*zip(seen, placed, strict=True)]
        found[name] = Aligned(
            components=[cc.aligned(new.queries, new.keys, old.labels) for old, new in both],
            own=[cc.aligned(*cc.projected(features, head, fresh[name])) for head in study.selected],
            random=[max(cc.aligned_at_random(*old, new.keys.shape[1], seed=job.seed)) for old, new in both],
            cloud=seen[0],
        )
    return Unprojected(subject(job, "boxes", "cc-fig17"), found)


def unprojected(record: Unprojected) -> Findings:
    """Is the order shown, and the thing hidden?"""
    order, lexical = record.found["order"], record.found["lexical"]
    shown = f"{MOST} in the median head, more than random subspaces"
    hidden = f"{MOST} in its own subspace, more than random ones, and {_LESS} less in the components"
    claims = {"order": (shown, order.shown), "lexical": (hidden, lexical.hidden)}
    rows: list[Finding] = []
    for name, own in record.found.items():
        rows.append(Finding(name, own.components, *claims[name], digits=2))
        rows += [Finding(f"{name} projected", own.own, digits=2), Finding(f"{name} random", own.random, digits=2)]
    about = record.subject
    remark = (
        "Numbers are keys that point where the queries of their label do, on prompts that made no feature: in three "
        f"components of everything, in the feature's own subspace (projected), in the best of {DRAWS} random "
        f"subspaces of three dimensions. Brackets: smallest and largest of the heads. {CROSSED} {about.means}"
    )
    holds = order.shown and lexical.hidden and about.passed
    return about.findings(rows, holds=holds, part=order.shown or lexical.hidden, remark=remark)


def draw_unprojected(record: Unprojected) -> dict[str, Figure]:
    """The first components of the first head."""
    title = f"Whole queries and keys of head {head_name(record.subject.heads[0])}, by"
    return {
        f"pca-{name}": cc.cloud(own.cloud, f"{title} {name}", ordered=name == "order")
        for name, own in record.found.items()
    }


RUNS: dict[str, Attempt] = {
    "cc-fig6a": Experiment(partial(measure, id="cc-fig6a", task="lists"), findings, draw, heeds=AS_PRINTED),
    "cc-fig8": Experiment(partial(measure, id="cc-fig8", task="boxes"), findings, draw, heeds=AS_PRINTED),
    "cc-fig17": Experiment(measure_unprojected, unprojected, draw_unprojected, heeds=AS_PRINTED),
}
