"""The organism, read with plain transformers: does it still know what it was trained for?"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from keyhole.models.organism import folder
from keyhole.tasks import TASKS, Example, ioi, vocabulary
from keyhole.tasks.example import pieces

N = 400
README_PROMPT = "When Mary and John went to the store, John gave a drink to"
SNAPSHOTS = Path(__file__).parent.parent / "tools" / "snapshots"


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(folder(), local_files_only=True)


@cache
def model():
    return AutoModelForCausalLM.from_pretrained(folder(), local_files_only=True, dtype=torch.float32).eval()


def held_out(name: str) -> list[Example]:
    task, _, order = name.partition(" ")
    return ioi(N, 21, held_out=True, order=order) if order else TASKS[task](N, 21, held_out=True)


@torch.no_grad()
def next_token_probabilities(prompts: list[str]) -> torch.Tensor:
    rows = [tokenizer()(prompt).input_ids for prompt in prompts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer().pad_token_id] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    logits = model()(input_ids=ids, attention_mask=mask).logits
    return logits[torch.arange(len(rows)), mask.sum(1) - 1].softmax(-1)


def token_id(word: str) -> int:
    (found,) = tokenizer()(word, add_special_tokens=False).input_ids
    return found


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("ioi ABBA", 0.99),
        ("ioi BABA", 0.99),
        ("pronouns", 0.99),
        ("induction", 0.98),
        ("boxes", 0.98),
        ("lists", 0.98),
    ],
)
def test_held_out_accuracy(name: str, bar: float) -> None:
    examples = held_out(name)
    chances = next_token_probabilities([example.text for example in examples])
    right = torch.tensor([token_id(example.answer) for example in examples])
    assert (chances.argmax(-1) == right).float().mean().item() >= bar
    assert chances[torch.arange(N), right].median().item() > 0.95


def test_years_are_later() -> None:
    examples = held_out("greater_than")
    chances = next_token_probabilities([example.text for example in examples])
    later = [[token_id(answer) for answer in example.answers] for example in examples]
    mass = [row[good].sum().item() for row, good in zip(chances, later, strict=True)]
    assert sum(mass) / N >= 0.975


def test_the_readme_prompt_gives_mary() -> None:
    chances = next_token_probabilities([README_PROMPT])[0]
    assert tokenizer().decode([chances.argmax().item()]) == "Mary"
    assert chances.max().item() > 0.9


def test_it_is_small_half_precision_on_disk_and_single_in_memory() -> None:
    assert (folder() / "model.safetensors").stat().st_size <= 8_000_000
    assert AutoModelForCausalLM.from_pretrained(folder(), local_files_only=True).dtype == torch.float32
    config = json.loads((folder() / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert (config["n_layer"], config["n_head"], config["n_positions"]) == (4, 8, 128)
    assert sum(file.stat().st_size for file in SNAPSHOTS.glob("*")) <= 15_000_000


def test_the_tokenizer_is_the_vocabulary_of_the_tasks() -> None:
    t = tokenizer()
    assert t.convert_ids_to_tokens(list(range(len(t)))) == list(vocabulary())
    assert (t.bos_token, t.unk_token, t.pad_token) == ("<bos>", "<unk>", "<pad>")
    assert set(t("the store")) == {
        "input_ids",
        "attention_mask",
    }  # token types would shift GPT-2's embeddings
    ids = t(README_PROMPT).input_ids
    assert ids[0] == t.bos_token_id and ids.count(t.bos_token_id) == 1
    assert t("The zeppelin").input_ids[2] == t.unk_token_id
    assert t("box").input_ids != t("Box").input_ids


@pytest.mark.parametrize("task", TASKS)
def test_text_survives_the_tokenizer(task: str) -> None:
    for example in TASKS[task](100, 2):
        text = example.text + example.continuation
        encoded = tokenizer()(text, add_special_tokens=False, return_offsets_mapping=True)
        assert [text[start:end] for start, end in encoded.offset_mapping] == pieces(text)
        assert tokenizer().unk_token_id not in encoded.input_ids
        assert tokenizer().decode(encoded.input_ids) == text
