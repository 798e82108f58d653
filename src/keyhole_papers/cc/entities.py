"""Do the ranks of order and lexical features stop growing with the number of boxes?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from keyhole.contrast.data.sites import Contrast
from keyhole.contrast.features.finding import Features, RankRule, find_features
from keyhole.contrast.onepass.collect import collect
from keyhole.contrast.recipes.boxes import lexical_contrast, order_contrast
from keyhole.contrast.recipes.sweep import RankRow
from keyhole.figures.contrast.ranks import RankCurve, plateau, rank_figure
from keyhole.models.heads import Head, head_name
from keyhole_papers.cc.studies import studied, wording
from keyhole_papers.cc.subject import CROSSED, MERE_SHIFT, Subject, subject
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

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
    found: Mapping[str, Sequence[Swept]]


def measure(job: Job) -> Sweep:
    """Ranks of both contrasts with more and more boxes, centred and not."""
    n = 60 if job.model is None and job.quick else 400 if job.model is None else 1000
    n = 3000 if job.choices.as_printed and not job.quick else n
    about = subject(job, "boxes", "cc-fig16")
    return Sweep(about, n, {name: _swept(job, about.heads[:_SWEPT], make, n) for name, make in _MAKERS.items()})


def _swept(job: Job, heads: Sequence[Head], make: Callable[..., Contrast], n: int) -> list[Swept]:
    model, counts = studied(job.asked, "boxes").test.model, (2, 3, 4) if job.quick else (2, 3, 4, 5, 6, 7, 8, 9)
    centred: dict[int, Features] = {}
    plain: dict[int, Features] = {}
    for count in counts:
        seen = collect(model, make(model, n=n, seed=2 * job.seed, n_boxes=count, **wording(model, job.model)))
        centred[count] = find_features(seen, centre="each", permutations=20 if job.quick else 200)
        plain[count] = find_features(seen, centre="none", permutations=0)
        job.progress(len(plain), len(counts))
    last = plain[counts[-1]]
    return [
        Swept(
            head,
            counts,
            [RankRow(head, count, *(own.rank(head, rule) for rule in _RULES)) for count, own in centred.items()],
            [own.rank(head, "energy") for own in plain.values()],
            float(last.mean_shift[last.at(head)]),
            printed=job.choices.as_printed,
        )
        for head in heads
    ]


def judge(record: Sweep) -> Verdict:
    """Do both ranks of most heads stop growing, and differ between heads of the published model?"""
    by_head = [all(one.stops_growing for one in own) for own in zip(*record.found.values(), strict=True)]
    stopped = 2 * sum(by_head) > len(by_head)
    differ = any(len({one.ranks[-1] for one in own}) > 1 for own in record.found.values())
    holds = stopped and (differ or not record.subject.published) and record.subject.passed
    return record.subject.verdict(holds, part=stopped)


def tell(record: Sweep) -> Told:
    """Does the rank stop growing with the number of boxes?"""
    numbers: Numbers = {}
    lines = []
    for name, own in record.found.items():
        for one in own:
            key = f"{name} {head_name(one.head)}"
            centred = [float(row.energy) for row in one.centred]
            numbers |= {key: centred, f"{key} uncentred": [*map(float, one.uncentred)]}
            numbers[f"{key} mean shift"] = one.shift
            lines.append(f"{name} in {head_name(one.head)}: {_told(one)}")
    printed = any(one.printed for own in record.found.values() for one in own)
    means = "a difference of means is of rank one whatever the number of boxes"
    which = (
        f"Ranks of uncentred contrasts are judged, as printed; centred ones are told beside them, for {means}. "
        if printed
        else f"Contrasts are centred: uncentred ones, the paper's, are told beside them, and {means}. "
    )
    note = (
        f"{record.subject.selection}{record.prompts:,} prompts for each number of boxes"
        f"{'' if record.prompts == 3000 else ' instead of 3,000'}. {which}"
        f"The verdict asks of most heads that both ranks grow first (by {_GROWTH} or more, and so "
        "does the number of singular values above permuted labels) and end in three or more counts that agree within "
        "one and do not rise; of the published model also that heads differ in rank. "
        f"{CROSSED} {record.subject.stand_in}"
    )
    counts = record.found["order"][0].counts
    return Told("\n".join([f"Ranks at 99 % energy with {counts[0]} to {counts[-1]} boxes.", *lines]), numbers, note)


def _told(one: Swept) -> str:
    last = one.centred[-1]
    how = "still changing" if one.start is None else f"steady from {one.start} boxes" if one.grown else "never growing"
    above = f"{last.null} above permuted labels with {last.entities} boxes"
    mere = ", a mere difference of means" if one.shift > MERE_SHIFT else ""
    centred, plain = (", ".join(map(str, own)) for own in ([row.energy for row in one.centred], one.uncentred))
    means = f"{one.shift:.2f} is a difference of means{mere}"
    if one.printed:
        return f"{plain} uncentred, of which {means}, {how}; centred {centred} ({above})."
    return f"{centred}, {how} ({above}); uncentred {plain}, of which {means}."


def draw(record: Sweep) -> dict[str, Figure]:
    """Ranks against the number of boxes, a picture per contrast."""
    figures = {}
    for name, own in record.found.items():
        curves = [
            RankCurve(head_name(one.head), one.counts, one.ranks, tuple(row.null for row in one.centred))
            for one in own[:_DRAWN]
        ]
        figures[f"ranks-{name}"] = rank_figure(curves, title=f"Rank of {name} against the number of entities")
    return figures


RUNS: dict[str, Attempt] = {"cc-fig16": Experiment(measure, judge, tell, draw, heeds=AS_PRINTED)}
