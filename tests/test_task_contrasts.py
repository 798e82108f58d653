"""Contrasts made of tasks: once tokenised, every site stands where its sample says."""

import random
from types import SimpleNamespace

import pytest

from keyhole import Model
from keyhole.errors import KeyholeError
from keyhole.features.contrast.boxes import boxes_test, lexical_contrast, order_contrast, reflexive_contrast
from keyhole.features.contrast.lists import FIVE, lists_contrast, lists_test
from keyhole.features.contrast.sites import Contrast, Site, role
from keyhole.models.chat import in_chat
from keyhole.models.tokens import encode, one_token_words
from keyhole.tasks import boxes
from keyhole.tasks.words import CATEGORIES, LETTERS, THINGS

# model, wording, chat: the organism knows only the plain words, and has no chat template
SETTINGS = [("organism", "plain", False), ("smollm2", "plain", False), ("smollm2", "instruct", True)]
each_setting = pytest.mark.parametrize(("name", "wording", "chat"), SETTINGS)


@pytest.fixture
def model(name: str, request: pytest.FixtureRequest) -> Model:
    return request.getfixturevalue(name)


def position(model: Model, contrast: Contrast, site: Site) -> int:
    """The token of a site, by the tokenizer's own account."""
    text = contrast.prompts[site.prompt]
    encoded = model.tokenizer(text, add_special_tokens=contrast.bos is None, return_offsets_mapping=True)
    assert tuple(encoded.input_ids) == encode(model, text, contrast.bos).ids
    if site.place.token is not None:
        return range(len(encoded.input_ids))[site.place.token]
    start, end = site.place.span
    return max(i for i, (a, b) in enumerate(encoded.offset_mapping) if a < end and b > start)


def word(model: Model, contrast: Contrast, site: Site) -> str:
    ids = encode(model, contrast.prompts[site.prompt], contrast.bos).ids
    return model.tokenizer.decode([ids[position(model, contrast, site)]]).strip()


def things_told(contrast: Contrast, prompt: int) -> list[str]:
    said = contrast.prompts[prompt].replace("?", " ").replace(".", " ").split()
    return [piece for piece in said if piece in THINGS]


@each_setting
def test_order_keys_are_the_letters_and_the_query_never_changes(model: Model, wording: str, chat: bool) -> None:
    contrast = order_contrast(model, 30, n_boxes=5, wording=wording, chat=chat)
    for number, sample in enumerate(contrast.samples):
        *told, asked = things_told(contrast, number)
        assert sorted(told) == sorted(THINGS[:5])
        assert asked == THINGS[0]
        assert sample.label == str(told.index(asked))
        sites = sorted((*sample.positive, *sample.negative), key=lambda s: position(model, contrast, s))
        letters = [word(model, contrast, site) for site in sites]
        assert len(set(letters)) == 5 and set(letters) <= set(LETTERS)
        assert sites.index(sample.positive[0]) == told.index(asked)
        text, (_, end) = contrast.prompts[number], sites[told.index(asked)].place.span
        assert text[:end].endswith(f"{asked} is in {'box' if wording == 'plain' else 'Box'} {text[end - 1]}")
        assert position(model, contrast, sample.query) == len(encode(model, text, contrast.bos).ids) - 1
        assert word(model, contrast, sample.query) == ("" if chat else "Box")  # the template ends in a line break
    assert set(contrast.labels) == set("01234")
    assert len({sample.group for sample in contrast.samples}) == 30


@each_setting
def test_lexical_pairs_differ_in_one_thing_at_one_place(model: Model, wording: str, chat: bool) -> None:
    contrast = lexical_contrast(model, 30, n_boxes=4, wording=wording, chat=chat)
    assert set(contrast.labels) == set(THINGS[:4])
    for sample in contrast.samples:
        [here], [there] = sample.positive, sample.negative
        assert there.prompt == here.prompt + 1 == sample.negative_query.prompt
        assert position(model, contrast, here) == position(model, contrast, there)
        assert word(model, contrast, here) == word(model, contrast, there)
        ours, theirs = things_told(contrast, here.prompt), things_told(contrast, there.prompt)
        [changed] = {pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]}
        assert changed[0] == sample.label == ours[-1] and changed[1] == theirs[-1]
        assert contrast.prompts[here.prompt].replace(changed[0], changed[1]) == contrast.prompts[there.prompt]


@each_setting
def test_reflexive_pairs_differ_in_the_letter_of_the_queried_box(model: Model, wording: str, chat: bool) -> None:
    contrast = reflexive_contrast(model, 30, n_boxes=4, wording=wording, chat=chat)
    assert len(contrast.labels) > 4
    for sample in contrast.samples:
        [here], [there] = sample.positive, sample.negative
        assert there.prompt == here.prompt + 1 == sample.query.prompt + 1 and sample.negative_query is None
        assert position(model, contrast, here) == position(model, contrast, there)
        letter, other = word(model, contrast, here), word(model, contrast, there)
        text, (start, end) = contrast.prompts[here.prompt], here.place.span
        assert letter == sample.label == text[start:end] and other in LETTERS
        assert other not in text.replace(",", " ").replace(".", " ").split()
        assert contrast.prompts[there.prompt] == text[:start] + other + text[end:]
        *_, asked = things_told(contrast, here.prompt)
        assert text[:start].lower().endswith(f"the {asked} is in box ")


def test_crossed_negatives_meet_the_query_of_the_prompt_itself(organism: Model) -> None:
    plain, crossed = (lexical_contrast(organism, 5, n_boxes=3, cross=cross) for cross in (False, True))
    assert plain.prompts == crossed.prompts
    assert all(sample.negative_query is None for sample in crossed.samples)
    assert [sample.negative for sample in plain.samples] == [sample.negative for sample in crossed.samples]
    fixed = lexical_contrast(organism, 5, n_boxes=3, query=THINGS[1])
    assert fixed.labels == (THINGS[1],)


def test_tests_ask_about_things_that_no_feature_has_seen(organism: Model, smollm2: Model) -> None:
    for model in (organism, smollm2):
        fitted = (order_contrast(model, 20, n_boxes=5), lexical_contrast(model, 100, n_boxes=5))
        seen = {thing for c in fitted for number in range(len(c.prompts)) for thing in things_told(c, number)}
        unseen = boxes_test(model, 50, n_boxes=5)
        asked = {things_told(unseen, number)[-1] for number in range(50)}
        assert len(asked) > 5 and not asked & seen
        assert set(unseen.labels) == set("01234")


@each_setting
def test_list_keys_are_the_items_of_the_category(model: Model, wording: str, chat: bool) -> None:
    contrast = lists_contrast(model, 12, per_category=2, wording=wording, chat=chat)
    assert contrast.labels == FIVE
    for sample in contrast.samples:
        assert len(sample.positive) == 2 and len(sample.negative) == 8
        assert all(word(model, contrast, site) in CATEGORIES[sample.label] for site in sample.positive)
        others = {word(model, contrast, site) for site in sample.negative}
        assert len(others) == 8 and not others & set(CATEGORIES[sample.label])
        assert f"the {sample.label}" in contrast.prompts[sample.query.prompt]


def test_tests_ask_for_sets_that_were_not_listed(organism: Model) -> None:
    def sets(contrast: Contrast) -> set[frozenset[str]]:
        return {frozenset(word(organism, contrast, site) for site in sample.positive) for sample in contrast.samples}

    unseen = lists_test(organism, 30, per_category=3)
    assert unseen.labels == FIVE
    assert not sets(unseen) & sets(lists_contrast(organism, 100, per_category=3))


def test_an_item_of_several_tokens_is_its_last(smollm2: Model) -> None:
    assert "judo" not in one_token_words(smollm2, CATEGORIES["sports"])
    contrast = lists_contrast(smollm2, 2, per_category=8, categories=("sports", "colors"))
    text = contrast.prompts[0]
    [site] = [s for s in contrast.samples[0].positive if text[slice(*s.place.span)] == "judo"]
    assert word(smollm2, contrast, site) == "o"


def test_the_seed_decides_everything(organism: Model) -> None:
    for make in (order_contrast, lexical_contrast, boxes_test, lists_contrast, lists_test):
        assert make(organism, 4, seed=3) == make(organism, 4, seed=3) != make(organism, 4, seed=4)


# -- chat ---------------------------------------------------------------------------------------------------------


def test_chat_moves_every_role_with_its_word(smollm2: Model) -> None:
    [example] = boxes(1, n_boxes=3, wording="instruct")
    text, roles = in_chat(smollm2, example.text, example.roles)
    assert {name: text[slice(*spot)] for name, spot in roles.items()} == {r: example.word(r) for r in example.roles}
    assert role(example.in_chat(smollm2), "BOX").span == roles["BOX"]
    ids = encode(smollm2, text, False).ids
    starts, ends = (smollm2.tokenizer.convert_tokens_to_ids(mark) for mark in ("<|im_start|>", "<|im_end|>"))
    assert ids[0] == starts and ids.count(starts) == 3 and ids.count(ends) == 2
    assert text.endswith("<|im_start|>assistant\n")


def test_a_message_that_is_also_a_word_of_the_template_is_found(smollm2: Model) -> None:
    text, roles = in_chat(smollm2, "user", {"END": (0, 4)})
    assert text[: roles["END"][0]].endswith("user\n")


def test_chat_refuses_what_it_cannot_follow(organism: Model) -> None:
    with pytest.raises(KeyholeError, match="no chat template"):
        in_chat(organism, "jam", {})
    stripping = SimpleNamespace(
        chat_template="", apply_chat_template=lambda messages, **_: f"<user>{messages[0]['content'].strip()}<end>"
    )
    model = SimpleNamespace(name="stripping", tokenizer=stripping)
    assert in_chat(model, "jam", {"END": (0, 3)}) == ("<user>jam<end>", {"END": (6, 9)})
    with pytest.raises(KeyholeError, match="changes the message"):
        in_chat(model, " jam", {})


# -- refusals -----------------------------------------------------------------------------------------------------


def test_bad_requests_are_refused_with_a_reason(organism: Model) -> None:
    for call, reason in (
        (lambda: order_contrast(organism, 1, n_boxes=9, things=["jam", "marmalade"]), "only 1 of the things"),
        (lambda: order_contrast(organism, 1, n_boxes=10), "only 9 of the letters"),
        (lambda: order_contrast(organism, 1, n_boxes=1), "n_boxes must be 2"),
        (lambda: order_contrast(organism, 1, n_boxes=3, query="wallet"), "one of the things told"),
        (lambda: order_contrast(organism, 1, wording="formal"), "wording is one of"),
        (lambda: order_contrast(organism, 1, chat=True), "no chat template"),
        (lambda: lexical_contrast(organism, 1, n_boxes=3, things=THINGS[:3]), "needs 4"),
        (lambda: reflexive_contrast(organism, 1, n_boxes=9), "only 9 of the letters.* needs 10: ask for fewer boxes"),
        (lambda: boxes_test(organism, 1, n_boxes=3, things=THINGS[:4]), "needs 5"),
        (lambda: order_contrast(organism, 0), "no samples"),
        (lambda: lists_contrast(organism, 0), "needs prompts"),
        (lambda: lists_contrast(organism, 5, per_category=9), "per_category must be"),
        (lambda: lists_contrast(organism, 5, categories=("fruits", "planets")), "categories are"),
    ):
        with pytest.raises(KeyholeError, match=reason):
            call()


def test_one_token_words_need_a_tokenizer_and_skip_the_unknown(organism: Model, gpt2: Model) -> None:
    words = random.Random(0).sample(THINGS, 5)
    assert one_token_words(organism, [*words, "marmalade"]) == words
    with pytest.raises(KeyholeError, match="has no tokenizer"):
        one_token_words(gpt2, words)
