"""Prompts for the model at hand: published sets, single tokens, users' own files, and whether a model is right."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import keyhole
from conftest import ROOT
from keyhole import KeyholeError, Model
from keyhole.models.tokens import text_ids, token_id
from keyhole.tasks import (
    CATALOGUE,
    TASKS,
    Example,
    answer_ids,
    answered,
    copying,
    examples,
    facts,
    greater_than,
    ioi,
    published_ioi,
    read_examples,
    write_examples,
)
from keyhole.tasks.catalogue import prompts_for
from keyhole.tasks.example import pieces
from keyhole.tasks.words import NAMES
from tiny import Sizes, tiny

PROMPT = "When Mary and John went to the store, John gave a drink to"
each_task = pytest.mark.parametrize("task", CATALOGUE)


def knowing(words: Sequence[str], cut: str = r"\w+|[^\w\s]") -> Model:
    """A tiny random model that knows these words and nothing else, and cuts text like this."""
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(["<unk>", *words]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(cut), "removed", invert=True)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>")
    return keyhole.load((tiny("gpt2", Sizes(vocab=len(vocabulary), layers=1)), tokenizer))


@pytest.fixture(scope="module")
def small() -> Model:
    """It knows the published wordings, three of their names, and those of ours that they use."""
    texts = " ".join(re.sub(r"{\w+}", "", wording) for wording in copying.PUBLISHED.wordings)
    return knowing(
        [*pieces(texts), *copying.PUBLISHED.places, *copying.PUBLISHED.objects, "Mary", "John", "Kelly", "Olga"]
    )


# -- the published indirect objects ------------------------------------------------------------------------

PUBLISHED = {
    ("balanced", 0): "Then, Kelly and Lewis went to the store. Lewis gave a computer to Kelly",
    ("balanced", 129): "Then, Jack and Kelly went to the garden. Jack gave a basketball to Kelly",
    ("balanced", 1613): "While Justin and Daniel were working at the house, Daniel gave a snack to Justin",
    ("balanced", 2999): "Friends River and Daniel found a kiss at the house. River gave it to Daniel",
    ("mixed", 0): "Then, Austin and Sarah had a lot of fun at the restaurant. Sarah gave a computer to Austin",
    ("mixed", 148): (
        "Then, Simon and Andrew were working at the restaurant. Simon decided to give a basketball to Andrew"
    ),
}


SHA256 = {
    "balanced": "daa5c618bfc455efea0091aa34382da143244190ba4c004b49233ed3a2b468eb",
    "mixed": "e0b858c8c9ca873f0c85fdae6b007c5591bfcc01bf5dabb101d46604d69518e4",
}


def test_the_published_sets_are_these_to_the_letter() -> None:
    """The hashes are of the texts as they were published, with the final name, a line each."""
    made = {"balanced": published_ioi(3000), "mixed": published_ioi(256, design="mixed")}
    texts = {design: [f"{example.text} {example.answer}" for example in found] for design, found in made.items()}
    assert {(design, i): texts[design][i] for design, i in PUBLISHED} == PUBLISHED
    assert {name: hashlib.sha256("\n".join(lines).encode()).hexdigest() for name, lines in texts.items()} == SHA256
    assert sum(example.labels["order"] == "ABBA" for example in made["mixed"]) == 127
    for i, example in enumerate(made["balanced"]):
        order = "BABA" if i % 200 > 99 else "ABBA"
        assert (example.labels["wording"], example.labels["order"]) == (str(i // 200), order)


def test_published_wordings_have_roles_where_they_say() -> None:
    for example in published_ioi(300, 4):
        assert (example.word("IO"), example.word("S1"), example.word("S2")) == (example.answer, *[example.wrong] * 2)
        assert (example.roles["IO"] < example.roles["S1"]) == (example.labels["order"] == "ABBA")
        assert (example.labels["IO"], example.labels["S"]) == (example.answer, example.wrong)
        assert "{" not in example.text and example.roles["END"][1] == len(example.text)
    again = [e for e in published_ioi(60) if "OBJECT2" in e.roles]
    assert {e.labels["wording"] for e in again} == {"7"} and all(e.word("OBJECT") == e.word("OBJECT2") for e in again)


@pytest.mark.parametrize("published", [False, True])
def test_balanced_is_as_even_as_it_can_be(published: bool) -> None:
    even = Counter(example.template for example in examples("ioi", n=300, published=published))
    assert len(even) == 30 and set(even.values()) == {10}
    odd = Counter(example.template for example in examples("ioi", n=47, published=published))
    assert len(odd) == 30 and sorted(set(odd.values())) == [1, 2] and sum(odd.values()) == 47
    one = Counter(e.template for e in examples("ioi", n=9, published=published, order="BABA", wordings=[2, 5, 6]))
    assert one == {"BABA-2": 3, "BABA-5": 3, "BABA-6": 3}


def test_as_many_as_were_published_unless_told() -> None:
    for published in (False, True):
        assert len(examples("ioi", published=published)) == 3000
        mixed = examples("ioi", published=published, design="mixed")
        assert len(mixed) == 256 and len({example.template for example in mixed}) == (14 if published else 30)


# -- for the model at hand ---------------------------------------------------------------------------------


@each_task
def test_the_seed_decides_everything(task: str, smollm2: Model) -> None:
    n = 6 if task == "facts" else 40
    assert examples(task, smollm2, n, 3) == examples(task, smollm2, n, 3)
    assert (examples(task, smollm2, n, 3) == examples(task, smollm2, n, 4)) == (task == "facts")


@pytest.mark.parametrize("task", TASKS)
def test_the_organism_is_asked_what_it_learnt(task: str, organism: Model) -> None:
    """Every word is one token of it; held-out prompts are a choice."""
    for held_out in (False, True):
        asked = examples(task, organism, 90, 2, held_out=held_out)
        assert asked == examples(task, None, 90, 2, held_out=held_out)
        if task != "ioi":  # which is balanced here
            assert asked == TASKS[task](90, 2, held_out=held_out)
    assert examples(task, organism, 90, 2) == examples(task, organism, 90, 2, held_out=False) != asked


@each_task
def test_answers_are_single_tokens_that_go_on_with_the_text(task: str, smollm2: Model) -> None:
    kept = set()
    for example in examples(task, smollm2, 6 if task == "facts" else 60, 1):
        ids = answer_ids(smollm2, example)
        gap = re.match(r"\s*", example.continuation)[0]  # type: ignore[index]
        before = text_ids(smollm2, example.text)
        for words, found in ((example.answers, ids.answers), (example.against, ids.against)):
            going_on = [text_ids(smollm2, example.text + gap + word) for word in words]
            assert all(whole[: len(before)] == before for whole in going_on)
            assert found == tuple(whole[len(before)] for whole in going_on) and len(set(found)) == len(found)
            if task != "facts":
                assert all(len(whole) == len(before) + 1 for whole in going_on) and not ids.cut
            if gap:
                assert all(
                    token_id(smollm2, word) == i for word, i in zip(words, found, strict=True) if word not in ids.cut
                )
        assert ids.answers and ids.against and not set(ids.answers) & set(ids.against)
        kept |= set(example.labels)
    assert kept


def test_published_items_ask_the_published_prompts(smollm2: Model) -> None:
    """To the letter; where seed or names differ, they are not called published."""
    whole = prompts_for("ioi", smollm2, 256)
    assert list(whole.examples) == published_ioi(256, design="mixed")
    assert whole.about == "256 published indirect objects (mixed)"
    assert whole.first(16).about == prompts_for("ioi", smollm2, 16).about
    assert whole.first(16).about == "the first 16 of 256 published indirect objects (mixed)"
    balanced = prompts_for("ioi", smollm2, 3000, design="balanced")
    assert balanced.about == "3,000 published indirect objects (balanced)"
    other = prompts_for("ioi", smollm2, 256, seed=1)
    assert list(other.examples) == published_ioi(256, 1, design="mixed")
    assert other.about == "256 indirect objects in the published wordings (mixed, seed 1)"


def test_published_prompts_in_the_names_that_a_model_has(small: Model) -> None:
    found = prompts_for("ioi", small, 64)
    assert list(found.examples) == published_ioi(64, design="mixed", names=("John", "Kelly", "Mary"))
    assert found.about.startswith("64 indirect objects in the published wordings (mixed, seed 0")
    assert found.about.endswith(f"with the 3 of {len(copying.PUBLISHED.names)} names that are one token of the model)")


def test_published_items_ask_the_organism_its_own_prompts(organism: Model) -> None:
    found = prompts_for("ioi", organism, 64, 3)
    assert list(found.examples) == ioi(64, 3, held_out=True)
    assert found.about == "64 held-out indirect objects in the organism's own wordings (mixed)"


@pytest.mark.parametrize("task", ["greater_than", "pronouns", "induction"])
def test_published_items_ask_fitted_tasks(task: str, smollm2: Model, organism: Model) -> None:
    fitted, own = (prompts_for(task, model, 100) for model in (smollm2, organism))
    for found in (fitted, own):
        assert len({one.text for one in found.examples}) == len(found.examples) == 100  # none counts twice
    drawn = [one.text for one in examples(task, smollm2, 200)]
    assert [one.text for one in fitted.examples] == list(dict.fromkeys(drawn))[:100]
    assert "held-out" in own.about and "single tokens of the model" in fitted.about
    assert ("asked for the tens of a year" in fitted.about) == (task == "greater_than")


def test_roles_are_single_tokens_of_the_model(smollm2: Model) -> None:
    wanted = {
        "ioi": ("IO", "S1", "S2", "END"),
        "pronouns": ("NAME", "ADJ", "NOUN", "END"),
        "induction": ("A", "B", "END"),
        "boxes": ("ITEM", "BOX", "QUERY", "END"),
        "lists": ("item_0", "CATEGORY", "END"),
        "greater_than": ("NOUN", "END"),
    }
    asked = [examples(task, smollm2, 1)[0] for task in wanted]
    for run, example in zip(smollm2.run_many([e.text for e in asked]), asked, strict=True):
        roles, at = wanted[example.task], example.positions(run)
        sentence_start = {role for role, span in example.roles.items() if span[0] == 0}  # no space stands before it
        assert set(roles) - sentence_start <= set(at)
        assert at["END"] == example.position(run, "END") == len(run) - 1  # "isn't" and "17" are two tokens
        for role in set(roles) - sentence_start - {"END"}:
            assert run.tokens[at[role]].strip() == example.word(role)


def test_names_are_tokens_of_the_model(small: Model, smollm2: Model) -> None:
    asked = examples("ioi", small, 60)
    assert {name for e in asked for name in (e.answer, *e.against)} == {"Mary", "John", "Kelly"}
    assert {e.labels["wordings"] for e in asked} == {"published"}
    pool = (*copying.PUBLISHED.names, "Brandon", "Connor", "Zaphod")  # these are two tokens of SmolLM2
    single = [name for name in pool if len(text_ids(smollm2, f" {name}")) == 1]
    assert single == list(copying.PUBLISHED.names) and examples("ioi", smollm2) == published_ioi(3000)
    ours = {name for e in examples("ioi", smollm2, published=False) for name in (e.answer, *e.against)}
    assert ours == {name for name in NAMES if len(text_ids(smollm2, f" {name}")) == 1} != set(NAMES)


def test_the_first_word_comes_again_only_as_the_same_token(organism: Model, smollm2: Model) -> None:
    again = {m.name: {e.template.split("-")[1] for e in examples("induction", m, 200)} for m in (organism, smollm2)}
    assert "0" in again[organism.name] and "0" not in again[smollm2.name]


def test_models_that_cut_years_into_digits_are_asked_for_tens(smollm2: Model) -> None:
    for example in examples("greater_than", smollm2, 60):
        year = int(example.word("XX1") + example.word("YY"))
        for digit in "0123456789":
            ends = {int(f"{example.word('XX2')}{digit}{last}") > year for last in range(10)}
            assert len(ends) == 1, "whatever digit follows, this one decides"
            assert digit in (example.answers if ends == {True} else example.against)
        assert example.word("YY")[1] == "9" and example.continuation[0] == example.answer


@pytest.mark.parametrize("cut", [r"\d{1,3}|\w+", r"\w+"])
def test_other_ways_to_cut_years_are_refused(cut: str) -> None:
    numbers = [str(number) for number in range(2000)] + [f"0{number}" for number in range(10)]
    model = knowing([*pieces("The war lasted from the year to"), *numbers], cut)
    with pytest.raises(KeyholeError, match=r"greater_than cannot be asked of .*1002 is '100"):
        examples("greater_than", model, 3)


def test_years_of_two_tokens_are_kept_one_by_one() -> None:
    """This model knows 1745 and 1746 as words of their own, as GPT-2 does some years."""
    numbers = [f"{number:02d}" for number in range(100)]
    cut = r"1745|1746|\d\d|\w+"
    model = knowing([*pieces("The war lasted from the year to"), *numbers, "1745", "1746"], cut)
    asked = examples("greater_than", model, 400, centuries=["17"], starts=["44", "45", "46", "47"])
    assert {example.word("YY") for example in asked} == {"44", "47"}
    for example in asked[:20]:
        ids = answer_ids(model, example)
        # 45 after 17 would be read as one word, but the next token is 45 all the same.
        assert model.tokenizer.convert_ids_to_tokens(ids.answers) == list(example.answers)
        assert model.tokenizer.convert_ids_to_tokens(ids.against) == list(example.against)


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "no such task": (("iot",), {}, "neither a file nor a task, such as ioi"),
    "no such choice": (("ioi",), {"ordr": "ABBA"}, "ioi has no choice 'ordr': one can choose published, design"),
    "a word for a list": (("ioi",), {"names": "Mary"}, "takes a list of texts"),
    "a text for a number": (("boxes",), {"n_boxes": "two"}, "takes a whole number or nothing"),
    "no such design": (("ioi",), {"design": "random"}, "takes balanced or mixed"),
    "no such wording": (("ioi",), {"wordings": [15]}, "numbered 0 to 14"),
    "published and held out": (("ioi",), {"published": True, "held_out": True}, "held_out is for the organism's own"),
    "more facts than there are": (("facts", None, 7), {}, "there are 6 facts"),
    "fewer than none": (("ioi", None, -1), {"published": True}, "cannot be -1"),
    "choices of a file": (("some.jsonl",), {"design": "mixed"}, "a file is taken as it is"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_refused(case: str) -> None:
    given, choices, why = REFUSED[case]
    with pytest.raises(KeyholeError, match=re.escape(why)):
        examples(*given, **choices)


def test_what_a_model_cannot_be_asked_is_refused(organism: Model, small: Model) -> None:
    with pytest.raises(KeyholeError, match=r"facts cannot be asked of organism: organism does not know 'Fact'"):
        examples("facts", organism)
    with pytest.raises(KeyholeError, match=r"ioi cannot be asked of organism: .*does not know '"):
        examples("ioi", organism, published=True)
    with pytest.raises(KeyholeError, match=r"only 0 of 2 pronouns are one token"):
        examples("pronouns", small)
    with pytest.raises(KeyholeError, match=r"names: Zaphod are not one token"):
        examples("ioi", small, names=["Mary", "Zaphod"])
    with pytest.raises(KeyholeError, match=r"only 1 of 89 names are one token .* 2 are needed"):
        examples("ioi", knowing(["Mary", "gave"]))
    with pytest.raises(KeyholeError, match=r"fewer than 6 of the fruits .*\(none\)"):
        examples("lists", small, category="fruits")


# -- users' own files --------------------------------------------------------------------------------------


@each_task
def test_examples_come_back_from_a_file_as_they_were(task: str, tmp_path: Path) -> None:
    made = examples(task, n=6 if task == "facts" else 40)
    write_examples(made, tmp_path / "own.jsonl")
    assert read_examples(tmp_path / "own.jsonl") == made == examples(tmp_path / "own.jsonl")
    assert examples(str(tmp_path / "own.jsonl"), n=2) == made[:2]


def test_odd_texts_come_back(tmp_path: Path) -> None:
    text = 'one\u2028two\x85 "three"\n\tvier fünf 六 \\ 🙂'
    odd = Example("odd", text, "ja", (), ("nein", "ja"), {"END": (3, 5)}, "t", "\n\nja", {"a": "\u2028", "b": ""})
    write_examples([odd, odd], tmp_path / "odd.jsonl")
    assert read_examples(tmp_path / "odd.jsonl") == [odd, odd]


def test_a_line_needs_a_prompt_and_a_target(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    full = {"prompt": PROMPT, "target": " Mary", "against": ["John", "the"], "labels": {"order": "ABBA", "wording": 3}}
    full["roles"] = {"IO": "Mary", "S2": [38, 42], "OBJECT": "drink"}
    path.write_text("\n" + json.dumps({"prompt": "1+1=", "target": "2"}) + "\n\n" + json.dumps(full) + "\n")
    short, long = read_examples(path)
    assert short == Example("mine", "1+1=", "2", (), ("2",), {"END": (3, 4)}, "", " 2")
    assert (long.answer, long.answers, long.against, long.wrong) == ("Mary", ("Mary",), ("John", "the"), "John")
    assert {role: long.word(role) for role in long.roles} == {"IO": "Mary", "S2": "John", "OBJECT": "drink", "END": "o"}
    assert long.labels == {"order": "ABBA", "wording": "3"} and long.continuation == " Mary"


BAD: dict[str, tuple[str | dict[str, Any], str]] = {
    "no JSON": ('{"prompt": ', "not valid JSON"),
    "no object": ('["a"]', "one JSON object"),
    "no target": ({"prompt": PROMPT}, 'there is no "target"'),
    "no prompt": ({"target": "Mary"}, 'there is no "prompt"'),
    "empty prompt": ({"prompt": " "}, '"prompt" is empty'),
    "unknown key": ({"answers": ["Mary"]}, "unknown keys: answers; known are against, answer"),
    "a number for a word": ({"target": 2}, '"target" is a word or a list of words, not 2'),
    "no word": ({"target": []}, '"target" names no word'),
    "empty word": ({"against": ["John", " "]}, '"against" has an empty word'),
    "twice": ({"target": ["Mary", " Mary"]}, "names 'Mary' twice"),
    "right and wrong": ({"against": "Mary"}, '\'Mary\' cannot be a "target" and "against" it'),
    "labels": ({"labels": ["ABBA"]}, '"labels" is an object'),
    "a label": ({"labels": {"order": None}}, "the label 'order' is text, not None"),
    "roles": ({"roles": "Mary"}, '"roles" is an object'),
    "a role twice in the prompt": ({"roles": {"S": "John"}}, "'John', occurs 2 times in the prompt"),
    "a part of a word": ({"roles": {"S": "Mar"}}, "'Mar', occurs 0 times"),
    "a role outside": ({"roles": {"S": [50, 99]}}, "[start, end] in its 58 characters, not [50, 99]"),
    "a role backwards": ({"roles": {"S": [5, 5]}}, "not [5, 5]"),
    "a role of nothing": ({"roles": {"S": True}}, "not True"),
    "an answer that is none": ({"answer": "John"}, "\"answer\", 'John', is none of"),
    "half a character": ({"labels": {"a": "\ud800"}}, "half of a character"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_lines_are_named(case: str, tmp_path: Path) -> None:
    line, why = BAD[case]
    whole = {"prompt": PROMPT, "target": "Mary"}
    if isinstance(line, dict):
        left = {} if case in ("no target", "no prompt") else whole
        line = json.dumps(left | line)
    (tmp_path / "bad.jsonl").write_text(json.dumps(whole) + "\n\n" + line + "\n")
    with pytest.raises(KeyholeError, match=rf"bad\.jsonl, line 3: .*{re.escape(why)}"):
        read_examples(tmp_path / "bad.jsonl")


def test_files_without_prompts(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(KeyholeError, match="has no prompts: write a line such as"):
        read_examples(tmp_path / "none.jsonl")
    with pytest.raises(KeyholeError, match="there is no file"):
        read_examples(tmp_path / "nowhere.jsonl")
    write_examples(ioi(2), tmp_path / "two.jsonl")
    with pytest.raises(KeyholeError, match="has 2 prompts, so that 3"):
        examples(tmp_path / "two.jsonl", n=3)


# -- is the model right? -----------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_right_is_what_a_plain_argmax_says(task: str, organism: Model) -> None:
    ids = organism.tokenizer.get_vocab()
    asked = examples(task, organism, 8, 5, held_out=True)
    for run, example in zip(organism.run_many([e.text for e in asked]), asked, strict=True):
        told = answered(run, example)
        logits = organism.hf(torch.tensor([run.token_ids])).logits[0, -1].detach().double()
        likeliest = organism.tokenizer.convert_ids_to_tokens(int(logits.argmax()))
        assert told.correct == (likeliest in example.answers) and told.predicted.strip() == likeliest
        right, wrong = ([ids[word] for word in words] for words in (example.answers, example.against))
        assert told.probability == pytest.approx(sum(float(logits.softmax(0)[i]) for i in right), abs=1e-6)
        difference = sum(map(float, logits[right])) / len(right) - sum(map(float, logits[wrong])) / len(wrong)
        assert told.difference == pytest.approx(difference, abs=1e-4)
        swapped = answered(run, replace(example, answers=example.against, against=example.answers))
        assert swapped.difference == pytest.approx(-difference, abs=1e-4)
        if told.correct:
            assert not swapped.correct
        assert answered(run, replace(example, against=())) == replace(told, difference=None)


def test_a_random_model_is_mostly_wrong_and_told_so(small: Model) -> None:
    asked = examples("ioi", small, 60)
    told = [answered(run, e) for run, e in zip(small.run_many([e.text for e in asked]), asked, strict=True)]
    assert sum(each.correct for each in told) < 20
    for run, example, each in zip(small.run_many([e.text for e in asked]), asked, told, strict=True):
        likeliest = small.tokenizer.decode([int(run.logits[-1].argmax())])
        assert each.predicted == likeliest and each.correct == (likeliest == example.answer)


def test_answers_of_several_tokens_stand_for_their_first(smollm2: Model) -> None:
    text = "Fact: the capital of the state containing Dallas is"
    example = Example("facts", text, "Zyxgorod", ("Austin",), ("Zyxgorod", "Kyiv"), {}, "", " Zyxgorod")
    ids = answer_ids(smollm2, example)
    whole = text_ids(smollm2, f"{text} Zyxgorod")
    assert ids.answers[0] == whole[len(text_ids(smollm2, text))] and "Zyxgorod" in ids.cut and "Austin" not in ids.cut
    [sum_] = [fact for fact in facts() if fact.text == "1+1="]
    assert smollm2.tokenizer.decode(answer_ids(smollm2, sum_).answers) == "2"  # without a space


def test_tokens_that_decide_nothing_are_refused(smollm2: Model, organism: Model) -> None:
    [years] = greater_than(1, nouns=["war"], centuries=["17"], starts=["45"])
    with pytest.raises(KeyholeError, match=r"begin with the same token \(46, 47, 48, 49, \.\.\.\)"):
        answer_ids(smollm2, years)
    assert len(answer_ids(organism, years).answers) == 54 and len(answer_ids(organism, years).against) == 46
    one, other = ioi(2)
    with pytest.raises(KeyholeError, match="another prompt"):
        answered(organism.run(one.text), other)
    with pytest.raises(KeyholeError, match="has no answer"):
        answer_ids(organism, replace(one, answers=()))


def test_a_chat_reply_begins_without_a_space(smollm2: Model) -> None:
    [example] = examples("boxes", smollm2, 1, wording="instruct", n_boxes=3)
    chat = example.in_chat(smollm2)
    assert smollm2.tokenizer.decode(answer_ids(smollm2, example).answers) == f" {example.answer}"
    assert smollm2.tokenizer.decode(answer_ids(smollm2, chat).answers) == example.answer


# -- what the guide says -----------------------------------------------------------------------------------

GUIDE = (ROOT / "docs" / "tasks.md").read_text()


def test_the_guides_prompts_are_read(tmp_path: Path, organism: Model) -> None:
    [lines] = re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "own.jsonl").write_text(lines)
    first, years, capital = read_examples(tmp_path / "own.jsonl")
    assert [first.word(role) for role in ("IO", "S1", "S2")] == ["Mary", "John", "John"]
    assert [organism.tokenizer.decode([i]) for i in answer_ids(organism, years).answers] == ["98", "99"]
    assert capital.answers == ("Paris",) and not capital.against


def test_the_guide_tells_every_task_and_its_labels() -> None:
    rows = {
        row.split("`")[1]: [cell.strip() for cell in row.split("|")] for row in GUIDE.splitlines() if row[:3] == "| `"
    }
    for task in CATALOGUE:
        [example] = examples(task, n=1)
        assert sorted(rows[task][5].split(", ")) == sorted(example.labels), task
        assert set(example.roles) & {"END"} and example.answer in example.answers
