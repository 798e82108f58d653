"""A captured run is the model's own forward pass: same numbers, nothing left behind."""

import pytest
import torch

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError
from test_exact import SUPPORTED
from tiny import Sizes, tiny

# Families whose eager attention can be asked for its weights and means the same as the fused one.
GIVES_ATTENTION = [v for v in SUPPORTED if v not in ("falcon-alibi", "lfm2")]


@pytest.mark.parametrize("variant", GIVES_ATTENTION)
def test_attention_recomputed_from_q_and_k_is_the_models_own(variant: str) -> None:
    hf = tiny(variant)
    model = keyhole.load((hf, None))
    (prompt,) = prompts_of(model, 20)
    run = model.run(prompt)
    own = hf(input_ids=torch.tensor([prompt]), output_attentions=True)
    torch.testing.assert_close(run.logits, own.logits[0], rtol=1e-5, atol=1e-5)
    for layer, weights in enumerate(own.attentions):
        torch.testing.assert_close(run.pattern(layer), weights[0], rtol=1e-4, atol=1e-5)


def test_lfm2_attention_layers_match_and_its_conv_layers_have_none() -> None:
    hf = tiny("lfm2")
    model = keyhole.load((hf, None))
    (prompt,) = prompts_of(model, 20)
    run = model.run(prompt)
    assert torch.equal(run.logits, hf(input_ids=torch.tensor([prompt])).logits[0])
    mixers = [i for i in range(len(run.layers)) if i not in model.attention_layers]
    assert mixers and all(run.layers[i].mixer is not None for i in mixers)
    with pytest.raises(KeyholeError, match="no attention heads"):
        run.pattern(mixers[0])


def test_the_users_model_is_left_as_it_was() -> None:
    hf = tiny("llama")
    model = keyhole.load((hf, None))
    model.run([1, 2, 3])
    assert hf.config._attn_implementation == "eager"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in hf.modules())
    with pytest.raises(KeyholeError, match="outside the vocabulary"):
        model.run([1, 2, 9999])
    assert hf.config._attn_implementation == "eager"


def test_a_run_does_not_depend_on_earlier_longer_ones() -> None:
    model = tiny_model("llama-dynamic")
    long, short = prompts_of(model, 30, 20)  # dynamic scaling starts at 16
    fresh = tiny_model("llama-dynamic").run(short).logits
    assert not torch.equal(model.run(long).logits[:20], model.run(long[:20]).logits)
    assert torch.equal(model.run(short).logits, fresh)
    assert keyhole.check(model, long).exact


@pytest.mark.parametrize("variant", ["gpt2", "llama", "mistral", "gemma2", "gpt_oss", "falcon-alibi"])
def test_run_many_equals_run(variant: str) -> None:
    model = tiny_model(variant)
    prompts = prompts_of(model, 5, 18, 9, 18, 2)
    for prompt, run in zip(prompts, model.run_many(prompts, max_batch_tokens=40), strict=True):
        single = model.run(prompt)
        assert run.token_ids == tuple(prompt) == single.token_ids
        for ours, theirs in zip(run.layers, single.layers, strict=True):
            assert ours.attention is not None and theirs.attention is not None
            for name in ("q", "k", "v", "norm_scale", "q_scale", "k_scale", "out_scale"):
                a, b = getattr(ours.attention, name), getattr(theirs.attention, name)
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(ours.mlp, theirs.mlp, rtol=1e-4, atol=1e-4)


def test_a_record_grows_linearly_with_the_prompt() -> None:
    model = tiny_model("llama", Sizes(positions=512))

    def floats(n: int) -> int:
        run = model.run(prompts_of(model, n)[0])
        total = run.logits.numel() + run.final_resid.numel()
        for layer in run.layers:
            record = layer.attention
            assert record is not None and record.rotary is not None
            kept = [layer.resid, layer.mlp, record.q, record.k, record.v, record.first, record.rotary.cos]
            total += sum(t.numel() for t in kept)
        return total

    assert floats(400) == 4 * floats(100)


def test_blocks_of_queries_do_not_change_attention() -> None:
    hf = tiny("mistral", Sizes(positions=700, window=300))
    model = keyhole.load((hf, None))
    (prompt,) = prompts_of(model, 600)  # more than two blocks of 256
    own = hf(input_ids=torch.tensor([prompt])).logits[0]
    torch.testing.assert_close(model.run(prompt).logits, own, rtol=1e-4, atol=1e-4)


def test_bos_is_explicit_and_recorded(organism: keyhole.Model) -> None:
    text = "When Mary and John went to the store, John gave a drink to"
    with_bos, without = organism.run(text), organism.run(text, bos=False)
    bos = organism.tokenizer.bos_token_id
    assert with_bos.bos and with_bos.token_ids[0] == bos
    assert not without.bos and without.token_ids == with_bos.token_ids[1:]
    assert organism.run(with_bos.token_ids).token_ids == with_bos.token_ids
