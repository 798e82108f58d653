"""What do all signals into a head do at once? Whether their effects add up, and what they do to 9.6."""

import math

from matplotlib.figure import Figure

from keyhole.circuits.writer import SideName
from keyhole.figures import save
from keyhole.figures.network import name_of
from keyhole.figures.style import BLUE, INK, RED, blank, heading, tidy
from keyhole.lab.heads.sparse import Head
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.effects import (
    LOCAL,
    MATTERS,
    MODES,
    ODD,
    Effect,
    Interval,
    as_list,
    effects,
    enough,
    matters,
    measured_in,
    token_of,
)
from keyhole.reproduce.svt.ioi import LEAST, judged, stood_in
from keyhole.reproduce.svt.sets import sums_figure
from keyhole.stats import as_text, interval

_SIDES: tuple[SideName, SideName] = ("dest", "src")


def parallel(job: Job) -> Outcome:
    """Do the effects of signals that reach a head side by side add up? At each token, global and local."""
    found, head = effects(job, "name mover")
    numbers: Numbers = {}
    lines, adds, points = [], [], {}
    for side, mode in ((side, mode) for side in _SIDES for mode in MODES):
        own = [one for one in found if (one.side, one.mode) == (side, mode)]
        sums: dict[int, float] = {}
        for one in own:
            if not one.together:
                sums[one.prompt] = sums.get(one.prompt, 0.0) + one.answer
        at_once = [one for one in own if one.together]
        where = f"{token_of(side)}, {mode}"
        if not at_once:
            adds.append(False)
            lines.append(f"{where}: no firing has two signals.")
            continue
        points[where] = [(sums[one.prompt], one.answer) for one in at_once]
        joint, summed = interval([one.answer for one in at_once]), interval([sums[one.prompt] for one in at_once])
        random = interval([one.random for one in at_once])
        share = joint[0] / summed[0] if summed[0] else 0.0
        numbers |= {f"{where}: together": as_list(joint), f"{where}: sum": as_list(summed)}
        numbers |= {f"{where}: share": share, f"{where}: random": as_list(random)}
        adds.append(enough(at_once) and matters(joint, random, at_once) and 0.5 <= share <= 1.5)
        lines.append(
            f"{where}, {len(at_once)} sets: removed together {as_text(joint)}, sum of single removals "
            f"{as_text(summed)}, random channels {as_text(random)}."
        )
    title = f"All signals into {name_of(head)} at a token, removed together and one by one"
    paths = (save(sums_figure(points, title), job.folder / "sums.png"),) if points else ()
    asked = f"Asked in two of the four or more: an effect together, {MATTERS}; and .5 to 1.5 of the sum."
    note = f"{asked} {measured_in(job, head, 'name mover')}"
    return Outcome(judged(job, [sum(adds) >= 2]), "\n".join(lines), numbers, paths, note)


def all_into(job: Job) -> Outcome:
    """Does the logit difference rise locally and fall globally, when all signals into the head are removed?"""
    found, head = effects(job, "name mover", ODD)
    numbers: Numbers = {}
    means: dict[str, Interval] = {}
    held: dict[str, float] = {}  # changes that are beyond doubt
    lines = []
    for side in _SIDES:
        for mode in ("local", "global"):
            own = _all_at_once([one for one in found if (one.side, one.mode) == (side, mode)])
            where = f"{token_of(side)}, {mode}"
            if not enough(own):
                lines.append(f"{where}: prompts with signals {len(own)}, too few to judge.")
                continue
            answer, attention, random = (
                interval([getattr(one, name) for one in own]) for name in ("answer", "attention", "random")
            )
            means[where] = answer
            held[where] = answer[0] if matters(answer, random, own) else math.nan
            numbers |= {f"{where}: logit difference": list(answer), f"{where}: attention": list(attention)}
            numbers[f"{where}: random"] = list(random)
            lines.append(
                f"{where}, {len(own)} prompts: all signals removed together change the logit difference by "
                f"{as_text(answer)} and attention by {as_text(attention)}; random channels the former by "
                f"{as_text(random)}."
            )
    tokens = map(token_of, _SIDES)
    holds = [held.get(f"{one}, local", math.nan) > 0 > held.get(f"{one}, global", math.nan) for one in tokens]
    paths = (save(_means_figure(means, head), job.folder / "together.png"),) if means else ()
    note = (
        f"Asked at each token: a local rise and a global fall over {LEAST} prompts or more, {MATTERS}. Head "
        f"{name_of(head)} stands where 9.6 is; its signals at END and at IO are removed in turn, "
        f"as sets. {LOCAL} {stood_in(job)}"
    )
    return Outcome(judged(job, holds), "\n".join(lines), numbers, paths, note)


def _all_at_once(own: list[Effect]) -> list[Effect]:
    """Per prompt, the removal of all signals; where there is but one signal, its own."""
    found: dict[int, Effect] = {}
    for one in sorted(own, key=lambda effect: effect.together):
        found[one.prompt] = one
    return list(found.values())


def _means_figure(means: dict[str, Interval], head: Head) -> Figure:
    figure = blank(5.4, 3.4)
    heading(figure, f"All signals into {name_of(head)} removed together")
    axis = figure.subplots()
    tidy(axis, y="change of the logit difference")
    for at, (where, (mean, low, high)) in enumerate(means.items()):
        axis.bar([at], [mean], color=BLUE if "local" in where else RED, width=0.6)
        axis.plot([at, at], [low, high], color=INK, linewidth=1.2)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.set_xticks(range(len(means)), list(means))
    return figure


RUNS: dict[str, Attempt] = {"svt-fig25": parallel, "svt-fig27": all_into}
