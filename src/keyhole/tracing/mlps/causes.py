"""Which parts of a write are its causes, and what is left of it without them?

What a cause adds to the neurons is computed once; inputs without some of the causes are sums of these, and of what an
MLP writes only the part along the direction is asked for: no input passes the projections again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Writer
from keyhole.tracing.mlps.attribution import Parts
from keyhole.tracing.mlps.places import Along, Places, norm_scale

_FIRST = 64  # parts looked at first


@dataclass(frozen=True)
class Cause:
    """One writer, or the MLP's own offset, and its part."""

    writer: Writer | None  # None: the offset, what the MLP writes with nothing (or constants alone) to read
    part: float  # of s, as a share, by attribution
    weight: float = math.nan  # what s loses when it goes after those before it, as a share
    alone: float = math.nan  # and when it alone goes


def covering(parts: Parts, s: float, cover: float, offset: float = 0.0) -> tuple[Cause, ...]:
    """The largest parts, the offset among them, until they add up to `cover` of s; only what pushes towards it."""
    n = min(_FIRST, len(parts.values))
    values, order = parts.values.topk(n)
    if float(values.sum()) < cover * s + abs(offset):  # rare: more may be needed
        values, order = parts.values.sort(descending=True)
    ranked = list(zip(values.tolist(), order.tolist(), strict=True))
    found, covered = [], 0.0
    for value, component in sorted([*ranked, (offset, -1)], key=lambda part: -part[0]):
        if covered >= cover * s or value <= 0:
            break
        found.append(Cause(parts.writer(component) if component >= 0 else None, value / s))
        covered += value
    return tuple(found)


@dataclass(frozen=True)
class Without:
    """What becomes of a write when its causes go, as shares of it."""

    causes: tuple[Cause, ...]  # with what each takes along
    left: float
    left_renormed: float
    kept: float


def without(
    places: Places, along: Along, s: Sequence[float], offset: Sequence[float], causes: Sequence[tuple[Cause, ...]]
) -> list[Without]:
    """The writes at all places with causes taken from the input: one after another, each alone, all, all but them."""
    at = [i for i, named in enumerate(causes) for _ in named]
    each = [_written(places, i, cause) for i, named in enumerate(causes) for cause in named]
    vectors = torch.stack(each).to(places.x) if each else places.x[:0]
    added = places.pre(vectors, at)
    gone = torch.zeros_like(places.x).index_add(0, torch.tensor(at, dtype=torch.long, device=vectors.device), vectors)
    scale = norm_scale(places.spots[0].writes.run, places.weights, places.x - gone)
    anew = (places.scale / scale)[:, 0].tolist()  # as if the norm had seen what is left
    found, start = [], 0
    for i, named in enumerate(causes):
        own = [pre[:, start : start + len(named)] for pre in added]
        found.append(_without(places, along, i, own, anew[i]).shares(s[i], offset[i], named))
        start += len(named)
    return found


def _written(places: Places, i: int, cause: Cause) -> Float[Tensor, "d_model"]:
    """What a cause wrote at a place; the offset is none of the input."""
    return torch.zeros_like(places.x[i]) if cause.writer is None else places.spots[i].writes.written(cause.writer)


@dataclass(frozen=True)
class _Told:
    """What is written along the direction, the offset included."""

    in_turn: Float[Tensor, "cause"]  # without it and those before it
    alone: Float[Tensor, "cause"]  # without it
    kept: float  # with causes only
    renormed: float  # without all, the norm's scale anew

    def shares(self, s: float, offset: float, causes: tuple[Cause, ...]) -> Without:
        """The same as shares of s; the offset, where it is a cause, is taken from what is written."""
        if not causes:
            return Without((), math.nan, math.nan, math.nan)
        taken = torch.tensor([offset if cause.writer is None else 0.0 for cause in causes], dtype=torch.float64)
        steps = torch.cat([taken.new_tensor([s]), self.in_turn - taken.cumsum(0)])
        drops, lost = ((steps[:-1] - steps[1:]) / s).tolist(), (1 - (self.alone - taken) / s).tolist()
        return Without(
            causes=tuple(replace(c, weight=w, alone=a) for c, w, a in zip(causes, drops, lost, strict=True)),
            left=float(steps[-1]) / s,
            left_renormed=(self.renormed - float(taken.sum())) / s,
            kept=self.kept / s,
        )


def _without(places: Places, along: Along, i: int, added: Sequence[Tensor], anew: float) -> _Told:
    """One place, given what each of its causes adds to the neurons."""
    n, inputs = added[0].shape[1], []
    for clean, baseline, each in zip(places.clean, places.baseline, added, strict=True):
        whole, all_gone = clean[:, i : i + 1], clean[:, i : i + 1] - each.sum(1, keepdim=True)
        kept = baseline[:, i : i + 1] + each.sum(1, keepdim=True)
        inputs.append(torch.cat([whole - each.cumsum(1), whole - each, kept, anew * all_gone], dim=1))
    told = places.told(along, inputs, [i] * (2 * n + 2)).cpu()
    return _Told(told[:n], told[n : 2 * n], float(told[-2]), float(told[-1]))
