"""What does a model know? Facts, years that come later (greater-than), and whose name takes which pronoun."""

import random
from collections.abc import Mapping, Sequence
from typing import Unpack

from keyhole.errors import KeyholeError
from keyhole.settings.fields import chosen
from keyhole.tasks.choices import YearsOptions, YearsSettings
from keyhole.tasks.example import Example, collect, fill, last_piece
from keyhole.tasks.words import ADJECTIVES, NAMES, NUMBERS, PEOPLE, PRONOUN

# Facts: six prompts that ask for something the model was told elsewhere, some of them in two steps.

_CAPITALS = {"Dallas": "Austin", "San Francisco": "Sacramento", "Buffalo": "Albany"}
_SPORTS = {"Michael Jordan": "basketball", "Tom Brady": "football"}
N_FACTS = len(_CAPITALS) + len(_SPORTS) + 1

# Others of the same kind, for prompts that are like these; none of them is one of the six.
_MORE_CAPITALS = {
    "Austin": "Houston, El Paso, San Antonio, Fort Worth",
    "Sacramento": "Los Angeles, San Diego, Oakland, San Jose, Fresno, Long Beach",
    "Albany": "Syracuse, Brooklyn, Manhattan",
    "Springfield": "Chicago",
    "Tallahassee": "Miami, Orlando, Tampa",
    "Olympia": "Seattle, Spokane, Tacoma",
    "Lansing": "Detroit, Ann Arbor",
    "Harrisburg": "Philadelphia, Pittsburgh",
    "Columbus": "Cleveland, Cincinnati, Toledo",
    "Madison": "Milwaukee, Green Bay",
    "Nashville": "Memphis",
    "Raleigh": "Charlotte",
    "Annapolis": "Baltimore",
    "Trenton": "Newark",
    "Baton Rouge": "New Orleans",
    "Lincoln": "Omaha",
    "Santa Fe": "Albuquerque",
    "Phoenix": "Tucson",
    "Richmond": "Norfolk",
    "Frankfort": "Louisville",
}
_MORE_SPORTS = {
    "basketball": "Kobe Bryant, LeBron James, Larry Bird, Magic Johnson, Stephen Curry, Tim Duncan, Kevin Durant",
    "football": "Peyton Manning, Joe Montana, Jerry Rice, Aaron Rodgers, Walter Payton, Barry Sanders, Jim Brown",
    "tennis": "Roger Federer, Serena Williams, Andy Murray, Rafael Nadal, Pete Sampras, Arthur Ashe, Monica Seles",
    "golf": "Tiger Woods, Phil Mickelson, Jack Nicklaus, Arnold Palmer, Gary Player",
    "baseball": "Babe Ruth, Derek Jeter, Barry Bonds, Willie Mays, Jackie Robinson, Ted Williams",
    "hockey": "Wayne Gretzky, Sidney Crosby, Bobby Orr, Gordie Howe",
}


def facts(n: int = N_FACTS, seed: int = 0) -> list[Example]:
    """What is the capital of the state that holds this city, whose sport is it, and what is 1+1? The first n of six.

    They are fixed, so the seed changes nothing. Wrong answers are those to the other questions of the same kind.

    Args:
        n: How many, at most six.
        seed: Changes nothing: the prompts are fixed. Every task takes one.

    >>> [example.answer for example in facts()]
    ['Austin', 'Sacramento', 'Albany', 'basketball', 'football', '2']
    """
    if not 0 <= n <= N_FACTS:
        raise KeyholeError(f"there are {N_FACTS} facts, so that {n} of them cannot be asked for.")
    capitals = [
        _fact(f"Fact: the capital of the state containing {city} is", capital, tuple(_CAPITALS.values()), city)
        for city, capital in _CAPITALS.items()
    ]
    sports = [
        _fact(f"Fact: {player} plays the sport of", sport, tuple(_SPORTS.values()), player)
        for player, sport in _SPORTS.items()
    ]
    return [*capitals, *sports, _fact("1+1=", "2", ("1", "2", "3"), "1+1", gap="")][:n]


def same_kind(about: str) -> Mapping[str, str]:
    """Which subjects can be asked about like this one, and what are their answers? Itself among them.

    >>> same_kind("Dallas")["Miami"], same_kind("1+1")["2+3"], same_kind("Mary")
    ('Tallahassee', '5', {})
    """
    sums = {f"{a}+{b}": str(a + b) for a in range(1, 9) for b in range(1, 10 - a)}
    kinds = (_CAPITALS | _subjects(_MORE_CAPITALS), _SPORTS | _subjects(_MORE_SPORTS), sums)
    return next((kind for kind in kinds if about in kind), {})


def _subjects(by_answer: Mapping[str, str]) -> dict[str, str]:
    return {subject: answer for answer, subjects in by_answer.items() for subject in subjects.split(", ")}


def _fact(text: str, right: str, choices: tuple[str, ...], about: str, *, gap: str = " ") -> Example:
    against = tuple(word for word in choices if word != right)
    start = text.index(about)
    roles = {"ABOUT": (start, start + len(about)), "END": last_piece(text)}
    return Example("facts", text, right, against, (right,), roles, about, gap + right, {"about": about})


# Greater-than: something lasted from one year to another; which years can it have ended in?

LASTED = "The {NOUN} lasted from the year {XX1}{YY} to the year {XX2}"


def greater_than(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    settings: YearsSettings | None = None,
    **choices: Unpack[YearsOptions],
) -> list[Example]:
    """Which two digits can end the year? Every YY above the first; `answer` is one of them at random.

    Held out are whole combinations of noun, century and YY.

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        held_out: False: prompts of the organism's training; True: prompts kept out of it; None: both.
        settings: Which years and nouns: a `YearsSettings`.
        **choices: The fields of `settings` by name. `years`, such as {"1745", "1812"}, are some of the centuries and
            starts. With `digits`, for models that split numbers into digits, the prompt asks for the next digit alone.
            The first year then ends in 9, so that the tens decide (from 1739 on: 4 to 9 are right, 0 to 3 are wrong).

    >>> example = greater_than(1, nouns=["war"], centuries=["17"])[0]
    >>> min(example.answers) > example.word("YY"), max(example.answers)
    (True, '99')
    >>> greater_than(1, starts=["39"], digits=True)[0].answers
    ('4', '5', '6', '7', '8', '9')
    """
    how = chosen(settings, YearsSettings, choices)
    nouns, centuries, years, digits = how.nouns, how.centuries, how.years, how.digits
    starts = [start for start in how.starts if start.endswith("9")] if digits else how.starts
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
        return ("greater_than", noun, century, start), _span_of_years(noun, century, start, end=end, digits=digits)

    return collect(n, seed, held_out, draw)


def _span_of_years(noun: str, century: str, start: str, *, end: str, digits: bool) -> Example:
    slots = {
        "NOUN": ("NOUN", noun),
        "XX1": ("XX1", century),
        "YY": ("YY", start),
        "XX2": ("XX2", century),
    }
    text, roles = fill(LASTED, slots)
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


# Gendered pronouns: which pronoun does a tag question about this person end in?

TAGS: tuple[str, ...] = (
    "So {NAME} is a really {ADJ} {NOUN}, isn't",
    "{NAME} is such a {ADJ} {NOUN}, isn't",
    "Yes, {NAME} is always a {ADJ} {NOUN}, isn't",
    "Well, {NAME} is the {ADJ} {NOUN} here, isn't",
    "And {NAME} is very {ADJ} for a {NOUN}, isn't",
    "Look, {NAME} is with the {ADJ} {NOUN} again, isn't",
)
OTHER_PRONOUN = {"he": "she", "she": "he"}


def pronouns(
    n: int,
    seed: int = 0,
    *,
    held_out: bool | None = False,
    names: Sequence[str] = NAMES,
    adjectives: Sequence[str] = ADJECTIVES,
    people: Sequence[str] = PEOPLE,
    wordings: Sequence[int] = range(len(TAGS)),
) -> list[Example]:
    """He or she? The name decides.

    Args:
        n: How many prompts.
        seed: Seed of the prompts.
        held_out: False: prompts of the organism's training; True: prompts kept out of it, by whole combinations of name
            and wording; None: both.
        names: The names to draw from.
        adjectives: The adjectives to draw from.
        people: What the person may be called, such as "friend".
        wordings: Indices of the wordings.

    >>> pronouns(1, names=["Mary"])[0].answer
    'she'
    """
    unknown = [name for name in names if name not in PRONOUN]
    if unknown:
        raise KeyholeError(f"no pronoun is known for {unknown[0]!r}; take names from keyhole.tasks.words")
    if not wordings or not all(0 <= wording < len(TAGS) for wording in wordings):
        raise KeyholeError(f"wordings are numbered 0 to {len(TAGS) - 1}, not {tuple(wordings)}")

    def draw(rng: random.Random) -> tuple[tuple[str, ...], Example]:
        wording, name = rng.choice(wordings), rng.choice(names)
        example = _tag_question(wording, name, rng.choice(adjectives), rng.choice(people))
        return ("pronouns", name, str(wording)), example

    return collect(n, seed, held_out, draw)


def _tag_question(wording: int, name: str, adjective: str, noun: str) -> Example:
    slots = {"NAME": ("NAME", name), "ADJ": ("ADJ", adjective), "NOUN": ("NOUN", noun)}
    text, roles = fill(TAGS[wording], slots)
    right = PRONOUN[name]
    labels = {"wording": str(wording), "name": name}
    return Example(
        "pronouns", text, right, (OTHER_PRONOUN[right],), (right,), roles, f"tag-{wording}", f" {right}?", labels
    )
