"""How many dimensions have features, and do queries and keys meet in them? Of categories, places and things in boxes.

Meetings are looked at on samples that made no feature; ranks with more and more boxes, where they should stop growing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median

from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.features.contrast.boxes import lexical_contrast, order_contrast
from keyhole.features.contrast.clouds import joint_pca, umap_figure
from keyhole.features.contrast.collect import Collected, collect
from keyhole.features.contrast.finding import Features, RankRule, find_features
from keyhole.features.contrast.lists import RankRow
from keyhole.features.contrast.sites import Contrast
from keyhole.features.contrast.studies import Study
from keyhole.features.contrast.study_figures import RankCurve, plateau, rank_figure
from keyhole_papers import cc
from keyhole_papers.cc import CROSSED, DRAWS, MERE_SHIFT, MOST, Points, Subject, Task, studied, subject, wording
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import NO_CLAIM, Claim, Finding, Findings, of_part

_APART = 0.95  # of points, where a component separates queries from keys
_SHOWN = 3  # heads of which pictures are drawn
_RANKS = {"order": (2, 3), "lexical": (9, 10)}  # published
_FIVE = (
    "The contrast of all categories together has one dimension less than there are categories: it holds means of keys "
    "about their common mean, which sum to zero. The paper spans five directions, one per category (--as-printed)."
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
        above = [share - max(others) for share, others in zip(self.aligned, self.random, strict=True)]
        return median(self.aligned) >= MOST and median(above) > 0


@dataclass(frozen=True)
class Subspaces:
    """Every feature of a task; of categories also what single ones give."""

    subject: Subject
    features: Mapping[str, Meeting]
    single: Sequence[int] = ()  # ranks of contrasts of one category
    apart: Sequence[float] = ()  # points that the first component sorts into queries and keys, by head


def measure(job: Job, id: str, task: Task) -> Subspaces:
    """Every feature of the task's heads, on samples that made none."""
    study, fresh, about = studied(job, task), cc.held_out(job, task), subject(job, task, id)
    whole = task == "boxes" and not job.quick
    features = {name: _meeting(job, study, name, fresh[name], whole) for name in study.features}
    if task == "boxes":
        return Subspaces(about, features)
    apart = [sides(cc.projected(study.features["category"], head, fresh["category"])) for head in about.heads]
    return Subspaces(about, features, _single_ranks(study), apart)


def _meeting(job: Job, study: Study, name: str, fresh: Collected, whole: bool) -> Meeting:
    features, heads, fit = study.features[name], study.selected, study.fits[name]
    ranks = [features.rank(head, "energy") for head in heads]
    points = [cc.points(fresh, head) for head in heads]
    return Meeting(
        ranks=ranks,
        aligned=[cc.aligned(*cc.projected(features, head, fresh)) for head in heads],
        random=[cc.aligned_at_random(*of, r, seed=job.seed) for of, r in zip(points, ranks, strict=True)],
        kinds=len(set(points[0].labels)),
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


def sides(points: Points) -> float:
    """How many points lie on their side of the middle between mean query and mean key, along the first component?

    >>> import torch
    >>> sides(Points(torch.tensor([[0.0, 1.0], [0.0, 2.0]]), torch.tensor([[9.0, 1.0], [9.0, 2.0]]), ["a", "b"]))
    1.0
    """
    placed = joint_pca(points.q, points.k, 1)
    x, y = placed.queries[:, 0], placed.keys[:, 0]
    middle, above = (x.mean() + y.mean()) / 2, bool(x.mean() > y.mean())
    right = int(((x > middle) == above).sum()) + int(((y > middle) != above).sum())
    return right / (len(x) + len(y))


def findings(record: Subspaces) -> Findings:
    """Do keys meet their queries, and are the published model's ranks and sides as published?"""
    about, rows, heads = record.subject, list[Finding](), [head_name(head) for head in record.subject.heads]
    meets = f"in the median head {MOST} and more than in all {DRAWS} random subspaces"
    for name, feature in record.features.items():
        published: Claim = NO_CLAIM
        if name in _RANKS and about.published:
            low, high = _RANKS[name]
            published = f"{low} or {high} in the median head", median(feature.ranks) in _RANKS[name]
        rows += of_part(
            name,
            Finding("ranks", feature.ranks, *published),
            Finding("aligned", feature.aligned, meets, feature.meets, digits=2),
            *(Finding(f"random {of}", shares, digits=2) for of, shares in zip(heads, feature.random, strict=True)),
            Finding("chance", 1 / feature.kinds, digits=2),
            joint=" ",
        )
    why = f"{CROSSED} "
    if record.apart:
        why = "" if about.spans else f"{_FIVE} "
        why += "Contrasts of one category have rank 1 by design: nothing is claimed of it. "
        claim: Claim = f"{_APART} in the median head", median(record.apart) >= _APART
        rows.append(Finding("ranks of single categories", record.single))
        rows.append(Finding("told apart by PC 1", record.apart, *(claim if about.published else NO_CLAIM), digits=2))
    remark = (
        "Aligned: keys that point where the queries of their label do, on prompts that made no feature. Random: the "
        f"same in random subspaces of that rank, each one for queries and keys alike. {why}{about.means} Brackets: "
        f"smallest and largest of the heads, {', '.join(heads)}, or of random subspaces."
    )
    return about.findings(rows, part=any(feature.meets for feature in record.features.values()), remark=remark)


def draw(record: Subspaces) -> dict[str, Figure]:
    """Clouds of the first heads; one without a projection to three where umap-learn is installed."""
    figures = {}
    heads = [head_name(head) for head in record.subject.heads]
    for name, feature in record.features.items():
        ordered, titles = name == "order", [f"{name} in head {head} of {record.subject.model}" for head in heads]
        for head, title, points in zip(heads, titles, feature.clouds, strict=False):
            figures[f"pca-{name}-{head}"] = cc.cloud(points, title, ordered=ordered)
        if feature.whole is not None and find_spec("umap"):
            q, k, labels = feature.whole
            figure = umap_figure(q, k, labels, labels, title=titles[0], ordered=ordered, points=1000)
            figures[f"umap-{name}-{heads[0]}"] = figure
    return figures


_MAKERS: dict[str, Callable[..., Contrast]] = {
    "order": order_contrast,
    "lexical": partial(lexical_contrast, cross=True),
}
_RULES: tuple[RankRule, ...] = ("energy", "null", "halves")
_GROWTH = 2  # ranks: one is within the slack of a plateau
_SWEPT, _DRAWN = 8, 6  # heads


@dataclass(frozen=True)
class Swept:
    """Ranks of one head's contrast, one for each number of boxes."""

    head: Head
    counts: tuple[int, ...]
    centred: Sequence[RankRow]
    uncentred: Sequence[int]  # the paper's
    shift: float  # share of the uncentred contrast that is a difference of means, with most boxes
    printed: bool = False  # are the uncentred ranks judged, as printed?

    @property
    def ranks(self) -> tuple[int, ...]:
        """Singular values that hold 99 % of the contrast that is judged: the centred one, unless it is as printed."""
        return tuple(self.uncentred) if self.printed else tuple(row.energy for row in self.centred)

    @property
    def start(self) -> int | None:
        """From how many boxes on the rank stays, if it does."""
        return plateau(self.counts, self.ranks)

    @property
    def grown(self) -> bool:
        """Is the rank larger in the end, by more than a plateau may waver?"""
        return self.ranks[-1] >= self.ranks[0] + _GROWTH

    @property
    def stops_growing(self) -> bool:
        """Does the rank grow first, beyond what permuted labels give, and then stay?"""
        return self.start is not None and self.grown and self.centred[-1].null > self.centred[0].null


@dataclass(frozen=True)
class Sweep:
    """The same heads, by contrast."""

    subject: Subject
    prompts: int  # for each number of boxes
    heads: Mapping[str, Sequence[Swept]]


def measure_ranks(job: Job) -> Sweep:
    """Ranks of both contrasts with more and more boxes, centred and not."""
    n = 60 if job.model is None and job.quick else 400 if job.model is None else 1000
    n = 3000 if job.as_printed and not job.quick else n
    about = subject(job, "boxes", "cc-fig16")
    return Sweep(about, n, {name: _swept(job, about.heads[:_SWEPT], make, n) for name, make in _MAKERS.items()})


def _swept(job: Job, heads: Sequence[Head], make: Callable[..., Contrast], n: int) -> list[Swept]:
    model, counts = studied(job, "boxes").test.model, (2, 3, 4) if job.quick else (2, 3, 4, 5, 6, 7, 8, 9)
    centred: dict[int, Features] = {}
    plain: dict[int, Features] = {}
    for count in counts:
        samples = collect(model, make(model, n=n, seed=2 * job.seed, n_boxes=count, **wording(model, job.model)))
        centred[count] = find_features(samples, centre="each", permutations=20 if job.quick else 200)
        plain[count] = find_features(samples, centre="none", permutations=0)
        job.progress(len(plain), len(counts))
    last = plain[counts[-1]]
    return [
        Swept(
            head,
            counts,
            [RankRow(head, count, *(of.rank(head, rule) for rule in _RULES)) for count, of in centred.items()],
            [of.rank(head, "energy") for of in plain.values()],
            float(last.mean_shift[last.at(head)]),
            printed=job.as_printed,
        )
        for head in heads
    ]


def ranks(record: Sweep) -> Findings:
    """Do both ranks of most heads stop growing, and differ between heads of the published model?"""
    about, rows = record.subject, list[Finding]()
    for name, heads in record.heads.items():
        rows += of_part(name, *(row for swept in heads for row in _rows_of(swept)), joint=" ")
    by_head = [all(swept.stops_growing for swept in both) for both in zip(*record.heads.values(), strict=True)]
    stopped = 2 * sum(by_head) > len(by_head)
    differ = any(len({swept.ranks[-1] for swept in heads}) > 1 for heads in record.heads.values())
    if about.published:
        rows.append(Finding("ranks of heads", "differ" if differ else "do not differ", "a difference", differ))
    means = "a difference of means is of rank one whatever the number of boxes"
    which = f"Contrasts are centred, since {means}; ranks of uncentred ones, the paper's, stand beside them."
    if any(swept.printed for heads in record.heads.values() for swept in heads):
        which = f"Ranks of uncentred contrasts are judged, as printed; centred ones stand beside them, since {means}."
    counts = record.heads["order"][0].counts
    remark = (
        f"Ranks at 99 % energy with {counts[0]} to {counts[-1]} boxes, of {record.prompts:,} prompts each"
        f"{'' if record.prompts == 3000 else ' instead of 3,000'}. {which} Most heads must do it with both ranks. "
        f"{CROSSED}"
    )
    holds = stopped and (differ or not about.published) and about.passed
    return about.findings(rows, holds=holds, part=stopped, remark=remark)


def _rows_of(swept: Swept) -> list[Finding]:
    staying = f"steady from {swept.start} boxes" if swept.grown else "never growing"
    course = "still changing" if swept.start is None else staying
    mere = ", a mere difference of means" if swept.shift > MERE_SHIFT else ""
    claim = (
        f"that it grows first (by {_GROWTH} or more, and so does the number of singular values above permuted labels) "
        "and ends in three or more counts that agree within one and do not rise",
        swept.stops_growing,
    )
    centred, plain = (NO_CLAIM, claim) if swept.printed else (claim, NO_CLAIM)
    head = head_name(swept.head)
    return [
        Finding(head, [row.energy for row in swept.centred], *centred),
        Finding(f"{head} uncentred", swept.uncentred, *plain),
        Finding(f"{head} mean shift", swept.shift, digits=2),
        Finding(f"{head} above permuted labels", [row.null for row in swept.centred]),
        Finding(f"{head} course", f"{course}{mere}"),
    ]


def draw_ranks(record: Sweep) -> dict[str, Figure]:
    """Ranks against the number of boxes, a picture per contrast."""
    figures = {}
    for name, heads in record.heads.items():
        curves = [
            RankCurve(head_name(swept.head), swept.counts, swept.ranks, tuple(row.null for row in swept.centred))
            for swept in heads[:_DRAWN]
        ]
        figures[f"ranks-{name}"] = rank_figure(curves, title=f"Rank of {name} against the number of entities")
    return figures


RUNS: dict[str, Attempt] = {
    "cc-fig6a": Experiment(partial(measure, id="cc-fig6a", task="lists"), findings, draw, heeds=AS_PRINTED),
    "cc-fig8": Experiment(partial(measure, id="cc-fig8", task="boxes"), findings, draw, heeds=AS_PRINTED),
    "cc-fig16": Experiment(measure_ranks, ranks, draw_ranks, heeds=AS_PRINTED),
}
