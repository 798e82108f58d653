"""Greater-than: something lasted from one year to another; which years can it have ended in?"""

import random
from collections.abc import Collection, Sequence

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, collect, fill
from keyhole.tasks.words import EVENTS, NUMBERS

WORDING = "The {NOUN} lasted from the year {XX1}{YY} to the year {XX2}"
CENTURIES: tuple[str, ...] = tuple(str(century) for century in range(10, 19))
STARTS: tuple[str, ...] = NUMBERS[2:99]  # 99 would leave no valid end


def greater_than(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    nouns: Sequence[str] = EVENTS,
    centuries: Sequence[str] = CENTURIES,
    starts: Sequence[str] = STARTS,
    years: Collection[str] | None = None,
    digits: bool = False,
) -> list[Example]:
    """Which two digits can end the year? Every YY above the first; `answer` is one of them at random.

    `years` limits the first year to some of the centuries and starts, such as {"1745", "1812"}. With `digits`, for
    models that cut numbers into digits, the next digit alone is asked for: the first year ends in 9, so that the tens
    decide (from 1739 on: 4 to 9 are right, 0 to 3 are wrong).
    Held out: whole (noun, century, YY) combinations.

    >>> example = greater_than(1, nouns=["war"], centuries=["17"])[0]
    >>> min(example.answers) > example.word("YY"), max(example.answers)
    (True, '99')
    >>> greater_than(1, starts=["39"], digits=True)[0].answers
    ('4', '5', '6', '7', '8', '9')
    """
    starts = [start for start in starts if start.endswith("9")] if digits else starts
    begins = {century + start for century in centuries for start in starts}
    begins &= begins if years is None else set(years)
    if not begins or not nouns:
        raise KeyholeError("no noun or no year is left to ask about: give more nouns, centuries, starts or years.")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        while True:  # a year that may be asked about
            noun, century, start = rng.choice(nouns), rng.choice(centuries), rng.choice(starts)
            if century + start in begins:
                break
        end = rng.choice([number for number in NUMBERS if number > start])
        return ("greater_than", noun, century, start), _example(noun, century, start, end=end, digits=digits)

    return collect(n, seed, held_out, draw)


def _example(noun: str, century: str, start: str, *, end: str, digits: bool) -> Example:
    slots = {
        "NOUN": ("NOUN", noun),
        "XX1": ("XX1", century),
        "YY": ("YY", start),
        "XX2": ("XX2", century),
    }
    text, roles = fill(WORDING, slots)
    later, against = ends_of(start, digits=digits)
    labels = {"noun": noun, "century": century, "YY": start, "asks": "tens" if digits else "years"}
    answer = end[: len(later[0])]
    return Example("greater_than", text, answer, against, later, roles, "lasted", f"{end}.", labels)


def ends_of(start: str, *, digits: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which ends are right after this start, and which are wrong? Two digits each, or with `digits` the first of them.

    >>> ends_of("97", digits=False)[0], ends_of("79", digits=True)
    (('98', '99'), (('8', '9'), ('7', '6', '5', '4', '3', '2', '1', '0')))
    """
    shown = 1 if digits else 2  # of the year's last two
    later = tuple(dict.fromkeys(number[:shown] for number in NUMBERS if number > start))
    # The nearest years first.
    against = dict.fromkeys(number[:shown] for number in reversed(NUMBERS) if number <= start)
    return later, tuple(end for end in against if end not in later)
