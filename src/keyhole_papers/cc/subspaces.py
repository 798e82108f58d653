"""Do queries and keys of one category, place or thing meet in their feature's subspace? On samples that made none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from statistics import median

from matplotlib.figure import Figure

from keyhole.contrast.features.finding import find_features
from keyhole.contrast.onepass.collect import Collected
from keyhole.contrast.studies import Study
from keyhole.figures.contrast.embedding import joint_pca, pca_figure, umap_figure
from keyhole.models.heads import head_name
from keyhole.stats import told
from keyhole_papers.cc import studies
from keyhole_papers.cc.studies import DRAWS, Points, Task
from keyhole_papers.cc.subject import CROSSED, MOST, Subject, subject
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_APART = 0.95  # of points, where a component tells queries from keys
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
    study, fresh, about = studies.studied(job.asked, task), studies.held_out(job.asked, task), subject(job, task, id)
    whole = task == "boxes" and not job.quick
    features = {name: _meeting(job, study, name, fresh[name], whole) for name in study.features}
    if task == "boxes":
        return Subspaces(about, features)
    apart = [sides(studies.projected(study.features["category"], head, fresh["category"])) for head in about.heads]
    return Subspaces(about, features, _single_ranks(study), apart)


def _meeting(job: Job, study: Study, name: str, fresh: Collected, whole: bool) -> Meeting:
    features, heads, fit = study.features[name], study.selected, study.fits[name]
    ranks = [features.rank(head, "energy") for head in heads]
    seen = [studies.points(fresh, head) for head in heads]
    return Meeting(
        ranks=ranks,
        aligned=[studies.aligned(*studies.projected(features, head, fresh)) for head in heads],
        random=[studies.aligned_at_random(*own, r, seed=job.seed) for own, r in zip(seen, ranks, strict=True)],
        kinds=len(set(seen[0].labels)),
        clouds=[studies.projected(features, head, fit, least=3) for head in heads[:_SHOWN]],
        whole=studies.projected(features, heads[0], fit) if whole else None,
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


def judge(record: Subspaces) -> Verdict:
    """Do keys meet their queries, and are the published model's ranks and sides as published?"""
    meet = [own.meets for own in record.features.values()]
    ranks = all(median(own.ranks) in _RANKS[name] for name, own in record.features.items() if name in _RANKS)
    right = ranks and (not record.apart or median(record.apart) >= _APART)
    holds = all(meet) and record.subject.passed and (right or not record.subject.published)
    return record.subject.verdict(holds, part=any(meet))


def tell(record: Subspaces) -> Told:
    """Do queries and keys of one label meet in the feature's subspace, and of which rank is it?"""
    about, heads = record.subject, [head_name(head) for head in record.subject.heads]
    numbers: Numbers = {}
    lines = []
    for name, own in record.features.items():
        numbers |= {f"{name} ranks": [*map(float, own.ranks)], f"{name} aligned": [*own.aligned]}
        numbers |= {f"{name} random {head}": [*others] for head, others in zip(heads, own.random, strict=True)}
        lines.append(
            f"{name}: rank {_span(own.ranks)}; {told(own.aligned, 2)} of keys point where the queries of their label "
            f"do, {told([max(others) for others in own.random], 2)} in the best of {DRAWS} random subspaces of that "
            f"rank, {told([sum(others) / len(others) for others in own.random], 2)} in their mean (chance "
            f"{1 / own.kinds:.2f})."
        )
    more, why = "the published ranks (median head)", f"{CROSSED} "
    if record.apart:
        more = f"{_APART} told apart by PC 1 (rank 1 of each category is forced, and not asked for)"
        why = "" if about.spans else f"{_FIVE} "
        numbers |= {"ranks of single categories": [*map(float, record.single)], "told apart by PC 1": [*record.apart]}
        lines.append(
            f"PC 1 tells {told(record.apart, 2)} of queries and keys apart. Contrasts of one category have rank "
            f"{_span(record.single)}, which the design forces."
        )
    note = (
        f"{about.selection}The verdict asks that in the median head {MOST} of keys lie with their queries and more "
        f"than in all {DRAWS} random subspaces (each one for queries and keys alike), on prompts that made no feature; "
        f"of the published model also for {more}. {why}{about.means} Brackets: smallest and largest of the heads. "
        f"{about.stand_in}"
    )
    return Told("\n".join([*lines, f"Heads {', '.join(heads)}."]), numbers, note)


def _span(ranks: Sequence[int]) -> str:
    if not ranks:
        return "unknown (too few samples)"
    return str(min(ranks)) if min(ranks) == max(ranks) else f"{min(ranks)} to {max(ranks)}"


def draw(record: Subspaces) -> dict[str, Figure]:
    """Clouds of the first heads; one without a projection to three where umap-learn is installed."""
    figures = {}
    heads = [head_name(head) for head in record.subject.heads]
    for name, own in record.features.items():
        titles = [f"{name} in head {head} of {record.subject.model}" for head in heads]
        for head, title, (q, k, labels) in zip(heads, titles, own.clouds, strict=False):
            figures[f"pca-{name}-{head}"] = pca_figure(q, k, labels, labels, title=title, ordered=name == "order")
        if own.whole is not None and find_spec("umap"):
            q, k, labels = own.whole
            shown = umap_figure(q, k, labels, labels, title=titles[0], ordered=name == "order", points=1000)
            figures[f"umap-{name}-{heads[0]}"] = shown
    return figures


RUNS: dict[str, Attempt] = {
    "cc-fig6a": Experiment(partial(measure, id="cc-fig6a", task="lists"), judge, tell, draw, heeds=AS_PRINTED),
    "cc-fig8": Experiment(partial(measure, id="cc-fig8", task="boxes"), judge, tell, draw, heeds=AS_PRINTED),
}
