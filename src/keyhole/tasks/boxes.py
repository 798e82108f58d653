"""Boxes: things are put into lettered boxes; which box holds this one? (binding)"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, exchanged, fill, is_held_out
from keyhole.tasks.words import LETTERS, THINGS

FIRST = "The {item} is in box {box}"
NEXT = "the {item} is in box {box}"
QUESTION = " Which box is the {QUERY} in? Box"
MOST_FURTHER_QUESTIONS = 4  # nine boxes and five questions still fit the organism's 128 positions


@dataclass(frozen=True)
class _Wording:
    """How the first, the middle and the last statement and the question are said."""

    first: str
    next: str
    last: str
    question: str


_WORDINGS = {
    "plain": _Wording(FIRST, NEXT, NEXT, QUESTION),  # the organism's
    "instruct": _Wording(
        "The {item} is in Box {box}",
        "the {item} is in Box {box}",
        "and the {item} is in Box {box}",
        " Respond in one word, only the answer and nothing else: Which box is the {QUERY} in? Box",
    ),
}


def boxes(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    n_boxes: int | None = None,
    things: Sequence[str] = THINGS,
    letters: Sequence[str] = LETTERS,
    query: str | None = None,
    wording: str = "plain",
) -> list[Example]:
    """Which box is the thing in? Two to nine things in shuffled boxes, or always `n_boxes`.

    With `query` that thing is always told, at a random place, and asked about. `wording` is "plain", the organism's,
    or "instruct", for chat models.
    Roles: item_i and box_i in the order told, ITEM and BOX the queried pair, QUERY its second mention, END.
    Held out: (thing, letter) pairs are never asked about in training, though they are told; None takes both sides.

    >>> boxes(1, n_boxes=2, things=["jam", "knife"], letters="AB")[0].task
    'boxes'
    """
    pool = [thing for thing in things if thing != query]
    fixed = () if query is None else (query,)
    most = min(len(pool) + len(fixed), len(letters))
    if most < 2 or (n_boxes is not None and not 2 <= n_boxes <= most):
        raise KeyholeError(f"n_boxes must be 2 to {most} (things and letters given), not {n_boxes}")
    if wording not in _WORDINGS:
        raise KeyholeError(f"wording is one of {', '.join(_WORDINGS)}, not {wording!r}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        count = rng.randint(2, most) if n_boxes is None else n_boxes
        items, lettering = rng.sample(pool, count - len(fixed)), rng.sample(list(letters), count)
        asked, other = rng.sample(range(count), 2)
        pairs = list(zip([*items[:asked], *fixed, *items[asked:]], lettering, strict=True))
        more = _further_questions(rng, pairs) if wording == "plain" else ""
        return ("boxes", *pairs[asked]), _example(pairs, asked, other=other, more=more, wording=_WORDINGS[wording])

    return collect(n, seed, held_out, draw)


def with_other_thing(example: Example, thing: str) -> Example:
    """What would the prompt be, were another thing in the queried box? Both mentions change, the answer does not.

    >>> [example] = boxes(1, n_boxes=2, things=["jam", "knife"], letters="AB", query="jam")
    >>> other = with_other_thing(example, "spoon")
    >>> other.word("ITEM"), other.word("QUERY"), other.answer == example.answer
    ('spoon', 'spoon', True)
    """
    return _with_other(example, "ITEM", thing)


def relettered(example: Example, letter: str) -> Example:
    """What would the prompt be, had the queried box another letter? The answer is that letter.

    >>> [example] = boxes(1, n_boxes=2, things=["jam", "knife"], letters="AB", query="jam")
    >>> other = relettered(example, "F")
    >>> other.word("BOX"), other.answer, other.word("ITEM")
    ('F', 'F', 'jam')
    """
    return _with_other(example, "BOX", letter)


def _with_other(example: Example, role: str, replacement: str) -> Example:
    if example.task != "boxes":
        raise KeyholeError(f"another thing or letter is for an example of boxes, not of {example.task!r}.")
    old = example.word(role)
    if re.search(rf"\b{re.escape(replacement)}\b", example.text):
        raise KeyholeError(f"{replacement!r} already stands in this prompt: replace {old!r} by an unused word.")
    return exchanged(example, {old: replacement})


def _further_questions(rng: random.Random, pairs: list[tuple[str, str]]) -> str:
    """More questions about the same boxes, with their answers, for training text.

    One answer a document teaches binding very slowly. A box may be asked about again: were it not, the model
    would learn to rule out the letters already given.
    """
    askable = [pair for pair in pairs if not is_held_out("boxes", *pair)]
    asked = rng.choices(askable, k=rng.randint(0, MOST_FURTHER_QUESTIONS)) if askable else []
    return "".join(f"{QUESTION.format(QUERY=item)} {box}." for item, box in asked)


def _example(pairs: list[tuple[str, str]], asked: int, *, other: int, more: str, wording: _Wording) -> Example:
    statements, slots = [], {"QUERY": ("QUERY", pairs[asked][0])}
    sayings = [wording.first, *[wording.next] * (len(pairs) - 2), wording.last]
    for i, ((item, box), saying) in enumerate(zip(pairs, sayings, strict=True)):
        statements.append(saying.format(item=f"{{item_{i}}}", box=f"{{box_{i}}}"))
        slots |= {f"item_{i}": (f"item_{i}", item), f"box_{i}": (f"box_{i}", box)}
    text, roles = fill(", ".join(statements) + "." + wording.question, slots)
    roles["ITEM"], roles["BOX"] = roles[f"item_{asked}"], roles[f"box_{asked}"]
    right, wrong = pairs[asked][1], pairs[other][1]
    against = tuple(dict.fromkeys([wrong, *(box for _, box in pairs if box != right)]))
    labels = {"boxes": str(len(pairs)), "asked": str(asked)}
    return Example("boxes", text, right, against, (right,), roles, f"{len(pairs)}-{asked}", f" {right}.{more}", labels)
