"""Facts: six prompts that ask for something the model was told elsewhere, some of them in two steps."""

from collections.abc import Mapping

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, last_piece

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

    >>> [example.answer for example in facts()]
    ['Austin', 'Sacramento', 'Albany', 'basketball', 'football', '2']
    """
    if not 0 <= n <= N_FACTS:
        raise KeyholeError(f"there are {N_FACTS} facts, so that {n} of them cannot be asked for.")
    capitals = [
        _example(f"Fact: the capital of the state containing {city} is", capital, tuple(_CAPITALS.values()), city)
        for city, capital in _CAPITALS.items()
    ]
    sports = [
        _example(f"Fact: {player} plays the sport of", sport, tuple(_SPORTS.values()), player)
        for player, sport in _SPORTS.items()
    ]
    return [*capitals, *sports, _example("1+1=", "2", ("1", "2", "3"), "1+1", gap="")][:n]


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


def _example(text: str, right: str, choices: tuple[str, ...], about: str, *, gap: str = " ") -> Example:
    against = tuple(word for word in choices if word != right)
    start = text.index(about)
    roles = {"ABOUT": (start, start + len(about)), "END": last_piece(text)}
    return Example("facts", text, right, against, (right,), roles, about, gap + right, {"about": about})
