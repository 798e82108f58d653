"""Models that accelerate keeps in memory and on a disk: the same circuits as in one place, whatever comes when."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import keyhole
from conftest import tiny_model
from keyhole import KeyholeError, Model
from keyhole.models.effective import dense_copy
from keyhole.models.memory import bytes_of
from tiny import tiny

IDS = [3, 14, 15, 9, 26, 5, 7, 7, 3, 14]
PLACES = [("llama-bias", "in turns"), ("gpt2", "on disk"), ("gemma2", "on disk"), ("bloom", "in turns")]


def spread(hf: Any, layers: str) -> dict[str, str]:
    """Layers in turn on the disk and on the CPU, and whatever else there is on the CPU."""
    places, parent = {"lm_head": "cpu"}, layers.rpartition(".")[0]
    for name, _ in hf.get_submodule(parent).named_children():
        if f"{parent}.{name}" != layers:
            places[f"{parent}.{name}"] = "cpu"
    for number in range(hf.config.num_hidden_layers):
        places[f"{layers}.{number}"] = "cpu" if number % 2 else "disk"
    return places


@pytest.mark.parametrize(("variant", "place"), PLACES)
def test_an_offloaded_model_is_the_same_model(variant: str, place: str, tmp_path: Path) -> None:
    hf = tiny(variant)
    hf.save_pretrained(tmp_path)
    here = keyhole.load(tmp_path)
    places = {"": "disk"} if place == "on disk" else spread(hf, here.family.layers)
    away = keyhole.load(tmp_path, device_map=places)
    assert away.fingerprint() == here.fingerprint() and away.device.type == "cpu"
    assert keyhole.check(away, IDS).exact
    copied = dense_copy(away.hf)  # in memory
    assert torch.equal(copied(torch.tensor([IDS])).logits, here.hf(torch.tensor([IDS])).logits)
    run, plain = away.run(IDS), here.run(IDS)
    ours, theirs = run.trace(), plain.trace()
    assert ours.nodes == theirs.nodes and [e.weight for e in ours.edges] == [e.weight for e in theirs.edges]
    assert ours.verify(draws=1).rows == theirs.verify(draws=1).rows
    for mine, other in list(zip(ours.edges, theirs.edges, strict=True))[:3]:
        if mine.side in ("dest", "src"):
            after = run.with_edits([mine.edit(factor=0)]).logits
            assert torch.equal(after, plain.with_edits([other.edit(factor=0)]).logits)
    assert ours.effects().measured == theirs.effects().measured
    assert away.generate(IDS, max_new_tokens=3).tokens == here.generate(IDS, max_new_tokens=3).tokens
    assert any(parameter.is_meta for parameter in away.hf.parameters())  # everything went back to its place


def test_an_adapter_on_an_offloaded_model(tmp_path: Path) -> None:
    hf = tiny("llama")
    hf.save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    config = LoraConfig(r=3, init_lora_weights=False, target_modules=["q_proj", "v_proj", "up_proj"])
    get_peft_model(hf, config).save_pretrained(tmp_path / "lora")
    base, lora = tmp_path / "base", tmp_path / "lora"
    away, here = keyhole.load(base, adapter=lora, device_map={"": "disk"}), keyhole.load(base, adapter=lora)
    assert away.fingerprint() == here.fingerprint() and keyhole.check(away, IDS).exact
    assert torch.equal(away.run(IDS).logits, here.run(IDS).logits)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            {"device_map": {"nowhere": "cpu"}},
            "device_map names 'nowhere', which is no part of this model: it has model",
        ),
        ({"device_map": {"": "banana"}}, "cannot load"),
        ({"device_map": "banana"}, "cannot load .*found banana"),
        ({"device_map": {"": "meta"}}, r"has weights that are not in memory, such as model\.embed_tokens\.weight"),
        ({"device_map": {"": "disk"}, "device": "cpu"}, "give one of them"),
    ],
)
def test_device_maps_that_cannot_be_are_refused(places: dict[str, Any], message: str, tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(KeyholeError, match=message) as refused:
        keyhole.load(tmp_path, **places)
    assert "\n" not in str(refused.value)


def test_with_a_limit_layers_are_folded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same circuit; what is kept fits, but for the layer in use; without a limit every layer is folded once."""
    hf, folded = tiny("llama-bias"), list[int]()
    fold = Model._fold
    monkeypatch.setattr(Model, "_fold", lambda model, layer: folded.append(layer) or fold(model, layer))
    free, limited = keyhole.load((hf, None)), keyhole.load((hf, None), memory="15KB")
    layer = bytes_of(free.folded(0), set())
    assert 10_000 < layer < 40_000
    theirs = free.run(IDS).trace()
    assert sorted(folded) == [0, 1, 2]
    ours = [limited.run(IDS).trace() for _ in range(2)][1]
    assert ours.nodes == theirs.nodes and len(folded) > 8
    assert [edge.weight for edge in ours.edges] == pytest.approx([edge.weight for edge in theirs.edges], abs=1e-6)
    kept = [bytes_of(value, set()) for key, (_, value) in limited._cache.items() if key[0] == "weights"]
    assert len(kept) == 1
    for size in ("much", "0", "-1GB", ""):
        with pytest.raises(KeyholeError, match="memory takes a number of bytes or a size such as 8GB, not"):
            keyhole.load((hf, None), memory=size)


def test_layers_that_compute_on_several_devices_are_refused() -> None:
    """There is no second device here: one layer's record is put on torch's device without memory."""
    run = tiny_model("llama").run([1, 2, 3, 4])
    away = replace(run.layers[1], resid=run.layers[1].resid.to("meta"))
    with pytest.raises(KeyholeError, match="compute on cpu, meta, and tracing needs one device"):
        replace(run, layers=(run.layers[0], away, *run.layers[2:])).trace()
