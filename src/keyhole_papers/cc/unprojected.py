"""What do the first components of whole queries and keys show? Places perhaps, things hardly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.figure import Figure

from keyhole.figures.contrast.embedding import joint_pca, pca_figure
from keyhole.models.heads import head_name
from keyhole_papers.cc.studies import DRAWS, Points, aligned, aligned_at_random, held_out, points, projected, studied
from keyhole_papers.cc.subject import CROSSED, MOST, Subject, subject
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_LESS = 0.1  # of keys, where a claim says that something is not shown


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


def measure(job: Job) -> Unprojected:
    """Alignment in whole queries and keys, and in subspaces, on samples that made no feature."""
    study, fresh = studied(job.asked, "boxes"), held_out(job.asked, "boxes")
    found = {}
    for name, features in study.features.items():
        seen = [points(fresh[name], head) for head in study.selected]
        placed = [joint_pca(q, k) for q, k, _ in seen]
        both = [*zip(seen, placed, strict=True)]
        found[name] = Aligned(
            components=[aligned(new.queries, new.keys, old.labels) for old, new in both],
            own=[aligned(*projected(features, head, fresh[name])) for head in study.selected],
            random=[max(aligned_at_random(*old, new.keys.shape[1], seed=job.seed)) for old, new in both],
            cloud=seen[0],
        )
    return Unprojected(subject(job, "boxes", "cc-fig17"), found)


def judge(record: Unprojected) -> Verdict:
    """Is the order shown, and the thing hidden?"""
    first, second = record.found["order"].shown, record.found["lexical"].hidden
    return record.subject.verdict(first and second and record.subject.passed, part=first or second)


def tell(record: Unprojected) -> Told:
    """What whole queries and keys show, beside subspaces."""
    numbers: Numbers = {}
    lines = []
    for name, own in record.found.items():
        numbers |= {name: [*own.components], f"{name} projected": [*own.own], f"{name} random": [*own.random]}
        lines.append(
            f"{name}: {median(own.components):.2f} of keys point where the queries of their label do in three "
            f"components of everything, {median(own.own):.2f} in the feature's own subspace, {median(own.random):.2f} "
            f"in the best of {DRAWS} random subspaces of three dimensions."
        )
    about = record.subject
    note = (
        f"{about.selection}Medians of {len(about.heads)} heads, on prompts that made no feature. The verdict asks for "
        f"{MOST} of keys by order, more than in these random subspaces; and by thing for {MOST} and more than these in "
        f"its own subspace, but {_LESS} less in the components. {CROSSED} {about.means} {about.stand_in}"
    )
    return Told("\n".join(lines), numbers, note)


def draw(record: Unprojected) -> dict[str, Figure]:
    """The first components of the first head."""
    figures = {}
    for name, own in record.found.items():
        q, k, labels = own.cloud
        title = f"Whole queries and keys of head {head_name(record.subject.heads[0])}, by {name}"
        figures[f"pca-{name}"] = pca_figure(q, k, labels, labels, title=title, ordered=name == "order")
    return figures


RUNS: dict[str, Attempt] = {"cc-fig17": Experiment(measure, judge, tell, draw, heeds=AS_PRINTED)}
