"""Indirect object identification: two people, one gives something; who receives it?"""

import random
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Literal, get_args

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

Design = Literal["balanced", "mixed"]


def ioi(
    n: int,
    seed: int = 0,
    *,
    design: Design = "mixed",
    order: str = "both",
    held_out: bool | None = False,
    names: Sequence[str] = NAMES,
    wordings: Sequence[int] = range(len(WORDINGS)),
) -> list[Example]:
    """Who receives the object? The answer is the person who does not act.

    ABBA names the receiver (IO) first, BABA the giver (S). Mixed: every prompt draws its wording and order; balanced:
    of each wording as many in the one order, then in the other. Held out: whole (pair of names, object) combinations,
    in both orders and in every wording; None takes both sides.

    >>> ioi(1, names=("Mary", "John"), wordings=[0], order="ABBA")[0].template
    'ABBA-0'
    """
    names, orders = list(dict.fromkeys(names)), orders_of(order)
    check_ioi(design, names, wordings, len(WORDINGS))

    def draw_from(rng: random.Random, numbers: Sequence[int], orders: Sequence[str]) -> tuple[tuple[str, ...], Example]:
        receiver, giver = rng.sample(names, 2)
        place, thing = rng.choice(PLACES), rng.choice(OBJECTS)
        number, order = rng.choice(numbers), rng.choice(orders)
        labels = {"wordings": "own", "wording": str(number)}
        example = ioi_example(WORDINGS[number], order, (receiver, giver), (place, thing), labels)
        return ioi_combination(receiver, giver, thing), example

    if design == "mixed":
        return collect(n, seed, held_out, lambda rng: draw_from(rng, wordings, orders))
    rng, found = random.Random(seed), []
    for count, number, one_order in balanced(n, wordings, orders):
        found += collect(count, rng, held_out, partial(draw_from, numbers=(number,), orders=(one_order,)))
    return found


def orders_of(order: str) -> tuple[str, ...]:
    """Which orders are meant?"""
    if order not in ("both", "ABBA", "BABA"):
        raise KeyholeError(f"order is 'both', 'ABBA' or 'BABA', not {order!r}")
    return ("ABBA", "BABA") if order == "both" else (order,)


def check_ioi(design: str, names: Sequence[str], wordings: Sequence[int], n_wordings: int) -> None:
    """Refuse what no prompt can be made of."""
    if design not in get_args(Design):
        raise KeyholeError(f"design is one of {', '.join(get_args(Design))}, not {design!r}")
    if len(names) < 2:
        raise KeyholeError(f"two different names are needed, not {tuple(names)}")
    if not wordings or not all(0 <= w < n_wordings for w in wordings):
        raise KeyholeError(f"wordings are numbered 0 to {n_wordings - 1}, not {tuple(wordings)}")


def balanced(n: int, wordings: Sequence[int], orders: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """How many prompts of each wording in each order? As even as n allows, the first ones have the rest.

    >>> list(balanced(5, [0, 1], ["ABBA", "BABA"]))
    [(2, 0, 'ABBA'), (1, 0, 'BABA'), (1, 1, 'ABBA'), (1, 1, 'BABA')]
    """
    cells = [(wording, order) for wording in wordings for order in orders]
    each, rest = divmod(n, len(cells))
    yield from ((each + (i < rest), *cell) for i, cell in enumerate(cells))


def ioi_combination(one: str, other: str, thing: str) -> tuple[str, ...]:
    """What decides whether an example is held out? The unordered pair of names, and the object."""
    return ("ioi", *sorted((one, other)), thing)


def ioi_example(
    wording: str, order: str, people: tuple[str, str], setting: tuple[str, str], labels: dict[str, str]
) -> Example:
    """A wording about a receiver and a giver, a place and a thing; its labels gain order and names."""
    (receiver, giver), (place, thing) = people, setting
    first_pair = [("IO", receiver), ("S1", giver)]
    first, second = first_pair if order == "ABBA" else first_pair[::-1]
    text, roles = fill(
        wording,
        {
            "A": first,
            "B": second,
            "S": ("S2", giver),
            "PLACE": ("PLACE", place),
            "OBJECT": ("OBJECT", thing),
            "OBJECT2": ("OBJECT2", thing),
        },
    )
    roles["S1+1"] = piece_after(text, roles["S1"])
    labels |= {"order": order, "IO": receiver, "S": giver}
    template = f"{order}-{labels['wording']}"
    return Example("ioi", text, receiver, (giver,), (receiver,), roles, template, f" {receiver}.", labels)
