"""Which writers made an MLP write this? Those that account for most of it, in order, with what is left without them.

    s = d . MLP(x) = offset + sum over writers of g . o_w        exactly, with g from one pass back through the MLP

The causes are the writers, and the offset, with the largest parts, until these add up to `cover` of s.
"""

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError, NothingToTraceError, require_choice
from keyhole.models.numbers.precision import exact_matmul
from keyhole.models.numbers.tolerance import require_exact
from keyhole.tracing.mlps.attribution import parts_at
from keyhole.tracing.mlps.causes import Cause, covering, without
from keyhole.tracing.mlps.places import Places, mlp_places, weights_of
from keyhole.tracing.writes.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run

Constants = Literal["baseline", "causes"]
_NEURONS = 8  # named
CANCELS = 10.0  # sum of |parts| over s, from which causes are not stable


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
    g: Float[Tensor, "d_model"] = field(repr=False, compare=False)  # the parts are g . o
    direction: Float[Tensor, "d_model"] = field(repr=False, compare=False)
    among: Places = field(repr=False, compare=False)  # places of all that were explained together
    index: int = field(default=0, repr=False, compare=False)  # and which of them this is

    @property
    def places(self) -> Places:
        """Its own place, with the frozen scales."""
        return self.among.at(self.index)

    @property
    def run(self) -> "Run":
        """The run it happened in."""
        return self.among.stream.runs[self.among.spots[self.index][0]]

    @property
    def cancels(self) -> bool:
        """Do large parts cancel, so that causes are not stable?"""
        return self.cancellation > CANCELS

    def record(self) -> dict[str, Any]:
        """As plain data, without vectors."""
        hidden = ("g", "direction", "among", "index", "causes")
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in hidden}
        causes = [asdict(cause) for cause in self.causes]
        return {**told, "cancels": self.cancels, "causes": causes, "tokens": list(self.run.tokens)}

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
    with exact_matmul():
        token = run.position(pos)
        places = mlp_places(
            Writes([run]), [(0, token)], weights_of(run, layer), layer, constants=constants == "baseline"
        )
        require_exact(float(places.errors), run.logits.dtype, f"the MLP of layer {layer}")
        (write,) = explain_places(places, direction.to(places.x)[None], cover)
    if not write.value > 0:
        raise NothingToTraceError(
            f"the MLP of layer {layer} writes {write.value:.3g} along this direction at token {token}, so that "
            "nothing pushes there: ask for the opposite direction."
        )
    return write


def check_cover(cover: float) -> None:
    """Refuse what is no share."""
    if not 0 < cover <= 1:
        raise KeyholeError(f"cover is {cover}, but the share that causes account for lies between 0 and 1.")


def explain_places(places: Places, d: Float[Tensor, "spot d_model"], cover: float) -> list[MlpWrite]:
    """What an MLP writes at each of its places along a direction there, all in one pass back; causes where s > 0."""
    along = places.along(d)
    s = [value or math.nan for value in places.told(along, places.clean).tolist()]  # of nothing there are no shares
    g, offsets = places.back(along)
    offset, attended = offsets.tolist(), not places.weights.parallel
    parts = parts_at(places.stream, places.spots, g, layer=places.layer, attended=attended)
    parts = parts.without_constants() if bool(places.x0.any()) else parts
    gone = without(places, along, s, offset, covering(parts, s, cover, offset))
    named = places.top_neurons(along, _NEURONS)
    total, size = parts.values.sum(1).tolist(), parts.values.abs().sum(1).tolist()
    return [
        MlpWrite(
            layer=places.layer,
            pos=places.spots[i][1],
            value=whole,
            offset=offset[i] / whole,
            causes=gone[i].causes,
            left=gone[i].left,
            left_renormed=gone[i].left_renormed,
            kept=gone[i].kept,
            cancellation=(abs(offset[i]) + size[i]) / whole,
            neurons=tuple((neuron, value / whole) for neuron, value in named[i]),
            error=abs(offset[i] + total[i] - whole) / abs(whole),
            g=g[i],
            direction=d[i],
            among=places,
            index=i,
        )
        for i, whole in enumerate(s)
    ]
