"""Do the causes of an MLP's write hold? Taken from what it reads, in the model's own forward pass, beside controls.

The MLP is called with its normed input less gain * centre(causes) / n_t: the norm's scale is that of the run, as in the
explanation, and a router sees the input as it was. An offset that is a cause is taken from what the MLP writes.
Everything downstream is free, so that the answer tells what this one removal is worth. Controls take away as many other
writers of the nearest norms at the same place.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.records import Writer
from keyhole.intervene.removal import AGREES, Metric
from keyhole.intervene.rerun import Edits, MlpEdit, Rerun, WriterEdit, rerun
from keyhole.models.numbers import exact_matmul, tolerance_of
from keyhole.tracing.mlp_attribution import Parts, norms_at
from keyhole.tracing.mlp_places import Places

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.mlp_causes import MlpWrite


@dataclass(frozen=True, eq=False)
class Claim:
    """What is said of an MLP's write: who caused it, and what is left without them."""

    place: Places  # one spot, with the frozen scales
    direction: Float[Tensor, "d_model"]
    causes: tuple[Writer, ...]  # without the offset, which is none of the input
    offset: bool  # is it a cause, too?

    @property
    def run(self) -> "Run":
        """The run it is said of."""
        return self.place.stream.runs[self.place.spots[0][0]]

    @property
    def pos(self) -> int:
        """At which token."""
        return self.place.spots[0][1]

    @cached_property
    def value(self) -> float:
        """What is written along the direction."""
        return float(self.place.own[0] @ self.direction.to(self.place.x))

    @cached_property
    def constant(self) -> Float[Tensor, "d_model"]:
        """What is taken from the write with its causes: the offset, where it is one."""
        return self.place.write(self.place.x0)[0] if self.offset else torch.zeros_like(self.place.x[0])

    def edit(self, removed: Float[Tensor, "d_model"]) -> MlpEdit:
        """The change of the MLP's normed input that takes a vector from what it reads."""
        delta = self.place.weights.read(-removed) / self.place.scale[0].to(removed)
        every = torch.zeros_like(self.run.layers[0].resid, dtype=delta.dtype)
        every[self.pos] = delta
        return MlpEdit(self.place.layer, every)

    def written(self, result: Rerun, copy: int) -> Float[Tensor, "d_model"]:
        """What the MLP gave in an edited copy, with the scale that a norm after it had in the run."""
        out = result.mlps[copy, self.place.layer][self.pos].to(self.place.x)
        return self.place.weights.written(out) / self.place.out_scale[0]

    def share(self, written: Float[Tensor, "d_model"]) -> float:
        """A write along the direction, as a share of the run's own."""
        return float(written @ self.direction.to(self.place.x)) / self.value

    def removals(self, draws: int) -> list[Edits]:
        """Without its causes, and without as many other writers, each set next to them in norm."""
        row, writes = self.place.spots[0][0], self.place.stream
        sets = [list(self.causes), *_controls(self, draws)]
        read = [self.edit(writes.written([row] * len(members), members).sum(0)) for members in sets]
        every = torch.zeros_like(read[0].delta)
        every[self.pos] = -self.constant.to(every)
        taken = (WriterEdit("mlp", self.place.layer, every),) if self.offset else ()
        return [Edits(mlps=(edit,), writers=taken if i == 0 else ()) for i, edit in enumerate(read)]

    def left(self, result: Rerun, copy: int, removal: int) -> Float[Tensor, "d_model"]:
        """What is written after one of the removals; with the causes, the first, the constant is gone as well."""
        written = self.written(result, copy)
        return written - self.constant if removal == 0 else written


def claim_of(write: "MlpWrite") -> Claim:
    """What an explanation says."""
    written = tuple(cause.writer for cause in write.causes if cause.writer is not None)
    return Claim(write.places, write.direction, written, len(written) < len(write.causes))


@dataclass(frozen=True)
class CausesRemoved:
    """What is left of an MLP's write, as shares of it, and what the answer loses."""

    __repr__ = brief

    predicted: float  # `left` of the explanation
    left: float
    control_left: tuple[float, ...]
    metric_before: float
    metric_after: float
    control_metrics: tuple[float, ...]
    agrees: bool  # is what is left what was predicted?


def left_agrees(left: float, predicted: float, dtype: torch.dtype) -> bool:
    """Is what is left of a write what was predicted, as far as the model's precision can tell?"""
    return abs(left - predicted) <= left_tolerance(predicted, dtype)


def left_tolerance(predicted: float, dtype: torch.dtype) -> float:
    """How far what is left of a write may be from what was predicted: relative to it, where it is more than all."""
    return max(AGREES, tolerance_of(dtype)) * max(1.0, abs(predicted))


def remove_causes(write: "MlpWrite", metric: Metric, *, draws: int = 3) -> CausesRemoved:
    """Take an MLP's causes from what it reads, beside controls."""
    claim, run = claim_of(write), write.run
    with exact_matmul():
        result = rerun(run, claim.removals(draws))
        copies = range(len(result.captured.logits))
        shares = [claim.share(claim.left(result, copy, copy)) for copy in copies]
        metrics = [metric.of(result.captured.logits[copy, metric.end]) for copy in copies]
    return CausesRemoved(
        predicted=write.left,
        left=shares[0],
        control_left=tuple(shares[1:]),
        metric_before=metric.of(run.logits[metric.end]),
        metric_after=metrics[0],
        control_metrics=tuple(metrics[1:]),
        agrees=left_agrees(shares[0], write.left, run.logits.dtype),
    )


def _controls(claim: Claim, draws: int) -> list[list[Writer]]:
    """Sets of other writers at the place, each next in norm to one of the causes; fewer sets where there are few."""
    place, chosen = claim.place, claim.causes
    (spot,), writes = place.spots, place.stream
    norms = norms_at(writes, spot, layer=place.layer, attended=not place.weights.parallel)
    own = writes.written([spot[0]] * len(chosen), chosen).norm(dim=1).tolist() if chosen else []
    near = [_nearest(norms, size, set(chosen), draws) for size in own]
    sets: dict[frozenset[Writer], list[Writer]] = {}
    for draw in range(draws):
        taken: list[Writer] = []
        for free in ([w for w in others if w not in taken] for others in near):
            taken += free[min(draw, len(free) - 1) :][:1] if free else []
        if taken:
            sets[frozenset(taken)] = taken
    return list(sets.values())


def _nearest(norms: Parts, norm: float, chosen: set[Writer], draws: int) -> list[Writer]:
    """Writers that wrote about as much, the nearest first, and that wrote at all; enough for all sets of controls."""
    values = norms.values[0]
    order = (values - norm).abs().argsort()[: 2 * len(chosen) + draws]
    found = [norms.writer(0, i) for i in order.tolist() if values[i] > 0]
    return [writer for writer in found if writer not in chosen and writer.src <= writer.dest]
