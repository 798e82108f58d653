"""Does attention become sparse while a model learns? Task heads of Pythia-160M, or of small models trained here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from keyhole.lab.heads.figures import contributions_figure
from keyhole.lab.training.checkpoints import PYTHIA_160M
from keyhole.lab.training.curves import Point, change, curve, gap
from keyhole.lab.training.figures import emergence_figure
from keyhole.lab.training.watched import Source, Split, Watched, watched
from keyhole.stats import as_text, wilson
from keyhole_papers.choices import REVISIONS
from keyhole_papers.job import Attempt, Job, torch_dtype
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

_A_FIGURE = 4  # heads drawn side by side
_FEW = 4 / 64  # of a head's channels: the published 1 to 4 are of Pythia's 64
_CONTROLS = ("ambient control", "refactor control")
_ROLES = {place.role for place in PYTHIA_160M.places}


@dataclass(frozen=True)
class _Seen:
    """Trainings that were watched."""

    seen: Watched

    @property
    def stand_in(self) -> bool:
        """Is it another model than Pythia-160M, or small ones that were trained here?"""
        return not self.seen.published

    def verdict(self, holds: Sequence[bool]) -> Verdict:
        """Half of what was published is a part of it. Others show no more than a part; nor do they refute it."""
        half = 2 * sum(holds) >= len(holds)
        if self.stand_in:
            return "partly" if half else "needs a model"
        return "reproduced" if all(holds) else "partly" if half else "not"


@dataclass(frozen=True)
class Changes(_Seen):
    """What becomes of a measure and of its controls, by what a report calls them."""

    found: Mapping[str, Point]
    others: Point | None = None  # the measure, in heads without a role

    @property
    def numbers(self) -> Numbers:
        """Means with their intervals, where they have one."""
        found = self.found.items()
        return {name: one.mean if math.isnan(one.low) else [one.mean, one.low, one.high] for name, one in found}


def _below(one: Point) -> bool:
    """Is it below zero beyond doubt? One head alone has no interval, and leaves every doubt."""
    return not math.isnan(one.high) and one.high < 0


def _text(one: Point, digits: int = 3) -> str:
    return as_text(one.interval, digits)


def _draw_changes(record: Changes, *, by_role: bool = False) -> Mapping[str, Figure]:
    seen, title = record.seen, "Task heads over training"
    draw = partial(emergence_figure, seen.heads, window=seen.window, over=seen.over, unit=seen.unit)
    figures = {"emergence": draw(title=title)}
    if by_role:
        figures["roles"] = draw(by_role=True, title=f"{title}, by role")
    return figures


def _watched(job: Job) -> Watched:
    """The trainings of a job, made and measured once for all figures."""
    choices = job.choices
    how = job.device, torch_dtype(choices.dtype), job.quick, job.seed, job.progress
    return watched(Source(job.model, choices.revisions, *how), job.folder.parent / "trained")


def measure_fall(job: Job) -> Changes:
    """Does S(v) of task heads fall, and beyond both controls?"""
    seen = _watched(job)
    asked: dict[str, tuple[str, str | None]]
    asked = {"S(v)": ("sparsity", None), "ambient control": ("ambient", None), "refactor control": ("refactor", None)}
    asked |= {"S(v) beyond ambient": ("sparsity", "ambient"), "S(v) beyond refactor": ("sparsity", "refactor")}
    moved = partial(change, window=seen.window, over=seen.over)
    found = {name: moved(seen.heads, one, against=other) for name, (one, other) in asked.items()}
    return Changes(seen, found, None if seen.others is None else moved(seen.others))


def fall(found: Mapping[str, Point]) -> list[bool]:
    """Does S(v) fall; more than each control; and do these not fall? Without the first, the others say nothing."""
    fell = _below(found["S(v)"])
    beyond = [_below(found[name]) for name in ("S(v) beyond ambient", "S(v) beyond refactor")]
    return [fell, *(fell and one for one in beyond), *(fell and not _below(found[name]) for name in _CONTROLS)]


def _judge_fall(record: Changes) -> Verdict:
    return record.verdict(fall(record.found))


def _tell_fall(record: Changes) -> Told:
    steps, numbers = record.seen.heads.steps, record.numbers
    lines = [f"{name} changes by {_text(one)}." for name, one in record.found.items()]
    if record.others is not None:
        numbers["S(v) of heads without a role"] = [record.others.mean, record.others.low, record.others.high]
        lines.append(f"S(v) of heads without a role, at the same places, changes by {_text(record.others)}.")
    fallen = " and ".join(name for name in _CONTROLS if _below(record.found[name]))
    note = f"The published control does not fall; here it falls too ({fallen}). " if fallen else ""
    kind = "Steps" if record.seen.unit == "training step" else "Checkpoints"
    measured = "\n".join([f"{kind} {steps[0]:,} to {steps[-1]:,}:", *lines])
    return Told(measured, numbers, note + record.seen.about)


def measure_counts(job: Job) -> Changes:
    """Does N_recon fall, and end at as small a share of the channels as 1 to 4 of 64, fewer than rotated ones?"""
    seen = _watched(job)
    how: dict[str, Any] = {"window": seen.window, "over": seen.over}
    points = curve(seen.heads, "n_recon", **how)
    found = {
        "change": change(seen.heads, "n_recon", **how),
        "change beyond refactor": change(seen.heads, "n_recon", against="n_recon_refactor", **how),
        "first": points[0],
        "last": points[-1],
        "last, refactor": curve(seen.heads, "n_recon_refactor", **how)[-1],
        "last beyond refactor": gap(seen.heads, "n_recon", "n_recon_refactor", **how),
    }
    return Changes(seen, found)


def _judge_counts(record: Changes) -> Verdict:
    few = is_few(record.found["last"].mean, record.seen.heads.channels)
    return record.verdict([_below(record.found["change"]), few and _below(record.found["last beyond refactor"])])


def is_few(n_recon: float, channels: int) -> bool:
    """Is that at least one, and no larger a share of the channels than 4 of 64?

    >>> is_few(4.0, 64), is_few(4.0, 16), is_few(1.0, 16)
    (True, False, True)
    """
    return 1 <= n_recon <= _FEW * channels


def _tell_counts(record: Changes) -> Told:
    found, channels = record.found, record.seen.heads.channels
    share = found["last"].mean / channels
    measured = (
        f"N_recon goes from {_text(found['first'], 1)} to {_text(found['last'], 1)} of {channels} channels, a share "
        f"of {share:.2f}, where 4 of 64 are {_FEW:.2f} (in rotated channels {_text(found['last, refactor'], 1)}, a "
        f"difference of {_text(found['last beyond refactor'], 1)}). Where it is defined at both ends it changes by "
        f"{_text(found['change'], 2)}, beyond the rotated one by {_text(found['change beyond refactor'], 2)}."
    )
    note = (
        "N_recon needs positive relative attention. The verdict asks for the published share of a head's channels, at "
        f"most {_FEW:.4g}, and for a fall; fewer than in rotated channels alone is not what is shown. "
    )
    return Told(measured, record.numbers | {"last, share of channels": share}, note + record.seen.about)


@dataclass(frozen=True)
class Decomposed(_Seen):
    """Single decompositions of heads, at the first checkpoint and at the last; shares are of these heads."""

    few: bool  # one head a role, some of which use small singular values
    chosen: Sequence[Split]
    fell: int  # sparser at the end
    again: float  # rotated, nearer to the start than to the end
    small: float  # with the largest term not in the first quarter of singular values
    below: float  # share of all heads and prompts, at the end: S(v) below both controls


def measure_splits(job: Job, most: int | None) -> Decomposed:
    """Is relative attention spread at the start and sparse at the end, head by head, and not in rotated bases?"""
    seen = _watched(job)
    chosen = _one_each(seen.splits)[:most] if most else seen.splits
    rows = [row for row in seen.heads.rows[-1] if not math.isnan(row.sparsity)]
    terms = [one.last.relative_terms for one in chosen]
    back = [spread_again(one.first.sparsity, one.last.sparsity, one.spread) for one in chosen]
    return Decomposed(
        seen,
        few=most is not None,
        chosen=chosen,
        fell=sum(one.last.sparsity < one.first.sparsity for one in chosen),
        again=sum(back) / len(chosen),
        small=sum(int(one.argmax()) >= len(one) / 4 for one in terms) / len(chosen),
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
    kept = [split for split in splits if any(split is one for one in first.values())]
    return (*kept, *(split for split in splits if not any(split is one for one in kept)))


def _judge_splits(record: Decomposed) -> Verdict:
    mostly = wilson(record.fell, len(record.chosen))[1] > 0.5
    holds = [mostly, mostly and record.below > 0.5 and record.again > 0.5]
    return record.verdict([*holds, *([mostly and record.small >= 0.25] if record.few else [])])


def _tell_splits(record: Decomposed) -> Told:
    starts, ends = [one.first.sparsity for one in record.chosen], [one.last.sparsity for one in record.chosen]
    turned, sparser = [one.spread for one in record.chosen], record.fell / len(record.chosen)
    each = "; ".join(
        f"{one.last.layer}.{one.last.head} ({one.name}) {start:.2f} to {end:.2f}, rotated {one.spread:.2f}"
        for one, start, end in zip(record.chosen, starts, ends, strict=True)
    )
    measured = (
        f"S(v) from the first checkpoint to the last, and of the last in rotated channels: {each}. Sparser at the end "
        f"in {sparser:.0%} of these heads; rotated, nearer to the start than to the end in {record.again:.0%}. At the "
        f"end, over all heads and prompts, S(v) lies below both rotated controls in {record.below:.0%}. The largest "
        f"term is not in the first quarter of singular values in {record.small:.0%}."
    )
    numbers: Numbers = {"S(v) at the start": starts, "S(v) at the end": ends, "S(v), rotated": turned}
    numbers |= {"sparser": sparser, "spread again": record.again}
    numbers |= {"below both controls": record.below, "largest term in small singular values": record.small}
    note = (
        "Most heads: more than a coin would show (Wilson's lower bound above a half), without which nothing else "
        f"counts. One prompt per head, and one rotation of many, are drawn. {record.seen.about}"
    )
    return Told(measured, numbers, note)


def _draw_splits(record: Decomposed) -> Mapping[str, Figure]:
    start, end = record.seen.heads.steps[0], record.seen.heads.steps[-1]
    figures = {}
    for name, step, part in (("start", start, "first"), ("end", end, "last"), ("rotated", end, "rotated")):
        rotated, splits = name == "rotated", [getattr(one, part) for one in record.chosen]
        title = f"Terms of relative attention{' in rotated channels' if rotated else ''}, step {step:,}"
        for number, i in enumerate(range(0, len(splits), _A_FIGURE), start=1):
            drawn = contributions_figure(splits[i : i + _A_FIGURE], relative=True, rotated=rotated, title=title)
            figures[f"{name}-{number}"] = drawn
    return figures


@dataclass(frozen=True)
class Roles(_Seen):
    """Heads by role."""

    looks: Mapping[tuple[str, str, str], float]  # by source, role and head: attention to the token of the role
    strong: int  # give a tenth of their attention or more
    published: Sequence[str]  # roles that heads play here too


def measure_roles(job: Job) -> Roles:
    """Which heads look where the circuit needs it, and how much of their attention do they give to it?"""
    seen = _watched(job)
    rows: dict[tuple[str, str, str], list[float]] = {}
    for row in seen.heads.rows[-1]:
        rows.setdefault((row.source, row.role, f"{row.head[0]}.{row.head[1]}"), []).append(row.attention)
    looks = {key: sum(values) / len(values) for key, values in rows.items()}
    strong = sum(value >= 0.1 for value in looks.values())
    return Roles(seen, looks, strong, sorted({role for _, role, _ in looks} & _ROLES))


def _judge_roles(record: Roles) -> Verdict:
    holds = len(record.published) >= 2 if record.stand_in else record.strong >= 0.75 * len(record.looks)
    return record.verdict([holds])


def _tell_roles(record: Roles) -> Told:
    first, note = f"{record.strong} of {len(record.looks)} heads give a tenth or more.", record.seen.about
    if record.stand_in:
        found = ", ".join(record.published) or "none"
        first = f"Of the roles {', '.join(sorted(_ROLES))}, heads were found for {found}."
        note = f"Other heads than the published ones, found by where they look. {note}"
    looks = record.looks.items()
    lines = [f"{source}: {role} {head}, attention {value:.2f}." for (source, role, head), value in looks]
    return Told("\n".join([first, *lines]), {" ".join(key): value for key, value in looks}, note)


_four, _all = (partial(measure_splits, most=most) for most in (_A_FIGURE, None))
RUNS: dict[str, Attempt] = {
    "svf-fig6b": Experiment(
        measure_fall, _judge_fall, _tell_fall, partial(_draw_changes, by_role=True), heeds=REVISIONS
    ),
    "svf-fig7": Experiment(_four, _judge_splits, _tell_splits, _draw_splits, heeds=REVISIONS),
    "svf-fig8b": Experiment(measure_counts, _judge_counts, _tell_counts, _draw_changes, heeds=REVISIONS),
    "svf-fig20": Experiment(_all, _judge_splits, _tell_splits, _draw_splits, heeds=REVISIONS),
    "svf-table2": Experiment(measure_roles, _judge_roles, _tell_roles, heeds=REVISIONS),
}
