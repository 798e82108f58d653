"""Indirect object identification: two people, one gives something; who receives it?"""

import random
from collections.abc import Sequence

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill, piece_after
from keyhole.tasks.words import NAMES, OBJECTS, PLACES

# A and B are the two people in the order they are named, S the one of them who acts.
WORDINGS: tuple[str, ...] = (
    "When {A} and {B} went to the {PLACE}, {S} gave a {OBJECT} to",
    "Then, {A} and {B} were working at the {PLACE}. {S} decided to give a {OBJECT} to",
    "After {A} and {B} arrived at the {PLACE}, {S} handed a {OBJECT} to",
    "While {A} and {B} were walking to the {PLACE}, {S} showed a {OBJECT} to",
    "Yesterday {A} and {B} met at the {PLACE}, and {S} brought a {OBJECT} to",
    "Once {A} and {B} found a {OBJECT} at the {PLACE}, {S} offered it to",
    "Today {A} and {B} had lunch at the {PLACE}. Later, {S} passed a {OBJECT} to",
    "{A} and {B} were friends from the {PLACE}. One day {S} sent a {OBJECT} to",
    "Because {A} and {B} both liked the {PLACE}, {S} wanted to give a {OBJECT} to",
    "There was a {OBJECT} at the {PLACE} where {A} and {B} waited, so {S} took it to",
    "The {PLACE} was quiet when {A} and {B} came in, but {S} soon threw a {OBJECT} to",
    "Before {A} and {B} left the {PLACE}, {S} sold a {OBJECT} to",
    "Last night {A} and {B} talked at the {PLACE} until {S} lent a {OBJECT} to",
    "In the {PLACE}, {A} and {B} played all morning. Then {S} returned a {OBJECT} to",
    "As {A} and {B} looked around the {PLACE}, {S} tossed a {OBJECT} to",
)


def ioi(
    n: int,
    seed: int = 0,
    *,
    order: str = "both",
    held_out: bool = False,
    names: Sequence[str] = NAMES,
    wordings: Sequence[int] = range(len(WORDINGS)),
) -> list[Example]:
    """Who receives the object? The answer is the person who does not act.

    ABBA names the receiver (IO) first, BABA the giver (S). Held out: whole (pair of names, object)
    combinations, in both orders and in every wording.

    >>> ioi(1, names=("Mary", "John"), wordings=[0], order="ABBA")[0].template
    'ABBA-0'
    """
    if order not in ("both", "ABBA", "BABA"):
        raise KeyholeError(f"order is 'both', 'ABBA' or 'BABA', not {order!r}")
    names = list(dict.fromkeys(names))
    if len(names) < 2:
        raise KeyholeError(f"two different names are needed, not {tuple(names)}")
    if not wordings or not all(0 <= w < len(WORDINGS) for w in wordings):
        raise KeyholeError(f"wordings are numbered 0 to {len(WORDINGS) - 1}, not {tuple(wordings)}")
    orders = ("ABBA", "BABA") if order == "both" else (order,)

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        receiver, giver = rng.sample(list(names), 2)
        place, thing = rng.choice(PLACES), rng.choice(OBJECTS)
        example = _example(rng.choice(wordings), rng.choice(orders), (receiver, giver), (place, thing))
        return ioi_combination(receiver, giver, thing), example

    return collect(n, seed, held_out, draw)


def ioi_combination(one: str, other: str, thing: str) -> tuple[str, ...]:
    """What decides whether an example is held out? The unordered pair of names, and the object."""
    return ("ioi", *sorted((one, other)), thing)


def _example(wording: int, order: str, people: tuple[str, str], setting: tuple[str, str]) -> Example:
    (receiver, giver), (place, thing) = people, setting
    first_pair = [("IO", receiver), ("S1", giver)]
    first, second = first_pair if order == "ABBA" else first_pair[::-1]
    text, roles = fill(
        WORDINGS[wording],
        {
            "A": first,
            "B": second,
            "S": ("S2", giver),
            "PLACE": ("PLACE", place),
            "OBJECT": ("OBJECT", thing),
        },
    )
    roles["S1+1"] = piece_after(text, roles["S1"])
    return Example("ioi", text, receiver, giver, (receiver,), roles, f"{order}-{wording}", f" {receiver}.")
