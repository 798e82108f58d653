"""Do residuals hardly change when signals are removed? Their cosines and norms, after and before."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.figures.style import BLUE
from keyhole_papers.experiment import Experiment, Told
from keyhole_papers.job import Attempt, Job
from keyhole_papers.outcome import Verdict
from keyhole_papers.svt.answers import signals_note
from keyhole_papers.svt.effects import MATTERS, Change, Effect, change, effects
from keyhole_papers.svt.intervals import numbered
from keyhole_papers.svt.ioi import LEAST, is_gpt2, judged, measured_on, subject
from keyhole_papers.svt.panels import panels

What = Literal["cosine", "norm"]
_LIMITS = {("cosine", False): 0.001, ("norm", False): 0.01, ("cosine", True): 0.01, ("norm", True): 0.02}
_LIMIT_TEXT = {
    ("cosine", False): "above .999",
    ("norm", False): "within 1 % of 1",
    ("cosine", True): "above .99",
    ("norm", True): "within 2 % of 1",
}
_WIDE = "cosine", True  # for these sets, a wider distribution than for single signals is asked
_WIDER = "; wider: a larger median distance from 1 than for single signals"
_VECTOR = (
    "What is taken from the residual stream at the token is the same vector for global and local removal, so that one "
    "of them is shown."
)


@dataclass(frozen=True)
class Residuals:
    """What was removed from residuals."""

    model: str | None  # as it was asked for
    prompts: int  # looked at
    effects: tuple[Effect, ...]
    about: str  # which prompts

    def of(self, together: bool) -> list[Effect]:
        """Sets of signals, or single ones."""
        return [one for one in self.effects if one.mode == "local" and one.together == together]


def measure(job: Job) -> Residuals:
    """Signals into all heads of two roles, removed."""
    seen = subject(job)
    heads = [(role, i) for role in ("name mover", "S-inhibition") for i in range(len(seen.roles.get(role, ())))]
    found = [one for head in heads or [("name mover", 0)] for one in effects(seen, *head)]
    return Residuals(job.model, len(seen.examples), tuple(found), seen.prompts.about)


def _distance(own: Sequence[Effect], what: What) -> Tensor:
    """From 1, of each removal."""
    return torch.tensor([abs(getattr(one, what) - 1) for one in own])


def _within(own: Sequence[Effect], what: What, together: bool) -> float:
    """How many removals hardly change the residual?"""
    return float((_distance(own, what) < _LIMITS[what, together]).double().mean())


def _size(own: Sequence[Effect]) -> Change:
    return change(own, lambda one: abs(one.answer), lambda one: abs(one.random))


def judge(record: Residuals, what: What, together: bool) -> Verdict:
    """Do residuals hardly change, where answers do? Their cosines, or the ratio of their norms."""
    own = record.of(together)
    peaked = _size(own).prompts >= LEAST and _within(own, what, together) > 0.5
    holds = [peaked]
    if (what, together) == _WIDE:
        holds.append(bool(_distance(own, what).median() > _distance(record.of(False), what).median()))
    return judged(record, holds, first=peaked and _size(own).matters)


def _tell(record: Residuals, what: What, together: bool) -> Told:
    own, limit, many = record.of(together), _LIMIT_TEXT[what, together], "with several signals " if together else ""
    note = (
        f"Asked: {limit} in more than half of the removals, in {LEAST} prompts or more"
        f"{_WIDER if (what, together) == _WIDE else ''}; nothing unless the same removals change the logit "
        f"difference, in size, {MATTERS} (a residual turns little whatever small part of it is removed). "
        + ("" if is_gpt2(record.model) else "A signal is a larger part of a residual of few dimensions. ")
        + f"{_VECTOR} {signals_note(record)} {measured_on(record, roles=True)}"
    )
    if not own:
        return Told(f"No removals {many}in {record.prompts} prompts.", note=note)
    values = torch.tensor([getattr(one, what) for one in own], dtype=torch.float64)
    middle, low, high = float(values.median()), float(values.quantile(0.05)), float(values.quantile(0.95))
    off, off_alone = (float(_distance(some, what).median()) for some in (own, record.of(False)))
    within, size = _within(own, what, together), _size(own)
    numbers = {
        "median": middle,
        "5 %": low,
        "95 %": high,
        "within": within,
        "prompts": size.prompts,
        "size of the change": size.by,
        "size of the change, random": size.random,
        "median distance from 1": off,
        "median distance from 1, single signals": off_alone,
    }
    text = (
        f"{len(own)} removals {many}in {size.prompts} prompts: median {middle:.4f}, 5 % below {low:.4f}; "
        f"{within:.0%} are {limit}. The logit difference changes by {size.by} in size (random channels {size.random})."
    )
    if together:
        text += f" Median distance from 1: {off:.4f}, of single signals {off_alone:.4f}."
    return Told(text, numbered({"": numbers}), note)


def _draw(record: Residuals, what: What, together: bool) -> Mapping[str, Figure]:
    own = record.of(together)
    title = f"{'Cosine' if what == 'cosine' else 'Norm ratio'} of residuals after and before removal"
    figure, (axis,) = panels([""], title, (5.2, 3.2), x=what, y="removals")
    axis.hist([getattr(one, what) for one in own], bins=40, color=BLUE)
    return {"residuals": figure} if own else {}


def small(what: What, *, together: bool) -> Experiment[Residuals]:
    """Of single signals, or of sets."""
    return Experiment(
        measure,
        partial(judge, what=what, together=together),
        partial(_tell, what=what, together=together),
        partial(_draw, what=what, together=together),
    )


RUNS: dict[str, Attempt] = {
    "svt-fig10": small("cosine", together=False),
    "svt-fig11": small("norm", together=False),
    "svt-fig12": small("cosine", together=True),
    "svt-fig13": small("norm", together=True),
}
