"""Tiny random-weight models of every architecture the tests cover, built from config objects in milliseconds.

    model = tiny("gemma2")                                  # the default sizes
    model = tiny("llama-yarn", Sizes(heads=6, kv_heads=3, seed=7), dtype=torch.float64)

A variant is one row of `TABLE`: a config class and the settings that follow from `Sizes`. Nothing is left at a
neutral value: norm gains are not 1, biases and sinks are not 0, multipliers are not 1, windows and rope scaling
bite within 20 tokens, and queries are scaled up until many attention rows have one clear winner.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D


@dataclass(frozen=True)
class Sizes:
    """What a test may vary. A family that cannot have a value gets the nearest one it can have."""

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2  # gcd(heads, kv_heads) are built; ignored where every head has its own keys
    d_head: int = 8  # at least 4, and an even number where there is rotation
    d_model: int = 32  # heads * d_head in the families that tie the two
    mlp: int = 48
    vocab: int = 61
    window: int = 6  # positions a local layer sees, its own included; llama4: the length of a chunk
    rotary_fraction: float = 0.5  # of d_head, where rotation may be partial
    biases: bool = True  # every optional bias; of the llamas only "llama-bias" has any, and always
    positions: int = 64
    seed: int = 0


Settings = dict[str, Any]  # keyword arguments of a config class


# The sizes a family can have.


def _rotated(s: Sizes) -> Sizes:
    return replace(s, d_head=max(4, s.d_head + s.d_head % 2), kv_heads=math.gcd(s.heads, s.kv_heads))


def _free(s: Sizes) -> Sizes:
    """d_head is a setting of its own, though several configs insist that heads divide d_model."""
    return replace(_rotated(s), d_model=s.heads * math.ceil(s.d_model / s.heads))


def _tied(s: Sizes) -> Sizes:
    s = _rotated(s)
    return replace(s, d_model=s.heads * s.d_head)


def _unrotated(s: Sizes) -> Sizes:
    d_head = max(4, s.d_head)
    return replace(s, d_head=d_head, d_model=s.heads * d_head, kv_heads=s.heads)


# How config classes spell them, from the fewest settings to the most.


def _bare(s: Sizes) -> Settings:
    # The default token ids of most configs lie outside a tiny vocabulary.
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
    return {"vocab_size": s.vocab, "hidden_size": s.d_model, "num_hidden_layers": s.layers, **ids}


def _plain(s: Sizes) -> Settings:
    return {**_bare(s), "num_attention_heads": s.heads, "max_position_embeddings": s.positions}


def _grouped(s: Sizes) -> Settings:
    own = {"intermediate_size": s.mlp, "num_key_value_heads": s.kv_heads, "rope_parameters": _rope()}
    return {**_plain(s), **own}


def _headed(s: Sizes) -> Settings:
    return {**_grouped(s), "head_dim": s.d_head}


# Settings that several families share.


def _rope(rope_type: str = "default", theta: float = 100.0, **more: Any) -> Settings:
    # The usual bases, 10,000 and more, have wavelengths far longer than a test prompt.
    return {"rope_type": rope_type, "rope_theta": theta, **more}


def _stretched(s: Sizes, rope_type: str, **more: Any) -> Settings:
    """Scaling from a quarter of `positions` to all of them, so a prompt may lie on either side."""
    return _rope(rope_type, factor=4.0, original_max_position_embeddings=s.positions // 4, **more)


def _rotary_dims(s: Sizes) -> int:
    return min(s.d_head, max(2, 2 * round(s.d_head * s.rotary_fraction / 2)))


def _partial(s: Sizes) -> Settings:
    return {"rope_parameters": _rope(partial_rotary_factor=_rotary_dims(s) / s.d_head)}


def _longrope(s: Sizes) -> Settings:
    pairs = range(_rotary_dims(s) // 2)
    factors = {"short_factor": [1.0 + 0.2 * i for i in pairs], "long_factor": [1.5 + i for i in pairs]}
    share = {"partial_rotary_factor": _rotary_dims(s) / s.d_head}
    rope = _stretched(s, "longrope", **share, **factors)
    return {"rope_parameters": rope, **share, "original_max_position_embeddings": s.positions // 4}


def _window(s: Sizes) -> Settings:
    return {"sliding_window": s.window}


def _alternate(s: Sizes, even: str, odd: str) -> list[str]:
    return [(even, odd)[i % 2] for i in range(s.layers)]


def _local_global(s: Sizes) -> Settings:
    return {**_window(s), "layer_types": _alternate(s, "sliding_attention", "full_attention")}


def _bias(s: Sizes) -> Settings:
    return {"attention_bias": s.biases}


def _both_biases(s: Sizes) -> Settings:
    return {"attention_bias": s.biases, "mlp_bias": s.biases}


# Families that need more than one line.

UPPER_LAYERS = {"use_sliding_window": True, "max_window_layers": 1}  # the first layer sees everything
SEQUENTIAL = {"use_parallel_residual": False}
PARALLEL_QKNORM = {"use_parallel_residual": True, "qk_layernorm": True}
ALIBI = {"alibi": True, "multi_query": False, "parallel_attn": False}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def _inverse_layer(s: Sizes) -> Settings:
    return {"n_inner": s.mlp, "scale_attn_by_inverse_layer_idx": True}


def _llama3(s: Sizes) -> Settings:
    return {"rope_parameters": _stretched(s, "llama3", low_freq_factor=1.0, high_freq_factor=4.0)}


def _dynamic(s: Sizes) -> Settings:
    # This scaling sets in beyond max_position_embeddings.
    return {"rope_parameters": _rope("dynamic", factor=4.0), "max_position_embeddings": s.positions // 4}


def _cohere(s: Sizes) -> Settings:
    return {**_bias(s), "logit_scale": 0.25}


def _stablelm(s: Sizes) -> Settings:
    return {**_partial(s), "use_qkv_bias": s.biases}


def _gemma2(s: Sizes) -> Settings:
    caps = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0}
    return {**_bias(s), **_local_global(s), **caps, "query_pre_attn_scalar": 2 * s.d_head}


def _gemma3(s: Sizes) -> Settings:
    full = _rope("linear", theta=500.0, factor=2.0)
    rope = {"rope_parameters": {"sliding_attention": _rope(theta=20.0), "full_attention": full}}
    return {**_bias(s), **_local_global(s), **rope, "query_pre_attn_scalar": 2 * s.d_head}


def _olmo3(s: Sizes) -> Settings:
    rope = {"rope_parameters": {"sliding_attention": _rope(), "full_attention": _stretched(s, "yarn")}}
    return {**_bias(s), **_local_global(s), **rope}


def _granite(s: Sizes) -> Settings:
    multipliers = {"embedding_multiplier": 1.7, "residual_multiplier": 0.6, "logits_scaling": 3.0}
    return {**_both_biases(s), **multipliers, "attention_multiplier": 1.3 * s.d_head**-0.5}


def _gpt_oss(s: Sizes) -> Settings:
    rope = {"rope_parameters": _stretched(s, "yarn", truncate=False)}
    return {**_bias(s), **_local_global(s), **rope, **EXPERTS}


def _qwen3_moe(s: Sizes) -> Settings:
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "mlp_only_layers": [1]}
    return {**_bias(s), **experts, "moe_intermediate_size": s.mlp}


def _llama4(s: Sizes) -> Settings:
    temperature = {"attn_temperature_tuning": True, "floor_scale": 4, "attn_scale": 0.5}
    layers = {"no_rope_layer_interval": 2, "moe_layers": list(range(0, s.layers, 2))}
    mlp = {"intermediate_size_mlp": s.mlp, "num_local_experts": 4}
    return {**_bias(s), **temperature, **layers, **mlp, "attention_chunk_size": s.window}


def _lfm2(s: Sizes) -> Settings:
    kinds = {"layer_types": _alternate(s, "full_attention", "conv")}
    return {**kinds, "conv_bias": s.biases, "block_auto_adjust_ff_dim": False}


def _gpt_neo(s: Sizes) -> Settings:
    kinds = [[[kind], 1] for kind in _alternate(s, "local", "global")]
    return {"num_layers": s.layers, "attention_types": kinds, "window_size": s.window, "intermediate_size": s.mlp}


def _gpt_neox(s: Sizes) -> Settings:
    return {**_bias(s), **_partial(s), "intermediate_size": s.mlp}


def _falcon(s: Sizes) -> Settings:
    return {"bias": s.biases, "ffn_hidden_size": s.mlp, "rope_parameters": _rope()}


def _falcon_new(s: Sizes) -> Settings:
    return {**_falcon(s), "new_decoder_architecture": True, "num_kv_heads": s.kv_heads}


Layout = tuple[Callable[[Sizes], Sizes], Callable[[Sizes], Settings]]
FREE: Layout = (_free, _headed)
TIED: Layout = (_tied, _grouped)
ALL_HEADS: Layout = (_tied, _plain)  # rotation, but no setting for the number of key heads
UNROTATED: Layout = (_unrotated, _plain)
BARE: Layout = (_unrotated, _bare)


@dataclass(frozen=True)
class Row:
    config: type[Any]
    layout: Layout
    own: Callable[[Sizes], Settings] = lambda s: {}
    sharpen: float = 3.0  # factor on the queries


TABLE: dict[str, Row] = {
    "gpt2": Row(hf.GPT2Config, UNROTATED, lambda s: {"n_inner": s.mlp}),
    "gpt2-inverse-layer": Row(hf.GPT2Config, UNROTATED, _inverse_layer, sharpen=5.0),
    "gpt_neox": Row(hf.GPTNeoXConfig, ALL_HEADS, _gpt_neox),
    "gpt_neox-sequential": Row(hf.GPTNeoXConfig, ALL_HEADS, lambda s: _gpt_neox(s) | SEQUENTIAL),
    "llama": Row(hf.LlamaConfig, FREE),
    "llama-bias": Row(hf.LlamaConfig, FREE, lambda s: {"attention_bias": True, "mlp_bias": True}),
    "llama-llama3": Row(hf.LlamaConfig, FREE, _llama3),
    "llama-yarn": Row(hf.LlamaConfig, FREE, lambda s: {"rope_parameters": _stretched(s, "yarn")}),
    "llama-linear": Row(hf.LlamaConfig, FREE, lambda s: {"rope_parameters": _rope("linear", factor=4.0)}),
    "llama-dynamic": Row(hf.LlamaConfig, FREE, _dynamic),
    "mistral": Row(hf.MistralConfig, FREE, _window),
    "qwen2": Row(hf.Qwen2Config, TIED, lambda s: _window(s) | UPPER_LAYERS),
    "qwen3": Row(hf.Qwen3Config, FREE, _bias),
    "gemma": Row(hf.GemmaConfig, FREE, _bias),
    "gemma2": Row(hf.Gemma2Config, FREE, _gemma2),
    "gemma3_text": Row(hf.Gemma3TextConfig, FREE, _gemma3),
    "phi": Row(hf.PhiConfig, TIED, _partial),
    "phi-qknorm": Row(hf.PhiConfig, TIED, lambda s: _partial(s) | {"qk_layernorm": True}),  # norms with a bias
    "phi3": Row(hf.Phi3Config, TIED, _window),
    "phi3-longrope": Row(hf.Phi3Config, TIED, _longrope),
    "olmo": Row(hf.OlmoConfig, TIED, _bias),
    "olmo-clip": Row(hf.OlmoConfig, TIED, lambda s: _bias(s) | {"clip_qkv": 2.0}, sharpen=6.0),
    "olmo2": Row(hf.Olmo2Config, TIED, _bias),
    "olmo3": Row(hf.Olmo3Config, TIED, _olmo3),
    "granite": Row(hf.GraniteConfig, TIED, _granite),
    "cohere": Row(hf.CohereConfig, TIED, _cohere),
    "cohere-qknorm": Row(hf.CohereConfig, TIED, lambda s: _cohere(s) | {"use_qk_norm": True}),
    "cohere2": Row(hf.Cohere2Config, TIED, lambda s: _cohere(s) | _local_global(s)),
    "starcoder2": Row(hf.Starcoder2Config, TIED, lambda s: _window(s) | {"use_bias": s.biases}),
    "stablelm": Row(hf.StableLmConfig, TIED, _stablelm),
    "stablelm-parallel-qknorm": Row(hf.StableLmConfig, TIED, lambda s: _stablelm(s) | PARALLEL_QKNORM),
    "smollm3": Row(hf.SmolLM3Config, TIED, lambda s: _both_biases(s) | {"no_rope_layer_interval": 2}),
    "glm4": Row(hf.Glm4Config, FREE, lambda s: _bias(s) | _partial(s)),
    "gpt_oss": Row(hf.GptOssConfig, FREE, _gpt_oss),
    "mixtral": Row(hf.MixtralConfig, FREE, lambda s: EXPERTS),
    "qwen3_moe": Row(hf.Qwen3MoeConfig, FREE, _qwen3_moe),
    "opt": Row(hf.OPTConfig, UNROTATED, lambda s: {"ffn_dim": s.mlp, "enable_bias": s.biases}),
    "nemotron": Row(hf.NemotronConfig, FREE, lambda s: _both_biases(s) | _partial(s)),
    "llama4_text": Row(hf.Llama4TextConfig, FREE, _llama4),
    "lfm2": Row(hf.Lfm2Config, TIED, _lfm2),
    "gptj": Row(hf.GPTJConfig, ALL_HEADS, lambda s: {"n_inner": s.mlp, "rotary_dim": _rotary_dims(s)}),
    # Scores that are not divided by sqrt(d_head) are sharp as they are.
    "gpt_neo": Row(hf.GPTNeoConfig, UNROTATED, _gpt_neo, sharpen=1.0),
    "falcon": Row(hf.FalconConfig, ALL_HEADS, _falcon),
    "falcon-new": Row(hf.FalconConfig, ALL_HEADS, _falcon_new),
    "falcon-alibi": Row(hf.FalconConfig, ALL_HEADS, lambda s: _falcon(s) | ALIBI),
    "bloom": Row(hf.BloomConfig, BARE, lambda s: {"num_attention_heads": s.heads}),
    # For refusals: no attention at all, and an architecture outside the list.
    "mamba": Row(hf.MambaConfig, BARE, lambda s: {"state_size": 4, "use_bias": s.biases}),
    "xglm": Row(hf.XGLMConfig, UNROTATED, lambda s: {"ffn_dim": s.mlp, "pad_token_id": 1}),
}

VARIANTS: tuple[str, ...] = tuple(TABLE)
DEFAULT = Sizes()


# Older versions of transformers.

VERSION = tuple(int(part) for part in hf.__version__.split(".")[:2])
# From which one on Keyhole can read these; what is older keeps to itself what it would have to know, and is refused.
SINCE = {
    "mixtral": (5, 0),
    "opt": (5, 2),
    "stablelm": (5, 2),
    "stablelm-parallel-qknorm": (5, 2),
    "gpt2-inverse-layer": (5, 4),
    "nemotron": (5, 13),
}
EARLY = [variant for variant, since in SINCE.items() if since > VERSION]


def _spelt_out(settings: Settings) -> Settings:
    """Rotation in several settings, as before transformers 5. A config leaves alone what it does not know."""
    own = dict(settings)
    rope = own.pop("rope_parameters", None)
    if rope is None:
        return own
    if "sliding_attention" in rope:
        own["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    rope = dict(rope.get("full_attention", rope))
    own["rope_theta"] = own["rotary_emb_base"] = rope.pop("rope_theta")
    own["partial_rotary_factor"] = own["rotary_pct"] = rope.pop("partial_rotary_factor", 1.0)
    if rope["rope_type"] == "longrope":
        rope = {"type": "longrope", "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    return own if rope.get("rope_type") == "default" else {**own, "rope_scaling": rope}


# Weights.


def tiny(variant: str, sizes: Sizes = DEFAULT, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A small random model of one architecture: eager attention, eval mode, no gradients.

    The same variant and sizes give the same weights, in every dtype up to rounding; the global random state is
    left alone.

    >>> tiny("gpt2").config.model_type
    'gpt2'
    """
    row = TABLE[variant]
    fit, names = row.layout
    fitted = fit(sizes)
    settings = names(fitted) | row.own(fitted)
    config = row.config(**_spelt_out(settings) if VERSION < (5, 0) else settings)
    with torch.random.fork_rng(devices=[]):  # construction draws weights that are overwritten below
        # The default experts are a fused kernel that has no float64 on a CPU.
        experts = {} if VERSION < (5, 0) else {"experts_implementation": "eager"}
        model = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype, **experts)
    model.eval().requires_grad_(False)
    _randomise(model, torch.Generator().manual_seed(sizes.seed))
    _sharpen(model, row.sharpen)
    return model


def _randomise(model: PreTrainedModel, generator: torch.Generator) -> None:
    done: set[int] = set()  # tied parameters are drawn once
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in done:
                done.add(id(parameter))
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
                parameter.copy_(_value(module, name, noise))


def _value(module: nn.Module, name: str, noise: Tensor) -> Tensor:
    if name == "sinks":
        return 2.0 + noise
    if "bias" in name:
        return 0.2 * noise
    if "Norm" in type(module).__name__:
        return 0.2 * noise if _adds_one(module) else 1.0 + 0.2 * noise
    if isinstance(module, nn.Embedding):
        return noise
    fan_in = noise.shape[0] if isinstance(module, Conv1D) else noise.shape[-1]
    return noise * fan_in**-0.5


def _adds_one(norm: nn.Module) -> bool:
    """Whether the gain is 1 + weight."""
    return "Gemma" in type(norm).__name__ or type(norm).__name__.endswith("1P")


def _sharpen(model: PreTrainedModel, factor: float) -> None:
    # The rotated layers of llama4 stay as they are: their norm of the queries has no gain.
    for module in model.modules():
        norm = getattr(module, "q_norm", None) or getattr(module, "q_layernorm", None)
        if norm is not None:  # it would undo a factor on the projection
            for gain in norm.parameters():
                gain.copy_(factor * (gain + 1.0) - 1.0 if _adds_one(norm) else factor * gain)
        else:
            for rows in _query_rows(module, model.config):
                rows.mul_(factor)


def _query_rows(module: nn.Module, config: Any) -> Iterator[Tensor]:
    """Views of the weights and biases that make the queries, in each of the layouts of a projection."""
    heads = getattr(config, "num_attention_heads", 0)
    if hasattr(module, "q_proj"):
        yield from module.q_proj.parameters()
    elif hasattr(module, "c_attn"):  # [in, 3 * d_model]
        yield from (p[..., : config.hidden_size] for p in module.c_attn.parameters())
    elif hasattr(module, "qkv_proj"):  # [queries of every head, then keys, then values]
        yield from (p[: config.hidden_size] for p in module.qkv_proj.parameters())
    elif hasattr(module, "query_key_value"):  # per group of heads: its queries, one key, one value
        groups = getattr(module, "num_kv_heads", heads)
        for p in module.query_key_value.parameters():
            yield p.view(groups, -1, config.hidden_size // heads, *p.shape[1:])[:, :-2]
