"""What do the signals into a head do to an answer? Each removed and boosted in many prompts, beside random channels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from keyhole.brief import Head, head_name
from keyhole.circuits.records import SideName
from keyhole.intervene.cuts import edge_cut
from keyhole.intervene.removal import Cut, CutMode, Metric, intervene, random_cut
from keyhole.lab.emergence import Push, pushes
from keyhole.lab.roles import Role, role_attention
from keyhole.models.run import Run
from keyhole.stats import Interval
from keyhole_papers.experiment import Job
from keyhole_papers.finding import Finding, Provenance
from keyhole_papers.svt import LEAST, Subject, subject
from keyhole_papers.svt.answers import LOCAL, answers_of, signals_note

_LOOKED = 32  # prompts in which a head's attention and its push are measured
_SOME = 0.01  # of the logit difference: less is a trifle, however sure
Claim = Literal["falls", "rises"]
_CLAIMS: dict[Claim, str] = {"falls": "a loss that matters", "rises": "a gain that matters"}
MATTERS = (
    "A change matters if its interval over prompts excludes 0, and it is more than twice that by random channels and "
    f"{_SOME:.0%} of the logit difference or more, in {LEAST} prompts or more."
)
SIDES: tuple[SideName, SideName] = ("dest", "src")
MODES: tuple[CutMode, CutMode] = ("global", "local")
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
        return [one for one in self.effects if (one.side, one.mode, one.together) == (side, mode, together)]

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
    seen = subject(job)
    head = seen.one(role, number)
    at, shown = (seen.model.attention_layers.index(head[0]), head[1]), seen.examples[:_LOOKED]
    looks = {src: float(role_attention(seen.model, shown, Role("", "END", src))[at]) for src in _NAMES}
    push = pushes([(one, seen.model.run(one.text)) for one in shown], [head])[head]
    return Into(seen.of, role, head, effects(seen, role, number), looks, push)


def effects(seen: Subject, role: str, number: int = 0) -> tuple[Effect, ...]:
    """All signals into the firings of a role's first, second or third head, changed one by one; measured once.

    There are none in prompts where tracing from the name movers does not come by that firing.
    """
    return _effects(seen, seen.one(role, number), _source(role))


def _source(role: str) -> str:
    return "IO" if role == "name mover" else "S2"


@lru_cache(maxsize=8)
def _effects(seen: Subject, head: Head, src: str) -> tuple[Effect, ...]:
    found: list[Effect] = []
    generator = torch.Generator().manual_seed(0)
    every = answers_of(seen).traced
    for number, answer in enumerate(every):
        for side in SIDES:
            edges = answer.into(head, src, side)
            cuts, weights = [edge_cut(answer.circuit, edge) for edge in edges], [edge.weight for edge in edges]
            if len(cuts) > 1:
                cuts.append(replace(cuts[0], signals=tuple(cut.signals[0] for cut in cuts)))
                weights.append(sum(weights))
            if cuts:
                found += _changed(answer.run, cuts, weights, answer.metric, generator, number)
        seen.progress(number + 1, len(every))
    return tuple(found)


def _changed(
    run: Run, cuts: list[Cut], weights: list[float], metric: Metric, generator: torch.Generator, prompt: int
) -> list[Effect]:
    others = [random_cut(run, cut, generator) for cut in cuts]
    n, found = len(cuts), []
    modes: tuple[CutMode, ...] = ("local", "global")
    for mode in modes:
        off = intervene(run, [*cuts, *others], metric, mode=mode)
        on = intervene(run, [*cuts, *others], metric, mode=mode, boost=True)
        answers = [[one.metric_after - one.metric_before for one in several] for several in (off, on)]
        for i, cut in enumerate(cuts):
            found.append(
                Effect(
                    prompt=prompt,
                    side=cut.side,
                    mode=mode,
                    together=len(cut.signals) > 1,
                    weight=weights[i],
                    channels=len(cut.signals[0].channels),
                    answer=answers[0][i],
                    attention=off[i].after - off[i].before,
                    boosted=answers[1][i],
                    random=answers[0][n + i],
                    random_boosted=answers[1][n + i],
                    cosine=off[i].cosine,
                    norm=off[i].norm_ratio,
                    before=off[i].metric_before,
                )
            )
    return found


def over_prompts(own: Sequence[Effect], of: Callable[[Effect], float]) -> Interval:
    """Prompts are the independent observations: their means, then the interval over them."""
    each: dict[int, list[float]] = {}
    for one in own:
        each.setdefault(one.prompt, []).append(of(one))
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

    def finding(self, name: str, claim: Claim | None = None) -> Finding:
        """As it is told and judged."""
        if claim is None:
            return Finding(name, self.by)
        return Finding(name, self.by, _CLAIMS[claim], self.falls if claim == "falls" else self.rises)


def change(own: Sequence[Effect], of: Callable[[Effect], float], random: Callable[[Effect], float]) -> Change:
    """A change of the logit difference beside that by random channels, over prompts."""
    size = over_prompts(own, lambda one: abs(one.before)).mean
    return Change(over_prompts(own, of), over_prompts(own, random), size, len({one.prompt for one in own}))


def removed(own: Sequence[Effect]) -> Change:
    """What removal does."""
    return change(own, lambda one: one.answer, lambda one: one.random)


def boosted(own: Sequence[Effect]) -> Change:
    """What doubling does."""
    return change(own, lambda one: one.boosted, lambda one: one.random_boosted)


def rank_correlation(
    own: Sequence[Effect], a: Callable[[Effect], float], b: Callable[[Effect], float], draws: int = 200
) -> Interval:
    """Spearman's over all signals, with its 95 % interval over prompts, drawn again with all of their signals.

    0 where there is nothing to rank.
    """
    each: dict[int, list[tuple[float, float]]] = {}
    for one in own:
        each.setdefault(one.prompt, []).append((a(one), b(one)))
    groups, generator = [np.array(pairs) for pairs in each.values()], torch.Generator().manual_seed(0)
    if len(groups) < 2:
        return Interval(spearman(groups[0] if groups else ()), math.nan, math.nan)
    drawn = torch.randint(len(groups), (draws, len(groups)), generator=generator).tolist()
    found = [spearman(np.concatenate([groups[i] for i in one])) for one in drawn]
    low, high = torch.tensor(found, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return Interval(spearman(np.concatenate(groups)), low, high)


def spearman(pairs: ArrayLike) -> float:
    """The correlation of ranks; 0 where there is nothing to rank.

    >>> spearman([(1.0, 1.0), (2.0, 4.0), (3.0, 9.0)])
    1.0
    """
    ranks = [_ranks(column) for column in np.asarray(pairs, dtype=np.float64).reshape(-1, 2).T]
    if len(ranks[0]) < 3 or any(np.ptp(one) == 0 for one in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])  # scipy's function gives the same, in ten times the time


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Places in order, from 1; equal values share the mean of theirs."""
    _, place, many = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(many) - (many - 1) / 2)[place]
    return ranks
