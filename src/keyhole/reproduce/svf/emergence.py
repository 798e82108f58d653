"""Does attention become sparse while a model learns? Task heads of Pythia-160M, or of small models trained here."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from keyhole.figures import save
from keyhole.lab.heads.figures import contributions_figure
from keyhole.lab.training.checkpoints import PYTHIA_160M
from keyhole.lab.training.curves import Interval, change, curve, gap
from keyhole.lab.training.figures import emergence_figure
from keyhole.qk.channels import Channels
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome, Verdict
from keyhole.reproduce.svf.trainings import Split, watched
from keyhole.stats import wilson

_A_FIGURE = 4  # heads drawn side by side
_FEW = 4 / 64  # of a head's channels: the published 1 to 4 are of Pythia's 64


def falling(job: Job) -> Outcome:
    """Does S(v) of task heads fall, and beyond both controls?"""
    seen = watched(job)
    asked: dict[str, tuple[str, str | None]]
    asked = {"S(v)": ("sparsity", None), "ambient control": ("ambient", None), "refactor control": ("refactor", None)}
    asked |= {"S(v) beyond ambient": ("sparsity", "ambient"), "S(v) beyond refactor": ("sparsity", "refactor")}
    found = {name: change(seen.heads, one, against=other, over=seen.over) for name, (one, other) in asked.items()}
    beyond = [found["S(v) beyond ambient"], found["S(v) beyond refactor"]]
    holds = fall(found["S(v)"], beyond, [found["ambient control"], found["refactor control"]])
    numbers = _numbers(found)
    lines = [f"{name} changes by {_text(one)}." for name, one in found.items()]
    if seen.others is not None:
        other = change(seen.others, over=seen.over)
        numbers["S(v) of heads without a role"] = [other.mean, other.low, other.high]
        lines.append(f"S(v) of heads without a role, at the same places, changes by {_text(other)}.")
    title = "Task heads over training"
    figures = (
        save(emergence_figure(seen.heads, over=seen.over, title=title), job.folder / "emergence.png"),
        save(
            emergence_figure(seen.heads, over=seen.over, by_role=True, title=f"{title}, by role"),
            job.folder / "roles.png",
        ),
    )
    fallen = " and ".join(name for name in ("ambient control", "refactor control") if _below(found[name]))
    note = f"The published control does not fall; here it falls too ({fallen}). " if fallen else ""
    first, last = seen.heads.steps[0], seen.heads.steps[-1]
    return Outcome(
        _verdict(job, holds), "\n".join([f"Steps {first:,} to {last:,}:", *lines]), numbers, figures, note + seen.about
    )


def fall(own: Interval, beyond: Sequence[Interval], controls: Sequence[Interval]) -> list[bool]:
    """Does S(v) fall; more than each control; and do these not fall? Without the first, the others say nothing."""
    fell = _below(own)
    return [fell, *(fell and _below(one) for one in beyond), *(fell and not _below(one) for one in controls)]


def counted(job: Job) -> Outcome:
    """Does N_recon fall, and end at as small a share of the channels as 1 to 4 of 64, fewer than rotated ones?"""
    seen = watched(job)
    moved, points = change(seen.heads, "n_recon", over=seen.over), curve(seen.heads, "n_recon", over=seen.over)
    beyond = change(seen.heads, "n_recon", against="n_recon_refactor", over=seen.over)
    control = curve(seen.heads, "n_recon_refactor", over=seen.over)[-1]
    fewer = gap(seen.heads, "n_recon", "n_recon_refactor", over=seen.over)
    found = {
        "change": moved,
        "change beyond refactor": beyond,
        "first": points[0],
        "last": points[-1],
        "last, refactor": control,
        "last beyond refactor": fewer,
    }
    holds = [_below(moved), is_few(points[-1].mean, seen.heads.channels) and _below(fewer)]
    numbers = _numbers(found) | {"last, share of channels": points[-1].mean / seen.heads.channels}
    measured = (
        f"N_recon goes from {_text(points[0], 1)} to {_text(points[-1], 1)} of {seen.heads.channels} channels, a share "
        f"of {points[-1].mean / seen.heads.channels:.2f}, where 4 of 64 are {_FEW:.2f} (in rotated channels "
        f"{_text(control, 1)}, a difference of {_text(fewer, 1)}). Where it is defined at both ends it changes by "
        f"{_text(moved, 2)}, beyond the rotated one by {_text(beyond, 2)}."
    )
    path = save(
        emergence_figure(seen.heads, over=seen.over, title="Task heads over training"), job.folder / "emergence.png"
    )
    note = (
        "N_recon needs positive relative attention. The verdict asks for the published share of a head's channels, at "
        f"most {_FEW:.4g}, and for a fall; fewer than in rotated channels alone is not what is shown. {seen.about}"
    )
    return Outcome(_verdict(job, holds), measured, numbers, (path,), note)


def is_few(n_recon: float, channels: int) -> bool:
    """Is that at least one, and no larger a share of the channels than 4 of 64?

    >>> is_few(4.0, 64), is_few(4.0, 16), is_few(1.0, 16)
    (True, False, True)
    """
    return 1 <= n_recon <= _FEW * channels


def decomposed(job: Job, most: int | None) -> Outcome:
    """Is relative attention spread at the start and sparse at the end, head by head, and not in rotated bases?"""
    seen = watched(job)
    chosen = _one_each(seen.splits)[:most] if most else seen.splits
    first, last = [split.first for split in chosen], [split.last for split in chosen]
    starts, ends = ([one.sparsity for one in splits] for splits in (first, last))
    turned = [split.spread for split in chosen]
    rows = [row for row in seen.heads.rows[-1] if not math.isnan(row.sparsity)]
    below = sum(row.sparsity < min(row.ambient, row.refactor) for row in rows) / max(len(rows), 1)
    fell = sum(end < start for start, end in zip(starts, ends, strict=True))
    again = sum(spread_again(*three) for three in zip(starts, ends, turned, strict=True)) / len(chosen)
    small = sum(int(one.relative_terms.argmax()) >= len(one.relative_terms) / 4 for one in last) / len(chosen)
    sparser, mostly = fell / len(chosen), wilson(fell, len(chosen))[1] > 0.5
    holds = [mostly, mostly and below > 0.5 and again > 0.5] + ([mostly and small >= 0.25] if most else [])
    numbers: Numbers = {"S(v) at the start": starts, "S(v) at the end": ends, "S(v), rotated": turned}
    numbers |= {"sparser": sparser, "spread again": again}
    numbers |= {"below both controls": below, "largest term in small singular values": small}
    each = "; ".join(
        f"{one.last.layer}.{one.last.head} ({one.name}) {one.first.sparsity:.2f} to {one.last.sparsity:.2f}, rotated "
        f"{one.spread:.2f}"
        for one in chosen
    )
    measured = (
        f"S(v) from the first checkpoint to the last, and of the last in rotated channels: {each}. Sparser at the end "
        f"in {sparser:.0%} of these heads; rotated, nearer to the start than to the end in {again:.0%}. At the end, "
        f"over all heads and prompts, S(v) lies below both rotated controls in {below:.0%}. The largest term is not in "
        f"the first quarter of singular values in {small:.0%}."
    )
    steps = seen.heads.steps
    figures = [*_drawn(job, "start", steps[0], first), *_drawn(job, "end", steps[-1], last)]
    figures += _drawn(job, "rotated", steps[-1], [split.rotated for split in chosen], rotated=True)
    note = (
        "Most heads: more than a coin would show (Wilson's lower bound above a half), without which nothing else "
        f"counts. One prompt per head, and one rotation of many, are drawn. {seen.about}"
    )
    return Outcome(_verdict(job, holds), measured, numbers, tuple(figures), note)


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


def _drawn(job: Job, name: str, step: int, splits: Sequence[Channels], *, rotated: bool = False) -> list[Path]:
    title = f"Terms of relative attention{' in rotated channels' if rotated else ''}, step {step:,}"
    parts = [splits[i : i + _A_FIGURE] for i in range(0, len(splits), _A_FIGURE)]
    return [
        save(
            contributions_figure(part, relative=True, rotated=rotated, title=title),
            job.folder / f"{name}-{number}.png",
        )
        for number, part in enumerate(parts, start=1)
    ]


def roles(job: Job) -> Outcome:
    """Which heads look where the circuit needs it, and how much of their attention do they give to it?"""
    seen = watched(job)
    looks: dict[tuple[str, str, tuple[int, int]], list[float]] = {}
    for row in seen.heads.rows[-1]:
        looks.setdefault((row.source, row.role, row.head), []).append(row.attention)
    means = {key: sum(values) / len(values) for key, values in looks.items()}
    table2 = {place.role for place in PYTHIA_160M.places}
    if job.model is None:
        found = {role for _, role, _ in means}
        holds = len(found & table2) >= 2
        told = ", ".join(sorted(found & table2)) or "none"
        lines = [f"Of the roles {', '.join(sorted(table2))}, heads were found for {told}."]
    else:
        holds = sum(value >= 0.1 for value in means.values()) >= 0.75 * len(means)
        lines = [f"{sum(value >= 0.1 for value in means.values())} of {len(means)} heads give a tenth or more."]
    lines += [
        f"{source}: {role} {head[0]}.{head[1]}, attention {value:.2f}." for (source, role, head), value in means.items()
    ]
    numbers: Numbers = {f"{source} {role} {h[0]}.{h[1]}": value for (source, role, h), value in means.items()}
    note = (
        f"Other heads than the published ones, found by where they look. {seen.about}"
        if job.model is None
        else seen.about
    )
    return Outcome(_verdict(job, [holds]), "\n".join(lines), numbers, (), note)


def _below(one: Interval) -> bool:
    """Is it below zero beyond doubt? One head alone has no interval, and leaves every doubt."""
    return not math.isnan(one.high) and one.high < 0


def _verdict(job: Job, holds: Sequence[bool]) -> Verdict:
    """Half of what was published is a part of it. Small models show no more than a part; nor do they refute it."""
    half = 2 * sum(holds) >= len(holds)
    if job.model is None:
        return "partly" if half else "needs a model"
    return "reproduced" if all(holds) else "partly" if half else "not"


def _text(one: Interval, digits: int = 3) -> str:
    mean = f"{one.mean:.{digits}f}"
    return mean if math.isnan(one.low) else f"{mean} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def _numbers(found: dict[str, Interval]) -> Numbers:
    return {name: one.mean if math.isnan(one.low) else [one.mean, one.low, one.high] for name, one in found.items()}


RUNS: dict[str, Attempt] = {
    "svf-fig6b": falling,
    "svf-fig7": partial(decomposed, most=_A_FIGURE),
    "svf-fig8b": counted,
    "svf-fig20": partial(decomposed, most=None),
    "svf-table2": roles,
}
