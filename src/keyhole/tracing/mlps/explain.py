"""Which writers made an MLP write this? Those that account for most of it, in order, with what is left without them.

    s = d . MLP(x) = offset + sum over writers of g . o_w        exactly, with g from one pass back through the MLP

The causes are the writers, and the offset, with the largest parts, until these add up to `cover` of s.
"""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import Writer
from keyhole.errors import KeyholeError, NothingToTraceError, require_choice
from keyhole.models.precision import exact_matmul
from keyhole.models.tolerance import require_exact
from keyhole.tracing.mlps.attribution import Parts, parts_at
from keyhole.tracing.mlps.places import Places, mlp_places, norm_scale, weights_of
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run

Constants = Literal["baseline", "causes"]
_NEURONS = 8  # named
CANCELS = 10.0  # sum of |parts| over s, from which causes are not stable


@dataclass(frozen=True)
class Cause:
    """One writer, or the MLP's own offset, and its part."""

    writer: Writer | None  # None: the offset, what the MLP writes with nothing (or constants alone) to read
    part: float  # of s, as a share, by attribution
    weight: float = math.nan  # what s loses when it goes after those before it, as a share
    alone: float = math.nan  # and when it alone goes


@dataclass(frozen=True)
class MlpWrite:
    """What one MLP writes at one token along one direction, and its causes."""

    layer: int
    pos: int
    value: float  # s
    offset: float  # as a share of s
    causes: tuple[Cause, ...]  # largest first
    left: float  # share of s without them, the norm's scale frozen
    left_renormed: float  # the same, the scale computed anew
    kept: float  # share of s with them alone
    cancellation: float  # sum of |parts| over s: above 10 the causes are not stable
    neurons: tuple[tuple[int, float], ...]  # the largest, with their shares of s; experts one after another
    error: float  # of s = offset + parts, relative
    places: Places = field(repr=False, compare=False)  # with the frozen scales
    direction: Float[Tensor, "d_model"] = field(repr=False, compare=False)

    @property
    def run(self) -> "Run":
        """The run it happened in."""
        return self.places.run

    @property
    def cancels(self) -> bool:
        """Do large parts cancel, so that causes are not stable?"""
        return self.cancellation > CANCELS

    def __str__(self) -> str:
        from keyhole.tracing.mlps.text import mlp_text

        return mlp_text(self)


def explain_mlp(
    run: "Run",
    layer: int,
    pos: int | str,
    direction: Float[Tensor, "d_model"],
    *,
    cover: float = 0.8,
    constants: Constants = "baseline",
) -> MlpWrite:
    """Why does the MLP of a layer write this at a token? See `keyhole.tracing.mlps.toward` for an answer's direction.

    `constants`: what biases write whatever the prompt says is the baseline, or a cause as any other.
    """
    run.require_fresh()
    require_choice("constants", constants, Constants)
    check_cover(cover)
    if not 0 <= layer < len(run.layers):
        raise KeyholeError(f"there is no layer {layer}: the model has layers 0 to {len(run.layers) - 1}.")
    if direction.shape != run.final_resid.shape[1:] or not bool(torch.isfinite(direction).all()):
        raise KeyholeError(f"a direction has {run.final_resid.shape[1]} finite entries for this model.")
    t = run.position(pos)
    with exact_matmul():
        writes = Writes(run)
        places = mlp_places(writes, weights_of(run, layer), layer, [t], constants=constants == "baseline")
        return _explained(places, writes, direction.to(places.x)[None], cover)


def check_cover(cover: float) -> None:
    """Refuse what is no share."""
    if not 0 < cover <= 1:
        raise KeyholeError(f"cover is {cover}, but the share that causes account for lies between 0 and 1.")


def _explained(places: Places, writes: Writes, d: Float[Tensor, "1 d_model"], cover: float) -> MlpWrite:
    run, t = places.run, places.tokens[0]
    require_exact(float(places.errors), run.logits.dtype, f"the MLP of layer {places.layer}")
    s = float((d * places.own).sum())
    if s <= 0:
        raise NothingToTraceError(
            f"the MLP of layer {places.layer} writes {s:.3g} along this direction at token {t}, so that nothing pushes "
            "there: ask for the opposite direction."
        )
    g, offset = places.back(d)
    (parts,) = parts_at(writes, [t], g, layer=places.layer, attended=not places.weights.parallel)
    return write_of(places, 0, d[0], parts, float(offset), cover=cover)


def write_of(
    places: Places, index: int, d: Float[Tensor, "d_model"], parts: Parts, offset: float, *, cover: float
) -> MlpWrite:
    """What an MLP writes along d at one of its places, given what a pass back through it found."""
    one = places.at(index)
    s = float(d @ one.own[0])
    told = parts.without_constants() if bool(one.x0.any()) else parts
    causes = covering(told, s, cover, offset)
    without = _without(one, d, s, causes, parts.writes, offset)
    shares = one.neurons(d[None])[0] / s
    top = shares.abs().topk(min(_NEURONS, len(shares))).indices.tolist()
    return MlpWrite(
        layer=places.layer,
        pos=one.tokens[0],
        value=s,
        offset=offset / s,
        causes=without.causes,
        left=without.left,
        left_renormed=without.left_renormed,
        kept=without.kept,
        cancellation=(abs(offset) + float(told.values.abs().sum())) / s,
        neurons=tuple((i, float(shares[i])) for i in top),
        error=abs(offset + float(told.values.sum()) - s) / s,
        places=one,
        direction=d,
    )


@dataclass(frozen=True)
class _Without:
    """What becomes of a write when its causes go, as shares of it."""

    causes: tuple[Cause, ...]  # with what each takes along
    left: float
    left_renormed: float
    kept: float


def _without(
    one: Places, d: Float[Tensor, "d_model"], s: float, causes: tuple[Cause, ...], writes: Writes, offset: float
) -> _Without:
    """The MLP with causes taken from its input, one after another, alone, all but them: one evaluation for all."""
    n, each = len(causes), torch.stack([_written(writes, cause) for cause in causes]).to(one.x)
    taken = torch.tensor([offset if cause.writer is None else 0.0 for cause in causes]).to(each)
    in_turn, alone, kept = one.x - each.cumsum(0), one.x - each, one.x0 + each.sum(0)
    anew = in_turn[-1:] * (one.scale / norm_scale(one.run, one.weights, in_turn[-1:]))  # as if the norm had seen it
    inputs = torch.cat([in_turn, alone, kept, anew])
    found = one.at(0, len(inputs)).write(inputs) @ d
    found[:n] -= taken.cumsum(0)
    found[n : 2 * n] -= taken
    steps = torch.cat([found.new_tensor([s]), found[:n]])
    drops, lost = ((steps[:-1] - steps[1:]) / s).tolist(), (1 - found[n : 2 * n] / s).tolist()
    told = tuple(replace(c, weight=w, alone=a) for c, w, a in zip(causes, drops, lost, strict=True))
    return _Without(
        causes=told,
        left=float(found[n - 1]) / s,
        left_renormed=float(found[-1] - taken.sum()) / s,
        kept=float(found[-2]) / s,
    )


def covering(parts: Parts, s: float, cover: float, offset: float = 0.0) -> tuple[Cause, ...]:
    """The largest parts, the offset among them, until they add up to `cover` of s; only what pushes towards it."""
    values, order = parts.values.sort(descending=True)
    enough = int((values.cumsum(0) < cover * s + abs(offset)).sum()) + 1  # no more than these can be needed
    ranked = list(zip(values[:enough].tolist(), order[:enough].tolist(), strict=True))
    found, covered = [], 0.0
    for value, component in sorted([*ranked, (offset, -1)], key=lambda part: -part[0]):
        if covered >= cover * s or value <= 0:
            break
        found.append(Cause(parts.writer(component) if component >= 0 else None, value / s))
        covered += value
    return tuple(found)


def _written(writes: Writes, cause: Cause) -> Float[Tensor, "d_model"]:
    """What a cause wrote at the place; the offset is none of the input."""
    return torch.zeros_like(writes.local[0, 0]) if cause.writer is None else writes.written(cause.writer)
