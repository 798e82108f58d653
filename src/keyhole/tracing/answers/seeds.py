"""Where does an answer come from? The writers at the predicting token whose loss would undo it: a circuit's seeds.

A goal is a direction there, and a rule that chooses from what each writer has along it. Writers of all runs are weighed
together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.text import words_label
from keyhole.circuits.writer import Writer
from keyhole.models.tokens.prompts import token_texts
from keyhole.tracing.mlps.attribution import parts_at
from keyhole.tracing.writes.upstream import Writes

_INTERVALS = 64


@dataclass(frozen=True)
class Seed:
    """A writer at the predicting token that the answer rests on."""

    writer: Writer
    weight: float  # its attribution
    alone: float  # what the objective loses when it alone is removed
    along: Float[Tensor, "d_model"] | None = field(default=None, repr=False, compare=False)  # weight = along . write


@dataclass(frozen=True)
class Goal:
    """Along which direction at one token of a run writers are weighed, and which of them are then chosen."""

    run: int
    end: int
    along: Float[Tensor, "d_model"]  # in the residual stream
    layer: int  # that reads it; number of layers: the final norm
    choose: Callable[[Float[Tensor, "component"]], list[Seed]]  # from what each writer has along it


def seeds_of(writes: Writes, goals: Sequence[Goal]) -> list[Callable[[], list[Seed]]]:
    """How to choose the seeds of each goal; writers of all runs are weighed together."""
    found: dict[int, Callable[[], list[Seed]]] = {}
    for layer in {goal.layer for goal in goals}:
        own = [(i, goal) for i, goal in enumerate(goals) if goal.layer == layer]
        along, places = torch.stack([goal.along for _, goal in own]), [(goal.run, goal.end) for _, goal in own]
        parts = parts_at(writes, places, along, layer=layer, attended=False)
        for (i, goal), attribution in zip(own, parts.values, strict=True):
            found[i] = partial(_chosen, goal, attribution)
    return [found[i] for i in range(len(goals))]


def _chosen(goal: Goal, attribution: Float[Tensor, "component"]) -> list[Seed]:
    return [replace(seed, along=goal.along) for seed in goal.choose(attribution)]


def mean_along_path(pull: Callable[[Tensor], Tensor], z: Float[Tensor, "*run vocab"]) -> Float[Tensor, "*run vocab"]:
    """Trapezoid mean of the objective's gradient along alpha z."""
    total = torch.zeros_like(z, dtype=torch.float64)
    for step in range(_INTERVALS + 1):
        share = 0.5 if step in (0, _INTERVALS) else 1.0
        total += share * pull(step / _INTERVALS * z.double())
    return total / _INTERVALS


def state_of(writes: Writes, run: int, end: int) -> Float[Tensor, "d_model"]:
    """What a run's unembedding is given at a token."""
    own = writes.runs[run]
    return own.final_resid[end].to(writes.dtype) / own.final_scale[end]


def shares_of(writes: Writes, run: int, end: int, writers: Sequence[Writer]) -> Float[Tensor, "writer d_model"]:
    """Writers' shares of the normalised last residual stream."""
    return writes.written([run] * len(writers), writers) / writes.runs[run].final_scale[end]


def writer_at(writes: Writes, component: int, end: int, layer: int | None = None) -> Writer:
    """Which writer at a token is this component of what a layer (the final norm, if none is given) reads?"""
    return writes.writer(component, len(writes.runs[0].layers) if layer is None else layer, -1, end)


def words_of(writes: Writes, ids: list[int]) -> str:
    """Tokens, for messages."""
    return words_label(token_texts(writes.model.tokenizer, ids))
