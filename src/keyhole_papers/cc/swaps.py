"""Does attention follow categories, places and things? Their key coordinates swapped in heads selected elsewhere."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from matplotlib.figure import Figure
from torch import Tensor

from keyhole.contrast.edits.moves import Effect
from keyhole.contrast.edits.pairing import pair_keys, two_keys
from keyhole.contrast.edits.swaps import key_bases, swap
from keyhole.contrast.features.subspace import random_bases
from keyhole.contrast.studies import Study
from keyhole.figures.contrast.interventions import intervention_figure
from keyhole.models.heads import Head, head_name
from keyhole.models.numbers.precision import exact_matmul
from keyhole.stats import as_text, interval
from keyhole_papers.catalogue import CATALOGUE
from keyhole_papers.cc.studies import DRAWS, Task, studied
from keyhole_papers.cc.subject import CROSSED, Subject, subject
from keyhole_papers.choices import AS_PRINTED
from keyhole_papers.job import Attempt, Job
from keyhole_papers.results import Numbers, Verdict
from keyhole_papers.told import Experiment, Told

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


class Gain(NamedTuple):
    """What one condition moves more than another, sample by sample: the mean and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Swapped:
    """What swaps do to one head."""

    head: Head
    whole: Effect  # all features together
    parts: tuple[Effect, ...]  # each alone, where there are several
    more: tuple[Gain, ...]  # whole minus each part
    short: Gain  # whole keys minus whole
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

    def gain(one: str, other: str) -> Gain:
        return Gain(*interval((moved[one] - moved[other]).tolist()))

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


def judge(record: Swaps) -> Verdict:
    """Do most heads do all that is claimed, or some of it?"""
    about, holds = record.subject, [held(one, record.task) for one in record.found]
    every, some = (2 * sum(one in what for one in holds) > len(holds) for what in (("all",), ("all", "part")))
    real = bool(record.found) and not about.mere
    return about.verdict(every and about.passed and real, part=some and real)


def tell(record: Swaps) -> Told:
    """Does attention follow swapped features, more than random ones, and more with all of them?"""
    about = record.subject
    if not record.found:
        names, needs = ", ".join(map(head_name, about.heads)), CATALOGUE[about.id]
        measured = f"No other heads than those of cc-fig9 ({names}) were selected, so there was nothing to measure."
        return Told(measured, {}, f"{about.selection}Needs {needs.needs}: `{needs.command}`. {about.stand_in}")
    numbers: Numbers = {}
    for one in record.found:
        key, whole = head_name(one.head), one.whole
        numbers |= {f"{key} {effect.name}": effect.shift for effect in (whole, *one.parts)}
        numbers |= {f"{key} random": whole.random, f"{key} full": whole.full, f"{key} largest random": max(one.random)}
    lines = [_told(one) for one in record.found]
    all_of_it = sum(held(one, record.task) == "all" for one in record.found)
    lines.append(f"{len(about.heads)} heads selected; all that is asked for holds in {all_of_it} of these.")
    note = (
        f"{about.selection}{_same(about)}{_asked(record.task)} Heads are selected on other prompts than those "
        f"measured. Brackets: 95 % over samples. {about.means} {about.stand_in}"
    )
    return Told("\n".join(lines), numbers, note)


def _told(one: Swapped) -> str:
    whole, (low, high) = one.whole, one.whole.interval
    parts = "".join(
        f", {part.name} {part.shift:.2f} (less by {as_text(gain, 2)})"
        for part, gain in zip(one.parts, one.more, strict=True)
    )
    return (
        f"{head_name(one.head)}: {whole.name} (rank {whole.rank}) moves {whole.shift:.2f} of attention{parts}, random "
        f"{whole.random:.2f} (at most {max(one.random):.2f}), whole keys {whole.full:.2f} (more by "
        f"{as_text(one.short, 2)}); between random and whole {whole.normalised:.2f} [{low:.2f}, {high:.2f}]."
    )


def _asked(task: Task) -> str:
    common = (
        f"The verdict asks of most heads that the swap moves {_LEAST} of attention, exceeds the mean of random ones "
        f"(95 % over samples) and each of {DRAWS} random ones"
    )
    if task == "lists":
        return f"{common}, at least {_FAR_MORE:.0f} times as much as they do, but less than whole keys."
    return (
        f"{common}, and each feature alone (95 %, sample by sample); that each alone moves some, both {_MOST} of "
        f"what whole keys move, and random ones at most {_NOTHING} of it; nothing where a contrast is a mere "
        f"difference of means. {CROSSED}"
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
    return Experiment(partial(measure, id=id, task=task, heads=heads), judge, tell, draw, heeds=AS_PRINTED)


RUNS: dict[str, Attempt] = {
    "cc-fig7": _run("cc-fig7", "lists", slice(3)),
    "cc-fig9": _run("cc-fig9", "boxes", slice(2)),
    "cc-fig18": _run("cc-fig18", "boxes", slice(2, None)),
    "cc-fig19": _run("cc-fig19", "lists", slice(3)),
    "cc-fig20": _run("cc-fig20", "boxes", slice(None)),
}
