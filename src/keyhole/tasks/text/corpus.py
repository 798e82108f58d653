"""What text is the organism trained on, and which words can occur in it?"""

import random
import string
from collections.abc import Callable, Mapping

from keyhole.tasks.boxes import FIRST, NEXT, boxes
from keyhole.tasks.boxes import QUESTION as BOXES_QUESTION
from keyhole.tasks.example import Example, pieces
from keyhole.tasks.greater_than import WORDING as GREATER_THAN_WORDING
from keyhole.tasks.greater_than import greater_than
from keyhole.tasks.induction import induction
from keyhole.tasks.ioi import WORDINGS as IOI_WORDINGS
from keyhole.tasks.ioi import ioi
from keyhole.tasks.lists import QUESTION as LISTS_QUESTION
from keyhole.tasks.lists import START as LISTS_START
from keyhole.tasks.lists import lists
from keyhole.tasks.pronouns import WORDINGS as PRONOUN_WORDINGS
from keyhole.tasks.pronouns import pronouns
from keyhole.tasks.text.filler import WORDINGS as FILLER_WORDINGS
from keyhole.tasks.text.filler import filler
from keyhole.tasks.text.words import CATEGORIES, CONTENT, LETTERS, NUMBERS

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
    fixed = (FIRST, NEXT, BOXES_QUESTION, LISTS_START, LISTS_QUESTION, GREATER_THAN_WORDING)
    return fixed + IOI_WORDINGS + PRONOUN_WORDINGS + FILLER_WORDINGS


def _without_slots(wording: str) -> str:
    return " ".join(literal for literal, _, _, _ in string.Formatter().parse(wording))
