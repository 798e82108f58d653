"""Prompts like one at hand, and its counterfactuals: the same wording and tokens, other words, right answers."""

import re
from dataclasses import replace

import pytest

import keyhole
from keyhole import KeyholeError, Model
from keyhole.models.tokens import text_ids
from keyhole.tasks import (
    CATALOGUE,
    Example,
    answered,
    boxes,
    counterfactual,
    counterfactual_kinds,
    examples,
    facts,
    greater_than,
    ioi,
    like,
    lists,
    read_examples,
    write_examples,
)

KINDS = [(task, kind) for task in CATALOGUE for kind in counterfactual_kinds(task)]
ORGANISM_TASKS = [task for task in CATALOGUE if task != "facts"]  # of which it knows no word


def places(example: Example, model: Model) -> tuple[int, dict[str, tuple[int, ...]]]:
    return len(text_ids(model, example.text)), example.tokens(model)


def frame(example: Example) -> str:
    """A prompt with its roles blanked: the wording, and the order of what plays a role."""
    spans = sorted({span for role, span in example.roles.items() if role not in ("END", "S1+1")})
    text, done = "", 0
    for start, end in spans:
        text, done = text + example.text[done:start] + "_", end
    return text + example.text[done:]


def check_like(example: Example, model: Model) -> list[Example]:
    others = like(example, model)
    assert 8 <= len(others) <= 32
    assert len({example.text, *(other.text for other in others)}) == len(others) + 1
    assert others == like(example, model) and others[:8] == like(example, model, n=8)
    for other in others:
        assert places(other, model) == places(example, model)
        assert frame(other) == frame(example)
        assert other.answer in other.answers and not set(other.answers) & set(other.against)
        assert other.continuation.startswith(example.continuation[: -len(example.continuation.lstrip())])
        assert other.continuation.lstrip().startswith(other.answer)
    return others


@pytest.mark.parametrize("task", ORGANISM_TASKS)
def test_prompts_like_one_have_its_wording_and_its_places(task: str, organism: Model) -> None:
    for example in examples(task, organism, n=12, seed=4):
        others = check_like(example, organism)
        assert {other.template for other in others} == {example.template}
        if task not in ("pronouns", "greater_than"):  # there answers are few, and come again
            assert example.answer not in {other.answer for other in others}
        right = [answered(organism.run(other.text), other).correct for other in others[:4]]
        assert sum(right) >= 3  # the organism knows its tasks: answers are those of the new prompts


@pytest.mark.parametrize("task", CATALOGUE)
def test_a_real_tokenizer_is_held_to(task: str, smollm2: Model) -> None:
    for example in examples(task, smollm2, n=4, seed=2):
        check_like(example, smollm2)
        for kind in counterfactual_kinds(task):
            other = counterfactual(example, smollm2, kind=kind)
            assert other.text != example.text
            assert len(text_ids(smollm2, other.text)) == len(text_ids(smollm2, example.text))


def test_prompts_in_a_chat_stay_in_it(smollm2: Model) -> None:
    example = examples("lists", smollm2, n=1, wording="instruct")[0].in_chat(smollm2)
    for other in check_like(example, smollm2):
        assert other.text.startswith("<|im_start|>system") and other.text.endswith("assistant\n")
    assert counterfactual(example, smollm2).continuation[0] != " "


@pytest.mark.parametrize(("task", "kind"), [(task, kind) for task, kind in KINDS if task != "facts"])
def test_counterfactuals_agree_token_by_token(task: str, kind: str, organism: Model) -> None:
    for example in examples(task, organism, n=12, seed=5):
        other = counterfactual(example, organism, kind=kind)
        ids, theirs = text_ids(organism, example.text), text_ids(organism, other.text)
        assert len(ids) == len(theirs) and ids != theirs and frame(other) == frame(example)
        assert other.labels["counterfactual"] == kind
        assert other == counterfactual(example, organism, kind=kind)
        assert other.roles["END"][1] == len(other.text)
        moved = {"ITEM", "BOX"} if kind == "other question" else set()
        kept, own = ({r: t for r, t in e.tokens(organism).items() if r not in moved} for e in (example, other))
        assert kept == own


def test_a_third_name_gives_to_either(organism: Model) -> None:
    for example in ioi(20, 3):
        other = counterfactual(example, organism, kind="third name")
        third = other.word("S2")
        assert third not in example.text
        assert other.text == re.sub(rf"{example.word('S2')}(?=(?!.*{example.word('S2')}))", third, example.text)
        assert set(other.answers) == {example.answer, example.wrong} and other.against == (third,)


def test_other_names_keep_the_pattern(organism: Model) -> None:
    for example in ioi(20, 3):
        other = counterfactual(example, organism)
        names = {other.word("IO"), other.word("S1")}
        assert other.word("S1") == other.word("S2") == other.wrong and other.word("IO") == other.answer
        assert len(names) == 2 and not names & {example.word("IO"), example.word("S1")}
        assert [other.word(role) for role in ("PLACE", "OBJECT")] == [
            example.word(role) for role in ("PLACE", "OBJECT")
        ]
        assert (other.labels["IO"], other.labels["S"]) == (other.answer, other.wrong)


def test_early_years_are_those_of_the_paper(organism: Model, smollm2: Model) -> None:
    for model, right, wrong in ((organism, 98, ("01", "00")), (smollm2, 10, ())):
        for example in examples("greater_than", model, n=5):
            other, century = counterfactual(example, model), example.word("XX1")
            assert other.text == example.text.replace(century + example.word("YY"), century + "01")
            assert len(other.answers) == right and other.against == wrong


def test_induction_copies_another_word_or_none(organism: Model) -> None:
    for example in examples("induction", organism, n=20, seed=8):
        copied = counterfactual(example, organism)
        assert copied.answer == copied.word("B") and copied.answer not in example.text.split()
        assert sum(a != b for a, b in zip(example.text.split(), copied.text.split(), strict=True)) == 1
        once = counterfactual(example, organism, kind="no repetition")
        assert len(set(once.text.split())) == len(once.text.split())
        assert once.word("END") == example.word("END") and once.answers == ()


def test_questions_change_and_answers_with_them(organism: Model) -> None:
    # The organism, which knows these tasks, says that the new answers are right.
    for task, kind in (("boxes", "other question"), ("lists", "other category"), ("pronouns", "other pronoun")):
        changed = [counterfactual(example, organism, kind=kind) for example in examples(task, organism, n=20, seed=6)]
        assert sum(answered(organism.run(other.text), other).correct for other in changed) >= 19
    for example in lists(20, 2, given=1, held_out=None):
        try:
            other = counterfactual(example, organism)
        except KeyholeError as error:
            assert "no other category of this list" in str(error)
            continue
        listed = [other.word(role) for role in other.roles if role.startswith(f"{other.word('CATEGORY')}_")]
        assert [other.word("given_0"), *other.answers] == listed


def test_other_subjects_of_the_same_relation(smollm2: Model) -> None:
    for example in facts():
        other = counterfactual(example, smollm2)
        assert other.text == example.text.replace(example.word("ABOUT"), other.word("ABOUT"))
        assert other.labels["about"] == other.template == other.word("ABOUT") != example.word("ABOUT")
    sums = like(facts()[-1], smollm2)
    assert all(eval(other.word("ABOUT")) == int(other.answer) for other in sums)


def test_a_file_of_a_task_has_them_too(organism: Model, tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/mine.jsonl"
    write_examples(boxes(3), path)
    for example in read_examples(path):
        assert counterfactual(example, organism).answer == example.wrong
        assert len(like(example, organism, n=5)) == 5


def test_what_cannot_be_had_is_refused(organism: Model, smollm2: Model) -> None:
    [example] = ioi(1)
    mine = replace(example, task="mine")
    with pytest.raises(KeyholeError, match="'mine' has no counterfactuals: only ioi, "):
        counterfactual(mine, organism)
    with pytest.raises(KeyholeError, match="no prompts like one of 'mine' can be drawn: only of ioi, "):
        like(mine, organism)
    with pytest.raises(KeyholeError, match="'ABC' is no counterfactual of ioi: there are 'other names', 'third name'"):
        counterfactual(example, organism, kind="ABC")
    with pytest.raises(KeyholeError, match="there cannot be 0 prompts"):
        like(example, organism, 0)
    [first] = greater_than(1, starts=["01"])
    with pytest.raises(KeyholeError, match=r"no counterfactual \(early year\) of .*01 to"):
        counterfactual(first, organism)
    long = keyhole.tasks.example.reworded(facts()[3], {"ABOUT": "Kareem Abdul-Jabbar"})
    with pytest.raises(KeyholeError, match="other words are needed for this prompt, and the task has 0 that fit"):
        like(long, smollm2)
    rare = keyhole.tasks.example.exchanged(example, {example.answer: "Bartholomew"})
    with pytest.raises(KeyholeError, match=r"only 0 prompts are like .*Bartholomew.* and 8 are needed"):
        like(rare, smollm2)
