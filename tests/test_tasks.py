"""The task generators: deterministic, inside the vocabulary, roles where they say, the held-out line kept."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.errors import KeyholeError
from keyhole.tasks import TASKS, boxes, documents, filler, greater_than, ioi, lists, pronouns, vocabulary
from keyhole.tasks.copying import OWN, ioi_combination
from keyhole.tasks.corpus import WORDINGS as FILLER_WORDINGS
from keyhole.tasks.example import Example, pieces
from keyhole.tasks.things import with_other_thing
from keyhole.tasks.words import CATEGORIES, CONTENT, FEMALE_NAMES, MALE_NAMES, NAMES, OBJECTS

each_task = pytest.mark.parametrize("task", TASKS)

# What may not be shared between training and held-out examples, read off the example itself.
COMBINATION = {
    "ioi": lambda e: (frozenset((e.word("IO"), e.word("S1"))), e.word("OBJECT")),
    "induction": lambda e: tuple(e.word(f"word_{i}") for i in range(int(e.template.split("-")[0]))),
    "greater_than": lambda e: (e.word("NOUN"), e.word("XX1"), e.word("YY")),
    "pronouns": lambda e: (e.word("NAME"), e.template),
    "boxes": lambda e: (e.word("ITEM"), e.word("BOX")),
    "lists": lambda e: (e.word("CATEGORY"), frozenset(e.answers)),
}


@each_task
def test_the_seed_decides_everything(task: str) -> None:
    assert TASKS[task](30, 3) == TASKS[task](30, 3)
    assert TASKS[task](30, 3) != TASKS[task](30, 4)
    assert TASKS[task](30, 3)[:10] == TASKS[task](10, 3)


@each_task
@pytest.mark.parametrize("held_out", [False, True])
def test_every_example_is_well_formed(task: str, held_out: bool) -> None:
    known = set(vocabulary())
    for example in TASKS[task](300, 1, held_out=held_out):
        assert example.task == task
        assert example.text == example.text.strip()
        assert example.answer in example.answers
        assert example.wrong not in example.answers
        assert example.continuation.lstrip().startswith(example.answer)
        assert example.roles["END"][1] == len(example.text)
        assert example.word("END") == pieces(example.text)[-1]
        assert all(len(pieces(example.word(role))) == 1 for role in example.roles)
        assert known.issuperset(pieces(example.text + example.continuation))
        assert len(pieces(example.text)) < 128


@each_task
def test_training_and_held_out_share_no_combination(task: str) -> None:
    training = {COMBINATION[task](e) for e in TASKS[task](3000, 5)}
    kept_out = {COMBINATION[task](e) for e in TASKS[task](1000, 5, held_out=True)}
    assert training and kept_out and not training & kept_out


def test_ioi_roles_wordings_and_names() -> None:
    examples = ioi(3000, 2)
    assert {e.template for e in examples} == {f"{order}-{i}" for order in ("ABBA", "BABA") for i in range(15)}
    assert {e.answer for e in examples} == set(NAMES)
    for e in examples:
        assert (e.word("IO"), e.word("S1"), e.word("S2")) == (e.answer, e.wrong, e.wrong)
        assert (e.roles["IO"] < e.roles["S1"]) == e.template.startswith("ABBA")
        start = e.roles["S1+1"][0]
        assert e.text[e.roles["S1"][1] : start].strip() == ""
    assert all(e.template.startswith("BABA") for e in ioi(50, order="BABA"))


def test_the_two_known_prompts_are_wordings() -> None:
    words = {"A": "Mary", "B": "John", "S": "John", "PLACE": "store", "OBJECT": "drink"}
    assert OWN.wordings[0].format(**words) == "When Mary and John went to the store, John gave a drink to"
    words = {"A": "Simon", "B": "Andrew", "S": "Simon", "PLACE": "restaurant", "OBJECT": "basketball"}
    assert OWN.wordings[1].format(**words) == (
        "Then, Simon and Andrew were working at the restaurant. Simon decided to give a basketball to"
    )


def test_word_lists_are_disjoint() -> None:
    assert len(NAMES) == len(set(NAMES)) == 100
    assert len(FEMALE_NAMES) == len(MALE_NAMES) == 50
    assert len(CONTENT) == len(set(CONTENT))
    assert len(vocabulary()) == len(set(vocabulary())) <= 500
    assert all(pieces(word) == [word] for word in CONTENT)


def test_years_are_later() -> None:
    for e in greater_than(200):
        assert all(int(answer) > int(e.word("YY")) for answer in e.answers)
        assert len(e.answers) == 99 - int(e.word("YY"))
        assert e.word("XX1") == e.word("XX2") == e.word("END")


def test_pronouns_follow_names() -> None:
    assert {e.answer for e in pronouns(50, names=FEMALE_NAMES)} == {"she"}
    assert {e.answer for e in pronouns(50, names=MALE_NAMES)} == {"he"}


def test_boxes_hold_what_they_are_said_to_hold() -> None:
    sizes = set()
    for e in boxes(400):
        count = sum(role.startswith("item_") for role in e.roles)
        told = {e.word(f"item_{i}"): e.word(f"box_{i}") for i in range(count)}
        assert told[e.word("QUERY")] == e.answer == e.word("BOX")
        assert e.wrong in told.values()
        sizes.add(count)
    assert sizes == set(range(2, 10))


def test_lists_keep_their_order() -> None:
    for e in lists(300):
        count = sum(role.startswith("item_") for role in e.roles)
        listed = [e.word(f"item_{i}") for i in range(count)]
        wanted = CATEGORIES[e.word("CATEGORY")]
        assert e.answers == tuple(item for item in listed if item in wanted)
        assert e.word(f"{e.word('CATEGORY')}_0") == e.answer
    given = lists(50, given=2)
    assert all(e.word("given_1") == e.word(f"{e.word('CATEGORY')}_1") for e in given)
    assert all(e.answer == e.word(f"{e.word('CATEGORY')}_2") for e in given)


def _digest(examples: list[Example]) -> str:
    rows = [
        (e.task, e.text, e.answer, e.wrong, e.answers, sorted(e.roles.items()), e.template, e.continuation)
        for e in examples
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def test_what_the_organism_was_trained_on_does_not_change() -> None:
    four = boxes(50, 1, n_boxes=4, things=["jam", "knife", "spoon", "cup"], letters="ABCD")
    assert _digest(boxes(200, 3) + boxes(50, 3, held_out=True) + four) == "242b0e1b1e60007b"
    given = lists(50, 1, n_items=8, category="fruits", given=2)
    assert _digest(lists(200, 3) + lists(50, 3, held_out=True) + given) == "56dce7c2b1989e98"
    assert hashlib.sha256(repr(documents(100, 3)).encode()).hexdigest()[:16] == "6f0a93882616782c"


@pytest.mark.parametrize("wording", ["plain", "instruct"])
def test_a_fixed_query_is_asked_at_every_place(wording: str) -> None:
    examples = boxes(200, 1, n_boxes=4, query="jam", wording=wording, held_out=None)
    assert {e.word("QUERY") for e in examples} == {"jam"}
    assert {e.template for e in examples} == {f"4-{i}" for i in range(4)}
    for e in examples:
        told = {e.word(f"item_{i}"): e.word(f"box_{i}") for i in range(4)}
        assert len(told) == 4 and told["jam"] == e.answer == e.word("BOX")
        assert e.word("END") == "Box" and e.roles["END"][1] == len(e.text)


def test_the_instruct_wordings() -> None:
    [e] = boxes(1, n_boxes=3, things=["jam", "knife", "cup"], letters="ABC", wording="instruct")
    item, box = [e.word(f"item_{i}") for i in range(3)], [e.word(f"box_{i}") for i in range(3)]
    assert e.text == (
        f"The {item[0]} is in Box {box[0]}, the {item[1]} is in Box {box[1]}, and the {item[2]} is in Box {box[2]}. "
        f"Respond in one word, only the answer and nothing else: Which box is the {e.word('QUERY')} in? Box"
    )
    [e] = lists(1, per_category=1, categories=("fruits", "colors"), wording="instruct")
    assert e.text == (
        f"Here is a list:\n- {e.word('item_0')}\n- {e.word('item_1')}\nRespond in single words, only the answers and "
        f"nothing else: What are the {e.word('CATEGORY')} in the list? Answer:"
    )


@pytest.mark.parametrize("wording", ["plain", "instruct"])
def test_a_counterfactual_changes_two_mentions_and_nothing_else(wording: str) -> None:
    for e in boxes(80, 1, wording=wording, held_out=None):
        changed = with_other_thing(e, "marmalade")
        assert changed.text == e.text.replace(f" {e.word('QUERY')} ", " marmalade ")
        assert changed.text.count("marmalade") == 2
        assert e.word("QUERY") not in pieces(changed.text + changed.continuation)
        same = [name for name in e.roles if e.word(name) != e.word("QUERY")]
        assert {name: changed.word(name) for name in same} == {name: e.word(name) for name in same}
        assert {changed.word(name) for name in e.roles if name not in same} == {"marmalade"}
        assert (changed.answer, changed.wrong, changed.template) == (e.answer, e.wrong, e.template)
        assert with_other_thing(changed, e.word("QUERY")) == e


def test_lists_with_as_many_of_each_category() -> None:
    five = ("animals", "fruits", "liquids", "vehicles", "countries")
    examples = lists(100, per_category=5, categories=five, wording="instruct")
    assert {e.word("CATEGORY") for e in examples} == set(five)
    for e in examples:
        assert len(e.answers) == 5 and e.word("item_24") and "item_25" not in e.roles
        for name in five:
            assert {e.word(f"{name}_{i}") for i in range(5)} <= set(CATEGORIES[name])
    assert len({e.text for e in examples}) == 100


def test_filler_and_documents_stay_inside_the_vocabulary_and_the_line() -> None:
    known = set(vocabulary())
    sentences = filler(4000, 1)
    assert len({s.split()[0] for s in sentences}) > len(FILLER_WORDINGS) // 2
    examples = ioi(3000, 9, held_out=True)
    kept_out = {ioi_combination(e.word("IO"), e.word("S1"), e.word("OBJECT")) for e in examples}
    met = set()
    for sentence in sentences:
        words = pieces(sentence)
        people, things = [w for w in words if w in NAMES], [w for w in words if w in OBJECTS]
        if len(people) == 2 and len(things) == 1:
            met.add(ioi_combination(people[0], people[1], things[0]))
    assert met and not met & kept_out
    texts = documents(1500, 1)
    assert known.issuperset(piece for text in texts for piece in pieces(text))
    prompts = [e.text for task in TASKS for e in TASKS[task](200, 7, held_out=True)]
    assert not [prompt for prompt in prompts if any(prompt in text for text in texts)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: ioi(1, order="BAAB"),
        lambda: ioi(1, names=("Mary",)),
        lambda: boxes(1, n_boxes=10),
        lambda: lists(1, category="planets"),
        lambda: lists(1, given=9),
        lambda: lists(1, wording="formal"),
        lambda: lists(1, per_category=9),
        lambda: lists(1, per_category=2, n_items=4),
        lambda: lists(1, categories=["fruits"]),
        lambda: lists(1, category="colors", categories=["fruits", "animals"]),
        lambda: boxes(1, wording="formal"),
        lambda: boxes(1, n_boxes=3, things=["jam", "cup"], query="jam"),
        lambda: with_other_thing(boxes(1, n_boxes=2, things=["jam", "cup"])[0], "jam"),
        lambda: with_other_thing(lists(1)[0], "jam"),
        lambda: pronouns(1, names=["River"]),
    ],
)
def test_bad_requests_are_refused_with_a_reason(call) -> None:
    with pytest.raises(KeyholeError, match=r".{15,}"):
        call()


def test_tasks_need_nothing_but_the_standard_library() -> None:
    package = Path(__file__).parent.parent / "src" / "keyhole"
    code = f"""
import sys, types
bare = types.ModuleType("keyhole"); bare.__path__ = [{str(package)!r}]; sys.modules["keyhole"] = bare
import keyhole.tasks
keyhole.tasks.documents(5)
"""
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
