"""Do signals into the heads of the IOI circuit cause its answers? Each removed, and each boosted."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.circuits.writer import SideName
from keyhole.figures import save
from keyhole.figures.network import name_of
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, legend, tidy
from keyhole.intervene.remove import Mode
from keyhole.lab.heads.sparse import Head
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.effects import (
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
    over_prompts,
    prompts_of,
    rank_correlation,
    token_of,
)
from keyhole.reproduce.svt.ioi import judged
from keyhole.stats import as_text

Means = dict[str, Interval]  # what was done
Claim = Literal["heavier", "rises", "apart", "alike"]  # what the logit difference does, beside attention
_ORDER = ("removed", "boosted", "random removed", "random boosted")
_OPPOSED: tuple[tuple[Mode, str], ...] = (("global", "removed"), ("local", "removed"), ("local", "boosted"))
_PROPORTION = 0.5  # rank correlation
_SHADES = (BLUE, RED, GREY, FAINT)


def single(job: Job, role: str, number: int, sides: Sequence[SideName], *, heavier: bool = False) -> Outcome:
    """Does removing a signal lower the logit difference, and boosting raise it, unlike random channels?

    With `heavier`, more so if tracing gave it more weight.
    """
    found, head = effects(job, role, number)
    numbers: Numbers = {}
    lines, holds, panels = [], [], {}
    for side, mode in ((side, mode) for side in sides for mode in MODES):
        own = [one for one in found if (one.side, one.mode, one.together) == (side, mode, False)]
        where = f"{token_of(side, role)}, {mode}"
        if not own:
            lines.append(f"{where}: no signals.")
            holds += [False] * (3 if heavier else 2)
            continue
        panels[where] = means = means_of(own)
        more = rank_correlation(own, lambda one: one.weight, lambda one: -one.answer)
        numbers |= {f"{where}: {name}": as_list(value) for name, value in means.items()}
        numbers |= {f"{where}: heavier": as_list(more), f"{where}: prompts": prompts_of(own)}
        off, on, random, other = (means[name] for name in _ORDER)
        claims = [off[0] < 0 and matters(off, random, own), on[0] > 0 and matters(on, other, own)]
        claims += [more[1] > 0] if heavier else []
        holds += [enough(own) and claim for claim in claims]
        lines.append(
            f"{where}, {len(own)} signals in {prompts_of(own)} prompts: removed {as_text(off)}, boosted {as_text(on)}, "
            f"random removed {as_text(random)}, random boosted {as_text(other)}; rank correlation of weight and loss "
            f"{as_text(more)}."
        )
    title = f"Change of the logit difference, signals into {name_of(head)}"
    paths = (save(_bars(panels, title), job.folder / "effects.png"),) if panels else ()
    asked = (
        f"Asked at each token, globally and locally: a loss on removal and a gain on boosting, {MATTERS}"
        f"{_HEAVIER if heavier else ''}. "
    )
    return Outcome(judged(job, holds), "\n".join(lines), numbers, paths, f"{asked}{measured_in(job, head, role)}")


def means_of(own: Sequence[Effect]) -> Means:
    """The change of the logit difference by what was done, over prompts."""
    return {
        "removed": over_prompts(own, lambda one: one.answer),
        "boosted": over_prompts(own, lambda one: one.boosted),
        "random removed": over_prompts(own, lambda one: one.random),
        "random boosted": over_prompts(own, lambda one: one.random_boosted),
    }


def falls(job: Job, number: int, side: SideName, mode: Mode, *, claim: Claim) -> Outcome:
    """Does attention fall when a signal is removed, and does the logit difference go with it as was published?"""
    found, head = effects(job, "name mover", number)
    own = [one for one in found if (one.side, one.mode, one.together) == (side, mode, False)]
    note = f"{_ASKED[claim]} Of the logit difference: {MATTERS}. {_SCORES} {measured_in(job, head, 'name mover')}"
    if not own:
        return Outcome(judged(job, []), f"No signals into {name_of(head)} at {token_of(side)}.", {}, (), note)
    attention, answer, random = (
        over_prompts(own, of) for of in (lambda one: one.attention, lambda one: one.answer, lambda one: one.random)
    )
    both = rank_correlation(own, lambda one: one.attention, lambda one: one.answer)
    weight = rank_correlation(own, lambda one: one.weight, lambda one: -one.attention)
    worse = rank_correlation(own, lambda one: one.weight, lambda one: -one.answer)
    numbers: Numbers = {
        "attention": as_list(attention),
        "logit difference": as_list(answer),
        "prompts": prompts_of(own),
        "logit difference, random": as_list(random),
        "rank correlation of both": as_list(both),
        "rank correlation of weight and attention lost": as_list(weight),
        "rank correlation of weight and logit difference lost": as_list(worse),
    }
    text = (
        f"{len(own)} signals into {name_of(head)} in {prompts_of(own)} prompts: attention changes by "
        f"{as_text(attention)}, the logit difference by {as_text(answer)} (random channels {as_text(random)}); "
        f"rank correlation of both {as_text(both)}, of "
        f"weight and attention lost {as_text(weight)}, of weight and logit difference lost {as_text(worse)}."
    )
    goes = matters(answer, random, own) and (answer[0] > 0) == (claim == "rises")
    holds = {
        "heavier": [weight[1] > 0, worse[1] > 0],
        "rises": [both[2] < 0],
        "apart": [both[2] < _PROPORTION],
        "alike": [both[0] >= _PROPORTION and both[1] > 0],
    }[claim]
    first = enough(own) and attention[2] < 0 and goes
    path = save(_scatter(own, head, mode), job.folder / "removed.png")
    return Outcome(judged(job, [first, *holds], first=first), text, numbers, (path,), note)


def inverted(job: Job) -> Outcome:
    """Does global removal lower the logit difference, local removal raise it, and local boosting lower it?"""
    found = single(job, "name mover", ODD, ("dest",))
    every, head = effects(job, "name mover", ODD)
    changes = []
    for mode, what in _OPPOSED:
        own = [one for one in every if (one.side, one.mode, one.together) == ("dest", mode, False)]
        means = means_of(own)
        held = enough(own) and matters(means[what], means[f"random {what}"], own)
        changes.append(means[what][0] if held else math.nan)
    removed, local, boosted = changes
    odd = ""
    if removed > 0 and local > 0:
        odd = "Global removal raises the logit difference too: here the two do not oppose each other. "
    note = f"{odd}Asked: all three, {MATTERS}. {measured_in(job, head, 'name mover')}"
    return replace(found, verdict=judged(job, [removed < 0, local > 0, boosted < 0]), note=note)


def _scatter(own: Sequence[Effect], head: Head, mode: Mode) -> Figure:
    figure = blank(4.8, 3.8)
    heading(figure, f"Signals into {name_of(head)} removed, {mode}")
    axis = figure.subplots()
    tidy(axis, x="change of attention", y="change of the logit difference")
    axis.scatter([one.attention for one in own], [one.answer for one in own], s=14, color=BLUE, alpha=0.5, linewidths=0)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axvline(0, color=INK, linewidth=0.8)
    return figure


_SCORES = "Attention is the weight after the softmax, where the paper shows the score before it."
_HEAVIER = "; and a rank correlation of weight and loss whose interval (over prompts) is above 0"
_ASKED: dict[Claim, str] = {
    "heavier": "Asked: both fall, and both more for heavier signals (rank correlations whose intervals are above 0).",
    "rises": "Asked: attention falls, the logit difference rises, and a rank correlation of both with an interval "
    "below 0.",
    "apart": "Asked: both fall; not in proportion: a rank correlation of both with an interval below .5.",
    "alike": "Asked: both fall; in proportion: a rank correlation of both of .5 or more, with an interval above 0.",
}


def _bars(panels: dict[str, Means], title: str) -> Figure:
    figure = blank(max(5.0, 2.4 * len(panels) + 0.6), 3.6)
    heading(figure, title)
    axes = figure.subplots(1, max(len(panels), 1), sharey=True, squeeze=False)[0]
    for axis, (name, means) in zip(axes, panels.items(), strict=False):
        tidy(axis, name, y="mean change" if axis is axes[0] else "")
        for at, (what, shade) in enumerate(zip(_ORDER, _SHADES, strict=True)):
            mean, low, high = means[what]
            axis.bar([at], [mean], color=shade, width=0.75)
            axis.plot([at, at], [low, high], color=INK, linewidth=1.2)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set_xticks([])
    handles = [Patch(color=shade, label=what) for what, shade in zip(_ORDER, _SHADES, strict=True)]
    legend(figure, handles, columns=4, beneath=True)
    return figure


RUNS: dict[str, Attempt] = {
    "svt-fig6": partial(single, role="name mover", number=1, sides=("dest",), heavier=True),
    "svt-fig17": partial(falls, number=2, side="dest", mode="global", claim="heavier"),
    "svt-fig18": partial(falls, number=ODD, side="dest", mode="local", claim="rises"),
    "svt-fig19": partial(falls, number=1, side="src", mode="global", claim="apart"),
    "svt-fig20": partial(falls, number=1, side="src", mode="local", claim="alike"),
    "svt-fig21": inverted,
    "svt-fig22": partial(single, role="name mover", number=0, sides=("dest", "src")),
    "svt-fig23": partial(single, role="S-inhibition", number=0, sides=("dest", "src")),
    "svt-fig24": partial(single, role="name mover", number=1, sides=("dest", "src")),
}
