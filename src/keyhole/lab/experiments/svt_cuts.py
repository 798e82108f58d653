"""Do signals into the heads of the IOI circuit cause its answers? Removed and boosted, alone and together."""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from keyhole.figures import save
from keyhole.figures.style import BLUE, FAINT, GREY, INK, RED, blank, heading, legend, tidy
from keyhole.intervene.remove import Mode
from keyhole.lab.emergence_roles import Role, role_attention
from keyhole.lab.intervals import interval
from keyhole.lab.ioi_studies import is_gpt2, judged, stood_in, subject
from keyhole.lab.job import Experiment, Job, Numbers
from keyhole.lab.outcome import Outcome
from keyhole.lab.signal_effects import effects, over_prompts, rank_correlation
from keyhole.lab.sparse import Head
from keyhole.tracing.firing import SideName

Means = dict[str, tuple[float, float, float]]  # what was done -> mean and interval
_ORDER = ("removed", "boosted", "random removed", "random boosted")
_BOTH: tuple[SideName, ...] = ("dest", "src")
_NAMES = ("IO", "S1", "S2")
_SHADES = (BLUE, RED, GREY, FAINT)


# -- what is said of them ------------------------------------------------------------------------------------------


def single(job: Job, role: str, number: int, sides: Sequence[SideName]) -> Outcome:
    """Does removing a signal lower the logit difference, and boosting raise it, unlike random channels?"""
    found, head = effects(job, role, number)
    numbers: Numbers = {}
    lines, holds, panels = [], [], {}
    for side in sides:
        for mode in ("global", "local"):
            own = [one for one in found if (one.side, one.mode, one.together) == (side, mode, False)]
            if not own:
                continue
            means = {
                "removed": over_prompts(own, lambda one: one.answer),
                "boosted": over_prompts(own, lambda one: one.boosted),
                "random removed": over_prompts(own, lambda one: one.random),
                "random boosted": over_prompts(own, lambda one: one.random_boosted),
            }
            where = f"{'END' if side == 'dest' else 'source'}, {mode}"
            panels[where] = means
            heavier = rank_correlation([one.weight for one in own], [-one.answer for one in own])
            numbers |= {f"{where}: {name}": list(value) for name, value in means.items()}
            numbers[f"{where}: heavier"] = heavier
            off, on, random, other = (means[name] for name in _ORDER)
            holds += [off[2] < 0 and abs(random[0]) < -off[0] / 2, on[1] > 0 and abs(other[0]) < on[0] / 2]
            lines.append(
                f"{where}, {len(own)} signals: removed {_text(off)}, boosted {_text(on)}, random removed "
                f"{_text(random)}; "
                f"rank correlation of weight and loss {heavier:.2f}."
            )
    title = f"Change of the logit difference, signals into {head[0]}.{head[1]}"
    path = save(_bars(panels, title), job.folder / "effects.png")
    return Outcome(judged(job, holds), "\n".join(lines), numbers, (path,), _note(job, head, role))


def falls(job: Job, number: int, side: SideName, mode: Mode) -> Outcome:
    """Do attention and logit difference both fall when a signal is removed, and in proportion?"""
    found, head = effects(job, "name mover", number)
    own = [one for one in found if (one.side, one.mode, one.together) == (side, mode, False)]
    attention, answer = (over_prompts(own, of) for of in (lambda one: one.attention, lambda one: one.answer))
    alike = rank_correlation([one.attention for one in own], [one.answer for one in own])
    heavier = rank_correlation([one.weight for one in own], [-one.attention for one in own])
    numbers: Numbers = {"attention": list(attention), "logit difference": list(answer)}
    numbers |= {"rank correlation of both": alike, "rank correlation of weight and attention lost": heavier}
    text = (
        f"{len(own)} signals into {head[0]}.{head[1]}: attention changes by {_text(attention)}, the logit "
        f"difference by "
        f"{_text(answer)}; rank correlation of both {alike:.2f}, of weight and attention lost {heavier:.2f}."
    )
    figure = blank(4.8, 3.8)
    heading(figure, f"Signals into {head[0]}.{head[1]} removed, {mode}")
    axis = figure.subplots()
    tidy(axis, x="change of attention", y="change of the logit difference")
    axis.scatter([one.attention for one in own], [one.answer for one in own], s=14, color=BLUE, alpha=0.5, linewidths=0)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.axvline(0, color=INK, linewidth=0.8)
    path = save(figure, job.folder / "removed.png")
    holds = [attention[2] < 0 and answer[2] < 0]
    return Outcome(judged(job, holds), text, numbers, (path,), _note(job, head, "name mover"))


def small(job: Job, what: Literal["cosine", "norm"], together: bool) -> Outcome:
    """Do residuals hardly change? Their cosines, or the ratio of their norms, before and after."""
    several = [effects(job, "name mover", number)[0] for number in range(len(subject(job).role("name mover")))]
    own = [one for found in several for one in found if one.together == together and one.mode == "local"]
    values = torch.tensor([getattr(one, what) for one in own], dtype=torch.float64)
    middle, low = float(values.median()), float(values.quantile(0.05))
    off = (values - 1).abs()
    within = float((off < (0.001 if what == "cosine" else 0.01)).double().mean())
    numbers: Numbers = {"median": middle, "5 %": low, "95 %": float(values.quantile(0.95)), "within": within}
    limit = "above .999" if what == "cosine" else "within 1 % of 1"
    text = f"{len(own)} removals: median {middle:.4f}, 5 % below {low:.4f}; {within:.0%} are {limit}."
    figure = blank(5.2, 3.2)
    heading(figure, f"{'Cosine' if what == 'cosine' else 'Norm ratio'} of residuals after and before removal")
    axis = figure.subplots()
    tidy(axis, x=what, y="removals")
    axis.hist(values.tolist(), bins=40, color=BLUE)
    path = save(figure, job.folder / "residuals.png")
    holds = [within > 0.5] if not together else [bool((off < 0.05).double().mean() > 0.5)]
    wide = "" if is_gpt2(job.model) else "A signal is a larger part of a residual of few dimensions. "
    return Outcome(judged(job, holds), text, numbers, (path,), f"{wide}{_SIGNALS} {stood_in(job)}")


def parallel(job: Job) -> Outcome:
    """Do the effects of signals that reach a head side by side add up? At each token, global and local."""
    found, head = effects(job, "name mover")
    numbers: Numbers = {}
    lines, holds, points = [], [], {}
    for side, mode in ((side, mode) for side in _BOTH for mode in ("global", "local")):
        own = [one for one in found if (one.side, one.mode) == (side, mode)]
        sums: dict[int, float] = {}
        for one in own:
            if not one.together:
                sums[one.prompt] = sums.get(one.prompt, 0.0) + one.answer
        at_once = [one for one in own if one.together]
        if not at_once:
            continue
        where = f"{'END' if side == 'dest' else 'source'}, {mode}"
        points[where] = [(sums[one.prompt], one.answer) for one in at_once]
        joint, summed = interval([one.answer for one in at_once]), interval([sums[one.prompt] for one in at_once])
        share = joint[0] / summed[0] if summed[0] else 0.0
        numbers |= {f"{where}: together": list(joint), f"{where}: sum": list(summed), f"{where}: share": share}
        holds.append(joint[1] * joint[2] > 0 and 0.5 <= share <= 1.5)
        lines.append(
            f"{where}, {len(at_once)} sets: removed together {_text(joint)}, sum of single removals {_text(summed)}."
        )
    text = "\n".join(lines) or "No firing has two signals on one side."
    path = save(_sums_figure(points, head), job.folder / "sums.png")
    return Outcome(judged(job, holds), text, numbers, (path,), _note(job, head, "name mover"))


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


def _note(job: Job, head: Head, role: str) -> str:
    """Who was measured, and whether its role is what its name says."""
    seen = subject(job)
    at = seen.model.attention_layers.index(head[0]), head[1]
    looks = {src: float(role_attention(seen.model, seen.examples[:16], Role("", "END", src))[at]) for src in _NAMES}
    told = ", ".join(f"{value:.2f} to {src}" for src, value in looks.items())
    where = f"Head {head[0]}.{head[1]}, for {role}, looks from END {told} on average."
    return f"{where} Intervals over prompts. {_SIGNALS} {stood_in(job)}"


def _text(value: tuple[float, float, float]) -> str:
    mean, low, high = value
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


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
    "svt-fig6": partial(single, role="name mover", number=1, sides=("dest",)),
    "svt-fig10": partial(small, what="cosine", together=False),
    "svt-fig11": partial(small, what="norm", together=False),
    "svt-fig12": partial(small, what="cosine", together=True),
    "svt-fig13": partial(small, what="norm", together=True),
    "svt-fig17": partial(falls, number=2, side="dest", mode="global"),
    "svt-fig19": partial(falls, number=1, side="src", mode="global"),
    "svt-fig20": partial(falls, number=1, side="src", mode="local"),
    "svt-fig22": partial(single, role="name mover", number=0, sides=_BOTH),
    "svt-fig23": partial(single, role="S-inhibition", number=0, sides=_BOTH),
    "svt-fig24": partial(single, role="name mover", number=1, sides=_BOTH),
    "svt-fig25": parallel,
}
