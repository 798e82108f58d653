"""Which writers cause what an MLP writes, what is left without them, and how does that read?

Which parts of a write are its causes, and what is left of it without them?

What a cause adds to the neurons is computed once; inputs without some of the causes are sums of these, and of what an
MLP writes only the part along the direction is asked for: no input passes the projections again.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.records import Writer
from keyhole.circuits.text import node_label
from keyhole.errors import KeyholeError, NothingToTraceError, require_choice
from keyhole.models.numbers import exact_matmul, require_exact
from keyhole.models.tokens import token_label
from keyhole.settings.tracing import Constants as Constants
from keyhole.settings.tracing import check_cover
from keyhole.tracing.mlp_attribution import Parts, parts_at
from keyhole.tracing.mlp_places import Along, Places, mlp_places, norm_scale, weights_of
from keyhole.tracing.rounding import require_mlp
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run

_FIRST = 64  # parts looked at first
_NEURON_FLOATS = 1 << 21  # neurons of inputs without causes, held at once


@dataclass(frozen=True)
class Cause:
    """One writer, or the MLP's own offset, and its part."""

    writer: Writer | None  # None: the offset, what the MLP writes with nothing (or constants alone) to read
    part: float  # of s, as a share, by attribution
    weight: float = math.nan  # what s loses when it goes after those before it, as a share
    alone: float = math.nan  # and when it alone goes


def covering(
    parts: Parts, s: Sequence[float], cover: float, offset: Sequence[float] | None = None
) -> list[tuple[Cause, ...]]:
    """Per spot the largest parts, the offset among them, until they add up to `cover` of s; only what pushes there.

    No causes where s is not positive.
    """
    n = min(_FIRST, parts.values.shape[1])
    values, order = (x.tolist() for x in parts.values.topk(n, dim=1))
    causes = list[tuple[Cause, ...]]()
    for i, whole in enumerate(s):
        constant, most, which = 0.0 if offset is None else offset[i], values[i], order[i]
        if not whole > 0:
            causes.append(())
            continue
        if sum(most) < cover * whole + abs(constant):  # rare: more may be needed
            most, which = (x.tolist() for x in parts.values[i].sort(descending=True))
        ranked = list(zip(most, which, strict=True))
        insort(ranked, (constant, -1), key=_descending)
        causes.append(_covering(parts, i, ranked, whole, cover))
    return causes


def _descending(part: tuple[float, int]) -> float:
    """Largest parts first."""
    return -part[0]


def _covering(
    parts: Parts, spot: int, ranked: Sequence[tuple[float, int]], s: float, cover: float
) -> tuple[Cause, ...]:
    causes, covered = [], 0.0
    for value, component in ranked:
        if covered >= cover * s or value <= 0:
            break
        causes.append(Cause(parts.writer(spot, component) if component >= 0 else None, value / s))
        covered += value
    return tuple(causes)


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
    vectors = _written(places, at, [cause for named in causes for cause in named]).to(places.x)
    index = torch.tensor(at, dtype=torch.long, device=vectors.device)
    scale = norm_scale(
        places.stream.runs[0], places.weights, places.x - torch.zeros_like(places.x).index_add(0, index, vectors)
    )
    anew, added = places.scale / scale, places.pre(vectors, at)  # as if the norm had seen what is left
    slot = torch.tensor([j for named in causes for j in range(len(named))], dtype=torch.long, device=vectors.device)
    most, left, start = max(map(len, causes), default=0), list[_Left](), 0
    size = max(1, _NEURON_FLOATS // max(1, (2 * most + 2) * sum(result.shape[2] for result in places.clean)))
    for first in range(0, len(causes), size):
        spots = slice(first, min(first + size, len(causes)))
        n = sum(map(len, causes[spots]))
        rows = slice(start, start + n)
        padded = [
            _padded(result[:, rows], index[rows] - first, slot[rows], (spots.stop - first, most)) for result in added
        ]
        left += _without(places, along, spots, padded, anew, [len(named) for named in causes[spots]])
        start += n
    results = zip(left, s, offset, causes, strict=True)
    return [result.shares(whole, constant, named) for result, whole, constant, named in results]


def _written(places: Places, at: Sequence[int], causes: Sequence[Cause]) -> Float[Tensor, "cause d_model"]:
    """What causes wrote at their places; the offset is none of the input."""
    named = [(i, j) for i, cause in enumerate(causes) if (j := cause.writer) is not None]
    vectors = places.x.new_zeros(len(causes), places.x.shape[1])
    if named:
        runs, rows = [places.spots[at[i]][0] for i, _ in named], [i for i, _ in named]
        vectors[rows] = places.stream.written(runs, [writer for _, writer in named]).to(vectors)
    return vectors


def _padded(
    added: Float[Tensor, "kind cause neuron"], spot: Tensor, slot: Tensor, shape: tuple[int, int]
) -> Float[Tensor, "kind spot most neuron"]:
    """Causes spot by spot, with nothing where a spot has fewer."""
    out = added.new_zeros(added.shape[0], *shape, added.shape[2])
    out[:, spot, slot] = added
    return out


@dataclass(frozen=True)
class _Left:
    """What is written along the direction, the offset included."""

    in_turn: Sequence[float]  # without it and those before it
    alone: Sequence[float]  # without it
    kept: float  # with causes only
    renormed: float  # without all, the norm's scale anew

    def shares(self, s: float, offset: float, causes: tuple[Cause, ...]) -> Without:
        """The same as shares of s; the offset, where it is a cause, is taken from what is written."""
        if not causes:
            return Without((), math.nan, math.nan, math.nan)
        causes_with, before, taken = list[Cause](), s, 0.0
        for cause, left, alone in zip(causes, self.in_turn, self.alone, strict=False):
            constant = offset if cause.writer is None else 0.0
            taken += constant
            causes_with.append(replace(cause, weight=(before - (left - taken)) / s, alone=1 - (alone - constant) / s))
            before = left - taken
        return Without(
            causes=tuple(causes_with), left=before / s, left_renormed=(self.renormed - taken) / s, kept=self.kept / s
        )


def _without(
    places: Places,
    along: Along,
    spots: slice,
    added: Sequence[Float[Tensor, "kind spot cause neuron"]],
    anew: Float[Tensor, "all 1"],
    sizes: Sequence[int],
) -> list[_Left]:
    """Some places, given what each of their causes adds to the neurons, expert by expert; so many causes each."""
    n, inputs = added[0].shape[2], []
    present = torch.arange(n, device=anew.device) < torch.tensor(sizes, device=anew.device)[:, None]
    used = torch.cat([present, present, present.new_ones(len(present), 2)], dim=1)  # neurons are the costly part
    for clean, baseline, each in zip(places.clean, places.baseline, added, strict=True):
        whole, start = clean[:, spots, None], baseline[:, spots, None]
        all_of = each.sum(2, keepdim=True)
        renormed = anew[spots, :, None] * (whole - all_of)
        inputs.append(torch.cat([whole - each.cumsum(2), whole - each, start + all_of, renormed], dim=2)[:, used])
    rows = torch.nonzero(used)[:, 0] + spots.start
    values = (
        torch.zeros_like(used, dtype=anew.dtype)
        .masked_scatter(used, places.written_along(along, inputs, rows))
        .tolist()
    )
    return [_Left(row[:n], row[n : 2 * n], row[-2], row[-1]) for row in values]


# Which writers made an MLP write this? Those that account for most of it, in order, with what is left without them.
#
#     s = d . MLP(x) = offset + sum over writers of g . o_w        exactly, with g from one pass back through the MLP
#
# The causes are the writers, and the offset, with the largest parts, until these add up to `cover` of s.

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
        data = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in hidden}
        causes = [asdict(cause) for cause in self.causes]
        return {**data, "cancels": self.cancels, "causes": causes, "tokens": list(self.run.tokens)}

    def __str__(self) -> str:

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
    """Why does the MLP of a layer write this at a token? See `Run.toward` for an answer's direction.

    `constants`: what biases write whatever the prompt says is the baseline, or a cause as any other.
    """
    run._require_fresh()
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
        if run.is_rounded:
            require_mlp(places, direction[None])
        else:
            require_exact(float(places.errors), run.dtype, f"the MLP of layer {layer}")
        (write,) = explain_places(places, direction.to(places.x)[None], cover)
    if not write.value > 0:
        raise NothingToTraceError(
            f"the MLP of layer {layer} writes {write.value:.3g} along this direction at token {token}, so that "
            "nothing pushes there: ask for the opposite direction."
        )
    return write


def explain_places(places: Places, d: Float[Tensor, "spot d_model"], cover: float) -> list[MlpWrite]:
    """What an MLP writes at each of its places along a direction there, all in one pass back; causes where s > 0."""
    along = places.along(d)
    s = [
        value or math.nan for value in places.written_along(along, places.clean).tolist()
    ]  # of nothing there are no shares
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


# How does an MLP's write read? Its causes, one line each.


def mlp_text(write: "MlpWrite") -> str:
    """A write with its causes."""
    tokens = write.run.tokens
    lines = [
        f"mlp {write.layer} at {token_label(tokens, write.pos)} writes {write.value:+.3f} along this direction, "
        f"reconstructed to {write.error:.0e}"
    ]
    for cause in write.causes:
        who = "offset: with nothing else to read" if cause.writer is None else node_label(cause.writer, tokens)
        lines.append(f"  {cause.part:+.2f}  {who}")
    lines.append(
        f"  without {'it' if len(write.causes) == 1 else 'them'} "
        f"{write.left:+.2f} is left ({write.left_renormed:+.2f} with the norm's scale anew), alone "
        f"{write.kept:+.2f}; offset {write.offset:+.2f}"
    )
    if write.cancels:
        lines.append(f"  note: parts are {write.cancellation:.0f} times as large as their sum, and cancel: not stable")
    lines.append("  neurons " + "  ".join(f"{index} {share:+.2f}" for index, share in write.neurons))
    return "\n".join(lines)
