"""Greater-than: something lasted from one year to another; which years can it have ended in?"""

import random
from collections.abc import Sequence

from keyhole.tasks.example import Example, collect, fill
from keyhole.tasks.words import EVENTS, NUMBERS

WORDING = "The {NOUN} lasted from the year {XX1}{YY} to the year {XX2}"
CENTURIES: tuple[str, ...] = tuple(str(century) for century in range(10, 19))
STARTS: tuple[str, ...] = NUMBERS[2:99]  # 99 would leave no valid end


def greater_than(
    n: int,
    seed: int = 0,
    *,
    held_out: bool = False,
    nouns: Sequence[str] = EVENTS,
    centuries: Sequence[str] = CENTURIES,
    starts: Sequence[str] = STARTS,
) -> list[Example]:
    """Which two digits can end the year? Every YY above the first; `answer` is one of them at random.

    Held out: whole (noun, century, YY) combinations.

    >>> example = greater_than(1, nouns=["war"], centuries=["17"])[0]
    >>> min(example.answers) > example.word("YY"), max(example.answers)
    (True, '99')
    """

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        noun, century, start = rng.choice(nouns), rng.choice(centuries), rng.choice(starts)
        later = tuple(number for number in NUMBERS if number > start)
        return ("greater_than", noun, century, start), _example(
            noun, century, start, later=later, end=rng.choice(later)
        )

    return collect(n, seed, held_out, draw)


def _example(noun: str, century: str, start: str, *, later: tuple[str, ...], end: str) -> Example:
    slots = {
        "NOUN": ("NOUN", noun),
        "XX1": ("XX1", century),
        "YY": ("YY", start),
        "XX2": ("XX2", century),
    }
    text, roles = fill(WORDING, slots)
    return Example("greater_than", text, end, start, later, roles, "lasted", f"{end}.")
