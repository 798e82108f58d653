"""What else differs between architectures? Facts about their MLPs, norms and rotary embeddings.

Of MLPs one row of facts per Hugging Face `model_type`, as in `families.py`. A wrong fact does not stay hidden:
`keyhole check` computes from it what every MLP writes, and compares with what the model wrote.

Paths start at one layer; `gate`, `up`, `out`, `act` and those of experts at the module that holds them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from keyhole.errors import KeyholeError
from keyhole.models.families import NormKind
from keyhole.models.numbers import working_dtype
from keyhole.models.stored import at_hand, in_use


@dataclass(frozen=True)
class ExpertFacts:
    """A mixture of experts, whose weights are stacked. The defaults describe Mixtral."""

    experts: str = "experts"
    router: str = "gate"
    transposed: bool = True  # weights are [expert, out, in], as those of a Linear
    gate_up: Literal["halves", "interleaved"] = "halves"  # how gate and up lie in one matrix
    routes: Literal["output", "input"] = "output"  # what a router's weight multiplies
    shared: str | None = None  # an MLP that every token passes, too


@dataclass(frozen=True)
class MlpFacts:
    """How an MLP reads, and what it multiplies. The defaults describe Llama: act(x W_g) * (x W_u), then W_out."""

    module: str = "mlp"  # "" where the projections are the layer's own
    norm: str | None = "post_attention_layernorm"  # before it; None: it reads the residual stream as it is (OLMo-2)
    post_norm: str | None = None  # after it
    gate: str | None = "gate_proj"  # None: act(x W_u), or gate and up in one matrix
    up: str = "up_proj"
    fused: bool = False  # `up` holds the gate in its first half
    out: str = "down_proj"
    act: str = "act_fn"  # "silu": the function, not a module
    parallel: bool = False  # reads what attention reads
    experts: ExpertFacts | None = None  # in layers whose module has some


_LLAMA = MlpFacts()
_PLAIN = MlpFacts(gate=None)
_GPT2 = replace(_PLAIN, norm="ln_2", up="c_fc", out="c_proj", act="act")
_DENSE = replace(_PLAIN, up="dense_h_to_4h", out="dense_4h_to_h", act="act")
_GEMMA2 = replace(_LLAMA, norm="pre_feedforward_layernorm", post_norm="post_feedforward_layernorm")
_OLMO2 = replace(_LLAMA, norm=None, post_norm="post_feedforward_layernorm")
_FUSED = replace(_LLAMA, gate=None, up="gate_up_proj", fused=True, act="activation_fn")
_COHERE = replace(_LLAMA, norm="input_layernorm", parallel=True)


def _neox(config: Any) -> MlpFacts:
    return replace(_DENSE, parallel=config.use_parallel_residual)


def _stablelm(config: Any) -> MlpFacts:
    return _COHERE if config.use_parallel_residual else _LLAMA


def _falcon(config: Any) -> MlpFacts:
    parallel = bool(config.new_decoder_architecture or config.parallel_attn)
    if config.new_decoder_architecture and (config.num_ln_in_parallel_attn or 2) == 2:
        return replace(_DENSE, norm="ln_mlp", parallel=parallel)
    return replace(_DENSE, norm="input_layernorm" if parallel else "post_attention_layernorm", parallel=parallel)


MLPS: Mapping[str, MlpFacts | Callable[[Any], MlpFacts]] = {
    "gpt2": _GPT2,
    "gpt_neox": _neox,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": replace(_LLAMA, experts=ExpertFacts()),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": replace(_LLAMA, experts=ExpertFacts()),
    "gemma": _LLAMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA2,
    "phi": replace(_PLAIN, norm="input_layernorm", up="fc1", out="fc2", act="activation_fn", parallel=True),
    "phi3": _FUSED,
    "olmo": _LLAMA,
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "granite": _LLAMA,
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "starcoder2": replace(_GPT2, norm="post_attention_layernorm"),
    "stablelm": _stablelm,
    "smollm3": _LLAMA,
    "glm4": replace(_FUSED, post_norm="post_mlp_layernorm"),
    "gpt_oss": replace(_LLAMA, experts=ExpertFacts(router="router", transposed=False, gate_up="interleaved")),
    "opt": replace(_PLAIN, module="", norm="final_layer_norm", up="fc1", out="fc2", act="activation_fn"),
    "nemotron": _PLAIN,
    "llama4_text": replace(
        _LLAMA,
        module="feed_forward",
        act="activation_fn",
        experts=ExpertFacts(router="router", transposed=False, routes="input", shared="shared_expert"),
    ),
    "lfm2": replace(_LLAMA, module="feed_forward", norm="ffn_norm", gate="w1", up="w3", out="w2", act="silu"),
    "gptj": replace(_PLAIN, norm="ln_1", up="fc_in", out="fc_out", act="act", parallel=True),
    "gpt_neo": _GPT2,
    "falcon": _falcon,
    "bloom": replace(_DENSE, act="gelu_impl"),
}


def mlp_facts(config: Any) -> MlpFacts | None:
    """Which facts hold for this model's MLPs? None: no row, and its MLPs stay whole."""
    row = MLPS.get(config.model_type)
    return row if row is None or isinstance(row, MlpFacts) else row(config)


# What does a norm do once its scale is frozen? Gain, centring and bias: all linear, so they fold into the weights.


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
    module = in_use(module)
    if hasattr(module, "base_layer"):
        raise KeyholeError("an adapter on a norm cannot be read: merge it into the model (peft's merge_and_unload).")
    with at_hand(module):
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


# How does RoPE rotate a head's query or key? A linear map per position, from the tables that the model used.

Pairing = Literal["halves", "pairs"]  # which dimensions turn together: (i, i + n) or (2i, 2i + 1)


def rope_types(config: Any) -> set[str]:
    """Which kinds of scaling a model's RoPE has, in any layer; before transformers 5, `rope_scaling` held them.

    >>> from transformers import LlamaConfig
    >>> rope_types(LlamaConfig(rope_scaling={"rope_type": "dynamic", "factor": 4.0}))
    {'dynamic'}
    """
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    groups = [parameters, *(group for group in parameters.values() if isinstance(group, dict))]
    kinds = (group.get("rope_type", group.get("type")) for group in groups)
    return {kind for kind in kinds if isinstance(kind, str)}


@dataclass(frozen=True)
class Rotary:
    """R_t for every position t of one layer: pairs of dimensions turn, the remaining ones pass.

    `cos` and `sin` hold one column per frequency as the model used them, so every scaling scheme (linear,
    Llama-3, YaRN with its factor on cos and sin, per-layer bases) is already inside.
    """

    cos: Float[Tensor, "pos freq"]
    sin: Float[Tensor, "pos freq"]
    pairing: Pairing

    def rotate(self, x: Float[Tensor, "... pos d_head"]) -> Float[Tensor, "... pos d_head"]:
        """R_t x_t for every position."""
        return turn(x, self.cos, self.sin, self.pairing)

    def transpose(self, x: Float[Tensor, "... pos d_head"]) -> Float[Tensor, "... pos d_head"]:
        """R_t^T x_t for every position."""
        return turn(x, self.cos, -self.sin, self.pairing)

    def undo(self, x: Float[Tensor, "... pos d_head"]) -> Float[Tensor, "... pos d_head"]:
        """What R_t turned into x_t: the inverse, of tables in half precision or with a factor, too."""
        cos, sin = self.cos.to(x.dtype), self.sin.to(x.dtype)
        size = cos.square() + sin.square()
        return turn(x, cos / size, -sin / size, self.pairing)

    def dots(self, x: Float[Tensor, "any d_head"], y: Float[Tensor, "any d_head"]) -> Float[Tensor, "any pos"]:
        """The dot product of x and R_t y at every position t; y need not be turned, as all pairs share cos and sin."""
        n = self.cos.shape[1]
        (x1, x2), (y1, y2) = (_paired(vector, n, self.pairing) for vector in (x, y))
        turning = (x1 * y1 + x2 * y2) @ self.cos.T.to(x.dtype) + (x2 * y1 - x1 * y2) @ self.sin.T.to(x.dtype)
        return turning + (x[:, 2 * n :] * y[:, 2 * n :]).sum(-1, keepdim=True)

    def summed(
        self,
        x: Float[Tensor, "*any d_head"],
        cos: Float[Tensor, "*any freq"],
        sin: Float[Tensor, "*any freq"],
        plain: Float[Tensor, "*any"],
    ) -> Float[Tensor, "*any d_head"]:
        """Sum over t of u_t R_t x, from the sums of u_t cos, of u_t sin and of u_t."""
        out = turn(x, cos, sin, self.pairing)
        if out.shape[-1] > 2 * cos.shape[-1]:
            out[..., 2 * cos.shape[-1] :] *= plain[..., None]
        return out

    def amplitudes(self, x: Float[Tensor, "... d_head"]) -> Float[Tensor, "... wave"]:
        """The length of each pair of dimensions that turn together, which no turn changes, and of each that passes.

        >>> Rotary(torch.ones(1, 1), torch.zeros(1, 1), "halves").amplitudes(torch.tensor([3.0, 4.0, -1.0]))
        tensor([5., 1.])
        """
        n = self.cos.shape[1]
        return torch.cat([torch.hypot(*_paired(x, n, self.pairing)), x[..., 2 * n :].abs()], dim=-1)

    @property
    def stretch(self) -> Float[Tensor, "freq"]:
        """How much longer a pair becomes at most: 1, but for scalings that have a factor on cos and sin."""
        return torch.hypot(self.cos, self.sin).amax(0)

    def at(self, positions: Tensor | slice) -> "Rotary":
        """The same map at chosen positions only."""
        return Rotary(self.cos[positions], self.sin[positions], self.pairing)


def turn(
    x: Float[Tensor, "... d_head"], cos: Float[Tensor, "... freq"], sin: Float[Tensor, "... freq"], pairing: Pairing
) -> Float[Tensor, "... d_head"]:
    """(x1 cos - x2 sin, x2 cos + x1 sin) on each pair of dimensions; those beyond the last pair pass."""
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    n = cos.shape[-1]
    first, second = _paired(x, n, pairing)
    passing = x[..., 2 * n :]
    first, second = first * cos - second * sin, second * cos + first * sin
    if pairing == "halves":
        return torch.cat([first, second, passing.expand(*first.shape[:-1], -1)], dim=-1)
    pairs = torch.stack([first, second], dim=-1).flatten(-2)
    return torch.cat([pairs, passing.expand(*pairs.shape[:-1], -1)], dim=-1)


def _paired(x: Float[Tensor, "... d_head"], n: int, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """The first and the second of the n pairs of dimensions that turn together."""
    turning = x[..., : 2 * n]
    return (turning[..., :n], turning[..., n:]) if pairing == "halves" else (turning[..., ::2], turning[..., 1::2])
