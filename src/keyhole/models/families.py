"""Where does each architecture keep what Keyhole reads? One row of facts per Hugging Face `model_type`.

No other code has a branch for an architecture; it reads these facts. A wrong fact does not stay hidden: `keyhole check`
computes scores, values, residual streams and logits from them and compares with those of the model, and the recorded
pass with a plain one.

Paths under `layers`, `final_norm` start at the model; `attn`, `attn_norm`, `post_attn_norm`, `mlp` and `mixer`
at one layer; `qkv`, `out` and `qk_norm` at the attention module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from keyhole.errors import KeyholeError

NormKind = Literal["rms", "layer"]
Refusal = tuple[str, Callable[[Any], bool], str]  # (config attribute, is this value bad?, reason)


@dataclass(frozen=True)
class Family:
    """The facts of one architecture. The defaults describe Llama."""

    layers: str = "model.layers"
    final_norm: str = "model.norm"
    attn: str = "self_attn"
    attn_norm: str | None = "input_layernorm"  # None: attention reads the residual stream as it is (OLMo-2)
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # three projections, or one fused
    fused: Literal["stacked", "per_head", "grouped", "shared_kv"] | None = None  # how a fused one is laid out
    out: str = "o_proj"
    qk_norm: tuple[str, str] | None = None  # used only where the module exists and is not None
    qk_norm_spans: Literal["head", "all"] = "head"  # one scale per head, or one over all heads together
    post_attn_norm: str | None = None  # a norm on the attention output, before it joins the residual stream
    mlp: str = "mlp"  # the module whose output joins the residual stream
    mlp_in_place: bool = False  # the model adds to that output in place, so a copy must be kept
    mixer: str | None = None  # the token-mixing block of layers that have no attention
    norm: NormKind = "rms"
    norm_adds_one: bool = False  # the gain is 1 + weight
    rotary: Literal["halves", "pairs"] | None = "halves"  # which dimensions turn together: (i, i+n) or (2i, 2i+1)
    rotary_table: Literal["tiled", "interleaved", "single"] = "tiled"  # how cos and sin repeat each frequency
    has_rope: Callable[[nn.Module], bool] = lambda attn: True  # asked of each layer's attention module
    q_factor: Callable[[nn.Module, Tensor], Tensor] | None = None  # extra factor on q per position
    residual_multiplier: str | None = None  # config attribute that scales what attention and MLP write
    logit_scale: Callable[[Any], float] = lambda config: 1.0
    refusals: tuple[Refusal, ...] = ()
    # Families that do not route attention through `AttentionInterface` are read at their projections instead.
    routed: bool = True
    implementation: str | None = None  # run a plain pass, and an unrouted model, under this attention implementation
    scaling: Callable[[nn.Module], float] | None = None  # of the scores, for unrouted families
    alibi_factor: Callable[[nn.Module], float] | None = None  # what the model multiplies its ALiBi tensor with
    window: Callable[[nn.Module], int | None] = lambda attn: None  # sliding window, for unrouted families


def _opt_factor(attn: nn.Module, positions: Tensor) -> Tensor:
    """OPT scales q itself and passes scaling 1 to the attention function."""
    return torch.full_like(positions, attn.scaling, dtype=torch.float64)  # type: ignore[arg-type]


def _llama4_temperature(attn: Any, positions: Tensor) -> Tensor:
    """Llama 4 sharpens queries far into the prompt, in the layers without RoPE."""
    if attn.use_rope or not attn.attn_temperature_tuning:
        return torch.ones_like(positions, dtype=torch.float64)
    steps = torch.floor((positions.float() + 1.0) / attn.floor_scale)
    return torch.log1p(steps).double() * float(attn.attn_scale) + 1.0


def _clips_qkv(value: Any) -> bool:
    return value is not None


_LLAMA = Family()
_GPT2 = Family(
    layers="transformer.h",
    final_norm="transformer.ln_f",
    attn="attn",
    attn_norm="ln_1",
    qkv=("c_attn",),
    fused="stacked",
    out="c_proj",
    norm="layer",
    rotary=None,
    refusals=(("add_cross_attention", bool, "cross-attention reads a second sequence"),),
)
_NEOX = Family(
    layers="gpt_neox.layers",
    final_norm="gpt_neox.final_layer_norm",
    attn="attention",
    qkv=("query_key_value",),
    fused="per_head",
    out="dense",
    norm="layer",
)
_QWEN3 = replace(_LLAMA, qk_norm=("q_norm", "k_norm"))
_GEMMA = replace(_LLAMA, norm_adds_one=True)
_GEMMA2 = replace(
    _GEMMA,
    post_attn_norm="post_attention_layernorm",
    mlp="post_feedforward_layernorm",
    implementation="eager",  # "sdpa" knows no softcap: early versions leave it out without a word
)
_OLMO2 = replace(
    _LLAMA,
    attn_norm=None,
    qk_norm=("q_norm", "k_norm"),
    qk_norm_spans="all",
    post_attn_norm="post_attention_layernorm",
    mlp="post_feedforward_layernorm",
)
_COHERE = replace(
    _LLAMA,
    norm="layer",
    qk_norm=("q_norm", "k_norm"),
    rotary="pairs",
    rotary_table="interleaved",
    logit_scale=lambda config: config.logit_scale,
)
_BLOOM = Family(
    layers="transformer.h",
    final_norm="transformer.ln_f",
    attn="self_attention",
    qkv=("query_key_value",),
    fused="per_head",
    out="dense",
    mlp="mlp.dense_4h_to_h",
    norm="layer",
    rotary=None,
    routed=False,
    scaling=lambda attn: float(attn.inv_norm_factor),  # type: ignore[arg-type]
    alibi_factor=lambda attn: float(attn.beta),  # type: ignore[arg-type]
    refusals=(
        ("apply_residual_connection_post_layernorm", bool, "its residual stream passes through the norms"),
        ("slow_but_exact", bool, "its output projection is applied in slices"),
    ),
)
_GPTJ = Family(
    layers="transformer.h",
    final_norm="transformer.ln_f",
    attn="attn",
    attn_norm="ln_1",
    out="out_proj",
    norm="layer",
    rotary="pairs",
    rotary_table="single",
    routed=False,
    scaling=lambda attn: 1.0 / float(attn.scale_attn),  # type: ignore[arg-type]
)


def _local_window(attn: Any) -> int | None:
    """GPT-Neo's; its modules do not always know their own kind."""
    local = attn.config.attention_layers[attn.layer_id] == "local"
    return int(attn.config.window_size) if local else None


_GPT_NEO = replace(
    _GPTJ,
    attn="attn.attention",
    rotary=None,
    scaling=lambda attn: 1.0,
    window=_local_window,
)


def _falcon(config: Any) -> Family:
    """Falcon's layout of heads and norms depends on three switches of its config."""
    grouped, parallel = config.new_decoder_architecture, config.parallel_attn
    two_norms = grouped and (config.num_ln_in_parallel_attn or 2) == 2
    return replace(
        _BLOOM,
        attn_norm="ln_attn" if two_norms else "input_layernorm",
        fused="grouped" if grouped else "shared_kv" if config.multi_query else "per_head",
        mlp_in_place=grouped or parallel,
        rotary=None if config.alibi else "halves",
        # Under "eager", transformers 5.22 adds ALiBi twice: once in the mask and once in the attention.
        implementation="sdpa",
        refusals=(),
    )


FAMILIES: Mapping[str, Family | Callable[[Any], Family]] = {
    "gpt2": _GPT2,
    "gpt_neox": _NEOX,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": replace(_GEMMA2, qk_norm=("q_norm", "k_norm")),
    "phi": replace(
        _LLAMA,
        final_norm="model.final_layernorm",
        out="dense",
        norm="layer",
        qk_norm=("q_layernorm", "k_layernorm"),
    ),
    "phi3": replace(_LLAMA, qkv=("qkv_proj",), fused="stacked"),
    "olmo": replace(
        _LLAMA,
        norm="layer",
        refusals=(("clip_qkv", _clips_qkv, "clipping q, k and v is not linear in the residual stream"),),
    ),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "granite": replace(
        _LLAMA,
        residual_multiplier="residual_multiplier",
        logit_scale=lambda config: 1.0 / config.logits_scaling,
    ),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, has_rope=lambda attn: attn.sliding_window is not None),
    "starcoder2": replace(_LLAMA, norm="layer"),
    "stablelm": replace(_LLAMA, norm="layer", qk_norm=("q_layernorm", "k_layernorm")),
    "smollm3": replace(_LLAMA, has_rope=lambda attn: bool(attn.use_rope)),
    "glm4": replace(_LLAMA, post_attn_norm="post_self_attn_layernorm", mlp="post_mlp_layernorm", rotary="pairs"),
    "gpt_oss": replace(_LLAMA, rotary_table="single"),
    "opt": replace(
        _GPT2,
        layers="model.decoder.layers",
        final_norm="model.decoder.final_layer_norm",
        attn="self_attn",
        attn_norm="self_attn_layer_norm",
        qkv=("q_proj", "k_proj", "v_proj"),
        fused=None,
        out="out_proj",
        mlp="fc2",
        q_factor=_opt_factor,
        refusals=(
            (
                "do_layer_norm_before",
                lambda before: not before,
                "its norms sit on the residual stream itself",
            ),
            ("_remove_final_layer_norm", bool, "it has no final norm"),
        ),
    ),
    "nemotron": replace(_LLAMA, norm="layer", norm_adds_one=True),
    "llama4_text": replace(
        _LLAMA,
        mlp="feed_forward",
        qk_norm=("qk_norm", "qk_norm"),
        rotary="pairs",
        rotary_table="single",
        has_rope=lambda attn: bool(attn.use_rope),
        q_factor=_llama4_temperature,
    ),
    "lfm2": replace(
        _LLAMA,
        final_norm="model.embedding_norm",
        attn_norm="operator_norm",
        out="out_proj",
        qk_norm=("q_layernorm", "k_layernorm"),
        mlp="feed_forward",
        mixer="conv",
    ),
    "gptj": _GPTJ,
    "gpt_neo": _GPT_NEO,
    "falcon": _falcon,
    "bloom": _BLOOM,
}


def family_of(config: Any) -> Family:
    """Which facts hold for this model? Refuses, with the reason, what cannot be read exactly.

    >>> from transformers import GPT2Config
    >>> family_of(GPT2Config()).attn_norm
    'ln_1'
    """
    row = FAMILIES.get(config.model_type)
    if row is None:
        raise KeyholeError(
            f"models of type {config.model_type!r} are not supported: Keyhole has no row of facts for that "
            f"architecture. Supported: {', '.join(sorted(FAMILIES))}."
        )
    family = row if isinstance(row, Family) else row(config)
    for attribute, is_bad, reason in family.refusals:
        value = getattr(config, attribute, None)
        if is_bad(value):
            raise KeyholeError(
                f"this {config.model_type!r} model is not supported: {attribute}={value!r}, and {reason}."
            )
    return family
