"""Facts: six prompts that ask for something the model was told elsewhere, some of them in two steps."""

from keyhole.errors import KeyholeError
from keyhole.tasks.example import Example, last_piece

_CAPITALS = {"Dallas": "Austin", "San Francisco": "Sacramento", "Buffalo": "Albany"}
_SPORTS = {"Michael Jordan": "basketball", "Tom Brady": "football"}
N_FACTS = len(_CAPITALS) + len(_SPORTS) + 1


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


def _example(text: str, right: str, choices: tuple[str, ...], about: str, *, gap: str = " ") -> Example:
    against = tuple(word for word in choices if word != right)
    start = text.index(about)
    roles = {"ABOUT": (start, start + len(about)), "END": last_piece(text)}
    return Example("facts", text, right, against, (right,), roles, about, gap + right, {"about": about})
