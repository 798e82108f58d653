"""Does attention follow categories, places and things? Their key coordinates swapped in heads selected elsewhere."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor

from keyhole.contrast.edits.moves import Effect
from keyhole.contrast.edits.pairing import pair_keys, two_keys
from keyhole.contrast.edits.swaps import key_bases, swap
from keyhole.contrast.features.subspace import random_bases
from keyhole.contrast.report import label
from keyhole.contrast.studies import Head, Study
from keyhole.figures import intervention_figure, save
from keyhole.models.precision import exact_matmul
from keyhole.reproduce.catalogue import CATALOGUE
from keyhole.reproduce.cc.studies import (
    CROSSED,
    DRAWS,
    Task,
    mere_shifts,
    named,
    stand_in,
    studied,
    told_shifts,
    verdict,
)
from keyhole.reproduce.cc.subspaces import passed_over
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.stats import interval

_LEAST = 0.1  # attention that must move for anything to be said
_MOST = 0.5  # of what whole keys move: "most of it"
_NOTHING = 0.1  # of what whole keys move: "next to nothing"
_FAR_MORE = 2.0  # times a random swap
_OTHERS = 1_000  # added to the seed of random subspaces: not those that made the mean
_TASKS: dict[str, Task] = {"cc-fig7": "lists", "cc-fig19": "lists"}
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
    more: tuple[tuple[float, float, float], ...]  # whole minus each part, sample by sample: mean and 95 % interval
    short: tuple[float, float, float]  # whole keys minus whole
    random: tuple[float, ...]  # what each of many random subspaces of the same rank moves


def swapped(job: Job, id: str, heads: slice) -> Outcome:
    """Does attention follow swapped features, more than random ones, and more with all of them?"""
    task = _TASKS.get(id, "boxes")
    study = studied(job, task)
    chosen = study.selected[heads]
    if not chosen:
        return _none_left(job, id, study)
    found = [measure(study, head, seed=job.seed) for head in chosen]
    numbers: Numbers = {}
    for one in found:
        numbers |= {f"{label(one.head)} {e.name}": e.shift for e in (one.whole, *one.parts)}
        numbers |= {f"{label(one.head)} random": one.whole.random, f"{label(one.head)} full": one.whole.full}
        numbers[f"{label(one.head)} largest random"] = max(one.random)
    holds = [held(one, task) for one in found]
    shown = {label(head): study.swaps[head] for head in chosen[:8]}
    title = f"Attention after swaps of key coordinates, {study.model}"
    path = save(intervention_figure(shown, title=title), job.folder / "swaps.png")
    every, some = (2 * sum(one in what for one in holds) > len(holds) for what in (("all",), ("all", "part")))
    lines = [_told(one) for one in found]
    lines.append(f"{len(study.selected)} heads selected; all that is asked for holds in {holds.count('all')} of these.")
    real = not mere_shifts(study)
    given = verdict(job, id, every and study.passed and real, part=some and real)
    return Outcome(given, "\n".join(lines), numbers, (path,), _note(job, id, study, task))


def measure(study: Study, head: Head, *, seed: int) -> Swapped:
    """A head's effects, and how they differ sample by sample."""
    effects = {effect.name: effect for effect in study.swaps[head]}
    whole = effects["both" if "both" in effects else "category"]
    parts = tuple(effects[name] for name in study.features if name in effects and effects[name] is not whole)
    moved, random = _shifts(study, head, whole, seed)
    more = tuple(interval((moved[whole.name] - moved[part.name]).tolist()) for part in parts)
    return Swapped(head, whole, parts, more, interval((moved["full"] - moved[whole.name]).tolist()), random)


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
    kind = beyond and whole.shift >= _LEAST and all(low > 0 for _, low, _ in one.more)
    if not kind:
        return "none"
    if task == "lists":
        size = whole.shift >= _FAR_MORE * whole.random and one.short[1] > 0
    else:
        some = all(part.shift_interval[0] > 0 for part in one.parts)
        size = some and whole.shift >= _MOST * whole.full and whole.random <= _NOTHING * whole.full
    return "all" if size else "part"


def _told(one: Swapped) -> str:
    whole, (low, high) = one.whole, one.whole.interval
    parts = "".join(
        f", {part.name} {part.shift:.2f} (less by {mean:.2f} [{least:.2f}, {most:.2f}])"
        for part, (mean, least, most) in zip(one.parts, one.more, strict=True)
    )
    return (
        f"{label(one.head)}: {whole.name} (rank {whole.rank}) moves {whole.shift:.2f} of attention{parts}, random "
        f"{whole.random:.2f} (at most {max(one.random):.2f}), whole keys {whole.full:.2f} (more by {one.short[0]:.2f} "
        f"[{one.short[1]:.2f}, {one.short[2]:.2f}]); between random and whole {whole.normalised:.2f} [{low:.2f}, "
        f"{high:.2f}]."
    )


def _none_left(job: Job, id: str, study: Study) -> Outcome:
    names = ", ".join(map(label, study.selected))
    measured = f"No other heads than those of cc-fig9 ({names}) were selected, so there was nothing to measure."
    note = f"{passed_over(study)}Needs {CATALOGUE[id].needs}: `{CATALOGUE[id].command}`. {stand_in(job, id)}"
    return Outcome(verdict(job, id, False), measured, {}, (), note)


def _note(job: Job, id: str, study: Study, task: Task) -> str:
    common = (
        f"The verdict asks of most heads that the swap moves {_LEAST} of attention, exceeds the mean of random ones "
        f"(95 % over samples) and each of {DRAWS} random ones"
    )
    if task == "lists":
        asked = f"{common}, at least {_FAR_MORE:.0f} times as much as they do, but less than whole keys."
    else:
        asked = (
            f"{common}, and each feature alone (95 %, sample by sample); that each alone moves some, both {_MOST} of "
            f"what whole keys move, and random ones at most {_NOTHING} of it; nothing where a contrast is a mere "
            f"difference of means. {CROSSED}"
        )
    same = "" if id not in _SAME or named(job, id) else f"The same run as {_SAME[id]}. "
    same = "The same run as cc-fig9, without its heads. " if id == "cc-fig18" else same
    return (
        f"{passed_over(study)}{same}{asked} Heads are selected on other prompts than those measured. Brackets: 95 % "
        f"over samples. {told_shifts(study)} {stand_in(job, id)}"
    )


def _run(id: str, heads: slice) -> Attempt:
    return partial(swapped, id=id, heads=heads)


RUNS: dict[str, Attempt] = {
    "cc-fig7": _run("cc-fig7", slice(3)),
    "cc-fig9": _run("cc-fig9", slice(2)),
    "cc-fig18": _run("cc-fig18", slice(2, None)),
    "cc-fig19": _run("cc-fig19", slice(3)),
    "cc-fig20": _run("cc-fig20", slice(None)),
}
