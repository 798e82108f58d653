"""What does a norm do once its scale is frozen? A gain, perhaps a centring and a bias: all linear, all foldable."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from keyhole.models.architecture.families import NormKind
from keyhole.models.numbers.precision import working_dtype


@dataclass(frozen=True)
class Norm:
    """norm(x) = gain * centre(x) / scale(x) + bias; `layer` centres, `rms` does not."""

    kind: NormKind
    gain: Float[Tensor, "*dim"] | None
    bias: Float[Tensor, "*dim"] | None
    eps: float

    def to(self, dtype: torch.dtype) -> "Norm":
        """The same norm with its gain and bias in another precision."""
        gain, bias = (None if x is None else x.to(dtype) for x in (self.gain, self.bias))
        return Norm(self.kind, gain, bias, self.eps)

    def centre(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "... dim"]:
        """X without its mean, for LayerNorm."""
        return x - x.mean(-1, keepdim=True) if self.kind == "layer" else x

    def scale(self, x: Float[Tensor, "... dim"]) -> Float[Tensor, "..."]:
        """The divisor sqrt(mean(centre(x)^2) + eps), in float32 or better as the models compute it."""
        x = self.centre(x.to(working_dtype(x.dtype)))
        return (x.square().mean(-1) + self.eps).sqrt()


def read_norm(module: nn.Module, kind: NormKind, adds_one: bool) -> Norm:
    """The norm a module applies; gains and biases in the working dtype."""
    if hasattr(module, "norms"):  # StableLM keeps one LayerNorm per head
        per_head = [read_norm(norm, kind, adds_one) for norm in module.norms]  # type: ignore[union-attr]
        gain, bias = _stack([n.gain for n in per_head]), _stack([n.bias for n in per_head])
        return Norm(kind, gain, bias, per_head[0].eps)
    gain, bias = _parameter(module, "weight"), _parameter(module, "bias")
    if gain is not None and adds_one:
        gain = gain + 1.0
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", 1e-5))  # OLMo's norm has no eps attribute
    return Norm(kind, gain, bias, float(eps))


def _parameter(module: nn.Module, name: str) -> Tensor | None:
    value = getattr(module, name, None)
    return None if value is None else value.detach().to(working_dtype(value.dtype))


def _stack(values: list[Tensor | None]) -> Tensor | None:
    present = [v for v in values if v is not None]
    return torch.stack(present) if present else None
