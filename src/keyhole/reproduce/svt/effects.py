"""What do the signals into a head do to an answer? Each removed and boosted in many prompts, beside random channels."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from keyhole.circuits.writer import SideName
from keyhole.figures.network import name_of
from keyhole.intervene.deltas import Cut
from keyhole.intervene.remove import Metric, Mode, intervene, random_cut
from keyhole.lab.heads.sparse import Head
from keyhole.lab.training.roles import Role, role_attention
from keyhole.models.run import Run
from keyhole.reproduce.job import Job
from keyhole.reproduce.svt.ioi import LEAST, Subject, answer_ids, stood_in, subject
from keyhole.stats import interval
from keyhole.tasks.example import Example
from keyhole.tracing.candidates import Keys

Interval = tuple[float, float, float]  # a mean (or another number), and where it lies with 95 %
_PROMPTS = 48
_SOME = 0.01  # of the logit difference: less is a trifle, however sure
MATTERS = (
    f"with an interval that excludes 0, by more than twice the change by random channels, and by {_SOME:.0%} of the "
    "logit difference or more"
)
LOCAL = (
    "Local removal changes the head's query (at END) or key (at the source) alone; in the paper it changes the head's "
    "input at the token, and so its query, key and value."
)
SIGNALS = (
    "Signals are those of the present tracer (one writer, of any kind, with one source token and set of channels), "
    "finer than the published edges between heads; each is changed at the one token where it is read."
)
MODES: tuple[Mode, Mode] = ("global", "local")
ODD = 2  # 9.6 is the third of the name movers
_NAMES = ("IO", "S1", "S2")
_KEYS: Keys = "source"  # as in the paper, where an edge is read at one token


@dataclass(frozen=True)
class Effect:
    """One signal (or all of a side) changed in one prompt; random ones beside it."""

    prompt: int
    side: SideName
    mode: Mode
    together: bool  # all signals of the side at once
    weight: float  # drop of attention that tracing gave to the signal
    channels: int  # of the signal
    answer: float  # change of logit(IO) - logit(S) when removed
    attention: float  # change of the attention weight when removed
    boosted: float  # change of the logit difference when doubled
    random: float  # the same for as many other channels of the same writer
    random_boosted: float
    cosine: float  # of the residual with what it was
    norm: float  # over what it was
    before: float  # logit(IO) - logit(S) of the prompt as it is


def effects(job: Job, role: str, number: int = 0) -> tuple[tuple[Effect, ...], Head]:
    """All signals into the firings of a role's first, second or third head, changed one by one; measured once."""
    seen = subject(job)
    head = seen.one(role, number)
    return _effects(seen, head, "IO" if role == "name mover" else "S2"), head


@lru_cache(maxsize=8)
def _effects(seen: Subject, head: Head, src: str) -> tuple[Effect, ...]:
    found: list[Effect] = []
    generator = torch.Generator().manual_seed(0)
    for number, (example, run) in enumerate(seen.runs(_PROMPTS)):
        firing = run.explain(head, example.position(run, "END"), example.position(run, src), keys=_KEYS)
        for side in firing.sides:  # none where the weight is below the threshold of tracing
            signals = [signal for signal in side.signals if signal.writer.kind != "offset"]
            cuts = [Cut(*head, firing.dest, firing.src, (signal,), _KEYS) for signal in signals]
            weights = [signal.weight for signal in signals]
            if len(signals) > 1:
                cuts.append(Cut(*head, firing.dest, firing.src, tuple(signals), _KEYS))
                weights.append(sum(weights))
            if cuts:
                found += _changed(run, cuts, weights, _metric(example, run), generator, number)
    return tuple(found)


def _metric(example: Example, run: Run) -> Metric:
    """Logit of IO against that of S."""
    right, wrong = answer_ids(run.model, example)
    return Metric(len(run) - 1, (right,), (wrong,))


def _changed(
    run: Run, cuts: list[Cut], weights: list[float], metric: Metric, generator: torch.Generator, prompt: int
) -> list[Effect]:
    others = [random_cut(run, cut, generator) for cut in cuts]
    n, found = len(cuts), []
    modes: tuple[Mode, ...] = ("local", "global")
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


def prompts_of(own: Sequence[Effect]) -> int:
    """In how many prompts was something changed?"""
    return len({one.prompt for one in own})


def enough(own: Sequence[Effect]) -> bool:
    """Are these prompts enough to judge from?"""
    return prompts_of(own) >= LEAST


def over_prompts(own: Sequence[Effect], of: Callable[[Effect], float]) -> Interval:
    """Prompts are the independent observations: their means, then the interval over them."""
    each: dict[int, list[float]] = {}
    for one in own:
        each.setdefault(one.prompt, []).append(of(one))
    return interval([sum(values) / len(values) for values in each.values()]) if each else (float("nan"),) * 3


def matters(change: Interval, random: Interval, own: Sequence[Effect]) -> bool:
    """Is a change of the logit difference beyond doubt, more than twice that of random channels, and no trifle?"""
    size = over_prompts(own, lambda one: abs(one.before))[0]
    beyond = change[1] * change[2] > 0 and abs(random[0]) < abs(change[0]) / 2
    return beyond and abs(change[0]) >= _SOME * size


def rank_correlation(
    own: Sequence[Effect], a: Callable[[Effect], float], b: Callable[[Effect], float], draws: int = 200
) -> Interval:
    """Spearman's over all signals, with its 95 % interval over prompts, drawn again with all of their signals.

    0 where there is nothing to rank.
    """
    each: dict[int, list[tuple[float, float]]] = {}
    for one in own:
        each.setdefault(one.prompt, []).append((a(one), b(one)))
    groups, generator = list(each.values()), torch.Generator().manual_seed(0)
    whole = spearman([pair for group in groups for pair in group])
    found = []
    for _ in range(draws if len(groups) > 1 else 0):
        drawn = torch.randint(len(groups), (len(groups),), generator=generator).tolist()
        found.append(spearman([pair for i in drawn for pair in groups[i]]))
    if not found:
        return whole, float("nan"), float("nan")
    low, high = torch.tensor(found, dtype=torch.float64).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
    return whole, low, high


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """The correlation of ranks; 0 where there is nothing to rank.

    >>> spearman([(1.0, 1.0), (2.0, 4.0), (3.0, 9.0)])
    1.0
    """
    a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if len(pairs) < 3 or len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def measured_in(job: Job, head: Head, role: str) -> str:
    """Who was measured, and whether its role is what its name says."""
    seen = subject(job)
    at = seen.model.attention_layers.index(head[0]), head[1]
    looks = {src: float(role_attention(seen.model, seen.examples[:16], Role("", "END", src))[at]) for src in _NAMES}
    looked = ", ".join(f"{value:.2f} to {src}" for src, value in looks.items())
    where = f"Head {name_of(head)}, for {role}, looks from END {looked} on average."
    return f"{where} Intervals over {LEAST} prompts or more. {SIGNALS} {LOCAL} {stood_in(job)}"


def token_of(side: SideName, role: str = "name mover") -> str:
    """Where a head of that role reads a side."""
    return "END" if side == "dest" else "IO" if role == "name mover" else "S2"


def as_list(value: Interval) -> list[float]:
    """As numbers of an outcome: without an interval where there is none."""
    return [one for one in value if not math.isnan(one)]
