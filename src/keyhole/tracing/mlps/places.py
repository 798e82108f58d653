"""What does an MLP read at some tokens, and how steep is each of its neurons there?

The path from a baseline x0 to x is a straight line, and for a neuron it is one-dimensional: integrated gradients along
it are secants, in closed form.

    plain:  slope_u = [act(b_u + p) - act(b_u)] / p
    gated:  slope_u = integral of a(b_g + t h) b'(b_u + t p) dt,   slope_g = [y(1) - y(0) - p slope_u] / h

with p, h what x - x0 adds to the pre-activations, and b_u, b_g what x0 makes of them. The gate's slope is the
remainder, so that an MLP's write is offset + slopes, to rounding, whatever the quadrature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.models.mlps import MlpWeights, Neurons
from keyhole.models.norms import read_norm
from keyhole.models.records import frozen_scale
from keyhole.tracing.writers import bias_writes

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.upstream import Writes

_NODES = 16  # of the quadrature: 96 change credit between gate and up by 1e-6
_TINY = 1e-6  # of a pre-activation: below, the derivative is the secant


@dataclass(frozen=True)
class Slopes:
    """One expert's neurons at some tokens."""

    start: Float[Tensor, "token neuron"]  # y(0): with the baseline alone
    up: Float[Tensor, "token neuron"]
    gate: Float[Tensor, "token neuron"] | None


@dataclass(frozen=True, eq=False)
class Places:
    """One layer's MLP at some tokens of a run, scales and routing frozen."""

    run: "Run"
    layer: int
    tokens: tuple[int, ...]
    weights: MlpWeights
    x: Float[Tensor, "token d_model"]  # float64
    x0: Float[Tensor, "token d_model"]  # the baseline
    scale: Float[Tensor, "token 1"]  # n_t
    reads: Float[Tensor, "token expert"]  # what a router makes of the input
    writes: Float[Tensor, "token expert"]  # and of the output

    @cached_property
    def values(self) -> tuple[Float[Tensor, "token neuron"], ...]:
        """What each expert's neurons are in the run."""
        return tuple(self._values(e, self.x) for e in range(len(self.weights.neurons)))

    @cached_property
    def own(self) -> Float[Tensor, "token d_model"]:
        """What the MLP writes in the run, from its folded weights."""
        return self._written(self.values) / self.out_scale

    @property
    def errors(self) -> Float[Tensor, "token"]:
        """How far that is from what it wrote, relative to the largest value at each token."""
        wrote = self.run.layers[self.layer].mlp[list(self.tokens)].to(self.own)
        return (self.own - wrote).abs().amax(1) / wrote.abs().amax(1).clamp_min(1e-30)

    @cached_property
    def out_scale(self) -> Float[Tensor, "token 1"]:
        """m_t of a norm after the MLP; ones without one."""
        after = self.weights.post_norm
        if after is None:
            return torch.ones_like(self.scale)
        family = self.run.model.family
        norm = read_norm(after, family.norm, family.norm_adds_one).to(self.x.dtype)
        raw = self._written(self.values)
        assert norm.kind == "rms" and norm.bias is None, "a norm after an MLP is plain"
        return norm.scale(raw if norm.gain is None else raw / norm.gain)[:, None]

    def write(self, x: Float[Tensor, "token d_model"]) -> Float[Tensor, "token d_model"]:
        """What the MLP would write if it read x, with the scales and the routing of the run."""
        return self._written([self._values(e, x) for e in range(len(self.weights.neurons))]) / self.out_scale

    def at(self, index: int, times: int = 1) -> "Places":
        """One of the tokens, so often, for as many inputs of it; with the scale that its own output had."""
        rows = [index] * times
        one = replace(
            self,
            tokens=tuple(self.tokens[i] for i in rows),
            **{name: getattr(self, name)[rows] for name in ("x", "x0", "scale", "reads", "writes")},
        )
        one.__dict__["out_scale"] = self.out_scale[rows]
        one.__dict__["values"] = tuple(own[rows] for own in self.values)
        return one

    @cached_property
    def slopes(self) -> tuple[Slopes, ...]:
        """Of every expert."""
        return tuple(self._slopes(e, own) for e, own in enumerate(self.weights.neurons))

    def back(self, d: Float[Tensor, "token d_model"]) -> tuple[Float[Tensor, "token d_model"], Float[Tensor, "token"]]:
        """(g, offset) with d . MLP(x) = offset + g . (x - x0), exactly, at each token."""
        g, offset = torch.zeros_like(self.x), torch.zeros_like(self.x[:, 0])
        d = d.to(self.x.dtype) / self.out_scale
        for e, (own, at) in enumerate(zip(self.weights.neurons, self.slopes, strict=True)):
            c = _product(d, own.W_out.T) * self.writes[:, e, None]
            read = _product(c * at.up, own.W_u.T)
            if at.gate is not None and own.W_g is not None:
                read = read + _product(c * at.gate, own.W_g.T)
            g += read * self.reads[:, e, None] / self.scale
            offset += (c * at.start).sum(1) + self.writes[:, e] * (d @ own.b_out.to(d.dtype))
        return g, offset

    def neurons(self, d: Float[Tensor, "token d_model"]) -> Float[Tensor, "token neuron"]:
        """What each neuron, expert after expert, writes along d."""
        d, found = d.to(self.x.dtype) / self.out_scale, []
        for e, own in enumerate(self.weights.neurons):
            found.append(self.values[e] * _product(d, own.W_out.T) * self.writes[:, e, None])
        return torch.cat(found, dim=1)

    def _pre(self, e: int, x: Tensor) -> tuple[Tensor, Tensor | None]:
        own = self.weights.neurons[e]
        read = x * self.reads[:, e, None] / self.scale
        return _product(read, own.W_u), None if own.W_g is None else _product(read, own.W_g)

    def _values(self, e: int, x: Tensor) -> Tensor:
        return self.weights.neurons[e].values(*self._pre(e, x))

    def _written(self, values: Sequence[Tensor]) -> Tensor:
        total = torch.zeros_like(self.x)
        for e, (own, y) in enumerate(zip(self.weights.neurons, values, strict=True)):
            total += (_product(y, own.W_out) + own.b_out.to(y.dtype)) * self.writes[:, e, None]
        return total

    def _slopes(self, e: int, own: Neurons) -> Slopes:
        p, h = self._pre(e, self.x - self.x0)
        p0, h0 = self._pre(e, self.x0)
        start = own.values(p0, h0)
        end = own.values(p0 + p, None if h is None or h0 is None else h0 + h)
        if h is None or h0 is None or own.b_g is None:
            return Slopes(start, _secant(own, p0, p, end - start), None)
        b_u, b_g = own.b_u.to(p.dtype) + p0, own.b_g.to(p.dtype) + h0
        nodes, weights = (torch.from_numpy(x).to(p) for x in np.polynomial.legendre.leggauss(_NODES))
        up = torch.zeros_like(p)
        small = h.abs() < _TINY
        flat = torch.zeros_like(p)  # integral of a' b, for gates that hardly move
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            a = own.shape.a(b_g + node * h)
            up += weight * (a if own.shape.slope_b is None else a * own.shape.slope_b(b_u + node * p))
            if bool(small.any()):
                through = b_u + node * p if own.shape.b is None else own.shape.b(b_u + node * p)
                flat += weight * _derivative(own.shape.a, b_g + node * h) * through
        gate = torch.where(small, flat, (end - start - p * up) / torch.where(small, 1.0, h))
        return Slopes(start, up, gate)


def mlp_places(
    writes: "Writes", weights: MlpWeights, layer: int, tokens: Sequence[int], *, constants: bool = True
) -> Places:
    """The MLP of a layer at some tokens; with `constants`, from a baseline of what biases write there anyway."""
    run, at = writes.run, list(tokens)
    x = mlp_input(writes, weights, layer, at)
    x0 = torch.zeros_like(x)
    if constants:
        highest = layer - weights.parallel
        biases = [i for i, (kind, own) in enumerate(writes.local_slots) if kind == "bias" and own <= highest]
        x0 += writes.local[biases][:, at].sum(0).to(x0)
    scale = norm_scale(run, weights, x)
    reads = writes_out = torch.ones(len(at), len(weights.neurons), dtype=x.dtype, device=x.device)
    if weights.route is not None:
        read = x.to(run.layers[layer].resid.dtype)
        routed = weights.route(read if weights.norm is None else weights.norm(read)).to(x.dtype)
        reads, writes_out = (routed, (routed != 0).to(x.dtype)) if weights.routes_input else (reads, routed)
    return Places(run, layer, tuple(at), weights, x, x0, scale, reads, writes_out)


def norm_scale(run: "Run", weights: MlpWeights, x: Float[Tensor, "token d_model"]) -> Float[Tensor, "token 1"]:
    """What the norm before an MLP divides x by; ones without one."""
    return frozen_scale(weights.norm, x[None], run.model.family)[0][:, None]


def weights_of(run: "Run", layer: int) -> MlpWeights:
    """The folded MLP of a layer; refuses an architecture whose MLPs Keyhole has no facts of."""
    weights = run.model.mlp(layer)
    if weights is None:
        raise KeyholeError(
            f"MLPs of {run.model.hf.config.model_type!r} models cannot be explained: Keyhole has no facts of them."
        )
    return weights


def mlp_input(
    writes: "Writes", weights: MlpWeights, layer: int, tokens: Sequence[int]
) -> Float[Tensor, "token d_model"]:
    """The residual stream that an MLP reads: after the layer's attention, or, in parallel blocks, before it.

    From below, for the difference of the streams around an MLP that writes something massive would be rounding.
    """
    run, at = writes.run, list(tokens)
    record = run.layers[layer]
    x = record.resid[at].double()
    if weights.parallel:
        return x
    if record.attention is not None:
        own, w = record.attention, writes.weights(layer)
        index = writes.attention_layers.index(layer)
        moved = (own.weights(own.heads, at) @ writes.values[index] @ w.W_O).sum(0)
        x += (moved / own.out_scale[at][:, None] + bias_writes(run, layer, at)).to(x)
    return x if record.mixer is None else x + record.mixer[at].to(x)


def _product(x: Float[Tensor, "token a"], W: Float[Tensor, "a b"]) -> Float[Tensor, "token b"]:
    """In the precision of the weights: only neurons, which are differences of nearly equal values, need more."""
    return (x.to(W.dtype) @ W).to(x.dtype)


def _secant(own: Neurons, p0: Tensor, p: Tensor, change: Tensor) -> Tensor:
    small = p.abs() < _TINY
    found = change / torch.where(small, 1.0, p)
    if not bool(small.any()):
        return found
    return torch.where(small, _derivative(own.shape.a, own.b_u.to(p.dtype) + p0), found)


def _derivative(curve: object, at: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        x = at.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(curve(x).sum(), x)  # type: ignore[operator]
    return slope.detach()
