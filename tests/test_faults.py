"""What must not go unnoticed: a lost mask, a wrong KV head, a stale SVD, damaged weights, a number that is none."""

import dataclasses
import json
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AttentionMaskInterface

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError, Model
from keyhole.models import attention, numbers
from keyhole.models.numbers import require_finite_run, stamp
from keyhole.models.stacks import visit
from keyhole.models.tokens import encode
from keyhole.qk.omega import omega
from keyhole.tracing.exactness import check_run
from tiny import tiny


def test_a_missing_mask_registration_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "register", lambda: None)
    monkeypatch.delitem(AttentionMaskInterface._global_mapping, attention.NAME, raising=False)
    keyhole.models.attention.AttentionInterface.register(attention.NAME, attention._attend_and_record)
    with pytest.raises(KeyholeError, match="without Keyhole's mask"):
        tiny_model("llama").run([1, 2, 3])


def test_a_mask_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    attention.register()
    eager = AttentionMaskInterface._global_mapping["eager"]
    monkeypatch.setattr(attention, "register", lambda: None)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, attention.NAME, eager)
    with pytest.raises(KeyholeError, match="without Keyhole's mask"):
        tiny_model("llama").run([1, 2, 3])


def test_a_wrong_kv_head_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    run = model.run(prompts_of(model, 12)[0])
    right = {layer: model.folded(layer) for layer in range(3)}
    assert check_run(run).exact
    wrong = {i: dataclasses.replace(w, W_K=w.W_K.flip(0), b_K=w.b_K.flip(0)) for i, w in right.items()}
    monkeypatch.setattr(keyhole.Model, "folded", lambda self, layer: wrong[layer])
    model._cache.clear()
    assert not check_run(run).exact
    with pytest.raises(KeyholeError, match=r"cannot be reconstructed.*something Keyhole does not know"):
        run.channels((1, 0), -1, 3)


@pytest.mark.parametrize("edit", ["in place", "through .data", "replaced", "load_state_dict"])
def test_an_svd_is_never_stale(edit: str) -> None:
    model = tiny_model("gpt2")
    run = model.run([1, 2, 3, 4])
    before = omega(model, 1).sigma
    weight = model.hf.transformer.h[1].attn.c_attn.weight
    if edit == "in place":
        with torch.no_grad():
            weight[3, 5] += 0.5
    elif edit == "through .data":
        weight.data.mul_(1.1)
    elif edit == "replaced":
        model.hf.transformer.h[1].attn.c_attn.weight = torch.nn.Parameter(weight.detach() * 1.1)
    else:
        state = {name: value * 1.1 for name, value in model.hf.state_dict().items()}
        model.hf.load_state_dict(state)
    after = omega(model, 1).sigma
    assert not torch.allclose(before, after)
    assert torch.equal(after, omega(keyhole.load((model.hf, None)), 1).sigma)
    with pytest.raises(KeyholeError, match="weights have changed"):
        run.channels((1, 0), -1, 0)
    assert check_run(model.run([1, 2, 3, 4])).exact


@pytest.mark.parametrize("columns", [slice(0, 8), slice(8, 16), slice(40, 44)])
def test_a_stamp_sees_one_head_zeroed_through_data(columns: slice) -> None:
    model = tiny_model("gpt2")
    before = model._stamp()
    model.hf.transformer.h[1].attn.c_attn.weight.data[:, columns] = 0
    assert model._stamp() != before


def test_an_attention_function_that_forgets_sinks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captured pass alone would agree with itself: a plain pass must stand beside it."""
    model, ids = tiny_model("gpt_oss"), [1, 2, 3, 4, 5, 6, 7, 8]
    assert keyhole.check(model, ids).exact
    whole = attention._attend_and_record
    monkeypatch.setattr(attention, "_attend_and_record", lambda *args, s_aux=None, **kw: whole(*args, **kw))
    check = keyhole.check(model, ids)
    assert not check.exact and check.plain_pass > 0.01


def test_a_wrong_value_bias_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between heads and bias it would cancel: values are rebuilt too."""
    model = tiny_model("gpt2")
    wrong = {i: dataclasses.replace(model.folded(i), b_V=model.folded(i).b_V + 0.1) for i in range(3)}
    monkeypatch.setattr(keyhole.Model, "folded", lambda self, layer: wrong[layer])
    assert not keyhole.check(model, [1, 2, 3, 4]).exact


@pytest.mark.parametrize("change", ["missing", "more layers", "fewer layers"])
def test_weights_that_do_not_fit_the_config_are_refused(change: str, tmp_path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    if change == "missing":
        file = tmp_path / "model.safetensors"
        weights = load_file(file)
        del weights["model.layers.1.self_attn.q_proj.weight"]
        save_file(weights, file, metadata={"format": "pt"})
    else:
        config = json.loads((tmp_path / "config.json").read_text())
        config["num_hidden_layers"] = 5 if change == "more layers" else 2
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(KeyholeError, match="its weight file"):
        keyhole.load(tmp_path)


def test_training_mode_is_refused() -> None:
    hf = tiny("gpt2")
    hf.train()
    with pytest.raises(KeyholeError, match="training mode"):
        keyhole.load((hf, None)).run([1, 2, 3])


def test_a_record_does_not_follow_later_edits() -> None:
    model = tiny_model("gpt_oss")
    run = model.run([1, 2, 3, 4, 5])
    before = run.pattern(1)
    with torch.no_grad():
        model.hf.model.layers[1].self_attn.sinks += 5
    assert torch.equal(run.pattern(1), before)


def test_an_edited_unembedding_is_read_again() -> None:
    model = tiny_model("phi")
    assert keyhole.check(model, [1, 2, 3]).exact
    with torch.no_grad():
        model.hf.lm_head.bias += 1
    assert keyhole.check(model, [1, 2, 3]).exact


def test_threads_share_a_model() -> None:
    model = tiny_model("llama")
    expected = model.run([1, 2, 3, 4]).logits
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(model.run, [[1, 2, 3, 4]] * 12))
    assert all(torch.equal(run.logits, expected) for run in runs)
    assert model.hf.config._attn_implementation == "eager"


def test_autocast_does_not_reach_inside() -> None:
    model = tiny_model("llama")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert keyhole.check(model, [1, 2, 3, 4]).dtype == "float32"


def test_not_a_number_is_not_exact() -> None:
    check = keyhole.check(tiny_model("gpt2"), [1, 2, 3])
    broken = dataclasses.replace(check.layers[2], residual=float("nan"))
    assert not dataclasses.replace(check, layers=(*check.layers[:2], broken)).exact


def test_a_stamp_is_stable_without_edits() -> None:
    hf = tiny("llama")
    assert stamp(hf.parameters()) == stamp(hf.parameters())


def test_a_damaged_weight_file_is_refused(tmp_path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(KeyholeError, match="cannot load"):
        keyhole.load(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_numbers_are_refused_at_load(value: float, dtype: torch.dtype) -> None:
    hf = tiny("llama", dtype=dtype)
    hf.model.layers[1].mlp.up_proj.weight[0, 0] = value
    with pytest.raises(KeyholeError, match=r"NaN or infinite: model\.layers\.1\.mlp\.up_proj\.weight\. "):
        keyhole.load((hf, None))
    for layer in hf.model.layers:
        layer.mlp.up_proj.weight[0, 0], layer.mlp.down_proj.weight[0, 0] = value, value
    with pytest.raises(KeyholeError, match=r"model\.layers\.0\.mlp\.up_proj.* and 3 more"):
        keyhole.load((hf, None))


def test_large_weights_are_still_numbers() -> None:
    hf = tiny("llama", dtype=torch.float16)
    hf.model.embed_tokens.weight[:, :4] = 60_000.0  # a sum of them would overflow
    assert keyhole.load((hf, None)).dims.layers == 3


def test_weights_that_became_no_numbers_after_loading_are_refused() -> None:
    model = tiny_model("llama")
    model.hf.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    with pytest.raises(KeyholeError, match=r"head 1\.0 has weights that are NaN"):
        omega(model, 1)
    with pytest.raises(KeyholeError, match=r"the input of layer 2 at token 0 is NaN or infinite; the weights"):
        model.run([1, 2, 3])
    encoded = encode(model, [1, 2, 3], None)
    with pytest.raises(KeyholeError, match="a query or key of layer 1 is NaN or infinite"):
        visit(model, [encoded], lambda layer, seen: None)


@pytest.mark.parametrize("broken", ["mlp", "unembedding"])
def test_an_overflow_in_half_precision_is_said(broken: str) -> None:
    model = tiny_model("llama", dtype=torch.float16)
    if broken == "mlp":
        model.hf.model.layers[1].mlp.down_proj.weight.fill_(60_000.0)
        where = "the input of layer 2 at token 0 is"
    else:
        model.hf.lm_head.weight[5] = float("nan")
        where = "its logits are"
    with pytest.raises(KeyholeError, match=f"{where} NaN or infinite; float16 overflows beyond 65504"):
        model.run([1, 2, 3])


def test_infinite_logits_are_refused_and_masked_ones_are_not() -> None:
    """Some models mask tokens with -inf; +inf is an overflow, whatever the dtype in which logits come."""
    residuals, logits = [torch.zeros(2, 4, dtype=torch.float16)], torch.zeros(2, 8)
    logits[0, 3] = -math.inf
    require_finite_run(residuals, logits)
    for broken in (math.inf, math.nan):
        logits[1, 5] = broken
        with pytest.raises(KeyholeError, match="its logits are NaN or infinite; float16 overflows beyond 65504"):
            require_finite_run(residuals, logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_misses_in_half_precision_is_called_rounding(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tolerance below its rounding stands for a model with large activations, such as SmolLM2."""
    name = str(dtype).removeprefix("torch.")
    run = tiny_model("llama", dtype=dtype).run([1, 2, 3, 4])
    monkeypatch.setitem(numbers._TOLERANCE, dtype, 1e-6)
    with pytest.raises(KeyholeError, match=f"of this run cannot.*Rounding in {name}.*load the model in float32"):
        run.trace()
    with pytest.raises(KeyholeError) as refused:
        run.channels((1, 0), -1, 1)
    assert "does not know" not in str(refused.value)


@pytest.mark.parametrize("side", ["c_Q", "c_K"])
def test_the_bias_of_a_qk_norm_is_missed_when_left_out(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("phi-qknorm")
    run = model.run(prompts_of(model, 12)[0])
    assert check_run(run).exact
    folded, whole = Model.folded, model.folded(1)
    without = dataclasses.replace(whole, **{side: torch.zeros_like(getattr(whole, side))})
    monkeypatch.setattr(Model, "folded", lambda self, layer: without if layer == 1 else folded(self, layer))
    assert check_run(run).layers[1].scores > 1e-2


def test_a_wrong_fact_about_a_family_is_noticed() -> None:
    model = tiny_model("cohere")
    wrong = dataclasses.replace(model, family=dataclasses.replace(model.family, rotary="halves"), _cache={})
    assert not check_run(wrong.run(prompts_of(model, 12)[0])).exact
