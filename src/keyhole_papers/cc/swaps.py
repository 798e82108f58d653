"""Does attention follow categories, places and things? Their key coordinates swapped in heads selected elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.features.contrast.figures import intervention_figure
from keyhole.features.contrast.moves import Effect, pair_keys, two_keys
from keyhole.features.contrast.studies import Study
from keyhole.features.contrast.subspace import random_bases
from keyhole.features.contrast.swaps import key_bases, swap
from keyhole.models.numbers import exact_matmul
from keyhole.stats import Interval
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.cc import CROSSED, DRAWS, Subject, Task, studied, subject
from keyhole_papers.experiment import AS_PRINTED, Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, of_part, rows_of

_LEAST = 0.1  # attention that must move for anything to be said
_MOST = 0.5  # of what whole keys move: "most of it"
_NOTHING = 0.1  # of what whole keys move: "next to nothing"
_FAR_MORE = 2.0  # times a random swap
_OTHERS = 1_000  # added to the seed of random subspaces: not those that made the mean
_DRAWN = 8  # heads
_SAME = {  # items that are about another model, and share the run of a stand-in
    "cc-fig7": "cc-fig19",
    "cc-fig9": "cc-fig20, which has all heads",
    "cc-fig19": "cc-fig7",
    "cc-fig20": "cc-fig9 and cc-fig18 together",
}
Held = Literal["all", "part", "none"]


@dataclass(frozen=True)
class Swapped:
    """What swaps do to one head."""

    head: Head
    whole: Effect  # all features together
    parts: tuple[Effect, ...]  # each alone, where there are several
    more: tuple[Interval, ...]  # whole minus each part
    short: Interval  # whole keys minus whole
    random: tuple[float, ...]  # what each of many random subspaces of the same rank moves


@dataclass(frozen=True)
class Swaps:
    """Some of the heads of a task, and what is drawn of the first of them."""

    subject: Subject
    task: Task
    found: Sequence[Swapped]
    shown: Mapping[str, Sequence[Effect]]


def measure(job: Job, id: str, task: Task, heads: slice) -> Swaps:
    """Swaps in these of the selected heads."""
    study = studied(job.asked, task)
    chosen = study.selected[heads]
    shown = {head_name(head): study.swaps[head] for head in chosen[:_DRAWN]}
    return Swaps(subject(job, task, id), task, [swapped(study, head, seed=job.seed) for head in chosen], shown)


def swapped(study: Study, head: Head, *, seed: int) -> Swapped:
    """A head's effects, and how they differ sample by sample."""
    effects = {effect.name: effect for effect in study.swaps[head]}
    whole = effects["both" if "both" in effects else "category"]
    parts = tuple(effects[name] for name in study.features if name in effects and effects[name] is not whole)
    moved, random = _shifts(study, head, whole, seed)

    def gain(one: str, other: str) -> Interval:
        return Interval.over((moved[one] - moved[other]).tolist())

    more = tuple(gain(whole.name, part.name) for part in parts)
    return Swapped(head, whole, parts, more, gain("full", whole.name), random)


def _shifts(study: Study, head: Head, whole: Effect, seed: int) -> tuple[dict[str, Tensor], tuple[float, ...]]:
    """How much attention every test sample moves, by condition (with the study's own targets); random ones' means."""
    pairing = pair_keys(study.test, half=study.half, seed=seed)
    with exact_matmul():
        edit = swap(two_keys(study.test.layer(head[0]).of(pairing.slots), pairing), head[1])
        bases = key_bases(study.of(head))
        moved = {name: edit(basis).shift.double().cpu() for name, basis in bases.items()}
        moved["full"] = edit(None).shift.double().cpu()
        others = random_bases(len(bases[whole.name]), whole.rank, DRAWS, seed + _OTHERS)
        return moved, tuple(float(edit(basis).shift.double().mean()) for basis in others)


def held(one: Swapped, task: Task) -> Held:
    """Does a head do what is claimed: in kind, and in size?"""
    whole = one.whole
    beyond = whole.interval[0] > 0 and whole.shift > max(one.random)
    kind = beyond and whole.shift >= _LEAST and all(gain.low > 0 for gain in one.more)
    if not kind:
        return "none"
    if task == "lists":
        size = whole.shift >= _FAR_MORE * whole.random and one.short.low > 0
    else:
        some = all(part.shift_interval[0] > 0 for part in one.parts)
        size = some and whole.shift >= _MOST * whole.full and whole.random <= _NOTHING * whole.full
    return "all" if size else "part"


def findings(record: Swaps) -> Findings:
    """Does attention follow swapped features in most heads, more than random ones, and more with all of them?"""
    about, holds = record.subject, [held(one, record.task) for one in record.found]
    if not record.found:
        names, needs = ", ".join(map(head_name, about.heads)), CATALOGUE[about.id]
        none = f"nothing to measure: none was selected but those of cc-fig9 ({names})"
        return about.findings([Finding("heads", none)], holds=False, remark=f"Needs {needs.needs}: `{needs.command}`.")
    rows = [Finding("heads selected", len(about.heads))]
    for one, kept in zip(record.found, holds, strict=True):
        rows += of_part(head_name(one.head), *_rows_of(one, _claim(record.task), kept == "all"), joint=" ")
    every, some = (2 * sum(kept in enough for kept in holds) > len(holds) for enough in (("all",), ("all", "part")))
    real = not about.mere
    remark = (
        f"{_same(about)}The verdict asks it of most heads; nothing where a contrast is a mere difference of means. "
        f"{CROSSED if record.task == 'boxes' else ''} Heads are selected on other prompts than those "
        f"measured. Brackets: 95 % over samples. {about.means}"
    )
    return about.findings(rows, holds=every and about.passed and real, part=some and real, remark=remark)


def _rows_of(one: Swapped, asked: str, holds: bool) -> list[Finding]:
    whole, parts = one.whole, zip(one.parts, one.more, strict=True)
    return [
        Finding(whole.name, whole.shift, asked, holds),
        *(row for part, gain in parts for row in rows_of({part.name: part.shift, f"beyond {part.name}": gain})),
        *rows_of({"random": whole.random, "largest random": max(one.random), "full": whole.full, "short": one.short}),
        Finding("between random and full", Interval(whole.normalised, *whole.interval)),
        Finding("rank", whole.rank),
    ]


def _claim(task: Task) -> str:
    common = (
        f"{_LEAST} of attention, more than the mean of random ones (95 % over samples) and each of {DRAWS} random ones"
    )
    if task == "lists":
        return f"{common}, at least {_FAR_MORE:.0f} times as much as they do, but less than whole keys"
    return (
        f"{common}, and than each feature alone (95 %, sample by sample); that each alone moves some, both {_MOST} of "
        f"what whole keys move, and random ones at most {_NOTHING} of it"
    )


def _same(about: Subject) -> str:
    if about.id == "cc-fig18":
        return "The same run as cc-fig9, without its heads. "
    return "" if about.published else f"The same run as {_SAME[about.id]}. "


def draw(record: Swaps) -> dict[str, Figure]:
    """Bars of every condition, a panel for each head."""
    title = f"Attention after swaps of key coordinates, {record.subject.model}"
    return {"swaps": intervention_figure(record.shown, title=title)} if record.shown else {}


def _run(id: str, task: Task, heads: slice) -> Experiment[Swaps]:
    return Experiment(partial(measure, id=id, task=task, heads=heads), findings, draw, heeds=AS_PRINTED)


RUNS: dict[str, Attempt] = {
    "cc-fig7": _run("cc-fig7", "lists", slice(3)),
    "cc-fig9": _run("cc-fig9", "boxes", slice(2)),
    "cc-fig18": _run("cc-fig18", "boxes", slice(2, None)),
    "cc-fig19": _run("cc-fig19", "lists", slice(3)),
    "cc-fig20": _run("cc-fig20", "boxes", slice(None)),
}
