"""Order and lexical features of boxes: do their ranks stop growing with the number of boxes, and what do they explain?

One row of logits, split over both features, for each of some prompts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from keyhole.brief import Head, head_name
from keyhole.features.contrast.attribution import Attribution, attribute
from keyhole.features.contrast.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.features.contrast.collect import collect
from keyhole.features.contrast.figures import attribution_figure
from keyhole.features.contrast.finding import Feature, Features, RankRule, find_features
from keyhole.features.contrast.lists import RankRow
from keyhole.features.contrast.places import resolve
from keyhole.features.contrast.ranks import RankCurve, plateau, rank_figure
from keyhole.features.contrast.sites import Contrast
from keyhole.features.contrast.subspace import random_bases
from keyhole.models.model import Model
from keyhole.models.tokens import one_token_words
from keyhole.stats import Interval
from keyhole.tasks.words import THINGS
from keyhole_papers.cc import CROSSED, MERE_SHIFT, Subject, boxes_of, studied, subject, wording
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, of_part

_MAKERS: dict[str, Callable[..., Contrast]] = {
    "order": order_contrast,
    "lexical": partial(lexical_contrast, cross=True),
}
_RULES: tuple[RankRule, ...] = ("energy", "null", "halves")
_GROWTH = 2  # ranks: one is within the slack of a plateau
_SWEPT, _DRAWN = 8, 6  # heads
_HEAD = (16, 1)  # published
_BOXES = 4  # of its example


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


def measure_ranks(job: Job) -> Sweep:
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


def ranks(record: Sweep) -> Findings:
    """Do both ranks of most heads stop growing, and differ between heads of the published model?"""
    about, rows = record.subject, list[Finding]()
    for name, own in record.found.items():
        rows += of_part(name, *(row for swept in own for row in _rows_of(swept)), joint=" ")
    by_head = [all(one.stops_growing for one in own) for own in zip(*record.found.values(), strict=True)]
    stopped = 2 * sum(by_head) > len(by_head)
    differ = any(len({one.ranks[-1] for one in own}) > 1 for own in record.found.values())
    if about.published:
        rows.append(Finding("ranks of heads", "differ" if differ else "do not differ", "a difference", differ))
    means = "a difference of means is of rank one whatever the number of boxes"
    which = f"Contrasts are centred: uncentred ones, the paper's, are told beside them, and {means}."
    if any(one.printed for own in record.found.values() for one in own):
        which = f"Ranks of uncentred contrasts are judged, as printed; centred ones are told beside them, for {means}."
    counts = record.found["order"][0].counts
    remark = (
        f"Ranks at 99 % energy with {counts[0]} to {counts[-1]} boxes. {record.prompts:,} prompts for each number of "
        f"boxes{'' if record.prompts == 3000 else ' instead of 3,000'}. {which} The verdict asks of most heads that "
        f"both ranks do it. {CROSSED}"
    )
    holds = stopped and (differ or not about.published) and about.passed
    return about.findings(rows, holds=holds, part=stopped, remark=remark)


def _rows_of(one: Swept) -> list[Finding]:
    course = (
        "still changing" if one.start is None else f"steady from {one.start} boxes" if one.grown else "never growing"
    )
    mere = ", a mere difference of means" if one.shift > MERE_SHIFT else ""
    claim = (
        f"that it grows first (by {_GROWTH} or more, and so does the number of singular values above permuted labels) "
        "and ends in three or more counts that agree within one and do not rise",
        one.stops_growing,
    )
    centred, plain = (("", None), claim) if one.printed else (claim, ("", None))
    head = head_name(one.head)
    return [
        Finding(head, [row.energy for row in one.centred], *centred),
        Finding(f"{head} uncentred", one.uncentred, *plain),
        Finding(f"{head} mean shift", one.shift, digits=2),
        Finding(f"{head} above permuted labels", [row.null for row in one.centred]),
        Finding(f"{head} course", f"{course}{mere}"),
    ]


def draw_ranks(record: Sweep) -> dict[str, Figure]:
    """Ranks against the number of boxes, a picture per contrast."""
    figures = {}
    for name, own in record.found.items():
        curves = [
            RankCurve(head_name(one.head), one.counts, one.ranks, tuple(row.null for row in one.centred))
            for one in own[:_DRAWN]
        ]
        figures[f"ranks-{name}"] = rank_figure(curves, title=f"Rank of {name} against the number of entities")
    return figures


@dataclass(frozen=True)
class Row:
    """One row of logits: what features explain, and how they part the right box from the others."""

    explained: float
    differences: float
    order: float  # the right box against the mean of the others
    lexical: float
    wrong: float  # largest lexical part of a wrong box
    random: float  # explained differences of random subspaces of the same ranks
    random_lexical: float  # their gap
    random_wrong: float  # and their largest part of a wrong box


@dataclass(frozen=True)
class Attributed:
    """The rows of one head, one per prompt, and the first as it is drawn."""

    subject: Subject
    head: Head
    boxes: int  # of the prompts that made the features
    rows: Sequence[Row]
    tokens: Sequence[str]
    split: Attribution
    right: Sequence[int]  # boxes, by position


def measure_logits(job: Job) -> Attributed:
    """Split rows of logits over the features of the published head, or of the best one."""
    about, study = subject(job, "boxes", "cc-fig10"), studied(job.asked, "boxes")
    model, frame = study.test.model, study.test.frame
    head = _HEAD if about.published else about.heads[0]
    features = study.of(head)
    asked = resolve(model, boxes_test(model, 4 if job.quick else 32, seed=2 * job.seed + 1, **_four(model, job)))
    rows, drawn = [], []
    for slot in range(len(asked.slots)):
        prompt, at = asked.slots.query[slot].tolist()
        run = model.run(asked.prompts[prompt].ids)
        split = attribute(run, features, at, frame=frame)
        other = attribute(run, [_random(one, slot) for one in features], at, frame=frame)
        keys, sign = asked.slots.keys[slot][:, 1] - split.first, asked.slots.sign[slot]
        right, wrong = keys[sign == 1].tolist(), keys[sign == -1].tolist()
        rows.append(_row(split, other, right, wrong))
        drawn.append(([token.strip() or "·" for token in run.tokens[split.first : at + 1]], split, right))
    return Attributed(about, head, boxes_of(job.asked), rows, *drawn[0])


def _row(split: Attribution, other: Attribution, right: list[int], wrong: list[int]) -> Row:
    """Read one row; parts are order and lexical, in this order."""

    def gap(of: Attribution, part: int) -> float:
        return float(of.parts[part][right].mean() - of.parts[part][wrong].mean())

    return Row(
        explained=split.explained,
        differences=split.explained_differences,
        order=gap(split, 0),
        lexical=gap(split, 1),
        wrong=float(split.parts[1][wrong].max()),
        random=other.explained_differences,
        random_lexical=gap(other, 1),
        random_wrong=float(other.parts[1][wrong].max()),
    )


def _random(feature: Feature, seed: int) -> Feature:
    (basis,) = random_bases(len(feature.U), feature.rank, 1, 2 * seed + (feature.name == "order"))
    return Feature(feature.name, feature.head, basis, basis, feature.S)


def _four(model: Model, job: Job) -> dict[str, Any]:
    """Fewer boxes that ask about the same unseen things as the study's test."""
    usable = one_token_words(model, THINGS)
    things = (*usable[:_BOXES], *usable[boxes_of(job.asked) :])
    return {"n_boxes": _BOXES, "things": things, **wording(model, job.model)}


def logits(record: Attributed) -> Findings:
    """Is more explained than at random, most by the thing, and some of that at wrong boxes?"""
    about, split = record.subject, record.rows
    gains = {
        "lexical beyond order": [row.lexical - row.order for row in split],
        "lexical beyond random": [row.lexical - row.random_lexical for row in split],
        "differences beyond random": [row.differences - row.random for row in split],
        "some of it at a wrong box": [row.wrong for row in split],
        "that beyond random": [row.wrong - row.random_wrong for row in split],
    }
    rows = [Finding(name, [getattr(row, name) for row in split], digits=2) for name in vars(split[0])]
    for name, values in gains.items():
        gain = Interval.over(values)
        rows.append(Finding(name, gain, "above 0 (95 % over prompts)", gain.low > 0, digits=2))
    remark = (
        f"Head {head_name(record.head)}, {len(split)} prompts with {_BOXES} boxes, as in the published example; "
        f"features of {record.boxes} boxes. Explained: of the logits, and of their differences; order and lexical: how "
        "they part the right box from the others; wrong: largest lexical part of a wrong box; random: of other random "
        "subspaces of the same ranks for each prompt. That parts sum to the logit is exact by design. The verdict asks "
        f"for all, and for nothing where a contrast is a mere difference of means. {CROSSED} {about.means} Brackets: "
        "smallest and largest of the prompts."
    )
    holds = all(row.holds for row in rows if row.holds is not None)
    chosen = about.passed or record.head == _HEAD
    return about.findings(rows, holds=holds and chosen and not about.mere, remark=remark)


def draw_logits(record: Attributed) -> dict[str, Figure]:
    """The first row."""
    split, title = record.split, f"Logits of head {head_name(record.head)} of {record.subject.model}"
    figure = attribution_figure(
        record.tokens, split.parts, split.logits, list(split.names), marked=record.right, title=title
    )
    return {"attribution": figure}


RUNS: dict[str, Attempt] = {
    "cc-fig10": Experiment(measure_logits, logits, draw_logits, heeds=AS_PRINTED),
    "cc-fig16": Experiment(measure_ranks, ranks, draw_ranks, heeds=AS_PRINTED),
}
