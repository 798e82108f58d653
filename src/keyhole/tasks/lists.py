"""Lists: things of several kinds; which of them are of the kind asked for? (filter heads)"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill
from keyhole.tasks.words import CATEGORIES

START = "Here is a list: "
QUESTION = ". Find the {CATEGORY}:"


@dataclass(frozen=True)
class _Wording:
    """What stands before the items, between them, and after them."""

    start: str
    between: str
    question: str


_WORDINGS = {
    "plain": _Wording(START, ", ", QUESTION),  # the organism's
    "instruct": _Wording(
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
    n_items: int | None = None,
    category: str | None = None,
    given: int = 0,
    per_category: int | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[str]] = tuple(CATEGORIES),
    wording: str = "plain",
) -> list[Example]:
    """Which item of the list is of this kind? They are to be named in list order, so the first comes next.

    Four to ten items, or always `n_items`, or `per_category` of each of the `categories`; the asked category is a
    random one of those in the list, or `category`. With `given` the prompt already names that many, and `answers` are
    the remaining ones. `categories` are names of built-in ones, or names with items.
    `wording` is "plain", the organism's, or "instruct", for chat models.
    Roles: item_i in list order, `fruits_0`, `fruits_1`... the same items by category, CATEGORY, END.
    Held out: (category, set of its items in the list); None takes both sides.

    >>> lists(1, n_items=4, category="fruits")[0].text.endswith("Find the fruits:")
    True
    """
    if not 0 <= given <= 4:
        raise KeyholeError(f"given must be 0 to 4, not {given}")
    if n_items is not None and not given + 2 <= n_items <= 12:
        raise KeyholeError(f"n_items must be {given + 2} to 12, not {n_items}")
    kinds = _kinds(categories)
    _check_kinds(kinds, category, per_category, counted=n_items is not None, given=given)
    if wording not in _WORDINGS:
        raise KeyholeError(f"wording is one of {', '.join(_WORDINGS)}, not {wording!r}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        asked = category or rng.choice(list(kinds))
        if per_category is None:
            count = rng.randint(max(4, given + 2), 10) if n_items is None else n_items
            listed = _draw_items(rng, asked, kinds, count=count, at_least=given + 1)
        else:
            listed = [item for items in kinds.values() for item in rng.sample(items, per_category)]
            rng.shuffle(listed)
        said = _WORDINGS[wording]
        right = [item for item in listed if item in kinds[asked]]
        return ("lists", asked, *sorted(right)), _example(listed, (asked, kinds), right, given=given, wording=said)

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
    rng: random.Random, asked: str, categories: Mapping[str, Sequence[str]], *, count: int, at_least: int
) -> list[str]:
    """Some items of the asked category and one or more of one to three others, shuffled."""
    rest = [name for name in categories if name != asked]
    others = rng.sample(rest, rng.randint(1, min(3, len(rest))))
    pool = [item for name in others for item in categories[name]]
    most = max(at_least, count // 2)
    wanted = max(rng.randint(at_least, most), count - len(pool))
    listed = rng.sample(categories[asked], wanted) + rng.sample(pool, count - wanted)
    rng.shuffle(listed)
    return listed


def _example(
    listed: list[str],
    question: tuple[str, Mapping[str, Sequence[str]]],
    right: list[str],
    *,
    given: int,
    wording: _Wording,
) -> Example:
    """The list, and the question after one of these categories."""
    asked, categories = question
    slots = {f"item_{i}": (f"item_{i}", item) for i, item in enumerate(listed)}
    frame = wording.start + wording.between.join(f"{{{slot}}}" for slot in slots) + wording.question
    frame += "".join(f" {{given_{i}}}," for i in range(given))
    slots |= {f"given_{i}": (f"given_{i}", right[i]) for i in range(given)}
    text, roles = fill(frame, slots | {"CATEGORY": ("CATEGORY", asked)})

    for name, items in categories.items():
        members = [i for i, item in enumerate(listed) if item in items]
        roles |= {f"{name}_{order}": roles[f"item_{i}"] for order, i in enumerate(members)}
    rest = tuple(right[given:])
    against = tuple(item for item in listed if item not in right)
    labels = {"items": str(len(listed)), "category": asked, "given": str(given)}
    template, continuation = f"{len(listed)}-{asked}", " " + ", ".join(rest) + "."
    return Example("lists", text, rest[0], against, rest, roles, template, continuation, labels)
