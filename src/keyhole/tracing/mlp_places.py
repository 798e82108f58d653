"""What does an MLP read at some tokens, and what is the average slope of each neuron between a baseline and its input?

The path from a baseline x0 to the input x is a straight line. A neuron without a gate sees one number along it, so that
its integrated gradient is a secant, in closed form. A gated neuron sees two.

    plain:  slope_u = [act(b_u + p) - act(b_u)] / p
    gated:  slope_u = integral of a(b_g + t h) b'(b_u + t p) dt,   slope_g = [y(1) - y(0) - p slope_u] / h

A gated neuron is y = a(gate) b(up), with `act` or `a` the activation and b usually the identity. x - x0 adds p to the
pre-activation of the up-projection and h to that of the gate; at x0 these are b_u and b_g. The gate's slope takes the
remainder, so that offset and slopes add up to the MLP's write to rounding, whatever the error of the quadrature.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.capture import frozen_scale
from keyhole.models.facts import read_norm
from keyhole.models.mlps import MlpWeights, Neurons, NoMlp
from keyhole.models.numbers import working_dtype
from keyhole.tracing.mlp_attribution import Spot, index_of

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.upstream import Writes

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)  # 96 nodes change credit between gate and up by 1e-6
_NODE_FLOATS = 1 << 20  # limit on neurons times quadrature nodes in memory at once
_TINY = 1e-6  # change of a pre-activation below which the derivative replaces the secant


@dataclass(frozen=True)
class Slopes:
    """Average slopes of one expert's neurons at some spots (tokens of runs)."""

    start: Float[Tensor, "spot neuron"]  # y(0): the neuron at the baseline
    read: Float[Tensor, "kind spot neuron"]  # slope by the up-projection's pre-activation, and by the gate's


@dataclass(frozen=True)
class Along:
    """A direction d at each spot, and what the MLP's neurons and bias write along it."""

    c: tuple[Float[Tensor, "spot neuron"], ...]  # per unit of each neuron, one tensor per expert
    constant: Float[Tensor, "spot"]  # from the output bias


@dataclass(frozen=True, eq=False)
class Places:
    """One layer's MLP at some tokens of one or more runs, with norm scales and routing frozen."""

    stream: "Writes"
    spots: tuple[Spot, ...]
    layer: int
    weights: MlpWeights
    experts: tuple[int, ...]  # experts that at least one of the tokens is routed to
    x: Float[Tensor, "spot d_model"]  # float64
    x0: Float[Tensor, "spot d_model"]  # the baseline
    scale: Float[Tensor, "spot 1"]  # n_t
    reads: Float[Tensor, "spot expert"]  # the router's factor on the input of each expert
    writes: Float[Tensor, "spot expert"]  # the router's factor on the output of each expert

    @property
    def neurons(self) -> tuple[Neurons, ...]:
        """The neurons of each expert in `experts`."""
        return tuple(self.weights.neurons[e] for e in self.experts)

    def pre(self, x: Float[Tensor, "row d_model"], at: Sequence[int] | None = None) -> tuple[Tensor, ...]:
        """Pre-activations of inputs x without the neurons' biases: per expert [kind, row, neuron].

        `at` has the spot of each row of x, whose scale and routing are used. Default: all spots in order.
        """
        rows, normed = slice(None) if at is None else list(at), self.weights.read(x)
        added = []
        for e, expert in enumerate(self.neurons):
            read = normed * self.reads[rows, e, None] / self.scale[rows]
            added.append(torch.stack([_product(read, W) for W in expert.reading]))
        return tuple(added)

    @cached_property
    def clean(self) -> tuple[Float[Tensor, "kind spot neuron"], ...]:
        """Pre-activations, without biases, of the run's own inputs."""
        return self.pre(self.x)

    @cached_property
    def baseline(self) -> tuple[Float[Tensor, "kind spot neuron"], ...]:
        """Pre-activations, without biases, of the baseline."""
        return self.pre(self.x0) if bool(self.x0.any()) else tuple(torch.zeros_like(added) for added in self.clean)

    @cached_property
    def values(self) -> tuple[Float[Tensor, "spot neuron"], ...]:
        """Activations of each expert's neurons in the run."""
        return tuple(expert.values(pre) for expert, pre in zip(self.neurons, self.clean, strict=True))

    @cached_property
    def computed(self) -> Float[Tensor, "spot d_model"]:
        """What the MLP writes in the run, from its folded weights."""
        return self.weights.written(self.projected) / self.out_scale

    @cached_property
    def projected(self) -> Float[Tensor, "spot d_model"]:
        """What its last projection gives in the run, before any norm."""
        return self._out(self.values)

    @property
    def errors(self) -> Float[Tensor, "spot"]:
        """Largest difference between `computed` and `wrote` at each token, relative to its largest value."""
        return (self.computed - self.wrote).abs().amax(1) / self.wrote.abs().amax(1).clamp_min(1e-30)

    @property
    def wrote(self) -> Float[Tensor, "spot d_model"]:
        """What the MLP wrote in the run, as recorded."""
        return self.stream.layer(self.layer).mlp[index_of(self.spots, self.stream)].to(self.x)

    @cached_property
    def out_scale(self) -> Float[Tensor, "spot 1"]:
        """The scale m_t of the norm after the MLP; ones if there is no such norm."""
        after = self.weights.post_norm
        if after is None:
            return torch.ones_like(self.scale)
        family = self.stream.model.family
        norm = read_norm(after, family.norm, family.norm_adds_one).to(self.x.dtype)
        assert norm.kind == "rms" and norm.bias is None, "a norm after an MLP is plain"
        return norm.scale(self.projected)[:, None]

    def write(self, x: Float[Tensor, "spot d_model"]) -> Float[Tensor, "spot d_model"]:
        """What the MLP would write if it read x, with the scales and the routing of the run."""
        values = [expert.values(pre) for expert, pre in zip(self.neurons, self.pre(x), strict=True)]
        return self.weights.written(self._out(values)) / self.out_scale

    def at(self, index: int) -> "Places":
        """The same for one of the spots, with the output scale that it had in the run."""
        row = slice(index, index + 1)
        tensors = {name: getattr(self, name)[row] for name in ("x", "x0", "scale", "reads", "writes")}
        place = replace(self, spots=self.spots[row], **tensors)
        place.__dict__["out_scale"] = self.out_scale[row]
        return place

    @cached_property
    def slopes(self) -> tuple[Slopes, ...]:
        """The slopes of every expert."""
        return tuple(map(_slopes, self.neurons, self.clean, self.values, self.baseline))

    def along(self, d: Float[Tensor, "spot d_model"]) -> Along:
        """One direction per spot, taken back through the output projection. Other methods reuse the result."""
        d = self.weights.written(d.to(self.x.dtype)) / self.out_scale  # a norm's gain is diagonal: its own transpose
        c = tuple(_product(d, expert.W_out.T) * self.writes[:, e, None] for e, expert in enumerate(self.neurons))
        biases = torch.stack([expert.b_out.to(d.dtype) for expert in self.neurons], dim=1)
        return Along(c, (self.writes * (d @ biases)).sum(1))

    def back(self, along: Along) -> tuple[Float[Tensor, "spot d_model"], Float[Tensor, "spot"]]:
        """(g, offset) with d . MLP(x) = offset + g . (x - x0), exactly, at each spot."""
        g, offset = torch.zeros_like(self.x), along.constant.clone()
        for e, (expert, steep, c) in enumerate(zip(self.neurons, self.slopes, along.c, strict=True)):
            read = sum(_product(c * slope, W.T) for slope, W in zip(steep.read, expert.reading, strict=True))
            g += read * self.reads[:, e, None] / self.scale
            offset += (c * steep.start).sum(1)
        return self.weights.read_back(g), offset

    def written_along(
        self,
        along: Along,
        pre: Sequence[Float[Tensor, "kind row neuron"]],
        at: Int[Tensor, "row"] | slice = slice(None),
    ) -> Float[Tensor, "row"]:
        """What the MLP would write along d at the spots `at`, given pre-activations `pre` (without biases)."""
        parts = [(c[at] * expert.values(p)).sum(1) for expert, c, p in zip(self.neurons, along.c, pre, strict=True)]
        return torch.stack(parts).sum(0) + along.constant[at]

    def top_neurons(self, along: Along, most: int) -> list[list[tuple[int, float]]]:
        """The `most` neurons that write most along d at each spot, each with its write.

        Neurons are numbered through all experts, one expert after another.
        """
        parts = torch.cat([c * y for c, y in zip(along.c, self.values, strict=True)], dim=1)
        sizes = [len(expert.b_u) for expert in self.weights.neurons]
        numbers = torch.split(torch.arange(sum(sizes), device=parts.device), sizes)
        top = parts.abs().topk(min(most, parts.shape[1]), dim=1).indices
        named = torch.cat([numbers[e] for e in self.experts])[top].tolist()
        return [list(zip(i, v, strict=True)) for i, v in zip(named, parts.gather(1, top).tolist(), strict=True)]

    def _out(self, values: Sequence[Tensor]) -> Float[Tensor, "spot d_model"]:
        """Output of the down-projection, summed over experts, before any norm after the MLP."""
        total = torch.zeros_like(self.x)
        for e, (expert, y) in enumerate(zip(self.neurons, values, strict=True)):
            total += (_product(y, expert.W_out) + expert.b_out.to(y.dtype)) * self.writes[:, e, None]
        return total


def _slopes(neurons: Neurons, clean: Tensor, values: Tensor, baseline: Tensor) -> Slopes:
    added, start = clean - baseline, neurons.values(baseline)
    change = values - start
    if len(neurons.reading) == 1:
        return Slopes(start, _secant(neurons, baseline[0], added[0], change)[None])
    (p, h), (b_u, b_g) = added, (neurons.biases.to(added.dtype)[:, None] + baseline)
    up = _mean_along(lambda t: neurons.shape.up_slope(b_g + t * h, b_u + t * p), p)
    small = h.abs() < _TINY
    gate = (change - p * up) / torch.where(small, 1.0, h)
    if bool(small.any()):  # gates whose pre-activation hardly changes: the mean derivative instead
        flat = _mean_along(lambda t: _derivative(neurons.shape.a, b_g + t * h) * neurons.shape.through(b_u + t * p), p)
        gate = torch.where(small, flat, gate)
    return Slopes(start, torch.stack([up, gate]))


def _mean_along(curve: Callable[[Tensor], Tensor], like: Float[Tensor, "spot neuron"]) -> Float[Tensor, "spot neuron"]:
    """The integral of a curve over t from 0 to 1, by Gauss-Legendre quadrature in blocks of nodes."""
    nodes, weights = (torch.from_numpy(x / 2).to(like)[:, None, None] for x in (_NODES, _WEIGHTS))
    size = max(1, _NODE_FLOATS // max(1, like.numel()))
    parts = zip(torch.split(nodes + 0.5, size), torch.split(weights, size), strict=True)
    return torch.stack([(w * curve(t)).sum(0) for t, w in parts]).sum(0)


def mlp_places(
    writes: "Writes", spots: Sequence[Spot], weights: MlpWeights, layer: int, *, constants: bool = True
) -> Places:
    """The MLP of a layer at some spots. The baseline is what attention biases write, or 0 without `constants`."""
    x = mlp_input(writes, weights, layer, spots)
    x0 = torch.zeros_like(x)
    if constants and writes.has_constants:
        x0 += _constants(writes, layer - weights.parallel, spots)
    run = writes.runs[0]
    reads = writes_out = torch.ones(len(spots), len(weights.neurons), dtype=x.dtype, device=x.device)
    if weights.route is not None:
        read = x.to(run.layers[layer].resid.dtype)
        routed = weights.route(read if weights.norm is None else weights.norm(read)).to(x.dtype)
        reads, writes_out = (routed, (routed != 0).to(x.dtype)) if weights.routes_input else (reads, routed)
    used = (writes_out != 0).any(0).nonzero()[:, 0].tolist()
    scale = norm_scale(run, weights, x)
    sent = (reads[:, used], writes_out[:, used])
    return Places(writes, tuple(spots), layer, weights, tuple(used), x, x0, scale, *sent)


def _constants(writes: "Writes", highest: int, spots: Sequence[Spot]) -> Float[Tensor, "spot d_model"]:
    """The sum of what attention biases up to a layer write."""
    biases = [i for i, (kind, above) in enumerate(writes.local_slots) if kind == "bias" and above <= highest]
    run, token = index_of(spots, writes)
    return writes.local[run, :, token][:, biases].sum(1).double()


def norm_scale(run: "Run", weights: MlpWeights, x: Float[Tensor, "token d_model"]) -> Float[Tensor, "token 1"]:
    """What the norm before an MLP divides x by; ones if there is no such norm."""
    return frozen_scale(weights.norm, x[None], run.model.family)[0][:, None]


def weights_of(run: "Run", layer: int) -> MlpWeights:
    """The MLP of a layer; refuses one that cannot be read."""
    weights = run.model.mlp(layer)
    if isinstance(weights, NoMlp):
        raise KeyholeError(f"this model's MLPs cannot be explained: {weights.reason}.")
    return weights


def mlp_input(
    writes: "Writes", weights: MlpWeights, layer: int, spots: Sequence[Spot]
) -> Float[Tensor, "spot d_model"]:
    """The residual stream that an MLP reads: after the layer's attention, or, in parallel blocks, before it.

    It is summed from the layer's input and attention. The stream after the MLP minus the MLP's write would be mostly
    rounding error where that write is very large (massive activations).
    """
    where, record = index_of(spots, writes), writes.layer(layer)
    if record.mid is not None:  # in half precision, where sums are rounded
        return record.mid[where].double()
    x = record.resid[where].double()
    if weights.parallel:
        return x
    if record.attention is not None:
        x += writes.attention(layer)[where].to(x)
    return x if record.mixer is None else x + record.mixer[where].to(x)


def _product(x: Float[Tensor, "token a"], W: Float[Tensor, "a b"]) -> Float[Tensor, "token b"]:
    """The product x W, in the dtype of the weights or float32, whichever is more precise.

    Only neurons, whose slopes are differences of nearly equal numbers, need the float64 of x.
    """
    dtype = working_dtype(W.dtype)
    return (x.to(dtype) @ W.to(dtype)).to(x.dtype)


def _secant(neurons: Neurons, p0: Tensor, p: Tensor, change: Tensor) -> Tensor:
    small = p.abs() < _TINY
    secant = change / torch.where(small, 1.0, p)
    if not bool(small.any()):
        return secant
    return torch.where(small, _derivative(neurons.shape.a, neurons.b_u.to(p.dtype) + p0), secant)


def _derivative(curve: object, at: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        x = at.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(curve(x).sum(), x)  # type: ignore[operator]
    return slope.detach()
