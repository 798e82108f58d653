"""Do signals into the heads of the IOI circuit cause its answers? Removed and boosted, alone and together."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.figures import save
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, legend, tidy
from keyhole.intervene.remove import Mode
from keyhole.lab.heads.sparse import Head
from keyhole.lab.training.roles import Role, role_attention
from keyhole.reproduce.job import Experiment, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.effects import (
    MATTERS,
    Effect,
    Interval,
    effects,
    enough,
    matters,
    over_prompts,
    prompts_of,
    rank_correlation,
)
from keyhole.reproduce.svt.ioi import LEAST, is_gpt2, judged, stood_in, subject
from keyhole.stats import interval
from keyhole.tracing.firing import SideName

Means = dict[str, Interval]  # what was done
Claim = Literal["heavier", "rises", "apart", "alike"]  # what the logit difference does, beside attention
LOCAL = (
    "Local removal changes the head's query (at END) or key (at the source) alone; in the paper it changes the head's "
    "input at the token, and so its query, key and value."
)
_ORDER = ("removed", "boosted", "random removed", "random boosted")
_BOTH: tuple[SideName, ...] = ("dest", "src")
_MODES: tuple[Mode, Mode] = ("global", "local")
_NAMES = ("IO", "S1", "S2")
_PROPORTION = 0.5  # rank correlation
_SHADES = (BLUE, RED, GREY, FAINT)


# -- what is said of them ------------------------------------------------------------------------------------------


def single(job: Job, role: str, number: int, sides: Sequence[SideName], *, heavier: bool = False) -> Outcome:
    """Does removing a signal lower the logit difference, and boosting raise it, unlike random channels?

    With `heavier`, more so if tracing gave it more weight.
    """
    found, head = effects(job, role, number)
    numbers: Numbers = {}
    lines, holds, panels = [], [], {}
    for side, mode in ((side, mode) for side in sides for mode in _MODES):
        own = [one for one in found if (one.side, one.mode, one.together) == (side, mode, False)]
        where = f"{_at(side, role)}, {mode}"
        if not own:
            lines.append(f"{where}: no signals.")
            holds += [False] * (3 if heavier else 2)
            continue
        panels[where] = means = means_of(own)
        more = rank_correlation(own, lambda one: one.weight, lambda one: -one.answer)
        numbers |= {f"{where}: {name}": told(value) for name, value in means.items()}
        numbers |= {f"{where}: heavier": told(more), f"{where}: prompts": prompts_of(own)}
        off, on, random, other = (means[name] for name in _ORDER)
        claims = [off[0] < 0 and matters(off, random, own), on[0] > 0 and matters(on, other, own)]
        claims += [more[1] > 0] if heavier else []
        holds += [enough(own) and claim for claim in claims]
        lines.append(
            f"{where}, {len(own)} signals in {prompts_of(own)} prompts: removed {_text(off)}, boosted {_text(on)}, "
            f"random removed {_text(random)}, random boosted {_text(other)}; rank correlation of weight and loss "
            f"{_text(more)}."
        )
    title = f"Change of the logit difference, signals into {head[0]}.{head[1]}"
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
        return Outcome(judged(job, []), f"No signals into {head[0]}.{head[1]} at {_at(side)}.", {}, (), note)
    attention, answer, random = (
        over_prompts(own, of) for of in (lambda one: one.attention, lambda one: one.answer, lambda one: one.random)
    )
    both = rank_correlation(own, lambda one: one.attention, lambda one: one.answer)
    weight = rank_correlation(own, lambda one: one.weight, lambda one: -one.attention)
    worse = rank_correlation(own, lambda one: one.weight, lambda one: -one.answer)
    numbers: Numbers = {"attention": told(attention), "logit difference": told(answer), "prompts": prompts_of(own)}
    numbers["logit difference, random"] = told(random)
    numbers |= {"rank correlation of both": told(both), "rank correlation of weight and attention lost": told(weight)}
    numbers["rank correlation of weight and logit difference lost"] = told(worse)
    text = (
        f"{len(own)} signals into {head[0]}.{head[1]} in {prompts_of(own)} prompts: attention changes by "
        f"{_text(attention)}, the logit difference by {_text(answer)} (random channels {_text(random)}); "
        f"rank correlation of both {_text(both)}, of "
        f"weight and attention lost {_text(weight)}, of weight and logit difference lost {_text(worse)}."
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


def small(job: Job, what: Literal["cosine", "norm"], together: bool) -> Outcome:
    """Do residuals hardly change? Their cosines, or the ratio of their norms, before and after."""
    seen = subject(job)
    heads = [(role, i) for role in ("name mover", "S-inhibition") for i in range(len(seen.roles.get(role, ())))]
    several = [one for head in heads or [("name mover", 0)] for one in effects(job, *head)[0] if one.mode == "local"]
    own, alone = ([one for one in several if one.together == kind] for kind in (together, False))
    limit = _LIMITS[what, together]
    many = "with several signals " if together else ""
    note = (
        f"Asked: {_LIMIT_TEXT[what, together]} in more than half of the removals, in {LEAST} prompts or more"
        f"{_WIDER if (what, together) == ('cosine', True) else ''}; nothing unless the same removals change the logit "
        f"difference, in size, {MATTERS} (a residual turns little whatever small part of it is removed). "
        + ("" if is_gpt2(job.model) else "A signal is a larger part of a residual of few dimensions. ")
        + f"{_VECTOR} {_SIGNALS} {stood_in(job)}"
    )
    if not own:
        return Outcome(judged(job, []), f"No removals {many}in {len(seen.examples)} prompts.", {}, (), note)
    values = torch.tensor([getattr(one, what) for one in own], dtype=torch.float64)
    off, off_alone = (torch.tensor([abs(getattr(one, what) - 1) for one in some]) for some in (own, alone))
    within, wider = float((off < limit).double().mean()), float(off.median()) > float(off_alone.median())
    middle, low, high = float(values.median()), float(values.quantile(0.05)), float(values.quantile(0.95))
    numbers: Numbers = {"median": middle, "5 %": low, "95 %": high, "within": within, "prompts": prompts_of(own)}
    change, random = (over_prompts(own, of) for of in (lambda one: abs(one.answer), lambda one: abs(one.random)))
    numbers |= {"size of the change": told(change), "size of the change, random": told(random)}
    numbers["median distance from 1"] = float(off.median())
    numbers["median distance from 1, single signals"] = float(off_alone.median())
    text = (
        f"{len(own)} removals {many}in {prompts_of(own)} prompts: median {middle:.4f}, 5 % below {low:.4f}; "
        f"{within:.0%} are {_LIMIT_TEXT[what, together]}. The logit difference changes by {_text(change)} in size "
        f"(random channels {_text(random)})."
    )
    if together:
        text += f" Median distance from 1: {off.median():.4f}, of single signals {off_alone.median():.4f}."
    path = save(_histogram(values.tolist(), what), job.folder / "residuals.png")
    peaked = enough(own) and within > 0.5
    holds = [peaked, wider] if (what, together) == ("cosine", True) else [peaked]
    first = peaked and matters(change, random, own)
    return Outcome(judged(job, holds, first=first), text, numbers, (path,), note)


def parallel(job: Job) -> Outcome:
    """Do the effects of signals that reach a head side by side add up? At each token, global and local."""
    found, head = effects(job, "name mover")
    numbers: Numbers = {}
    lines, adds, points = [], [], {}
    for side, mode in ((side, mode) for side in _BOTH for mode in _MODES):
        own = [one for one in found if (one.side, one.mode) == (side, mode)]
        sums: dict[int, float] = {}
        for one in own:
            if not one.together:
                sums[one.prompt] = sums.get(one.prompt, 0.0) + one.answer
        at_once = [one for one in own if one.together]
        where = f"{_at(side)}, {mode}"
        if not at_once:
            adds.append(False)
            lines.append(f"{where}: no firing has two signals.")
            continue
        points[where] = [(sums[one.prompt], one.answer) for one in at_once]
        joint, summed = interval([one.answer for one in at_once]), interval([sums[one.prompt] for one in at_once])
        random = interval([one.random for one in at_once])
        share = joint[0] / summed[0] if summed[0] else 0.0
        numbers |= {f"{where}: together": told(joint), f"{where}: sum": told(summed), f"{where}: share": share}
        numbers |= {f"{where}: random": told(random)}
        adds.append(enough(at_once) and matters(joint, random, at_once) and 0.5 <= share <= 1.5)
        lines.append(
            f"{where}, {len(at_once)} sets: removed together {_text(joint)}, sum of single removals {_text(summed)}, "
            f"random channels {_text(random)}."
        )
    paths = (save(_sums_figure(points, head), job.folder / "sums.png"),) if points else ()
    asked = f"Asked in two of the four or more: an effect together, {MATTERS}; and .5 to 1.5 of the sum."
    note = f"{asked} {measured_in(job, head, 'name mover')}"
    return Outcome(judged(job, [sum(adds) >= 2]), "\n".join(lines), numbers, paths, note)


# -- how that looks ------------------------------------------------------------------------------------------------


def _histogram(values: list[float], what: str) -> Figure:
    figure = blank(5.2, 3.2)
    heading(figure, f"{'Cosine' if what == 'cosine' else 'Norm ratio'} of residuals after and before removal")
    axis = figure.subplots()
    tidy(axis, x=what, y="removals")
    axis.hist(values, bins=40, color=BLUE)
    return figure


def _scatter(own: Sequence[Effect], head: Head, mode: Mode) -> Figure:
    figure = blank(4.8, 3.8)
    heading(figure, f"Signals into {head[0]}.{head[1]} removed, {mode}")
    axis = figure.subplots()
    tidy(axis, x="change of attention", y="change of the logit difference")
    axis.scatter([one.attention for one in own], [one.answer for one in own], s=14, color=BLUE, alpha=0.5, linewidths=0)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axvline(0, color=INK, linewidth=0.8)
    return figure


def _sums_figure(points: dict[str, list[tuple[float, float]]], head: Head) -> Figure:
    figure = blank(max(5.0, 2.7 * len(points) + 0.4), 3.4)
    heading(figure, f"All signals into {head[0]}.{head[1]} at a token, removed together and one by one")
    axes = figure.subplots(1, max(len(points), 1), squeeze=False)[0]
    for axis, (name, pairs) in zip(axes, points.items(), strict=False):
        tidy(axis, name, x="sum of single changes", y="change together" if axis is axes[0] else "")
        axis.scatter(*zip(*pairs, strict=True), s=14, color=BLUE, alpha=0.5, linewidths=0)
        axis.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle="--")
    return figure


_SIGNALS = (
    "Signals are those of the present tracer (one writer, of any kind, with one source token and set of channels), "
    "finer than the published edges between heads; each is changed at the one token where it is read."
)
_SCORES = "Attention is the weight after the softmax, where the paper shows the score before it."
_VECTOR = (
    "What is taken from the residual stream at the token is the same vector for global and local removal, so that one "
    "of them is shown."
)
_HEAVIER = "; and a rank correlation of weight and loss whose interval (over prompts) is above 0"
_WIDER = "; wider: a larger median distance from 1 than for single signals"
_ASKED: dict[Claim, str] = {
    "heavier": "Asked: both fall, and both more for heavier signals (rank correlations whose intervals are above 0).",
    "rises": "Asked: attention falls, the logit difference rises, and a rank correlation of both with an interval "
    "below 0.",
    "apart": "Asked: both fall; not in proportion: a rank correlation of both with an interval below .5.",
    "alike": "Asked: both fall; in proportion: a rank correlation of both of .5 or more, with an interval above 0.",
}
_LIMITS = {("cosine", False): 0.001, ("norm", False): 0.01, ("cosine", True): 0.01, ("norm", True): 0.02}
_LIMIT_TEXT = {
    ("cosine", False): "above .999",
    ("norm", False): "within 1 % of 1",
    ("cosine", True): "above .99",
    ("norm", True): "within 2 % of 1",
}


def measured_in(job: Job, head: Head, role: str) -> str:
    """Who was measured, and whether its role is what its name says."""
    seen = subject(job)
    at = seen.model.attention_layers.index(head[0]), head[1]
    looks = {src: float(role_attention(seen.model, seen.examples[:16], Role("", "END", src))[at]) for src in _NAMES}
    told = ", ".join(f"{value:.2f} to {src}" for src, value in looks.items())
    where = f"Head {head[0]}.{head[1]}, for {role}, looks from END {told} on average."
    return f"{where} Intervals over {LEAST} prompts or more. {_SIGNALS} {LOCAL} {stood_in(job)}"


def _at(side: SideName, role: str = "name mover") -> str:
    return "END" if side == "dest" else "IO" if role == "name mover" else "S2"


def told(value: Interval) -> list[float]:
    """As numbers of an outcome: without an interval where there is none."""
    return [one for one in value if not math.isnan(one)]


def _text(value: Interval) -> str:
    mean, low, high = value
    return f"{mean:.3f}" if math.isnan(low) else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


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


RUNS: dict[str, Experiment] = {
    "svt-fig6": partial(single, role="name mover", number=1, sides=("dest",), heavier=True),
    "svt-fig10": partial(small, what="cosine", together=False),
    "svt-fig11": partial(small, what="norm", together=False),
    "svt-fig12": partial(small, what="cosine", together=True),
    "svt-fig13": partial(small, what="norm", together=True),
    "svt-fig17": partial(falls, number=2, side="dest", mode="global", claim="heavier"),
    "svt-fig19": partial(falls, number=1, side="src", mode="global", claim="apart"),
    "svt-fig20": partial(falls, number=1, side="src", mode="local", claim="alike"),
    "svt-fig22": partial(single, role="name mover", number=0, sides=_BOTH),
    "svt-fig23": partial(single, role="S-inhibition", number=0, sides=_BOTH),
    "svt-fig24": partial(single, role="name mover", number=1, sides=_BOTH),
    "svt-fig25": parallel,
}
