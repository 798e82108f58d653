"""Do residuals hardly change when signals are removed? Their cosines and norms, after and before."""

from functools import partial
from typing import Literal

import torch
from matplotlib.figure import Figure

from keyhole.figures import save
from keyhole.figures.style import BLUE, blank, heading, tidy
from keyhole.reproduce.job import Attempt, Job, Numbers
from keyhole.reproduce.outcome import Outcome
from keyhole.reproduce.svt.effects import (
    MATTERS,
    SIGNALS,
    as_list,
    effects,
    enough,
    matters,
    over_prompts,
    prompts_of,
)
from keyhole.reproduce.svt.ioi import LEAST, is_gpt2, judged, stood_in, subject
from keyhole.stats import as_text

_LIMITS = {("cosine", False): 0.001, ("norm", False): 0.01, ("cosine", True): 0.01, ("norm", True): 0.02}
_LIMIT_TEXT = {
    ("cosine", False): "above .999",
    ("norm", False): "within 1 % of 1",
    ("cosine", True): "above .99",
    ("norm", True): "within 2 % of 1",
}
_WIDER = "; wider: a larger median distance from 1 than for single signals"
_VECTOR = (
    "What is taken from the residual stream at the token is the same vector for global and local removal, so that one "
    "of them is shown."
)


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
        + f"{_VECTOR} {SIGNALS} {stood_in(job)}"
    )
    if not own:
        return Outcome(judged(job, []), f"No removals {many}in {len(seen.examples)} prompts.", {}, (), note)
    values = torch.tensor([getattr(one, what) for one in own], dtype=torch.float64)
    off, off_alone = (torch.tensor([abs(getattr(one, what) - 1) for one in some]) for some in (own, alone))
    within, wider = float((off < limit).double().mean()), float(off.median()) > float(off_alone.median())
    middle, low, high = float(values.median()), float(values.quantile(0.05)), float(values.quantile(0.95))
    numbers: Numbers = {"median": middle, "5 %": low, "95 %": high, "within": within, "prompts": prompts_of(own)}
    change, random = (over_prompts(own, of) for of in (lambda one: abs(one.answer), lambda one: abs(one.random)))
    numbers |= {"size of the change": as_list(change), "size of the change, random": as_list(random)}
    numbers["median distance from 1"] = float(off.median())
    numbers["median distance from 1, single signals"] = float(off_alone.median())
    text = (
        f"{len(own)} removals {many}in {prompts_of(own)} prompts: median {middle:.4f}, 5 % below {low:.4f}; "
        f"{within:.0%} are {_LIMIT_TEXT[what, together]}. The logit difference changes by {as_text(change)} in size "
        f"(random channels {as_text(random)})."
    )
    if together:
        text += f" Median distance from 1: {off.median():.4f}, of single signals {off_alone.median():.4f}."
    path = save(_histogram(values.tolist(), what), job.folder / "residuals.png")
    peaked = enough(own) and within > 0.5
    holds = [peaked, wider] if (what, together) == ("cosine", True) else [peaked]
    first = peaked and matters(change, random, own)
    return Outcome(judged(job, holds, first=first), text, numbers, (path,), note)


def _histogram(values: list[float], what: str) -> Figure:
    figure = blank(5.2, 3.2)
    heading(figure, f"{'Cosine' if what == 'cosine' else 'Norm ratio'} of residuals after and before removal")
    axis = figure.subplots()
    tidy(axis, x=what, y="removals")
    axis.hist(values, bins=40, color=BLUE)
    return figure


RUNS: dict[str, Attempt] = {
    "svt-fig10": partial(small, what="cosine", together=False),
    "svt-fig11": partial(small, what="norm", together=False),
    "svt-fig12": partial(small, what="cosine", together=True),
    "svt-fig13": partial(small, what="norm", together=True),
}
