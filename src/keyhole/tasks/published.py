"""Which indirect-object prompts did the papers use? Wang et al.'s wordings, drawn as those of the ACC papers were.

The dataset of "Interpretability in the Wild" (Wang et al. 2022): 15 wordings, each in two orders, eight places, eight
objects; and the 89 names that the ACC papers keep, each one token of all their models. Random numbers are drawn in the
order of the published sets, so that these are equal to the letter: `published_ioi(3000)` and
`published_ioi(256, design="mixed")`.
"""

import random
from collections.abc import Sequence

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example
from keyhole.tasks.ioi import Design, balanced, check_ioi, ioi_example, orders_of
from keyhole.tasks.words import words_of

# A and B are the two people in the order they are named, S the one of them who acts.
WORDINGS: tuple[str, ...] = (
    "Then, {A} and {B} went to the {PLACE}. {S} gave a {OBJECT} to",
    "Then, {A} and {B} had a lot of fun at the {PLACE}. {S} gave a {OBJECT} to",
    "Then, {A} and {B} were working at the {PLACE}. {S} decided to give a {OBJECT} to",
    "Then, {A} and {B} were thinking about going to the {PLACE}. {S} wanted to give a {OBJECT} to",
    "Then, {A} and {B} had a long argument, and afterwards {S} said to",
    "After {A} and {B} went to the {PLACE}, {S} gave a {OBJECT} to",
    "When {A} and {B} got a {OBJECT} at the {PLACE}, {S} decided to give it to",
    "When {A} and {B} got a {OBJECT} at the {PLACE}, {S} decided to give the {OBJECT2} to",
    "While {A} and {B} were working at the {PLACE}, {S} gave a {OBJECT} to",
    "While {A} and {B} were commuting to the {PLACE}, {S} gave a {OBJECT} to",
    "After the lunch, {A} and {B} went to the {PLACE}. {S} gave a {OBJECT} to",
    "Afterwards, {A} and {B} went to the {PLACE}. {S} gave a {OBJECT} to",
    "Then, {A} and {B} had a long argument. Afterwards {S} said to",
    "The {PLACE} {A} and {B} went to had a {OBJECT}. {S} gave it to",
    "Friends {A} and {B} found a {OBJECT} at the {PLACE}. {S} gave it to",
)
PLACES: tuple[str, ...] = ("store", "garden", "restaurant", "school", "hospital", "office", "house", "station")
OBJECTS: tuple[str, ...] = ("ring", "kiss", "bone", "basketball", "computer", "necklace", "drink", "snack")
NAMES: tuple[str, ...] = words_of(
    """Adam Alan Alex Alice Amy Anderson Andre Andrew Andy Anna Anthony Arthur Austin Brian Carter Charles
    Charlie Christian Christopher Clark Cole Collins Daniel David Dean Edward Elizabeth Eric Eva Ford Frank
    George Georgia Graham Grant Henry Ian Jack Jacob James Jane Jason Jay John Jonathan Jordan Joseph Justin
    Kate Kelly Kevin Laura Leon Lewis Lisa Louis Luke Marco Marcus Maria Mark Martin Mary Matthew Max Michael
    Morgan Patrick Paul Peter Prince Richard River Robert Roman Rose Ruby Russell Ryan Sarah Scott Simon Stephen
    Steven Taylor Thomas Victoria Warren William"""
)
_MIXED = len(WORDINGS) // 2  # the published mixed set takes the first seven wordings alone


def published_ioi(
    n: int,
    seed: int = 0,
    *,
    design: Design = "balanced",
    order: str = "both",
    names: Sequence[str] = NAMES,
    wordings: Sequence[int] | None = None,
) -> list[Example]:
    """Who receives the object, in the wordings of Wang et al.? The answer is the person who does not act.

    Balanced, 3,000 as published: of each wording as many ABBA, then as many BABA, so that prompt 200 t + i is of
    wording t. Mixed, 256 as published: every prompt draws one of the first seven wordings in one of both orders.

    >>> [example.template for example in published_ioi(30)][-2:]
    ['ABBA-14', 'BABA-14']
    """
    names, orders = list(dict.fromkeys(names)), orders_of(order)
    numbers = range(_MIXED if design == "mixed" else len(WORDINGS)) if wordings is None else wordings
    check_ioi(design, names, numbers, len(WORDINGS))
    if n < 0:
        raise KeyholeError(f"there cannot be {n} examples.")
    rng = random.Random(seed)
    if design == "balanced":
        cells = balanced(n, numbers, orders)
        return [_draw(rng, names, number, one) for count, number, one in cells for _ in range(count)]
    kinds = [(number, one) for one in reversed(orders) for number in numbers]  # BABA stands first, as published
    rng.shuffle(kinds)
    # A third name is drawn and not used, as published.
    return [_draw(rng, names, *rng.choice(kinds), drawn=min(3, len(names))) for _ in range(n)]


def _draw(rng: random.Random, names: Sequence[str], number: int, order: str, *, drawn: int = 2) -> Example:
    people: list[str] = []
    while len(set(people)) < drawn:
        people = [rng.choice(names) for _ in range(max(drawn, 2))]
    setting = rng.choice(PLACES), rng.choice(OBJECTS)
    labels = {"wordings": "published", "wording": str(number)}
    return ioi_example(WORDINGS[number], order, (people[0], people[1]), setting, labels)
