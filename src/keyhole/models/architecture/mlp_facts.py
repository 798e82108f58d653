"""Where does each architecture keep its MLP? One row of facts per Hugging Face `model_type`, as in `families.py`.

A wrong fact does not stay hidden: `keyhole check` rebuilds what every MLP writes and compares with the model's own.

Paths start at one layer; `gate`, `up`, `out`, `act` and those of experts at the module that holds them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


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
