"""Does attention become sparse while a model learns? Task heads of Pythia-160M or of small models; heads of GPT-2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from keyhole.errors import MissingModelError
from keyhole.lab.checkpoints import PYTHIA_160M
from keyhole.lab.head_figures import contributions_figure, n_recon_figure
from keyhole.lab.head_summary import Spread, Summary, pooled, summaries, summarise
from keyhole.lab.sparse import SparseStudy
from keyhole.lab.training_curves import Point, change, curve, emergence_figure, gap
from keyhole.lab.watched import Source, Split, Watched, watched
from keyhole.stats import Interval, wilson
from keyhole_papers.experiment import REVISIONS, Attempt, Experiment, Job, torch_dtype
from keyhole_papers.finding import Finding, Findings, Provenance, rows_of
from keyhole_papers.svt import measured, prompted

_A_FIGURE = 4  # heads drawn side by side
_FEW = 4 / 64  # of a head's channels: the published 1 to 4 are of Pythia's 64
_FEW_OF_GPT2 = 1 / 3  # of a head's channels
_CONTROLS = ("ambient control", "refactor control")
_MEASURES = [  # by what a report calls them; against another one, or None
    *(("S(v)", "sparsity", None), ("ambient control", "ambient", None), ("refactor control", "refactor", None)),
    *(("S(v) beyond ambient", "sparsity", "ambient"), ("S(v) beyond refactor", "sparsity", "refactor")),
]
_ROLES = {place.role for place in PYTHIA_160M.places}


@dataclass(frozen=True)
class _Followed:
    of: Provenance
    watched: Watched  # the trainings


@dataclass(frozen=True)
class Changes(_Followed):
    """What becomes of a measure and of its controls, by what a report calls them."""

    points: Mapping[str, Point]
    others: Point | None = None  # the measure, in heads without a role


def _draw_changes(record: Changes, *, by_role: bool = False) -> Mapping[str, Figure]:
    watched, title = record.watched, "Task heads over training"
    draw = partial(emergence_figure, watched.heads, window=watched.window, over=watched.over, unit=watched.unit)
    roles = {"roles": draw(by_role=True, title=f"{title}, by role")} if by_role else {}
    return {"emergence": draw(title=title), **roles}


def _watched(job: Job) -> tuple[Provenance, Watched]:
    """The trainings of a job, made and measured once for all figures."""
    how = job.device, torch_dtype(job.dtype), job.quick, job.seed, job.progress
    trainings = watched(Source(job.model, job.revisions, *how), job.folder.parent / "trained")
    return Provenance(job.model or "What was trained here", trainings.published, "Pythia-160M"), trainings


def measure_fall(job: Job) -> Changes:
    """Does S(v) of task heads fall, and beyond both controls?"""
    of, trainings = _watched(job)
    moved = partial(change, window=trainings.window, over=trainings.over)
    points = {name: moved(trainings.heads, measure, against=other) for name, measure, other in _MEASURES}
    return Changes(of, trainings, points, None if trainings.others is None else moved(trainings.others))


def fall(points: Mapping[str, Point]) -> list[bool]:
    """Does S(v) fall; more than each control; and do these not fall? Without the first, the others say nothing."""
    fell = points["S(v)"].high < 0  # one head alone has no interval, and leaves every doubt: NaN is not below 0
    beyond = [points[name].high < 0 for name in ("S(v) beyond ambient", "S(v) beyond refactor")]
    return [fell, *(fell and flag for flag in beyond), *(fell and not points[name].high < 0 for name in _CONTROLS)]


def falls(record: Changes) -> Findings:
    """Does S(v) fall, beyond both controls, which do not?"""
    names = ("S(v)", "S(v) beyond ambient", "S(v) beyond refactor", *_CONTROLS)
    claims = dict(zip(names, fall(record.points), strict=True))
    steps, kind = record.watched.heads.steps, "Steps" if record.watched.unit == "training step" else "Checkpoints"
    rows = [Finding(kind, f"{steps[0]:,} to {steps[-1]:,}")]
    for name, point in record.points.items():
        claim = "S(v) falls, and no fall of this" if name in _CONTROLS else "a fall"
        rows.append(Finding(name, Interval.of(point), claim, claims[name]))
    if record.others is not None:
        rows.append(Finding("S(v) of heads without a role", Interval.of(record.others)))
    fallen = " and ".join(name for name in _CONTROLS if record.points[name].high < 0)
    also = f"The published control does not fall; here it falls too ({fallen}). " if fallen else ""
    remark = f"Numbers are changes; a fall is beyond doubt. {also}{record.watched.about}"
    return Findings(rows, record.of, remark=remark)


def measure_counts(job: Job) -> Changes:
    """Does N_recon fall, and end at as small a share of the channels as 1 to 4 of 64, fewer than rotated ones?"""
    of, trainings = _watched(job)
    how: dict[str, Any] = {"window": trainings.window, "over": trainings.over}
    course = curve(trainings.heads, "n_recon", **how)
    points = {
        "change": change(trainings.heads, "n_recon", **how),
        "change beyond refactor": change(trainings.heads, "n_recon", against="n_recon_refactor", **how),
        "first": course[0],
        "last": course[-1],
        "last, refactor": curve(trainings.heads, "n_recon_refactor", **how)[-1],
        "last beyond refactor": gap(trainings.heads, "n_recon", "n_recon_refactor", **how),
    }
    return Changes(of, trainings, points)


def is_few(n_recon: float, channels: int) -> bool:
    """Is that at least one, and no larger a share of the channels than 4 of 64?

    >>> is_few(4.0, 64), is_few(4.0, 16), is_few(1.0, 16)
    (True, False, True)
    """
    return 1 <= n_recon <= _FEW * channels


def counts(record: Changes) -> Findings:
    """Does N_recon fall, to the published share of the channels?"""
    points, channels = record.points, record.watched.heads.channels
    few = is_few(points["last"].mean, channels) and points["last beyond refactor"].high < 0
    claims = {
        "change": ("a fall beyond doubt", points["change"].high < 0),
        "last": (f"at most {_FEW:.4g} of the channels, 1 or more, and fewer than in rotated ones beyond doubt", few),
    }
    rows = rows_of({name: Interval.of(point) for name, point in points.items()}, claims)
    rows += rows_of({"last, share of channels": points["last"].mean / channels})
    remark = (
        f"N_recon of {channels} channels; it needs positive relative attention, and changes are of where it is "
        "defined at both ends. Fewer than in rotated channels (refactor) alone is not what is shown. "
    )
    return Findings(rows, record.of, remark=remark + record.watched.about)


@dataclass(frozen=True)
class Decomposed(_Followed):
    """Single decompositions of heads, at the first checkpoint and at the last; shares are of these heads."""

    few: bool  # one head a role, some of which use small singular values
    chosen: Sequence[Split]
    fell: int  # sparser at the end
    again: float  # rotated, nearer to the start than to the end
    small: float  # with the largest term not in the first quarter of singular values
    below: float  # share of all heads and prompts, at the end: S(v) below both controls


def measure_splits(job: Job, most: int | None) -> Decomposed:
    """Is relative attention spread at the start and sparse at the end, head by head, and not in rotated bases?"""
    of, trainings = _watched(job)
    chosen = _one_each(trainings.splits)[:most] if most else trainings.splits
    rows = [row for row in trainings.heads.rows[-1] if not math.isnan(row.sparsity)]
    terms = [split.last.relative_terms for split in chosen]
    back = [spread_again(split.first.sparsity, split.last.sparsity, split.spread) for split in chosen]
    return Decomposed(
        of,
        trainings,
        few=most is not None,
        chosen=chosen,
        fell=sum(split.last.sparsity < split.first.sparsity for split in chosen),
        again=sum(back) / len(chosen),
        small=sum(int(sizes.argmax()) >= len(sizes) / 4 for sizes in terms) / len(chosen),
        below=sum(row.sparsity < min(row.ambient, row.refactor) for row in rows) / max(len(rows), 1),
    )


def spread_again(start: float, end: float, rotated: float) -> bool:
    """Was it spread, is it sparse, and does a rotation bring it nearer to the start than to the end?

    >>> spread_again(0.5, 0.1, 0.4), spread_again(0.5, 0.1, 0.2), spread_again(0.1, 0.5, 0.6)
    (True, False, False)
    """
    return end < (start + end) / 2 < rotated


def _one_each(splits: Sequence[Split]) -> tuple[Split, ...]:
    """One head a role first, then the others."""
    first = {split.name.partition(",")[0]: split for split in reversed(splits)}
    kept = {id(split) for split in first.values()}  # splits have tensors, which cannot be compared
    return tuple(sorted(splits, key=lambda split: id(split) not in kept))


def splits(record: Decomposed) -> Findings:
    """Are heads sparser at the end, and not in rotated channels?"""
    chosen = record.chosen
    mostly = wilson(record.fell, len(chosen))[1] > 0.5
    apart = mostly and record.below > 0.5 and record.again > 0.5
    both = "most, and as many below both controls"
    claim, small = ("a quarter or more", mostly and record.small >= 0.25) if record.few else ("", None)
    rows = [
        Finding("sparser", record.fell / len(chosen), "most", mostly, percent=True),
        Finding("spread again", record.again, both, apart, percent=True),
        Finding("below both controls", record.below, percent=True),
        Finding("largest term in small singular values", record.small, claim, small, percent=True),
    ]
    first, last = ([getattr(split, end).sparsity for split in chosen] for end in ("first", "last"))
    spread = [split.spread for split in chosen]
    rows += rows_of({"S(v) at the start": first, "S(v) at the end": last, "S(v), rotated": spread}, digits=2)
    for split in chosen:
        course = f"{split.first.sparsity:.2f} to {split.last.sparsity:.2f}, rotated {split.spread:.2f}"
        rows.append(Finding("S(v)", course, part=f"{split.last.layer}.{split.last.head} ({split.name})"))
    remark = (
        "Shares of heads. Spread again: rotated, nearer to the start than to the end. Small singular values: not in "
        "the first quarter. Below both controls: of all heads and prompts, at the end. Most heads: more than a coin "
        "would show (Wilson's lower bound above a half), without which nothing else counts. One prompt per head, and "
        f"one rotation of many, are drawn. {record.watched.about}"
    )
    return Findings(rows, record.of, remark=remark)


def _draw_splits(record: Decomposed) -> Mapping[str, Figure]:
    start, end = record.watched.heads.steps[0], record.watched.heads.steps[-1]
    figures = {}
    for name, step, part in (("start", start, "first"), ("end", end, "last"), ("rotated", end, "rotated")):
        rotated, splits = name == "rotated", [getattr(split, part) for split in record.chosen]
        title = f"Terms of relative attention{' in rotated channels' if rotated else ''}, step {step:,}"
        for number, i in enumerate(range(0, len(splits), _A_FIGURE), start=1):
            drawn = contributions_figure(splits[i : i + _A_FIGURE], relative=True, rotated=rotated, title=title)
            figures[f"{name}-{number}"] = drawn
    return figures


@dataclass(frozen=True)
class Roles(_Followed):
    """Heads by role."""

    looks: Mapping[tuple[str, str, str], float]  # by source, role and head: attention to the token of the role
    strong: int  # give a tenth of their attention or more
    published: Sequence[str]  # roles that heads play here too


def measure_roles(job: Job) -> Roles:
    """Which heads look where the circuit needs it, and how much of their attention do they give to it?"""
    of, trainings = _watched(job)
    rows: dict[tuple[str, str, str], list[float]] = {}
    for row in trainings.heads.rows[-1]:
        rows.setdefault((row.source, row.role, f"{row.head[0]}.{row.head[1]}"), []).append(row.attention)
    looks = {key: sum(values) / len(values) for key, values in rows.items()}
    strong = sum(value >= 0.1 for value in looks.values())
    return Roles(of, trainings, looks, strong, sorted({role for _, role, _ in looks} & _ROLES))


def roles(record: Roles) -> Findings:
    """Do heads look where their role needs it, or (of other models) are there heads for these roles?"""
    looks, remark = record.looks, record.watched.about
    if record.of.real:
        strong, holds = f"{record.strong} of {len(looks)}", record.strong >= 0.75 * len(looks)
        row = Finding("heads that give a tenth of their attention or more", strong, "three quarters", holds)
    else:
        wanted, names = ", ".join(sorted(_ROLES)), ", ".join(record.published) or "none"
        row = Finding(f"heads were found, of the roles {wanted}, for", names, "two", len(record.published) >= 2)
        remark = f"Other heads than the published ones, found by where they look. {remark}"
    attention = rows_of({" ".join(key): value for key, value in looks.items()}, digits=2)
    return Findings([row, *attention], record.of, remark=f"Numbers are attention. {remark}")


@dataclass(frozen=True)
class Rebuilt:
    """N_recon of heads that fire; shares are of these heads."""

    of: Provenance
    study: SparseStudy
    channels: int
    heads: int
    small: float  # with a median of few channels
    fewer: float  # with fewer than in rotated bases beyond doubt
    whole: Summary  # all pairs together
    roles: Mapping[str, Spread]  # without those that hardly fire


def measure_gpt2(job: Job) -> Rebuilt:
    """Is N_recon small for most heads, below that of rotated bases, and different between roles?"""
    study, of_job = measured(job), prompted(job)
    each = summaries(study)
    if not each:
        raise MissingModelError(
            f"no head of {of_job.model.name} fires in five of {study.prompts} prompts, so none can be counted: give "
            "another model."
        )
    channels = max(table.channels for table in study.tables)
    small = sum(head.n_recon.median <= channels * _FEW_OF_GPT2 for head in each) / len(each)
    fewer = sum(head.fewer.high < 0 for head in each) / len(each)
    roles = {role: summarise([study.of(head) for head in heads]).n_recon for role, heads in of_job.roles.items()}
    firing = {role: count for role, count in roles.items() if count.low <= count.high}
    return Rebuilt(of_job.of, study, channels, len(each), small, fewer, pooled(study), firing)


def gpt2(rebuilt: Rebuilt) -> Findings:
    """Is N_recon small for most heads, below that of rotated bases, and different between roles?"""
    differ = any(a.high < b.low for a in rebuilt.roles.values() for b in rebuilt.roles.values())
    fewer = rebuilt.fewer > 0.5
    whole, roles = rebuilt.whole, {f"N_recon, {role}": Interval.of(count) for role, count in rebuilt.roles.items()}
    rows = [
        *rows_of({"heads": rebuilt.heads, "channels": rebuilt.channels, "N_recon": Interval.of(whole.n_recon)}),
        Finding("N_recon, rotated", Interval.of(whole.n_rotated)),
        Finding("share of heads with few", rebuilt.small, "most", rebuilt.small > 0.5, percent=True),
        Finding("share of heads below rotated", rebuilt.fewer, "most", fewer, percent=True),
        Finding("roles", ", ".join(rebuilt.roles) or "none fires", "two that differ beyond doubt", differ),
        *rows_of(roles),
    ]
    unless = "N_recon is below that of rotated bases in most heads"
    remark = "Few: a median of a third of the channels or less. Below: beyond doubt. Intervals over prompts."
    return Findings(rows, rebuilt.of, first=fewer, unless=unless, remark=remark)


def _draw_gpt2(rebuilt: Rebuilt) -> Mapping[str, Figure]:
    return {"n-recon": n_recon_figure([rebuilt.study])}


_four, _all = (partial(measure_splits, most=most) for most in (_A_FIGURE, None))
RUNS: dict[str, Attempt] = {
    "svf-fig6b": Experiment(measure_fall, falls, partial(_draw_changes, by_role=True), heeds=REVISIONS),
    "svf-fig7": Experiment(_four, splits, _draw_splits, heeds=REVISIONS),
    "svf-fig8a": Experiment(measure_gpt2, gpt2, _draw_gpt2),
    "svf-fig8b": Experiment(measure_counts, counts, _draw_changes, heeds=REVISIONS),
    "svf-fig20": Experiment(_all, splits, _draw_splits, heeds=REVISIONS),
    "svf-table2": Experiment(measure_roles, roles, heeds=REVISIONS),
}
