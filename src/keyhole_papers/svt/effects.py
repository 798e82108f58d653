"""What do the signals into a head do to an answer? Each removed and boosted in many prompts, beside random channels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Edge
from keyhole.circuits.records import SideName
from keyhole.figures.style import BLUE, INK, panels
from keyhole.intervene.cuts import edge_cut
from keyhole.intervene.removal import CutMode, intervene, random_cut
from keyhole.lab.emergence import Push, pushes
from keyhole.lab.roles import Role, role_attention
from keyhole.stats import Interval
from keyhole_papers.experiment import Job
from keyhole_papers.finding import Finding, Provenance
from keyhole_papers.svt import LEAST, Pair, subject
from keyhole_papers.svt.answers import LOCAL, MODES, Answer, answers, signals_note

_LOOKED = 32  # prompts in which a head's attention and its push are measured
_SOME = 0.01  # of the logit difference: less is a trifle, however sure
Turn = Literal["falls", "rises"]
_CLAIMS: dict[Turn, str] = {"falls": "a loss that matters", "rises": "a gain that matters"}
MATTERS = (
    "A change matters if its interval over prompts excludes 0, and it is more than twice that by random channels and "
    f"{_SOME:.0%} of the logit difference or more, in {LEAST} prompts or more."
)
POINTS: Mapping[str, Any] = {"s": 14, "color": BLUE, "alpha": 0.5, "linewidths": 0}  # of a cloud
SIDES: tuple[SideName, SideName] = ("dest", "src")
ODD = 2  # 9.6 is the third of the name movers
_NAMES = ("IO", "S1", "S2")


@dataclass(frozen=True)
class Effect:
    """One signal (or all of a side) changed in one prompt; random ones beside it."""

    prompt: int
    side: SideName
    mode: CutMode
    together: bool  # all signals of the side at once
    weight: float  # contribution that tracing gave to the signal, equation 8 of the paper
    channels: int  # of the signal
    answer: float  # change of logit(IO) - logit(S) when removed
    attention: float  # change of the attention weight when removed
    boosted: float  # change of the logit difference when doubled
    random: float  # the same for as many other channels of the same writer
    random_boosted: float
    cosine: float  # of the residual with what it was
    norm: float  # over what it was
    before: float  # logit(IO) - logit(S) of the prompt as it is


@dataclass(frozen=True)
class Into:
    """All signals into the firings of one head, changed one by one."""

    of: Provenance
    role: str
    head: Head
    effects: tuple[Effect, ...]
    looks: Mapping[str, float]  # mean attention from END, by name
    push: Push  # what the head does to the answer

    def at(self, side: SideName, mode: CutMode, *, together: bool = False) -> list[Effect]:
        """Single signals (or all at once) at one token."""
        place = side, mode, together
        return [effect for effect in self.effects if (effect.side, effect.mode, effect.together) == place]

    def where(self, side: SideName, mode: CutMode) -> str:
        """A place in words."""
        return f"{self.token(side)}, {mode}"

    def token(self, side: SideName) -> str:
        """Where the head reads a side."""
        return "END" if side == "dest" else _source(self.role)

    @property
    def note(self) -> str:
        """Who was measured, and whether its role is what its name says."""
        looked = ", ".join(f"{value:.2f} to {src}" for src, value in self.looks.items())
        who = f"Head {head_name(self.head)}, for {self.role}, looks from END {looked} on average, and {self.push}."
        return f"{MATTERS} {who} {signals_note(self.of)} {LOCAL}"


def into(job: Job, role: str, number: int = 0) -> Into:
    """What the signals into a role's first, second or third head do, and where that head looks."""
    of_job = subject(job)
    head = of_job.head(role, number)
    at, shown = (of_job.model.attention_layers.index(head[0]), head[1]), of_job.examples[:_LOOKED]
    looks = {src: float(role_attention(of_job.model, shown, Role("", "END", src))[at]) for src in _NAMES}
    push = pushes([(example, of_job.model.run(example.text)) for example in shown], [head])[head]
    return Into(of_job.of, role, head, effects(job, role, number), looks, push)


@lru_cache(maxsize=8)
def effects(job: Job, role: str, number: int = 0) -> tuple[Effect, ...]:
    """All signals into the firings of a role's first, second or third head, changed one by one; measured once.

    There are none in prompts where tracing from the name movers does not come by that firing.
    """
    head, traced = subject(job).head(role, number), answers(job).traced
    generator, changed = torch.Generator().manual_seed(0), list[Effect]()
    for prompt, answer in enumerate(traced):
        for side in SIDES:
            changed += _changed(answer, prompt, answer.into(head, _source(role), side), generator)
        job.progress(prompt + 1, len(traced))
    return tuple(changed)


def _source(role: str) -> str:
    return "IO" if role == "name mover" else "S2"


def _changed(answer: Answer, prompt: int, edges: Sequence[Edge], generator: torch.Generator) -> list[Effect]:
    """Each of a side's edges changed alone, and all of them at once where there are several."""
    cuts, weights = [edge_cut(answer.circuit, edge) for edge in edges], [edge.weight for edge in edges]
    if len(cuts) > 1:
        cuts.append(replace(cuts[0], signals=tuple(cut.signals[0] for cut in cuts)))
        weights.append(sum(weights))
    others = [random_cut(answer.run, cut, generator) for cut in cuts]
    n, changed = len(cuts), []
    for mode in reversed(MODES) if cuts else ():
        off = intervene(answer.run, [*cuts, *others], answer.metric, mode=mode)
        on = intervene(answer.run, [*cuts, *others], answer.metric, mode=mode, boost=True)
        lost, gained = ([each.metric_after - each.metric_before for each in changes] for changes in (off, on))
        for i, cut in enumerate(cuts):
            effect = Effect(
                prompt=prompt,
                side=cut.side,
                mode=mode,
                together=len(cut.signals) > 1,
                weight=weights[i],
                channels=len(cut.signals[0].channels),
                answer=lost[i],
                attention=off[i].after - off[i].before,
                boosted=gained[i],
                random=lost[n + i],
                random_boosted=gained[n + i],
                cosine=off[i].cosine,
                norm=off[i].norm_ratio,
                before=off[i].metric_before,
            )
            changed.append(effect)
    return changed


def over_prompts(effects: Sequence[Effect], of: Callable[[Effect], float]) -> Interval:
    """Prompts are the independent observations: their means, then the interval over them."""
    each: dict[int, list[float]] = {}
    for effect in effects:
        each.setdefault(effect.prompt, []).append(of(effect))
    return Interval.over(sum(values) / len(values) for values in each.values())


@dataclass(frozen=True)
class Change:
    """By how much does the logit difference change, and by how much with random channels?"""

    by: Interval
    random: Interval
    size: float  # of the logit difference as it is
    prompts: int

    @property
    def matters(self) -> bool:
        """Is it beyond doubt, in enough prompts, more than twice that of random channels, and no trifle?"""
        beyond = self.by.beyond_doubt and abs(self.random.mean) < abs(self.by.mean) / 2
        return self.prompts >= LEAST and beyond and abs(self.by.mean) >= _SOME * self.size

    @property
    def falls(self) -> bool:
        """Does it matter, and for the worse?"""
        return self.matters and self.by.mean < 0

    @property
    def rises(self) -> bool:
        """Does it matter, and for the better?"""
        return self.matters and self.by.mean > 0

    def finding(self, name: str, claim: Turn | None = None) -> Finding:
        """As it is reported and judged."""
        if claim is None:
            return Finding(name, self.by)
        return Finding(name, self.by, _CLAIMS[claim], self.falls if claim == "falls" else self.rises)


def change(effects: Sequence[Effect], of: Callable[[Effect], float], random: Callable[[Effect], float]) -> Change:
    """A change of the logit difference beside that by random channels, over prompts."""
    size, prompts = over_prompts(effects, lambda effect: abs(effect.before)).mean, {effect.prompt for effect in effects}
    return Change(over_prompts(effects, of), over_prompts(effects, random), size, len(prompts))


def removed(effects: Sequence[Effect]) -> Change:
    """What removal does."""
    return change(effects, lambda effect: effect.answer, lambda effect: effect.random)


def boosted(effects: Sequence[Effect]) -> Change:
    """What doubling does."""
    return change(effects, lambda effect: effect.boosted, lambda effect: effect.random_boosted)


def rank_correlation(
    effects: Sequence[Effect], a: Callable[[Effect], float], b: Callable[[Effect], float], draws: int = 200
) -> Interval:
    """Spearman's over all signals, with its 95 % interval over prompts, drawn again with all of their signals.

    0 where there is nothing to rank.
    """
    each: dict[int, list[tuple[float, float]]] = {}
    for effect in effects:
        each.setdefault(effect.prompt, []).append((a(effect), b(effect)))
    groups, generator = [np.array(pairs) for pairs in each.values()], torch.Generator().manual_seed(0)
    if len(groups) < 2:
        return Interval(spearman(groups[0] if groups else ()), math.nan, math.nan)
    drawn = torch.randint(len(groups), (draws, len(groups)), generator=generator).tolist()
    values = [spearman(np.concatenate([groups[i] for i in draw])) for draw in drawn]
    low, high = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return Interval(spearman(np.concatenate(groups)), low, high)


def spearman(pairs: ArrayLike) -> float:
    """The correlation of ranks; 0 where there is nothing to rank.

    >>> spearman([(1.0, 1.0), (2.0, 4.0), (3.0, 9.0)])
    1.0
    """
    ranks = [rankdata(column) for column in np.asarray(pairs, dtype=np.float64).reshape(-1, 2).T]
    if len(ranks[0]) < 3 or any(np.ptp(places) == 0 for places in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])  # scipy's spearmanr gives the same, in ten times the time


def sums_figure(points: Mapping[str, Sequence[Pair]], title: str) -> Figure:
    """Changes when signals are removed together against the sum of their single changes; on the line they add up."""
    size, x, y = (max(5.0, 2.8 * len(points) + 0.4), 3.4), "sum of single changes", "change together"
    figure, axes = panels(points, title, size, x=x, y=y, sharey=False)
    for axis, pairs in zip(axes, points.values(), strict=True):
        axis.scatter(*zip(*pairs, strict=True), **POINTS)
        axis.axline((0, 0), slope=1, color=INK, linewidth=0.8, linestyle="--")
    return figure
