"""What does an MLP read and write, once the scales of its norms are frozen? Only its neurons are not linear.

    p = N x W_u / n_t,  y = act(p + b_u)                                     plain
    p = N x W_u / n_t,  h = N x W_g / n_t,  y = act(h + b_g) * (p + b_u)     gated
    MLP(x) = gain * (y W_out + b_out) / m_t

with n_t and m_t the scales of the norms before and after it, N the gain and the centring of the one before (its bias is
in b_u and b_g), and `gain` that of the one after, times a residual multiplier. Weights are the model's own, not copies.
A mixture of experts is a sum of such neurons, each with its router's weight on its output, or on its input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from keyhole.errors import KeyholeError
from keyhole.models.effective import bias_of, own_matrix
from keyhole.models.facts import ExpertFacts, MlpFacts, Norm, mlp_facts, read_norm
from keyhole.models.families import Family
from keyhole.models.numbers import working_dtype
from keyhole.models.weights import optional, submodule

Curve = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """What a neuron makes of its pre-activations: a(h) b(p), or a(p) where there is no gate."""

    a: Curve
    b: Curve | None = None  # None: the up-projection as it is
    slope_b: Curve | None = None

    def through(self, p: Tensor) -> Tensor:
        """What a gate multiplies."""
        return p if self.b is None else self.b(p)

    def gated(self, h: Tensor, p: Tensor) -> Tensor:
        """A gated neuron."""
        return self.a(h) * self.through(p)

    def up_slope(self, h: Tensor, p: Tensor) -> Tensor:
        """Its derivative by p."""
        return self.a(h) if self.slope_b is None else self.a(h) * self.slope_b(p)


@dataclass(frozen=True)
class Neurons:
    """One MLP, or one expert: the model's own weights, and biases with the norm's folded in."""

    W_u: Float[Tensor, "d_model neuron"]
    b_u: Float[Tensor, "neuron"]
    W_g: Float[Tensor, "d_model neuron"] | None
    b_g: Float[Tensor, "neuron"] | None
    W_out: Float[Tensor, "neuron d_model"]
    b_out: Float[Tensor, "d_model"]
    shape: Shape

    @property
    def reading(self) -> tuple[Float[Tensor, "d_model neuron"], ...]:
        """What it reads with: the up-projection, and the gate where there is one."""
        return (self.W_u,) if self.W_g is None else (self.W_u, self.W_g)

    @property
    def biases(self) -> Float[Tensor, "kind neuron"]:
        """Of the up-projection, and of the gate."""
        return self.b_u[None] if self.b_g is None else torch.stack([self.b_u, self.b_g])

    def values(self, added: Float[Tensor, "kind *rows neuron"]) -> Float[Tensor, "*rows neuron"]:
        """What neurons become when the prompt adds so much to their biases."""
        p = added[0] + self.b_u.to(added.dtype)
        return self.shape.a(p) if self.b_g is None else self.shape.gated(added[1] + self.b_g.to(p.dtype), p)


@dataclass(frozen=True)
class MlpWeights:
    """One layer's MLP: its neurons, expert by expert, and how tokens are sent to them."""

    neurons: tuple[Neurons, ...]
    norm: nn.Module | None  # before it
    reads: Norm | None  # the same, as a map
    post_norm: nn.Module | None
    parallel: bool
    gain: Float[Tensor, "d_model"] | float  # of the norm after it, and of a residual multiplier
    routes_input: bool = False  # a router's weight multiplies what an expert reads
    route: Callable[[Tensor], Tensor] | None = None  # normed residuals -> weights [token, expert]; None: all, in full

    def read(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """N x: what the projections are given of the residual stream, but for the norm's scale and bias."""
        if self.reads is None:
            return x
        x = self.reads.centre(x)
        return x if self.reads.gain is None else x * self.reads.gain.to(x.dtype)

    def read_back(self, g: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """N^T g: a direction at the projections' input as a direction in the residual stream."""
        if self.reads is None:
            return g
        return self.reads.centre(g if self.reads.gain is None else g * self.reads.gain.to(g.dtype))

    def written(self, out: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        """What comes out of the last projection, as it is added to the residual stream, but for a norm's scale."""
        return out * (self.gain.to(out) if isinstance(self.gain, Tensor) else self.gain)


@dataclass(frozen=True)
class NoMlp:
    """An MLP that cannot be read."""

    reason: str


def read_mlp(layer: nn.Module, family: Family, config: Any) -> MlpWeights | NoMlp:
    """One layer's MLP, or why it cannot be read."""
    facts = mlp_facts(config)
    if facts is None:
        return NoMlp(f"Keyhole has no facts of the MLPs of {config.model_type!r} models")
    try:
        return _read_mlp(layer, facts, family, config)
    except (KeyholeError, AttributeError) as error:  # quantised weights, or modules that are not where the facts say
        return NoMlp(f"they cannot be read: {error}")


def _read_mlp(layer: nn.Module, facts: MlpFacts, family: Family, config: Any) -> MlpWeights:
    module = submodule(layer, facts.module) if facts.module else layer
    before, after = (optional(layer, path) for path in (facts.norm, facts.post_norm))
    norm, gain = _read(before, family), _gain(after, family, config)
    stacked = facts.experts is not None and optional(module, facts.experts.experts) is not None
    shared: dict[str, Any] = {"norm": before, "reads": norm, "post_norm": after, "parallel": facts.parallel}
    shared["gain"] = gain
    if not stacked:
        return MlpWeights((_dense(module, facts, norm),), **shared)
    assert facts.experts is not None
    neurons = _experts(module, facts.experts, norm)
    if facts.experts.shared is not None:
        neurons = (_dense(submodule(module, facts.experts.shared), facts, norm), *neurons)
    route = _router(submodule(module, facts.experts.router), len(neurons))
    return MlpWeights(neurons, **shared, routes_input=facts.experts.routes == "input", route=route)


def _read(module: nn.Module | None, family: Family) -> Norm | None:
    return None if module is None else read_norm(module, family.norm, family.norm_adds_one)


def _gain(after: nn.Module | None, family: Family, config: Any) -> Tensor | float:
    """What the norm after an MLP, and a residual multiplier, make of its output."""
    norm = _read(after, family)
    factor = getattr(config, family.residual_multiplier) if family.residual_multiplier else 1.0
    return factor * (1.0 if norm is None or norm.gain is None else norm.gain)


def _dense(module: nn.Module, facts: MlpFacts, norm: Norm | None) -> Neurons:
    up, out = submodule(module, facts.up), submodule(module, facts.out)
    W = own_matrix(up)
    b = bias_of(up, W)
    if facts.fused:
        (W_g, W_u), (b_g, b_u) = W.chunk(2, dim=-1), b.chunk(2)
    elif facts.gate is not None:
        gate = submodule(module, facts.gate)
        W_u, b_u, W_g = W, b, own_matrix(gate)
        b_g = bias_of(gate, W_g)
    else:
        W_u, b_u, W_g, b_g = W, b, None, None
    act = nn.functional.silu if facts.act == "silu" else _activation(getattr(module, facts.act))
    W_out = own_matrix(out)
    b_out = bias_of(out, W_out).to(working_dtype(W_out.dtype))
    return Neurons(W_u, _bias(W_u, b_u, norm), W_g, _bias(W_g, b_g, norm), W_out, b_out, Shape(act))


def _activation(activation: Curve) -> Curve:
    """GPT-2's is written out over five tensors in transformers; the same function in one is several times faster."""
    spelt_out = isinstance(activation, NewGELUActivation)
    return partial(nn.functional.gelu, approximate="tanh") if spelt_out else activation


@overload
def _bias(W: Tensor, b: Tensor, norm: Norm | None) -> Tensor: ...
@overload
def _bias(W: Tensor | None, b: Tensor | None, norm: Norm | None) -> Tensor | None: ...
def _bias(W: Tensor | None, b: Tensor | None, norm: Norm | None) -> Tensor | None:
    """A projection's bias with that of the norm before it."""
    if W is None or b is None:
        return None
    b = b.to(working_dtype(b.dtype))
    return b if norm is None or norm.bias is None else b + norm.bias.to(b.dtype) @ W.to(b.dtype)


def _experts(module: nn.Module, facts: ExpertFacts, norm: Norm | None) -> tuple[Neurons, ...]:
    experts: Any = submodule(module, facts.experts)
    gate_up, down = (_stack(getattr(experts, name)) for name in ("gate_up_proj", "down_proj"))
    if facts.transposed:
        gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
    b, b_out = getattr(experts, "gate_up_proj_bias", None), getattr(experts, "down_proj_bias", None)
    b = gate_up.new_zeros(gate_up.shape[0], gate_up.shape[2]) if b is None else _stack(b)
    b_out = down.new_zeros(down.shape[0], down.shape[2]) if b_out is None else _stack(b_out)
    if facts.gate_up == "interleaved":
        (W_g, W_u), (b_g, b_u) = (gate_up[..., ::2], gate_up[..., 1::2]), (b[..., ::2], b[..., 1::2])
    else:
        (W_g, W_u), (b_g, b_u) = gate_up.chunk(2, dim=-1), b.chunk(2, dim=-1)
    shape = _shape_of(experts)
    biases = [(_bias(W_u[e], b_u[e], norm), _bias(W_g[e], b_g[e], norm)) for e in range(len(down))]
    b_out = b_out.to(working_dtype(b_out.dtype))
    return tuple(Neurons(W_u[e], b[0], W_g[e], b[1], down[e], b_out[e], shape) for e, b in enumerate(biases))


def _shape_of(experts: Any) -> Shape:
    """An activation times the up-projection, or gpt-oss's clamped pair."""
    if not hasattr(experts, "limit"):
        return Shape(experts.act_fn)
    limit, alpha = float(experts.limit), float(experts.alpha)

    def a(h: Tensor) -> Tensor:
        h = h.clamp(max=limit)
        return h * torch.sigmoid(h * alpha)

    return Shape(a, lambda p: p.clamp(-limit, limit) + 1, lambda p: (p.abs() < limit).to(p.dtype))


def _router(router: nn.Module, n: int) -> Callable[[Tensor], Tensor]:
    """The model's own router, as weights over neurons; a shared expert, which comes first, has weight 1."""

    def weights(normed: Float[Tensor, "token d_model"]) -> Float[Tensor, "token expert"]:
        routed = router(normed)
        if len(routed) == 2:  # llama4, early gpt-oss: weights of all experts, 0 for those that are not chosen
            weight = routed[0]
            return torch.cat([weight.new_ones(len(weight), n - weight.shape[1]), weight], dim=1)
        _, weight, indices = routed
        return torch.zeros(len(normed), n, dtype=weight.dtype, device=weight.device).scatter(1, indices, weight)

    return weights


def _stack(parameter: Tensor) -> Tensor:
    if not parameter.is_floating_point():
        raise KeyholeError("these experts keep no floating-point weights: quantised ones cannot be read exactly.")
    return parameter.detach()
