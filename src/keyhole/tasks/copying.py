"""Which word of the prompt comes again? Indirect objects: who receives it; induction: what followed last time."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import get_args

from keyhole.errors import KeyholeError
from keyhole.tasks.choices import Design
from keyhole.tasks.example import Example, collect, fill, piece_after
from keyhole.tasks.words import CONTENT, NAMES, OBJECTS, PLACES, words_of

# Indirect object identification: two people, one gives something; who receives it?


@dataclass(frozen=True)
class IoiWords:
    """What prompts are made of. A and B are the two people in the order they are named, S the one who acts."""

    wordings: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[str, ...]
    objects: tuple[str, ...]


OWN = IoiWords(
    wordings=(
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
    ),
    names=NAMES,
    places=PLACES,
    objects=OBJECTS,
)


def ioi(
    n: int,
    seed: int = 0,
    *,
    design: Design = "mixed",
    order: str = "both",
    held_out: bool | None = False,
    names: Sequence[str] = NAMES,
    wordings: Sequence[int] = range(len(OWN.wordings)),
) -> list[Example]:
    """Who receives the object? The answer is the person who does not act.

    ABBA names the receiver (IO) first, BABA the giver (S).

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        design: "mixed": every prompt draws its wording and order. "balanced": as many of each wording in the one order,
            then in the other.
        order: "ABBA", "BABA" or "both".
        held_out: False: prompts of the organism's training; True: prompts kept out of it, by whole combinations of
            names and object in both orders and every wording; None: both.
        names: The names to draw from.
        wordings: Indices of the wordings.

    >>> ioi(1, names=("Mary", "John"), wordings=[0], order="ABBA")[0].template
    'ABBA-0'
    """
    names, orders = list(dict.fromkeys(names)), orders_of(order)
    check_ioi(design, names, wordings, len(OWN.wordings))

    def draw_from(rng: random.Random, numbers: Sequence[int], orders: Sequence[str]) -> tuple[tuple[str, ...], Example]:
        receiver, giver = rng.sample(names, 2)
        place, thing = rng.choice(OWN.places), rng.choice(OWN.objects)
        number, order = rng.choice(numbers), rng.choice(orders)
        labels = {"wordings": "own", "wording": str(number)}
        example = ioi_example(OWN.wordings[number], order, (receiver, giver), (place, thing), labels)
        return ioi_combination(receiver, giver, thing), example

    if design == "mixed":
        return collect(n, seed, held_out, lambda rng: draw_from(rng, wordings, orders))
    rng, examples = random.Random(seed), []
    for count, number, one_order in balanced(n, wordings, orders):
        examples += collect(count, rng, held_out, partial(draw_from, numbers=(number,), orders=(one_order,)))
    return examples


def orders_of(order: str) -> tuple[str, ...]:
    """Which orders are meant?"""
    if order not in ("both", "ABBA", "BABA"):
        raise KeyholeError(f"order is 'both', 'ABBA' or 'BABA', not {order!r}")
    return ("ABBA", "BABA") if order == "both" else (order,)


def check_ioi(design: str, names: Sequence[str], wordings: Sequence[int], n_wordings: int) -> None:
    """Refuse choices from which no prompt can be made."""
    if design not in get_args(Design):
        raise KeyholeError(f"design is one of {', '.join(get_args(Design))}, not {design!r}")
    if len(names) < 2:
        raise KeyholeError(f"two different names are needed, not {tuple(names)}")
    if not wordings or not all(0 <= w < n_wordings for w in wordings):
        raise KeyholeError(f"wordings are numbered 0 to {n_wordings - 1}, not {tuple(wordings)}")


def balanced(n: int, wordings: Sequence[int], orders: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """How many prompts of each wording in each order? As even as n allows; the first ones get one more.

    >>> list(balanced(5, [0, 1], ["ABBA", "BABA"]))
    [(2, 0, 'ABBA'), (1, 0, 'BABA'), (1, 1, 'ABBA'), (1, 1, 'BABA')]
    """
    cells = [(wording, order) for wording in wordings for order in orders]
    each, rest = divmod(n, len(cells))
    yield from ((each + (i < rest), *cell) for i, cell in enumerate(cells))


def ioi_combination(name: str, other: str, thing: str) -> tuple[str, ...]:
    """What decides whether an example is held out? The unordered pair of names, and the object."""
    return ("ioi", *sorted((name, other)), thing)


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


def ioi_words(example: Example) -> IoiWords:
    """The wordings and words that an example was made of."""
    return PUBLISHED if example.labels.get("wordings") == "published" else OWN


# Which of these prompts did the papers use? Wang et al.'s wordings, drawn as those of the ACC papers were.
#
# The dataset of "Interpretability in the Wild" (Wang et al. 2022): 15 wordings, each in two orders, eight places, eight
# objects; and the 89 names that the ACC papers keep, each one token of all their models. Random numbers are drawn in
# the order of the published sets, so that these are equal to the letter: `published_ioi(3000)` and
# `published_ioi(256, design="mixed")`.

PUBLISHED = IoiWords(
    wordings=(
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
    ),
    names=words_of(
        """Adam Alan Alex Alice Amy Anderson Andre Andrew Andy Anna Anthony Arthur Austin Brian Carter Charles
        Charlie Christian Christopher Clark Cole Collins Daniel David Dean Edward Elizabeth Eric Eva Ford Frank
        George Georgia Graham Grant Henry Ian Jack Jacob James Jane Jason Jay John Jonathan Jordan Joseph Justin
        Kate Kelly Kevin Laura Leon Lewis Lisa Louis Luke Marco Marcus Maria Mark Martin Mary Matthew Max Michael
        Morgan Patrick Paul Peter Prince Richard River Robert Roman Rose Ruby Russell Ryan Sarah Scott Simon Stephen
        Steven Taylor Thomas Victoria Warren William"""
    ),
    places=words_of("store garden restaurant school hospital office house station"),
    objects=words_of("ring kiss bone basketball computer necklace drink snack"),
)
_MIXED_WORDINGS = len(PUBLISHED.wordings) // 2  # the published mixed set takes the first seven wordings alone


def published_ioi(
    n: int,
    seed: int = 0,
    *,
    design: Design = "balanced",
    order: str = "both",
    names: Sequence[str] = PUBLISHED.names,
    wordings: Sequence[int] | None = None,
) -> list[Example]:
    """Who receives the object, in the wordings of Wang et al.? The answer is the person who does not act.

    Published sizes: 3,000 balanced prompts, of which prompt 200 t + i has wording t; or 256 mixed ones, which draw from
    the first seven wordings.

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        design: "balanced": of each wording as many ABBA, then as many BABA. "mixed": every prompt draws its wording and
            order.
        order: "ABBA", "BABA" or "both".
        names: The names to draw from.
        wordings: Indices of the wordings. Default: all if balanced, the first seven if mixed.

    >>> [example.template for example in published_ioi(30)][-2:]
    ['ABBA-14', 'BABA-14']
    """
    names, orders = list(dict.fromkeys(names)), orders_of(order)
    numbers = range(_MIXED_WORDINGS if design == "mixed" else len(PUBLISHED.wordings)) if wordings is None else wordings
    check_ioi(design, names, numbers, len(PUBLISHED.wordings))
    if n < 0:
        raise KeyholeError(f"there cannot be {n} examples.")
    rng = random.Random(seed)
    if design == "balanced":
        cells = balanced(n, numbers, orders)
        return [_published_example(rng, names, number, order) for count, number, order in cells for _ in range(count)]
    kinds = [(number, order) for order in reversed(orders) for number in numbers]  # BABA stands first, as published
    rng.shuffle(kinds)
    # A third name is drawn and not used, as published.
    return [_published_example(rng, names, *rng.choice(kinds), drawn=min(3, len(names))) for _ in range(n)]


def _published_example(rng: random.Random, names: Sequence[str], number: int, order: str, *, drawn: int = 2) -> Example:
    people: list[str] = []
    while len(set(people)) < drawn:
        people = [rng.choice(names) for _ in range(max(drawn, 2))]
    setting = rng.choice(PUBLISHED.places), rng.choice(PUBLISHED.objects)
    labels = {"wordings": "published", "wording": str(number)}
    return ioi_example(PUBLISHED.wordings[number], order, (people[0], people[1]), setting, labels)


# Induction: random words, then some of them again; what followed last time?


def induction(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    words: Sequence[str] = CONTENT,
    length: tuple[int, int] = (4, 30),
    first_again: bool = True,
) -> list[Example]:
    """What came after this word the first time? "... A B ... A" is followed by B.

    Distinct random words, then the same words again from a random one of them onwards. They go on to the last word, so
    that the next word is never in doubt. Roles: A (the earlier copy of the last word), B (what followed it), END.

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        held_out: False: prompts of the organism's training; True: prompts kept out of it, by whole word sequences;
            None: both.
        words: The words to draw from.
        length: The fewest and the most words before they repeat.
        first_again: May the very first word be repeated? Many tokenizers split it otherwise at the start of a text than
            after a space.

    >>> induction(1, words=("cup", "jam"), length=(2, 2))[0].text in ("cup jam cup", "jam cup jam")
    True
    """
    shortest, longest = length
    earliest = 0 if first_again else 1
    if not 2 + earliest <= shortest <= longest <= len(set(words)):
        raise KeyholeError(
            f"length is two numbers from {2 + earliest} to {len(set(words))} distinct words, not {length}"
        )

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        first = rng.sample(list(words), rng.randint(shortest, longest))
        start = rng.randrange(earliest, len(first) - 1)
        # Most prompts stop early in the repeat, where nothing but the one word can be matched.
        shown = min(1 + int(rng.expovariate(0.5)), len(first) - 1 - start)
        return ("induction", *first), _repeated(first, start, shown)

    return collect(n, seed, held_out, draw)


def _repeated(first: list[str], start: int, shown: int) -> Example:
    """The words, then `shown` of them again from `start` on."""
    before = start + shown - 1  # where the last word shown stood the first time
    slots = {f"w{i}": (f"word_{i}", word) for i, word in enumerate(first)}
    slots |= {f"r{i}": (f"again_{i}", first[i]) for i in range(start, before + 1)}
    text, roles = fill(" ".join(f"{{{slot}}}" for slot in slots), slots)
    roles["A"], roles["B"] = roles[f"word_{before}"], roles[f"word_{before + 1}"]
    rest = first[before + 1 :]
    # Every other word; what preceded A first, for a head that looks one off.
    against = tuple(dict.fromkeys([*first[before - 1 : before], *(word for word in first if word != rest[0])]))
    labels = {"words": str(len(first)), "repeated": str(shown)}
    template, continuation = f"{len(first)}-{start}", " " + " ".join(rest) + "."
    return Example("induction", text, rest[0], against, (rest[0],), roles, template, continuation, labels)
