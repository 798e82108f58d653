"""Models from a folder, a pair, a GGUF file; tokens and their texts; names and fingerprints."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import keyhole
from conftest import tiny_model
from keyhole import KeyholeError
from keyhole.errors import MissingModelError
from keyhole.models.tokens import _given_ids, token_id
from keyhole.tasks import ioi
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


def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    for options, source in [
        ({"revision": "step1"}, tmp_path),
        ({"revision": "x"}, None),
        ({"dtype": "auto"}, (tiny("gpt2"), None)),
    ]:
        with pytest.raises(KeyholeError, match="appl"):
            keyhole.load(source, **options)
    with pytest.raises(KeyholeError, match="cannot put the model"):
        keyhole.load(tmp_path, device="banana")


def test_weights_that_are_not_to_be_had_are_told_from_damaged_ones(tmp_path: Path) -> None:
    with pytest.raises(MissingModelError, match="cannot load nobody/nothing"):
        keyhole.load("nobody/nothing")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(KeyholeError, match="cannot load") as told:
        keyhole.load(tmp_path)
    assert not isinstance(told.value, MissingModelError)


def test_no_code_of_a_model_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder that brings its own, transformers would ask whether to run it: nobody is asked, and none runs."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    named = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "their_own", "auto_map": named}))
    with pytest.raises(KeyholeError, match=r"code of its own, and Keyhole runs none.*Give a model of an architecture"):
        keyhole.load(tmp_path)
    tiny("llama").save_pretrained(tmp_path)
    own = {"tokenizer_class": "Theirs", "auto_map": {"AutoTokenizer": ["code.Theirs", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(own))
    with pytest.raises(KeyholeError, match=r"has no tokenizer \(.*custom code"):
        keyhole.load(tmp_path).run("hello there")
    assert not (tmp_path / "ran").exists()


def as_on_the_hub(variant: str, hf: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights under the names that GPT-2 and Pythia have there, with the buffers that older transformers kept."""
    mask = torch.ones(hf.config.max_position_embeddings, hf.config.max_position_embeddings).tril()[None, None]
    state = {name: value.clone() for name, value in hf.state_dict().items()}
    if variant == "gpt2":
        state = {name.removeprefix("transformer."): value for name, value in state.items() if name != "lm_head.weight"}
        for layer in range(hf.config.n_layer):
            state |= {f"h.{layer}.attn.bias": mask.clone(), f"h.{layer}.attn.masked_bias": torch.tensor(-1e4)}
        return state
    for layer in range(hf.config.num_hidden_layers):
        at = f"gpt_neox.layers.{layer}.attention"
        state |= {f"{at}.bias": mask.bool(), f"{at}.masked_bias": torch.tensor(-1e9)}
        state[f"{at}.rotary_emb.inv_freq"] = hf.gpt_neox.rotary_emb.inv_freq.clone()
    return state


@pytest.mark.parametrize("kind", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("variant", ["gpt2", "gpt_neox"])
def test_files_laid_out_as_on_the_hub(variant: str, kind: str, tmp_path: Path) -> None:
    hf = tiny(variant)
    state, (plain, hub) = as_on_the_hub(variant, hf), (tmp_path / "plain", tmp_path / "hub")
    buffers = [name for name in state if name.endswith(("bias", "inv_freq")) and state[name].dim() in (0, 4)]
    assert len(buffers) == 2 * hf.config.num_hidden_layers and not any(
        name.startswith("transformer.") for name in state
    )
    hf.save_pretrained(plain)
    hf.config.save_pretrained(hub)
    if kind == "pytorch_model.bin":
        torch.save(state, hub / kind)
    else:
        save_file(state, hub / kind, {"format": "pt"})
    here, there = keyhole.load(plain), keyhole.load(hub)
    ids = [3, 14, 15, 9, 26, 5]
    assert torch.equal(here.run(ids).logits, there.run(ids).logits)
    assert keyhole.check(there, ids).exact and here.fingerprint() == there.fingerprint()
    assert str(here.run(ids).explain((1, 0))) == str(there.run(ids).explain((1, 0)))


def test_a_weight_that_the_hubs_file_lacks_is_refused(tmp_path: Path) -> None:
    hf = tiny("gpt2")
    state = as_on_the_hub("gpt2", hf)
    hf.config.save_pretrained(tmp_path)
    torch.save(
        {name: value for name, value in state.items() if name != "h.1.attn.c_proj.weight"},
        tmp_path / "pytorch_model.bin",
    )
    with pytest.raises(KeyholeError, match=r"lacks transformer\.h\.1\.attn\.c_proj\.weight"):
        keyhole.load(tmp_path)


class Opens:
    """What a pickle would run: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.path), "w")


def test_no_code_in_a_file_of_weights_is_run(tmp_path: Path) -> None:
    hf = tiny("gpt_neox")
    hf.config.save_pretrained(tmp_path)
    torch.save(as_on_the_hub("gpt_neox", hf) | {"x": Opens(tmp_path / "opened")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(KeyholeError, match="cannot load"):
        keyhole.load(tmp_path)
    assert not (tmp_path / "opened").exists()


def test_a_revision_reaches_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def from_pretrained(path, **options):
        asked.update(options, path=path)
        raise OSError("not here")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(KeyholeError, match="cannot load EleutherAI/pythia-160m"):
        keyhole.load("EleutherAI/pythia-160m", revision="step1000")
    assert asked["path"] == "EleutherAI/pythia-160m" and asked["revision"] == "step1000"


def test_prompts_of_many_kinds(organism: keyhole.Model) -> None:
    text = "When Mary and John went to the store, John gave a drink to"
    ids = organism.run(text).token_ids
    for prompt in (list(ids), np.array(ids), torch.tensor(ids), torch.tensor([ids])):
        assert organism.run(prompt).token_ids == ids
    for prompt in ([5.9, 6.9], [[1, 2], [3, 4]], {"input_ids": [1, 2]}, 7):
        with pytest.raises(KeyholeError, match="text or a list"):
            _given_ids(organism, prompt)
    with pytest.raises(KeyholeError, match="takes a list"):
        organism.run_many(text)  # a str is a sequence of strings
    run = organism.run(text)
    assert run.position(np.int64(-1)) == len(run) - 1


def test_a_known_special_token_in_the_text_is_no_unknown_word(smollm2: keyhole.Model) -> None:
    run = smollm2.run("<|endoftext|> The war lasted from the year 1745 to the year 17", bos=False)
    assert run.token_ids[0] == smollm2.tokenizer.convert_tokens_to_ids("<|endoftext|>")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("BertModel", "'bert', and encoders are not supported"),
        ("BertForMaskedLM", "'bert', and encoders are not supported"),
        ("DistilBertModel", "'distilbert', and encoders are not supported"),
        ("T5ForConditionalGeneration", "'t5', and encoder-decoder models are not supported"),
    ],
)
def test_encoders_are_called_so(kind: str, said: str, tmp_path: Path) -> None:
    model = getattr(transformers, kind)
    sizes = {"hidden_size": 16, "dim": 16, "d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"n_layers": 1, "n_heads": 2, "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_size": 16}
    config = model.config_class(vocab_size=30)
    known = {name: size for name, size in sizes.items() if name in config.to_dict()}
    model(model.config_class(vocab_size=30, **known)).save_pretrained(tmp_path)
    with pytest.raises(KeyholeError, match=f"of type {said}. Keyhole reads decoders"):
        keyhole.load(tmp_path)


def test_an_adapter_whose_base_is_away_and_one_left_beside_its_merged_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "gpt2"}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(MissingModelError, match=r"cannot load gpt2 \(the base model of .*\): the hub is unreachable"):
        keyhole.load(tmp_path)
    tiny("llama").save_pretrained(tmp_path)  # merged, with the adapter left beside it
    assert keyhole.load(tmp_path).dims.layers == 3


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    model = keyhole.load(tmp_path)
    with pytest.raises(KeyholeError, match=r"has no tokenizer \("):
        model.run("hello there")


def test_roles_become_positions(organism: keyhole.Model, smollm2: keyhole.Model) -> None:
    for model in (organism, smollm2):
        examples = ioi(20, seed=3, names=("Mary", "John", "Simon"))
        for example, run in zip(examples, model.run_many([one.text for one in examples]), strict=True):
            for role in ("IO", "S1", "S2", "END"):
                assert run.tokens[example.position(run, role)].strip() == example.word(role)
    with pytest.raises(KeyholeError, match="no role"):
        example.position(run, "X")
    with pytest.raises(KeyholeError, match="another prompt"):
        example.position(smollm2.run("Hello there"), "IO")


def test_words_become_single_tokens_or_errors(organism: keyhole.Model) -> None:
    mary = token_id(organism, "Mary")
    assert token_id(organism, " Mary ") == mary == token_id(organism, mary)
    with pytest.raises(
        KeyholeError,
        match=r"is 'Mary' \+ 'and' \+ 'John' for organism, .*its first one, .*`keyhole words 'M\*' --model",
    ):
        token_id(organism, "Mary and John")
    with pytest.raises(KeyholeError, match="does not know 'Zaphod'"):
        token_id(organism, "Zaphod")


def test_a_word_is_the_token_that_fits_the_prompt(smollm2: keyhole.Model) -> None:
    """With and without its space a word may be two tokens: the likelier is meant, unless the space is written."""
    run = smollm2.run("import numpy as n")
    likely = run.logits[-1]
    plain, spaced = (smollm2.tokenizer(form, add_special_tokens=False).input_ids[0] for form in ("py", " py"))
    assert likely[plain] > likely[spaced] and token_id(smollm2, "py") == spaced
    assert token_id(smollm2, "py", likely) == plain and token_id(smollm2, " py", likely) == spaced
    assert smollm2.tokenizer.decode([token_id(smollm2, "\n", likely)]) == "\n"
    for wrong in (" anna", ""):  # a token without its space would be another one
        with pytest.raises(KeyholeError, match="not one token"):
            token_id(smollm2, wrong, likely)
    told = run.trace("py", through="heads").parameters
    assert told.target_ids == (plain,) and told.target_text == ("py",)
    ordinary = smollm2.run("When Mary and John left, John gave it to").trace("Mary", through="heads")
    assert ordinary.parameters.target_text == (" Mary",)


def test_smollm2_is_read_exactly(smollm2: keyhole.Model) -> None:
    text = "When Mary and John went to the store, John gave a drink to"
    run = smollm2.run(text, bos=False)  # before transformers 5, tokenizers of GGUF files add one
    probabilities = run.logits[-1].softmax(-1)
    assert probabilities.argmax() == token_id(smollm2, "Mary") and probabilities.max() > 0.9
    check = keyhole.check(smollm2, run.token_ids)
    assert check.exact and max(check.scores, check.residuals, check.logits) < 1e-5
