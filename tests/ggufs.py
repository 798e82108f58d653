"""Tiny random GGUF files, written as converters write them."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quantize

WORDS = ["<end>", "Ġ", "a", "b", "c", "d", "Ġa", "Ġb", "Ġc", "Ġd"]
WIDTH, LAYERS, HEADS, GROUPS = 32, 2, 4, 2


def write_gguf(path: Path, *, kind: str = "Q8_0", architecture: str = "llama", seed: int = 0) -> Path:
    """A llama or qwen2 with a byte-level tokenizer; `kind` is how its matrices are stored."""
    draw = np.random.default_rng(seed)
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] + [1] * (len(WORDS) - 1))
    writer.add_token_merges([f"Ġ {letter}" for letter in "abcd"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)

    def add(name: str, *shape: int) -> None:
        values = draw.normal(size=shape).astype(np.float32) / 4
        quantised = GGMLQuantizationType[kind if len(shape) == 2 else "F32"]
        writer.add_tensor(name, quantize(values, quantised), raw_dtype=quantised)

    narrow = WIDTH * GROUPS // HEADS
    add("token_embd.weight", len(WORDS), WIDTH)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        for name, shape in (
            ("attn_norm", (WIDTH,)),
            ("attn_q", (WIDTH, WIDTH)),
            ("attn_k", (narrow, WIDTH)),
            ("attn_v", (narrow, WIDTH)),
            ("attn_output", (WIDTH, WIDTH)),
            ("ffn_norm", (WIDTH,)),
            ("ffn_gate", (2 * WIDTH, WIDTH)),
            ("ffn_up", (2 * WIDTH, WIDTH)),
            ("ffn_down", (WIDTH, 2 * WIDTH)),
        ):
            add(f"{block}.{name}.weight", *shape)
        if architecture == "qwen2":
            for name, size in (("attn_q", WIDTH), ("attn_k", narrow), ("attn_v", narrow)):
                add(f"{block}.{name}.bias", size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
