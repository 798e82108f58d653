"""What are the tokens of a prompt called, so that prompts of other words and lengths compare? By role and distance."""

from collections.abc import Mapping

START = "START"


def place_names(places: Mapping[str, int], length: int) -> tuple[str, ...]:
    """Every token by the nearest role at or before it and the distance; before any role, from the start.

    Where several roles stand at one token, the shortest name, then the first in the alphabet, is taken.

    >>> place_names({"IO": 2, "S1": 4, "END": 6}, 7)
    ('START', 'START+1', 'IO', 'IO+1', 'S1', 'S1+1', 'END')
    """
    at: dict[int, str] = {}
    for role, place in sorted(places.items(), key=lambda item: (len(item[0]), item[0])):
        at.setdefault(place, role)
    found, role, since = [], START, 0
    for token in range(length):
        if token in at:
            role, since = at[token], token
        found.append(role if token == since else f"{role}+{token - since}")
    return tuple(found)


def place_of(name: str, names: tuple[str, ...]) -> int | None:
    """Where does a token of this name stand? None: no token of this prompt is called so.

    >>> place_of("IO+1", ("START", "IO", "IO+1")), place_of("S1", ("START", "IO"))
    (2, None)
    """
    return names.index(name) if name in names else None
