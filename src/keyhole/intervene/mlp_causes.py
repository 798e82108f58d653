"""Do the causes of an MLP's write hold? Taken from what it reads, in the model's own forward pass, beside controls.

The MLP is called with its normed input less gain * centre(causes) / n_t: the norm's scale is that of the run, as in the
explanation. Everything downstream is free, so that the answer tells what this one removal is worth. Controls take away
as many other writers of the nearest norms at the same place.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.writer import Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.remove import Metric
from keyhole.intervene.rerun import Edits, MlpEdit, Rerun, rerun
from keyhole.models.norms import read_norm
from keyhole.models.precision import exact_matmul
from keyhole.tracing.mlps.attribution import parts_at
from keyhole.tracing.mlps.spots import Spot
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.tracing.mlps.explain import MlpWrite

AGREES = 1e-4  # of the write


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

    @property
    def agrees(self) -> bool:
        """Is what is left what was predicted?"""
        return abs(self.left - self.predicted) <= AGREES * max(1.0, abs(self.predicted))


def remove_causes(write: "MlpWrite", metric: Metric, *, draws: int = 3) -> CausesRemoved:
    """Take an MLP's causes from what it reads; refuses mixtures of experts, whose routing would change with it."""
    places = write.places
    if places.weights.route is not None:
        raise KeyholeError(
            "an MLP of experts sends other inputs to other experts: its causes are told with the routing frozen, and "
            "cannot be taken away in the model's own pass."
        )
    writes, run = Writes(write.run), write.run
    with exact_matmul():
        chosen = [cause.writer for cause in write.causes if cause.writer is not None]
        sets = [chosen, *_controls(write, writes, chosen, draws)]
        vectors = [_total(writes, members) for members in sets]
        result = rerun(run, [Edits(mlps=(_edit(write, vector),)) for vector in vectors])
        offset = write.offset * write.value if len(chosen) < len(write.causes) else 0.0
        left = [_read(write, result, copy) for copy in range(len(sets))]
        metrics = [metric.of(result.captured.logits[copy, metric.end]) for copy in range(len(sets))]
    return CausesRemoved(
        predicted=write.left,
        left=(left[0] - offset) / write.value,
        control_left=tuple(value / write.value for value in left[1:]),
        metric_before=metric.of(run.logits[metric.end]),
        metric_after=metrics[0],
        control_metrics=tuple(metrics[1:]),
    )


def _total(writes: Writes, members: list[Writer]) -> Float[Tensor, "d_model"]:
    return sum((writes.written(writer) for writer in members), torch.zeros_like(writes.local[0, 0]))


def _edit(write: "MlpWrite", removed: Float[Tensor, "d_model"]) -> MlpEdit:
    """The change of the MLP's normed input, at its token."""
    places, family = write.places, write.run.model.family
    delta = -removed
    if places.weights.norm is not None:
        norm = read_norm(places.weights.norm, family.norm, family.norm_adds_one)
        delta = norm.centre(delta) / places.scale[0].to(delta)
        delta = delta if norm.gain is None else delta * norm.gain
    every = torch.zeros_like(write.run.layers[0].resid, dtype=delta.dtype)
    every[write.pos] = delta
    return MlpEdit(write.layer, every)


def _read(write: "MlpWrite", result: Rerun, copy: int) -> float:
    """What the MLP wrote along the direction, with the scale that a norm after it had in the run."""
    places = write.places
    out = result.mlps[copy, write.layer][write.pos].to(places.x)
    gain = places.weights.gain
    out = out * (gain.to(out) if isinstance(gain, Tensor) else gain) / places.out_scale[0]
    return float(out @ write.direction.to(out))


def _controls(write: "MlpWrite", writes: Writes, chosen: list[Writer], draws: int) -> list[list[Writer]]:
    """Sets of other writers at the place, each next in norm to one of the causes; fewer sets where there are few."""
    attended, t = not write.places.weights.parallel, write.pos
    (parts,) = parts_at([Spot(writes, t)], writes.local[:1, t], layer=write.layer, attended=attended)
    others = [w for w in map(parts.writer, range(len(parts.values))) if w not in set(chosen)]
    if not others or not chosen:
        return []
    norms = torch.stack([writes.written(writer).norm() for writer in others])
    sets: dict[tuple[int, ...], None] = {}
    for draw in range(draws):
        taken: list[int] = []
        for writer in chosen:
            near = (norms - writes.written(writer).norm()).abs().argsort().tolist()
            free = [i for i in near if i not in taken]
            taken += free[min(draw, len(free) - 1) :][:1] if free else []
        sets[tuple(sorted(taken))] = None
    return [[others[i] for i in members] for members in sets]
