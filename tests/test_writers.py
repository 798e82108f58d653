"""The residual stream at every layer and token is the sum of its writers."""

import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError
from keyhole.circuits.records import Signal, Writer
from keyhole.tracing.writers import attention_writes, bias_writes, head_writes, read_of
from test_exact import SUPPORTED


@pytest.mark.parametrize("variant", SUPPORTED)
def test_writers_sum_to_what_each_layer_reads(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 15)[0])
    for layer in range(4):
        for pos in (0, 7, 14):
            split = run.writers(layer, pos)
            reads = run.layers[layer].resid[pos] if layer < 3 else run.final_resid[pos]
            assert split.error < 1e-5
            torch.testing.assert_close(split.vectors.sum(0), reads, rtol=1e-4, atol=1e-4 * float(reads.abs().max()))
            assert len(split.writers) == len(split.vectors) == len(set(split.writers))


@pytest.mark.parametrize("variant", ["gpt2", "gemma2", "gpt_oss", "llama-bias", "falcon"])
def test_heads_and_bias_are_all_that_attention_writes(variant: str) -> None:
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 15)[0])
    whole = attention_writes(run, 1)
    for dest in range(15):
        parts = head_writes(run, 1, dest).sum((0, 1)) + bias_writes(run, 1, [dest])[0]
        torch.testing.assert_close(parts, whole[dest], rtol=1e-4, atol=1e-4 * float(whole.abs().max()))


@pytest.mark.parametrize("variant", ["gpt2", "llama-bias", "llama-yarn", "qwen3", "phi-qknorm", "gemma2", "gpt_oss"])
def test_what_a_head_reads_of_all_writers_is_its_query_and_key(variant: str) -> None:
    """Each writer's share, and the head's own offset, in the rotated query and key."""
    model = tiny_model(variant)
    run = model.run(prompts_of(model, 8)[0])
    record, kv = run.attention_run(2), model.folded(2).kv(1)
    writers = (*run.writers(2, 7).writers, Writer("offset", 2, 1, 7, 7))
    for own, side in ((record.q[1, 7], "dest"), (record.k[kv, 7], "src")):
        shares = [read_of(run, (2, 1), Signal(writer, side, ()), [7])[0] for writer in writers]
        torch.testing.assert_close(sum(shares), own, rtol=1e-4, atol=1e-4 * float(own.abs().max()))


def test_a_head_moves_nothing_from_outside_its_window() -> None:
    model = tiny_model("mistral")
    moved = head_writes(model.run(prompts_of(model, 20)[0]), 1, 19)
    assert not moved[:, :14].any() and moved[:, 14:].any()


def test_kinds_of_writers(gpt2: keyhole.Model) -> None:
    split = gpt2.run([1, 2, 3]).writers(2, 2)
    kinds = [w.kind for w in split.writers]
    assert kinds.count("embedding") == 1 and kinds.count("mlp") == 2 and kinds.count("bias") == 2
    assert kinds.count("head") == 2 * 4 * 3  # two layers, four heads, three sources each
    with pytest.raises(KeyholeError, match="no layer 7"):
        gpt2.run([1, 2, 3]).writers(7, 0)
