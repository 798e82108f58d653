"""What do the top layers of the traced network look like, who writes to name movers, and what is odd about 9.6?"""

import math
from dataclasses import replace
from functools import partial

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures import save
from keyhole.figures.network import Edge, name_of, network_figure
from keyhole.figures.style import BLUE, INK, RED, blank, heading, tidy
from keyhole.intervene.remove import Mode
from keyhole.lab.heads.sparse import Head
from keyhole.reproduce.job import Experiment, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.cuts import LOCAL, falls, means_of, measured_in, single
from keyhole.reproduce.svt.effects import MATTERS, Effect, Interval, effects, enough, matters
from keyhole.reproduce.svt.ioi import LEAST, Subject, is_gpt2, judged, stood_in, subject
from keyhole.reproduce.svt.lattice import LATTICE, lattice
from keyhole.reproduce.svt.network import NETWORK, known_here, traced
from keyhole.stats import interval
from keyhole.tracing.firing import SideName
from keyhole.tracing.svt import ChannelChoice, contributions, significant

_ODD = 2  # 9.6 is the third of the name movers
_OPPOSED: tuple[tuple[Mode, str], ...] = (("global", "removed"), ("local", "removed"), ("local", "boosted"))
_SIDES: tuple[tuple[SideName, str], ...] = (("dest", "END"), ("src", "IO"))


def inverted(job: Job) -> Outcome:
    """Does global removal lower the logit difference, local removal raise it, and local boosting lower it?"""
    found = single(job, "name mover", _ODD, ("dest",))
    every, head = effects(job, "name mover", _ODD)
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


# -- all at once ---------------------------------------------------------------------------------------------------


def all_into(job: Job) -> Outcome:
    """Does the logit difference rise locally and fall globally, when all signals into the head are removed?"""
    found, head = effects(job, "name mover", _ODD)
    numbers: Numbers = {}
    means: dict[str, Interval] = {}
    held: dict[str, float] = {}  # changes that are beyond doubt
    lines = []
    for side, token in _SIDES:
        for mode in ("local", "global"):
            own = _all_at_once([one for one in found if (one.side, one.mode) == (side, mode)])
            if not enough(own):
                lines.append(f"{token}, {mode}: prompts with signals {len(own)}, too few to judge.")
                continue
            where = f"{token}, {mode}"
            answer, attention, random = (
                interval([getattr(one, name) for one in own]) for name in ("answer", "attention", "random")
            )
            means[where] = answer
            held[where] = answer[0] if matters(answer, random, own) else math.nan
            numbers |= {f"{where}: logit difference": list(answer), f"{where}: attention": list(attention)}
            numbers[f"{where}: random"] = list(random)
            lines.append(
                f"{where}, {len(own)} prompts: all signals removed together change the logit difference by "
                f"{_text(answer)} and attention by {_text(attention)}; random channels the former by {_text(random)}."
            )
    holds = [
        held.get(f"{token}, local", math.nan) > 0 and held.get(f"{token}, global", math.nan) < 0 for _, token in _SIDES
    ]
    paths = (save(_means_figure(means, head), job.folder / "together.png"),) if means else ()
    note = (
        f"Asked at each token: a local rise and a global fall over {LEAST} prompts or more, {MATTERS}. Head "
        f"{head[0]}.{head[1]} stands where 9.6 is; its signals at END and at IO are removed in turn, "
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
    heading(figure, f"All signals into {head[0]}.{head[1]} removed together")
    axis = figure.subplots()
    tidy(axis, y="change of the logit difference")
    for at, (where, (mean, low, high)) in enumerate(means.items()):
        axis.bar([at], [mean], color=BLUE if "local" in where else RED, width=0.6)
        axis.plot([at, at], [low, high], color=INK, linewidth=1.2)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.set_xticks(range(len(means)), list(means))
    return figure


def _text(value: Interval) -> str:
    mean, low, high = value
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


# -- top layers ----------------------------------------------------------------------------------------------------


def top(job: Job) -> Outcome:
    """Are name movers and S-inhibition heads joined by many paths, each to several of the others?"""
    seen = subject(job)
    seen.role("name mover", 2)
    seen.role("S-inhibition", 1 if is_gpt2(job.model) else 2)  # the published figure names two more
    found = traced(job)
    woven = lattice(job, seen, found.starts, found.pairs(NETWORK))
    lowest = min(layer for layer, _ in woven.movers | woven.inhibitors)
    edges = {edge: share for edge, share in found.frequent(NETWORK).items() if edge[0][0] >= lowest}
    numbers: Numbers = {"edges": len(edges), **woven.numbers, "prompts": found.traced}
    text = (
        f"{len(edges)} edges in {NETWORK:.0%} or more of {found.traced} prompts lie in layers {lowest} and above; "
        f"{woven.text}"
    )
    title = f"Layers {lowest} and above of the traced network, with numbers of prompts out of {found.traced}"
    figure = network_figure(edges, woven.movers | woven.inhibitors, seen.model.dims.heads, title)
    _count(figure, edges, found.traced)
    path = save(figure, job.folder / "top.png")
    names = "; ".join(
        f"{role}: {', '.join(name_of(head) for head in sorted(heads)) or 'none'}"
        for role, heads in (("name movers", woven.movers), ("other heads for S-inhibition", woven.inhibitors))
    )
    note = f"Asked: {LATTICE}; {LEAST} traced prompts or more. {names}. {stood_in(job)}"
    first = found.traced >= LEAST and woven.beyond_chance
    return Outcome(judged(job, woven.holds, first=first), text, numbers, (path,), note)


def _count(figure: Figure, edges: dict[Edge, float], prompts: int) -> None:
    """Write on each line in how many prompts it was found."""
    axis = figure.axes[0]
    for (a, b, side), share in edges.items():
        part = 0.35 if side == "src" else 0.6  # lines of two sides lie beside each other
        x, y = (a[i] + part * (b[i] - a[i]) for i in range(2))
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
        shade = BLUE if side == "src" else RED
        axis.text(x, y, f"{share * prompts:.0f}", fontsize=7, color=shade, ha="center", va="center", bbox=box)


# -- who writes to a name mover ------------------------------------------------------------------------------------


def filtered(job: Job) -> Outcome:
    """Do the slices of a firing single out the heads that matter, where the whole residual shows many?"""
    seen = subject(job)
    movers, inhibits = seen.role("name mover")[:2], seen.role("S-inhibition")
    numbers: Numbers = {}
    lines, fewer, stands_out = [], [], []
    panels: dict[str, Tensor] = {}
    for head in movers:
        (values, some), (whole, every) = (_contributed(seen, head, kind) for kind in _KINDS)
        panels |= {f"{name_of(head)}, all slices": whole, f"{name_of(head)}, slices of the firing": values}
        less = interval([float(a - b) for a, b in zip(some, every, strict=True)])
        fewer.append(less[2] < 0)
        top = [divmod(int(i), values.shape[1]) for i in values.flatten().argsort(descending=True)[:3]]
        named = [(seen.model.attention_layers[row], column) for row, column in top]
        wanted = _OTHERS.get(head, ()) if is_gpt2(job.model) else ()
        stands_out.append(named[0] in inhibits and set(wanted) <= set(named))
        means = [sum(counts) / len(counts) for counts in (some, every)]
        numbers |= {f"{name_of(head)} singular: heads": means[0], f"{name_of(head)} all: heads": means[1]}
        numbers[f"{name_of(head)} fewer"] = list(less)
        lines.append(
            f"{name_of(head)} at END: 70 % of all contributions come from {means[0]:.1f} heads in the slices of the "
            f"firing, and from {means[1]:.1f} in all slices (difference {less[0]:.1f} [{less[1]:.1f}, {less[2]:.1f}]); "
            f"the largest are {', '.join(map(name_of, named))}."
        )
    path = save(_heat_figure(panels), job.folder / "contributions.png")
    note = (
        "Asked of each: fewer heads in the slices of the firing (an interval over prompts below 0), and an "
        f"S-inhibition head as the largest, in GPT-2 also 7.3 and 7.9 next to it for 9.9; nothing if no S-inhibition "
        f"head is the largest. Means over {len(seen.examples)} prompts. S-inhibition heads: "
        f"{', '.join(map(name_of, inhibits))}. {known_here(job)}"
    )
    verdict = judged(job, [*fewer, *stands_out], first=any(stands_out) and len(seen.examples) >= LEAST)
    return Outcome(verdict, "\n".join(lines), numbers, (path,), note)


_KINDS: tuple[ChannelChoice, ChannelChoice] = ("singular", "all")
_OTHERS: dict[Head, tuple[Head, ...]] = {(9, 9): ((7, 3), (7, 9))}  # published beside 8.6


def _contributed(seen: Subject, head: Head, kind: ChannelChoice) -> tuple[Tensor, list[int]]:
    """Mean contribution of every upstream head at END, each prompt's scaled to its largest, and how many matter."""
    total, chosen = [], []
    for number, example in enumerate(seen.examples):
        run = seen.model.run(example.text)
        found = contributions(run, head, example.position(run, "END"), example.position(run, "IO"), channels=kind)
        values = found.at_dest.double().cpu()
        total.append(values / values.abs().max().clamp_min(1e-30))
        chosen.append(int(significant(values).sum()))
        seen.progress(number + 1, len(seen.examples))
    return torch.stack(total).mean(0), chosen


def _heat_figure(panels: dict[str, Tensor]) -> Figure:
    layers, heads = next(iter(panels.values())).shape
    figure = blank(0.9 + len(panels) * (0.28 * heads + 1.0), 1.8 + 0.3 * layers)
    heading(figure, "What upstream heads contribute at END, mean over prompts")
    for axis, (name, values) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        tidy(axis, name, x="head", y="layer" if name == next(iter(panels)) else "")
        axis.imshow(values.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower")
        axis.set_yticks(range(values.shape[0]))
    return figure


RUNS: dict[str, Experiment] = {
    "svt-fig4": filtered,
    "svt-fig14": top,
    "svt-fig18": partial(falls, number=_ODD, side="dest", mode="local", claim="rises"),
    "svt-fig21": inverted,
    "svt-fig27": all_into,
}
