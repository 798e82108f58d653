"""Models from a folder, a pair, a GGUF file; tokens and their texts; names and fingerprints."""

from pathlib import Path

import pytest
import torch

import keyhole
from conftest import tiny_model
from keyhole import KeyholeError
from keyhole.models.prompts import token_id
from tiny import tiny


def test_a_folder_and_its_model_are_the_same(tmp_path: Path) -> None:
    hf = tiny("llama")
    hf.save_pretrained(tmp_path)
    loaded, given = keyhole.load(tmp_path), keyhole.load((hf, None))
    assert loaded.tokenizer is None and loaded.name == str(tmp_path)
    assert torch.equal(loaded.run([3, 4, 5]).logits, given.run([3, 4, 5]).logits)
    assert loaded.fingerprint() == given.fingerprint() != tiny_model("gpt2").fingerprint()


def test_dtype_is_float32_unless_asked_for(tmp_path: Path) -> None:
    tiny("llama", dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert keyhole.load(tmp_path).hf.dtype == torch.float32
    assert keyhole.load(tmp_path, dtype="auto").hf.dtype == torch.bfloat16
    assert keyhole.load(tmp_path, dtype=torch.float64).run([1, 2]).logits.dtype == torch.float64


def test_device_map_puts_a_model_where_it_says(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    model = keyhole.load(tmp_path, device_map={"": "cpu"})
    assert keyhole.check(model, [1, 2, 3, 4]).exact
    assert keyhole.load(tmp_path, device="cpu").hf.device.type == "cpu"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(KeyholeError, match="pair"):
        keyhole.load(("gpt2", None))


def test_words_become_single_tokens_or_errors(organism: keyhole.Model) -> None:
    mary = token_id(organism, "Mary")
    assert token_id(organism, " Mary ") == mary == token_id(organism, mary)
    with pytest.raises(KeyholeError, match="tokens"):
        token_id(organism, "Mary and John")
    with pytest.raises(KeyholeError, match="does not know 'Zaphod'"):
        token_id(organism, "Zaphod")


def test_smollm2_is_read_exactly(smollm2: keyhole.Model) -> None:
    text = "When Mary and John went to the store, John gave a drink to"
    run = smollm2.run(text)
    probabilities = run.logits[-1].softmax(-1)
    assert probabilities.argmax() == token_id(smollm2, "Mary") and probabilities.max() > 0.9
    check = keyhole.check(smollm2, text)
    assert check.exact and max(check.scores, check.residuals, check.logits) < 1e-5
