"""Which thing of the prompt is meant? Boxes: which box holds it (binding); lists: what is of a kind (filter heads)."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from keyhole.errors import KeyholeError
from keyhole.settings.fields import chosen
from keyhole.tasks.choices import BoxesOptions, BoxesSettings, ListsOptions, ListsSettings
from keyhole.tasks.example import Example, collect, exchanged, fill, is_held_out
from keyhole.tasks.words import CATEGORIES

# Boxes: things are put into lettered boxes; which box holds this one?

FIRST = "The {item} is in box {box}"
NEXT = "the {item} is in box {box}"
WHICH_BOX = " Which box is the {QUERY} in? Box"
MOST_FURTHER_QUESTIONS = 4  # nine boxes and five questions still fit the organism's 128 positions


@dataclass(frozen=True)
class _BoxesWording:
    """How the first, the middle and the last statement and the question are said."""

    first: str
    next: str
    last: str
    question: str


BOXES_WORDINGS = {
    "plain": _BoxesWording(FIRST, NEXT, NEXT, WHICH_BOX),  # the organism's
    "instruct": _BoxesWording(
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
    settings: BoxesSettings | None = None,
    **choices: Unpack[BoxesOptions],
) -> list[Example]:
    """Which box is the thing in? Two to nine things in shuffled boxes, or as `BoxesSettings` say.

    Roles: item_i and box_i in their order, ITEM and BOX the queried pair, QUERY its second mention, END. A thing that
    is chosen as the `query` is in a random box of every prompt.

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        held_out: False: prompts of the organism's training; True: prompts kept out of it, by (thing, letter) pairs that
            training never asks for; None: both.
        settings: How many boxes, and which things and letters: a `BoxesSettings`. Default: two to nine things in
            shuffled boxes.
        **choices: The fields of `settings` by name.

    >>> boxes(1, n_boxes=2, things=["jam", "knife"], letters="AB")[0].task
    'boxes'
    """
    how = chosen(settings, BoxesSettings, choices)
    n_boxes, wording = how.n_boxes, how.wording
    pool = [thing for thing in how.things if thing != how.query]
    fixed = () if how.query is None else (how.query,)
    most = min(len(pool) + len(fixed), len(how.letters))
    if most < 2 or (n_boxes is not None and not 2 <= n_boxes <= most):
        raise KeyholeError(f"n_boxes must be 2 to {most} (things and letters given), not {n_boxes}")
    if wording not in BOXES_WORDINGS:
        raise KeyholeError(f"wording is one of {', '.join(BOXES_WORDINGS)}, not {wording!r}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        count = rng.randint(2, most) if n_boxes is None else n_boxes
        items, lettering = rng.sample(pool, count - len(fixed)), rng.sample(list(how.letters), count)
        queried, other = rng.sample(range(count), 2)
        pairs = list(zip([*items[:queried], *fixed, *items[queried:]], lettering, strict=True))
        more = _further_questions(rng, pairs) if wording == "plain" else ""
        return ("boxes", *pairs[queried]), _boxes_example(
            pairs, queried, other=other, more=more, wording=BOXES_WORDINGS[wording]
        )

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
    open_pairs = [pair for pair in pairs if not is_held_out("boxes", *pair)]
    pairs_again = rng.choices(open_pairs, k=rng.randint(0, MOST_FURTHER_QUESTIONS)) if open_pairs else []
    return "".join(f"{WHICH_BOX.format(QUERY=item)} {box}." for item, box in pairs_again)


def _boxes_example(
    pairs: list[tuple[str, str]], queried: int, *, other: int, more: str, wording: _BoxesWording
) -> Example:
    statements, slots = [], {"QUERY": ("QUERY", pairs[queried][0])}
    sayings = [wording.first, *[wording.next] * (len(pairs) - 2), wording.last]
    for i, ((item, box), saying) in enumerate(zip(pairs, sayings, strict=True)):
        statements.append(saying.format(item=f"{{item_{i}}}", box=f"{{box_{i}}}"))
        slots |= {f"item_{i}": (f"item_{i}", item), f"box_{i}": (f"box_{i}", box)}
    text, roles = fill(", ".join(statements) + "." + wording.question, slots)
    roles["ITEM"], roles["BOX"] = roles[f"item_{queried}"], roles[f"box_{queried}"]
    right, wrong = pairs[queried][1], pairs[other][1]
    against = tuple(dict.fromkeys([wrong, *(box for _, box in pairs if box != right)]))
    labels = {"boxes": str(len(pairs)), "asked": str(queried)}
    template, continuation = f"{len(pairs)}-{queried}", f" {right}.{more}"
    return Example("boxes", text, right, against, (right,), roles, template, continuation, labels)


# Lists: things of several kinds; which of them are of the kind asked for?

LIST_START = "Here is a list: "
WHICH_ITEMS = ". Find the {CATEGORY}:"


@dataclass(frozen=True)
class _ListWording:
    """What stands before the items, between them, and after them."""

    start: str
    between: str
    question: str


LISTS_WORDINGS = {
    "plain": _ListWording(LIST_START, ", ", WHICH_ITEMS),  # the organism's
    "instruct": _ListWording(
        "Here is a list:\n- ",
        "\n- ",
        "\nRespond in single words, only the answers and nothing else: What are the {CATEGORY} in the list? Answer:",
    ),
}


def lists(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    settings: ListsSettings | None = None,
    **choices: Unpack[ListsOptions],
) -> list[Example]:
    """Which item of the list is of this kind? They are to be named in list order, so the first comes next.

    The items are to be named in list order, so the first of the kind comes next. Where the prompt names some items
    already (`given`), `answers` are the remaining ones. Roles: item_i in list order, `fruits_0`, `fruits_1`... the same
    items by category, CATEGORY, END.

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        held_out: False: prompts of the organism's training; True: prompts kept out of it, by (category, set of its
            items in the list); None: both.
        settings: Which items and categories: a `ListsSettings`. Default: four to ten items, of which the prompt asks
            for a random category.
        **choices: The fields of `settings` by name.

    >>> lists(1, n_items=4, category="fruits")[0].text.endswith("Find the fruits:")
    True
    """
    how = chosen(settings, ListsSettings, choices)
    n_items, per_category, given, wording = how.n_items, how.per_category, how.given, how.wording
    if not 0 <= given <= 4:
        raise KeyholeError(f"given must be 0 to 4, not {given}")
    if n_items is not None and not given + 2 <= n_items <= 12:
        raise KeyholeError(f"n_items must be {given + 2} to 12, not {n_items}")
    kinds = _kinds(how.categories)
    _check_kinds(kinds, how.category, per_category, counted=n_items is not None, given=given)
    if wording not in LISTS_WORDINGS:
        raise KeyholeError(f"wording is one of {', '.join(LISTS_WORDINGS)}, not {wording!r}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        category = how.category or rng.choice(list(kinds))
        if per_category is None:
            count = rng.randint(max(4, given + 2), 10) if n_items is None else n_items
            listed = _draw_items(rng, category, kinds, count=count, at_least=given + 1)
        else:
            listed = [item for items in kinds.values() for item in rng.sample(items, per_category)]
            rng.shuffle(listed)
        right = [item for item in listed if item in kinds[category]]
        example = _list_example(listed, (category, kinds), right, given=given, wording=LISTS_WORDINGS[wording])
        return ("lists", category, *sorted(right)), example

    return collect(n, seed, held_out, draw)


def _kinds(categories: Sequence[str] | Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The items of each category."""
    known = categories if isinstance(categories, Mapping) else CATEGORIES
    unknown = [name for name in categories if name not in known]
    if unknown or len(set(categories)) != len(categories) or len(categories) < 2:
        raise KeyholeError(
            f"categories are two or more different ones of {', '.join(CATEGORIES)}, or names with their items, "
            f"not {', '.join(categories)!r}"
        )
    return {name: known[name] for name in categories}


def _check_kinds(
    categories: Mapping[str, Sequence[str]],
    category: str | None,
    per_category: int | None,
    *,
    counted: bool,
    given: int,
) -> None:
    if category is not None and category not in categories:
        raise KeyholeError(f"category is one of {', '.join(categories)}, not {category!r}")
    if per_category is None:
        return
    if counted:
        raise KeyholeError("n_items and per_category both say how long the list is: give one of them")
    most = min(map(len, categories.values()))
    if not given < per_category <= most:
        raise KeyholeError(f"per_category must be {given + 1} to {most}, not {per_category}")


def _draw_items(
    rng: random.Random, category: str, categories: Mapping[str, Sequence[str]], *, count: int, at_least: int
) -> list[str]:
    """Some items of this category and one or more of one to three others, shuffled."""
    rest = [name for name in categories if name != category]
    others = rng.sample(rest, rng.randint(1, min(3, len(rest))))
    pool = [item for name in others for item in categories[name]]
    most = max(at_least, count // 2)
    wanted = max(rng.randint(at_least, most), count - len(pool))
    listed = rng.sample(categories[category], wanted) + rng.sample(pool, count - wanted)
    rng.shuffle(listed)
    return listed


def _list_example(
    listed: list[str],
    question: tuple[str, Mapping[str, Sequence[str]]],
    right: list[str],
    *,
    given: int,
    wording: _ListWording,
) -> Example:
    """The list, and the question after one of these categories."""
    category, categories = question
    slots = {f"item_{i}": (f"item_{i}", item) for i, item in enumerate(listed)}
    frame = wording.start + wording.between.join(f"{{{slot}}}" for slot in slots) + wording.question
    frame += "".join(f" {{given_{i}}}," for i in range(given))
    slots |= {f"given_{i}": (f"given_{i}", right[i]) for i in range(given)}
    text, roles = fill(frame, slots | {"CATEGORY": ("CATEGORY", category)})

    for name, items in categories.items():
        members = [i for i, item in enumerate(listed) if item in items]
        roles |= {f"{name}_{order}": roles[f"item_{i}"] for order, i in enumerate(members)}
    rest = tuple(right[given:])
    against = tuple(item for item in listed if item not in right)
    labels = {"items": str(len(listed)), "category": category, "given": str(given)}
    template, continuation = f"{len(listed)}-{category}", " " + ", ".join(rest) + "."
    return Example("lists", text, rest[0], against, rest, roles, template, continuation, labels)
