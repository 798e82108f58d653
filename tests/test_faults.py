"""What must not go unnoticed: a lost mask, a wrong KV head, a stale SVD, a damaged weight file."""

import dataclasses

import pytest
import torch
from transformers import AttentionMaskInterface

import keyhole
from conftest import prompts_of, tiny_model
from keyhole import KeyholeError
from keyhole.models import attention
from keyhole.models.check import check_run
from keyhole.models.stamps import stamp
from keyhole.qk.omega import decompose, omega
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
    right = {layer: model.weights(layer) for layer in range(3)}
    assert check_run(run).exact
    wrong = {i: dataclasses.replace(w, W_K=w.W_K.flip(0), b_K=w.b_K.flip(0)) for i, w in right.items()}
    monkeypatch.setattr(keyhole.Model, "weights", lambda self, layer: wrong[layer])
    model._cache.clear()
    assert not check_run(run).exact
    with pytest.raises(KeyholeError, match="cannot be rebuilt"):
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
    fresh = decompose(model.weights(1).W_Q, model.weights(1).W_K).sigma
    assert torch.equal(after, fresh)
    with pytest.raises(KeyholeError, match="weights have changed"):
        run.channels((1, 0), -1, 0)
    assert check_run(model.run([1, 2, 3, 4])).exact


def test_a_stamp_is_stable_without_edits() -> None:
    hf = tiny("llama")
    assert stamp(hf.parameters()) == stamp(hf.parameters())


def test_a_damaged_weight_file_is_refused(tmp_path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(KeyholeError, match="cannot load"):
        keyhole.load(tmp_path)


def test_weights_that_are_not_numbers_are_refused() -> None:
    model = tiny_model("llama")
    with torch.no_grad():
        model.hf.model.layers[1].self_attn.q_proj.weight[0, 0] = float("nan")
    with pytest.raises(KeyholeError, match="NaN"):
        omega(model, 1)


def test_a_wrong_fact_about_a_family_is_noticed() -> None:
    model = tiny_model("cohere")
    wrong = dataclasses.replace(model, family=dataclasses.replace(model.family, rotary="halves"), _cache={})
    assert not check_run(wrong.run(prompts_of(model, 12)[0])).exact
