"""Lists: things of several kinds; which of them are of the kind asked for? (filter heads)"""

import random

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill
from keyhole.tasks.words import CATEGORIES

START = "Here is a list: "
QUESTION = ". Find the {CATEGORY}:"


def lists(
    n: int,
    seed: int = 0,
    *,
    held_out: bool = False,
    n_items: int | None = None,
    category: str | None = None,
    given: int = 0,
) -> list[Example]:
    """Which item of the list is of this kind? They are to be named in list order, so the first comes next.

    Four to ten items, or always `n_items`; the asked category is a random one of those in the list, or
    `category`. With `given` the prompt already names that many, and `answers` are the remaining ones.
    Roles: item_i in list order, `fruits_0`, `fruits_1`... the same items by category, CATEGORY, END.
    Held out: (category, set of its items in the list).

    >>> lists(1, n_items=4, category="fruits")[0].text.endswith("Find the fruits:")
    True
    """
    if not 0 <= given <= 4:
        raise KeyholeError(f"given must be 0 to 4, not {given}")
    if n_items is not None and not given + 2 <= n_items <= 12:
        raise KeyholeError(f"n_items must be {given + 2} to 12, not {n_items}")
    if category is not None and category not in CATEGORIES:
        raise KeyholeError(f"category is one of {', '.join(CATEGORIES)}, not {category!r}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        asked = category or rng.choice(list(CATEGORIES))
        count = rng.randint(max(4, given + 2), 10) if n_items is None else n_items
        listed = _draw_items(rng, asked, count=count, at_least=given + 1)
        right = [item for item in listed if item in CATEGORIES[asked]]
        return ("lists", asked, *sorted(right)), _example(listed, asked, right, given=given)

    return collect(n, seed, held_out, draw)


def _draw_items(rng: random.Random, asked: str, *, count: int, at_least: int) -> list[str]:
    """Some items of the asked category and one or more of one to three others, shuffled."""
    others = rng.sample([name for name in CATEGORIES if name != asked], rng.randint(1, 3))
    pool = [item for name in others for item in CATEGORIES[name]]
    most = max(at_least, count // 2)
    wanted = max(rng.randint(at_least, most), count - len(pool))
    listed = rng.sample(CATEGORIES[asked], wanted) + rng.sample(pool, count - wanted)
    rng.shuffle(listed)
    return listed


def _example(listed: list[str], asked: str, right: list[str], *, given: int) -> Example:
    slots = {f"item_{i}": (f"item_{i}", item) for i, item in enumerate(listed)}
    wording = START + ", ".join(f"{{{slot}}}" for slot in slots) + QUESTION
    wording += "".join(f" {{given_{i}}}," for i in range(given))
    slots |= {f"given_{i}": (f"given_{i}", right[i]) for i in range(given)}
    text, roles = fill(wording, slots | {"CATEGORY": ("CATEGORY", asked)})

    for name, items in CATEGORIES.items():
        members = [i for i, item in enumerate(listed) if item in items]
        roles |= {f"{name}_{order}": roles[f"item_{i}"] for order, i in enumerate(members)}
    rest = tuple(right[given:])
    wrong = next(item for item in listed if item not in right)
    template = f"{len(listed)}-{asked}"
    return Example("lists", text, rest[0], wrong, rest, roles, template, " " + ", ".join(rest) + ".")
