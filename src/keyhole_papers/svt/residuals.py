"""Do residuals hardly change when signals are removed? Their cosines and norms, after and before."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.style import BLUE
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance
from keyhole_papers.svt.answers import panels, signals_note
from keyhole_papers.svt.effects import MATTERS, Change, Effect, change, effects
from keyhole_papers.svt.ioi import LEAST, subject

What = Literal["cosine", "norm"]
_LIMITS = {("cosine", False): 0.001, ("norm", False): 0.01, ("cosine", True): 0.01, ("norm", True): 0.02}
_LIMIT_TEXT = {
    ("cosine", False): "above .999",
    ("norm", False): "within 1 % of 1",
    ("cosine", True): "above .99",
    ("norm", True): "within 2 % of 1",
}
_WIDE = "cosine", True  # for these sets, a wider distribution than for single signals is asked
_WIDER = "larger than of single signals"
_VECTOR = (
    "What is taken from the residual stream at the token is the same vector for global and local removal, so that one "
    "of them is shown."
)


@dataclass(frozen=True)
class Residuals:
    """What was removed from residuals."""

    of: Provenance
    effects: tuple[Effect, ...]

    def local(self, together: bool) -> list[Effect]:
        """Sets of signals, or single ones."""
        return [one for one in self.effects if one.mode == "local" and one.together == together]


def measure(job: Job) -> Residuals:
    """Signals into all heads of two roles, removed."""
    seen = subject(job)
    heads = [(role, i) for role in ("name mover", "S-inhibition") for i in range(len(seen.roles.get(role, ())))]
    found = [one for head in heads or [("name mover", 0)] for one in effects(seen, *head)]
    return Residuals(seen.of, tuple(found))


def _distance(own: Sequence[Effect], what: What) -> Tensor:
    """From 1, of each removal."""
    return torch.tensor([abs(getattr(one, what) - 1) for one in own])


def _within(own: Sequence[Effect], what: What, together: bool) -> float:
    """How many removals hardly change the residual?"""
    return float((_distance(own, what) < _LIMITS[what, together]).double().mean())


def _size(own: Sequence[Effect]) -> Change:
    return change(own, lambda one: abs(one.answer), lambda one: abs(one.random))


def findings(record: Residuals, what: What, together: bool) -> Findings:
    """Do residuals hardly change, where answers do? Their cosines, or the ratio of their norms."""
    own, size = record.local(together), _size(record.local(together))
    values = torch.tensor([getattr(one, what) for one in own], dtype=torch.float64)
    middle, low, high = (float(values.quantile(at)) if own else math.nan for at in (0.5, 0.05, 0.95))
    off, alone = (float(_distance(some, what).median()) for some in (own, record.local(False)))
    within = _within(own, what, together)
    peaked = size.prompts >= LEAST and within > 0.5
    wide = (what, together) == _WIDE
    rows = [
        Finding("removals", len(own)),
        Finding("prompts", size.prompts),
        Finding("median", middle, digits=4),
        Finding("5 %", low, digits=4),
        Finding("95 %", high, digits=4),
        Finding("within", within, f"more than half {_LIMIT_TEXT[what, together]}", peaked, percent=True),
        Finding("size of the change", size.by),
        Finding("size of the change, random", size.random),
        Finding("median distance from 1", off, _WIDER * wide, off > alone if wide else None, digits=4),
        Finding("median distance from 1, single signals", alone, digits=4),
    ]
    remark = (
        f"{MATTERS} A residual turns little whatever small part of it is removed. "
        + ("" if record.of.real else "A signal is a larger part of a residual of few dimensions. ")
        + f"{_VECTOR} {signals_note(record.of)}"
    )
    unless = "most are, and the same removals change the logit difference, in size, so that it matters"
    return Findings(rows, record.of, first=peaked and size.matters, unless=unless, remark=remark)


def _draw(record: Residuals, what: What, together: bool) -> Mapping[str, Figure]:
    own = record.local(together)
    title = f"{'Cosine' if what == 'cosine' else 'Norm ratio'} of residuals after and before removal"
    figure, (axis,) = panels([""], title, (5.2, 3.2), x=what, y="removals")
    axis.hist([getattr(one, what) for one in own], bins=40, color=BLUE)
    return {"residuals": figure} if own else {}


def small(what: What, *, together: bool) -> Experiment[Residuals]:
    """Of single signals, or of sets."""
    return Experiment(
        measure,
        partial(findings, what=what, together=together),
        partial(_draw, what=what, together=together),
    )


RUNS: dict[str, Attempt] = {
    "svt-fig10": small("cosine", together=False),
    "svt-fig11": small("norm", together=False),
    "svt-fig12": small("cosine", together=True),
    "svt-fig13": small("norm", together=True),
}
