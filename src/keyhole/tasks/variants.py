"""What is a task's prompt with other words? One draw per task and purpose, all of them in the prompt's own wording.

Each takes an example, the task's words that fit the model (`fitting.py`) and a generator of random numbers. None of
them looks at tokens: `like.py` draws until these agree.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.tasks.choices import CENTURIES, STARTS
from keyhole.tasks.copying import ioi_words
from keyhole.tasks.example import Example, exchanged, reworded
from keyhole.tasks.knowledge import OTHER_PRONOUN, ends_of, same_kind
from keyhole.tasks.words import ADJECTIVES, NUMBERS, PEOPLE, PRONOUN

Words = Mapping[str, Any]
Draw = Callable[[Example, Words, random.Random], Example]
NO_ANSWER: Mapping[str, Any] = {"answer": "", "answers": (), "against": (), "continuation": ""}


# -- prompts like this one ---------------------------------------------------------------------------------


def _other_people(example: Example, words: Words, rng: random.Random) -> Example:
    """Indirect objects: two other people, any place and thing."""
    pools = {"PLACE": ioi_words(example).places, "OBJECT": ioi_words(example).objects}
    setting = {example.word(role): rng.choice(pool) for role, pool in pools.items() if role in example.roles}
    return exchanged(_other_names(example, words, rng), setting)


def _other_names(example: Example, words: Words, rng: random.Random) -> Example:
    receiver, giver = example.word("IO"), example.word("S1")
    names = _unused(rng, words["names"], (receiver, giver), 2)
    return exchanged(example, dict(zip((receiver, giver), names, strict=True)))


def _other_years(example: Example, words: Words, rng: random.Random) -> Example:
    """Greater-than: another noun, century and start."""
    digits = example.labels.get("asks") == "tens"
    starts = [start for start in STARTS if start.endswith("9") or not digits]
    years = words.get("years") or [century + start for century in CENTURIES for start in starts]
    year = rng.choice([year for year in sorted(years) if year[2:] != example.word("YY")])
    return _from_year(reworded(example, {"NOUN": rng.choice(words["nouns"])}), year, rng)


def _from_year(example: Example, year: str, rng: random.Random) -> Example:
    """The same event from another year on."""
    century, start, digits = year[:2], year[2:], example.labels.get("asks") == "tens"
    end = rng.choice([number for number in NUMBERS if number > start])
    later, against = ends_of(start, digits=digits)
    changed = reworded(example, {"XX1": century, "YY": start, "XX2": century})
    labels = {**example.labels, "noun": changed.word("NOUN"), "century": century, "YY": start}
    answer = end[: len(later[0])]
    return replace(changed, answer=answer, answers=later, against=against, continuation=f"{end}.", labels=labels)


def _other_words(example: Example, words: Words, rng: random.Random) -> Example:
    """Induction: every word another one, repeated where it was."""
    old = [example.word(role) for role in example.roles if role.startswith("word_")]
    return exchanged(example, dict(zip(old, _unused(rng, words["words"], old, len(old)), strict=True)))


def _other_person(example: Example, words: Words, rng: random.Random) -> Example:
    """Pronouns: another name, any adjective and noun."""
    [name] = _unused(rng, words["names"], (example.word("NAME"),), 1)
    pools = {"ADJ": words.get("adjectives", ADJECTIVES), "NOUN": words.get("people", PEOPLE)}
    return _named(reworded(example, {role: rng.choice(pool) for role, pool in pools.items()}), name)


def _named(example: Example, name: str) -> Example:
    """About somebody else, who may take the other pronoun."""
    right, before = PRONOUN[name], example.answer
    return replace(
        reworded(example, {"NAME": name}),
        answer=right,
        answers=(right,),
        against=(OTHER_PRONOUN[right],),
        continuation=example.continuation.replace(before, right),
        labels={**example.labels, "name": name},
    )


def _other_subject(example: Example, words: Words, rng: random.Random) -> Example:
    """Facts: another subject of the same relation."""
    subjects = same_kind(example.word("ABOUT"))
    [about] = _unused(rng, list(subjects), (example.word("ABOUT"),), 1)
    right = subjects[about]
    choices = dict.fromkeys((*example.answers, *example.against))
    return replace(
        reworded(example, {"ABOUT": about}),
        answer=right,
        answers=(right,),
        against=tuple(choice for choice in choices if choice != right),
        template=about,
        continuation=example.continuation.replace(example.answer, right),
        labels={**example.labels, "about": about},
    )


def _other_boxes(example: Example, words: Words, rng: random.Random) -> Example:
    """Boxes: other things in boxes of other letters; the queried one has another letter in any case."""
    things, boxes = ([example.word(role) for role in _numbered(example, kind)] for kind in ("item", "box"))
    letters = rng.sample(list(words["letters"]), len(boxes))
    while letters[boxes.index(example.answer)] == example.answer:
        letters = rng.sample(list(words["letters"]), len(boxes))
    others = _unused(rng, words["things"], things, len(things))
    return exchanged(example, dict(zip([*things, *boxes], [*others, *letters], strict=True)))


def _other_items(example: Example, words: Words, rng: random.Random) -> Example:
    """Lists: other items, of the same kinds at the same places; which kind is asked for stays."""
    drawn: dict[str, str] = {}
    for name, items in words["categories"].items():
        old = [example.word(role) for role in _numbered(example, name)]
        # A kind of eight items has too few others for a long list: only the first answer is always another one.
        new = rng.sample([item for item in items if item != example.answer], len(old))
        drawn |= dict(zip(old, new, strict=True))
    return exchanged(example, drawn)


# -- counterfactuals ---------------------------------------------------------------------------------------


def _third_name(example: Example, words: Words, rng: random.Random) -> Example:
    """Indirect objects: somebody else gives, so that either of the two may receive."""
    receiver, giver = example.word("IO"), example.word("S1")
    [third] = _unused(rng, words["names"], (receiver, giver), 1)
    labels = {**example.labels, "S": third}
    return replace(reworded(example, {"S2": third}), answers=(receiver, giver), against=(third,), labels=labels)


def _early_year(example: Example, words: Words, rng: random.Random) -> Example:
    """Greater-than: from the year 01 on, as in the paper, so that nearly any end is right."""
    return _from_year(example, example.word("XX1") + "01", rng)


def _copied_word(example: Example, words: Words, rng: random.Random) -> Example:
    """Induction: another word followed the first time, and is to be copied."""
    listed = [example.word(role) for role in example.roles if role.startswith("word_")]
    [other] = _unused(rng, words["words"], listed, 1)
    return exchanged(example, {example.word("B"): other})


def _no_repetition(example: Example, words: Words, rng: random.Random) -> Example:
    """Induction: the words that came again stood nowhere before, so that nothing says what comes next."""
    listed = [example.word(role) for role in example.roles if role.startswith("word_")]
    again = [role.replace("again", "word") for role in example.roles if role.startswith("again_")]
    others = _unused(rng, words["words"], listed, len(again))
    return replace(reworded(example, dict(zip(again, others, strict=True))), **NO_ANSWER)


def _other_pronoun(example: Example, words: Words, rng: random.Random) -> Example:
    """Pronouns: a name of the other pronoun."""
    names = [name for name in words["names"] if PRONOUN[name] != example.answer]
    return _named(example, rng.choice(names))


def _other_question(example: Example, words: Words, rng: random.Random) -> Example:
    """Boxes: the thing in the most natural wrong box is asked about."""
    letter = example.against[0]
    item = next(role for role in _numbered(example, "box") if example.word(role) == letter).replace("box", "item")
    changed = reworded(example, {"QUERY": example.word(item)})
    roles = {**changed.roles, "ITEM": changed.roles[item], "BOX": changed.roles[item.replace("item", "box")]}
    return replace(
        changed,
        answer=letter,
        answers=(letter,),
        against=(example.answer, *example.against[1:]),
        roles=roles,
        template=f"{len(_numbered(example, 'box'))}-{item.removeprefix('item_')}",
        continuation=f"{_gap(example)}{letter}.",
        labels={**example.labels, "asked": item.removeprefix("item_")},
    )


def _other_category(example: Example, words: Words, rng: random.Random) -> Example:
    """Lists: another kind that is in the list is asked for; what the prompt names already is of that kind."""
    given = _numbered(example, "given")
    kinds = [kind for kind in words["categories"] if len(_numbered(example, kind)) > len(given)]
    others = [kind for kind in kinds if kind != example.word("CATEGORY")]
    if not others:
        raise KeyholeError("no other category of this list has an item left to ask for: take another prompt.")
    kind = rng.choice(others)
    right = [example.word(role) for role in _numbered(example, kind)]
    rest, listed = tuple(right[len(given) :]), [example.word(role) for role in _numbered(example, "item")]
    return replace(
        reworded(example, {"CATEGORY": kind, **dict(zip(given, right, strict=False))}),
        answer=rest[0],
        answers=rest,
        against=tuple(item for item in listed if item not in right),
        template=f"{len(listed)}-{kind}",
        continuation=f"{_gap(example)}{', '.join(rest)}.",
        labels={**example.labels, "category": kind},
    )


def _gap(example: Example) -> str:
    """What stands between a prompt and its answer: a space, or nothing in a chat."""
    return example.continuation[: len(example.continuation) - len(example.continuation.lstrip())]


def _unused(rng: random.Random, pool: Sequence[str], used: Collection[str], count: int) -> list[str]:
    """Words of a pool that a prompt does not have yet."""
    free = [word for word in pool if word not in used]
    if len(free) < count:
        raise KeyholeError(f"{count} other words are needed for this prompt, and the task has {len(free)} that fit.")
    return rng.sample(free, count)


def _numbered(example: Example, kind: str) -> list[str]:
    """The roles item_0, item_1, ... of an example."""
    return [role for role in example.roles if role.rpartition("_")[0] == kind]


OTHERS: Mapping[str, Draw] = {
    "ioi": _other_people,
    "greater_than": _other_years,
    "pronouns": _other_person,
    "facts": _other_subject,
    "induction": _other_words,
    "boxes": _other_boxes,
    "lists": _other_items,
}
# The first kind of each task is taken unless another one is named.
COUNTERFACTUALS: Mapping[str, Mapping[str, Draw]] = {
    "ioi": {"other names": _other_names, "third name": _third_name},
    "greater_than": {"early year": _early_year, "other years": _other_years},
    "pronouns": {"other pronoun": _other_pronoun},
    "facts": {"other subject": _other_subject},
    "induction": {"copied word": _copied_word, "no repetition": _no_repetition},
    "boxes": {"other question": _other_question},
    "lists": {"other category": _other_category},
}
