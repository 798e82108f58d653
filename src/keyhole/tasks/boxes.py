"""Boxes: things are put into lettered boxes; which box holds this one? (binding)"""

import random
from collections.abc import Sequence

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill, is_held_out
from keyhole.tasks.words import LETTERS, THINGS

FIRST = "The {item} is in box {box}"
NEXT = "the {item} is in box {box}"
QUESTION = " Which box is the {QUERY} in? Box"
MOST_FURTHER_QUESTIONS = 4  # nine boxes and five questions still fit the organism's 128 positions


def boxes(
    n: int,
    seed: int = 0,
    *,
    held_out: bool = False,
    n_boxes: int | None = None,
    things: Sequence[str] = THINGS,
    letters: Sequence[str] = LETTERS,
) -> list[Example]:
    """Which box is the thing in? Two to nine things in shuffled boxes, or always `n_boxes`.

    Roles: item_i and box_i in the order told, ITEM and BOX the queried pair, QUERY its second mention, END.
    Held out: (thing, letter) pairs are never asked about in training, though they are told.

    >>> boxes(1, n_boxes=2, things=["jam", "knife"], letters="AB")[0].task
    'boxes'
    """
    most = min(len(things), len(letters))
    if most < 2 or (n_boxes is not None and not 2 <= n_boxes <= most):
        raise KeyholeError(f"n_boxes must be 2 to {most} (things and letters given), not {n_boxes}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        count = rng.randint(2, most) if n_boxes is None else n_boxes
        pairs = list(zip(rng.sample(list(things), count), rng.sample(list(letters), count), strict=True))
        asked, other = rng.sample(range(count), 2)
        example = _example(pairs, asked, other=other, more=_further_questions(rng, pairs))
        return ("boxes", *pairs[asked]), example

    return collect(n, seed, held_out, draw)


def _further_questions(rng: random.Random, pairs: list[tuple[str, str]]) -> str:
    """More questions about the same boxes, with their answers, for training text.

    One answer a document teaches binding very slowly. A box may be asked about again: were it not, the model
    would learn to rule out the letters already given.
    """
    askable = [pair for pair in pairs if not is_held_out("boxes", *pair)]
    asked = rng.choices(askable, k=rng.randint(0, MOST_FURTHER_QUESTIONS)) if askable else []
    return "".join(f"{QUESTION.format(QUERY=item)} {box}." for item, box in asked)


def _example(pairs: list[tuple[str, str]], asked: int, *, other: int, more: str) -> Example:
    statements, slots = [], {"QUERY": ("QUERY", pairs[asked][0])}
    for i, (item, box) in enumerate(pairs):
        statements.append((NEXT if i else FIRST).format(item=f"{{item_{i}}}", box=f"{{box_{i}}}"))
        slots |= {f"item_{i}": (f"item_{i}", item), f"box_{i}": (f"box_{i}", box)}
    text, roles = fill(", ".join(statements) + "." + QUESTION, slots)
    roles["ITEM"], roles["BOX"] = roles[f"item_{asked}"], roles[f"box_{asked}"]
    right, wrong, template = pairs[asked][1], pairs[other][1], f"{len(pairs)}-{asked}"
    return Example("boxes", text, right, wrong, (right,), roles, template, f" {right}.{more}")
