"""What changes on the way back under GIM? The same pass, value for value, with other gradients.

GIM (Edin and others, 2025) takes gradients of an ordinary forward pass, with four changes on the way back:

    norms      x / s(x): the scale s is held fixed (a LayerNorm's mean is not)
    softmax    dA = J dS with J = diag(p) - p p^T at p = softmax(S / 2), where A = softmax(S) itself
    attention  gradients into query, key and value are multiplied by 1/4, 1/4 and 1/2
    gated MLP  gradients into gate and up-projection are multiplied by 1/2 each

The last two share out a product over its factors, which gradients count in full for each; the second lets a saturated
softmax through. Nothing else changes: activations, softcaps and routers of experts have their ordinary slopes.
A block is rewritten with parts that differ in their gradients alone, so ordinary passes do not know of any of this.
"""

from dataclasses import dataclass, replace

from jaxtyping import Bool, Float
from torch import Tensor, nn

from keyhole.faithfulness.blocks import After, Block, InHead, Read, Side
from keyhole.faithfulness.masked import Masked
from keyhole.models.architecture.mlps import MlpWeights, Neurons, Shape
from keyhole.models.architecture.norms import Norm
from keyhole.models.recording.attention import AttentionRule


@dataclass(frozen=True)
class Backward:
    """What the four changes are; those of the paper."""

    frozen_norms: bool = True
    temperature: float = 2.0  # at which the slope of the softmax is taken
    query: float = 0.25  # factors on gradients
    key: float = 0.25
    value: float = 0.5
    gate: float = 0.5
    up: float = 0.5


GIM = Backward()


def with_backward(masked: Masked, backward: Backward = GIM) -> Masked:
    """The same pass, with these changes on the way back."""
    blocks = tuple(_block(block, backward) for block in masked.blocks)
    norm = masked.final_norm
    return replace(masked, blocks=blocks, final_norm=_norm(norm, backward) if backward.frozen_norms else norm)


def _block(block: Block, backward: Backward) -> Block:
    after = block.after
    rule = {name: getattr(block.rule, name) for name in ("scaling", "softcap", "sinks", "key_bias")}
    return replace(
        block,
        query=_side(block.query, backward.query, backward),
        key=_side(block.key, backward.key, backward),
        value=_side(block.value, backward.value, backward),
        rule=_Rule(**rule, temperature=backward.temperature),
        after=None if after is None else After(_norm(after.norm, backward), after.W, after.b),
        mlp=_mlp(block.mlp, backward),
        mlp_norm=None if block.mlp_norm is None else _norm(block.mlp_norm, backward),
        mlp_after=None if block.mlp_after is None else _norm(block.mlp_after, backward),
    )


def _with_gradient_of(value: Tensor, surrogate: Tensor) -> Tensor:
    """The value itself, whose gradient is that of something else: surrogate - surrogate is 0 and has a slope."""
    return value.detach() + (surrogate - surrogate.detach())


def _scaled(x: Tensor, factor: float) -> Tensor:
    """X itself, and on the way back its gradient times a factor."""
    return x if factor == 1 else _with_gradient_of(x, factor * x)


# -- norms: a scale without a gradient ---------------------------------------------------------------------------------


class _FrozenNorm(Norm):
    def scale(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "..."]:
        return super().scale(x).detach()


def _norm(norm: Norm, backward: Backward) -> Norm:
    return _FrozenNorm(norm.kind, norm.gain, norm.bias, norm.eps) if backward.frozen_norms else norm


class _FrozenModule(nn.Module):
    """A norm as routers of experts read it: the module's values, with the gradient of what it does at a fixed scale."""

    def __init__(self, module: nn.Module, norm: Norm) -> None:
        super().__init__()
        self.module, self.norm = module, norm

    def forward(self, x: Tensor) -> Tensor:
        linear = self.norm.centre(x) / self.norm.scale(x).detach().to(x)[..., None]
        linear = linear if self.norm.gain is None else linear * self.norm.gain.to(x)
        values: Tensor = self.module(x)
        return _with_gradient_of(values, linear)


# -- attention: factors on three gradients, and a softer softmax -------------------------------------------------------


@dataclass(frozen=True)
class _Side(Side):
    factor: float = 1.0

    def linear(self, x: Read, lost: InHead | None = None) -> InHead:
        return _scaled(super().linear(x, lost), self.factor)


def _side(side: Side, factor: float, backward: Backward) -> Side:
    norms = [None if norm is None else _norm(norm, backward) for norm in (side.norm, side.own)]
    return _Side(norms[0], side.W, side.b, norms[1], side.spans_all, factor)


@dataclass(frozen=True)
class _Rule(AttentionRule):
    temperature: float = 1.0

    def weights(
        self, scores: Float[Tensor, "*batch heads query key"], visible: Bool[Tensor, "*any query key"]
    ) -> Float[Tensor, "*batch heads query key"]:
        logits = self.logits(scores, visible)
        softer = (logits / self.temperature).softmax(-1)  # its slope by the logits is J / T
        weights = _with_gradient_of(logits.softmax(-1), self.temperature * softer)
        return weights[..., : scores.shape[-1]]


# -- gated MLPs: factors on two gradients ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shape(Shape):
    gate: float = 1.0
    up: float = 1.0

    def gated(self, h: Tensor, p: Tensor) -> Tensor:
        return super().gated(_scaled(h, self.gate), _scaled(p, self.up))


def _mlp(mlp: MlpWeights, backward: Backward) -> MlpWeights:
    neurons = tuple(_neurons(neurons, backward) for neurons in mlp.neurons)
    module = mlp.norm
    if mlp.route is not None and backward.frozen_norms and module is not None and mlp.reads is not None:
        module = _FrozenModule(module, mlp.reads)
    return replace(mlp, neurons=neurons, norm=module)


def _neurons(neurons: Neurons, backward: Backward) -> Neurons:
    shape = neurons.shape
    return replace(neurons, shape=_Shape(shape.a, shape.b, shape.slope_b, backward.gate, backward.up))
