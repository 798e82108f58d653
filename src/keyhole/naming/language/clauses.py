"""What can be said of a pair of tokens? One thing about dest, src or a neighbour of theirs, true or not."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from keyhole.naming.judging.questions import Marked
from keyhole.naming.language.kinds import KINDS, kinds, normal

Spot = Literal["dest", "the token before dest", "src", "the token before src", "the token after src"]
SPOTS: tuple[Spot, ...] = ("dest", "the token before dest", "src", "the token before src", "the token after src")
Which = Literal["first", "second", "latest"]
_RANKS: dict[Which, slice] = {"first": slice(0, 1), "second": slice(1, 2), "latest": slice(-1, None)}
WHICH: tuple[Which, ...] = tuple(_RANKS)
ORDERED = ("name", "number", "place", "object", "comma", "sentence end", "pronoun", "article")

SAME = "the same token as dest"
AFTER = "the token after an earlier occurrence of dest"
AGAIN, ONCE = "a token that occurs more than once so far", "a token that occurs only once so far"
BEFORE, NEW = "a token that has occurred before", "a token that is new to the text"
FIRST, LAST = "the first token of the text", "the last token of the text"
RELATIONS: dict[str, tuple[Spot, ...]] = {  # and of which tokens each can be said
    **dict.fromkeys((SAME, AFTER, AGAIN, ONCE), ("src",)),
    **dict.fromkeys((BEFORE, NEW, LAST), ("dest",)),
    FIRST: ("dest", "src"),
}


@dataclass(frozen=True)
class Word:
    """It is one of these, whatever its capitals and spaces."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """It is of this kind."""

    kind: str


@dataclass(frozen=True)
class Relation:
    """It stands so in the text, or to dest."""

    text: str


@dataclass(frozen=True)
class Order:
    """Src is this one among those of a kind, up to dest."""

    which: Which
    kind: str


@dataclass(frozen=True)
class Distance:
    """Src stands so many tokens before dest; `high` None: at least so many."""

    low: int
    high: int | None


Predicate = Word | Kind | Relation | Order | Distance


@dataclass(frozen=True)
class Clause:
    """Something that is said of one token."""

    spot: Spot
    says: Predicate


def place(pair: Marked, spot: Spot) -> int | None:
    """Where this token stands; None: there is none, or dest cannot see it."""
    at = pair.dest if "dest" in spot else pair.src
    at += -1 if "before" in spot else 1 if "after" in spot else 0
    return at if 0 <= at <= pair.dest else None


def holds(clause: Clause, pair: Marked) -> bool:
    """Is it true of this pair?"""
    at = place(pair, clause.spot)
    if at is None:
        return False
    match clause.says:
        case Word(words):
            return normal(pair.tokens[at]) in words
        case Kind(kind):
            return kind in kinds(pair.tokens)[at]
        case Relation(text):
            return text in _relations(pair, clause.spot)
        case Order():
            return clause.says in _orders(pair)
        case Distance(low, high):
            return low <= pair.dest - pair.src and (high is None or pair.dest - pair.src <= high)


def true_of(pair: Marked) -> Iterator[Clause]:
    """Everything that is true of a pair, but for its distance, of which there are too many ways to tell."""
    tokens = _tokens(pair.tokens)
    for spot in SPOTS:
        at = place(pair, spot)
        if at is not None:
            yield from tokens[spot][at]
            yield from (Clause(spot, Relation(text)) for text in _relations(pair, spot))
    yield from (Clause("src", order) for order in _orders(pair))


@lru_cache(maxsize=2000)  # many pairs are of one text
def _tokens(tokens: tuple[str, ...]) -> dict[Spot, list[tuple[Clause, ...]]]:
    """What every token is, by the spot at which it may stand."""
    says: list[tuple[Predicate, ...]] = [
        (Word((normal(token),)), *(Kind(kind) for kind in KINDS if kind in own))
        for token, own in zip(tokens, kinds(tokens), strict=True)
    ]
    return {spot: [tuple(Clause(spot, one) for one in some) for some in says] for spot in SPOTS}


def _relations(pair: Marked, spot: Spot) -> list[str]:
    at = place(pair, spot)
    if at is None or spot not in ("dest", "src"):
        return []
    words = [normal(token) for token in pair.tokens[: pair.dest + 1]]
    found = [FIRST] if at == 0 else []
    if spot == "dest":
        found += [LAST] if at == len(pair.tokens) - 1 else []
        return [*found, BEFORE if words[at] in words[:at] else NEW]
    found += [SAME] if at < pair.dest and words[at] == words[pair.dest] else []
    found += [AFTER] if 0 < at < pair.dest and words[at - 1] == words[pair.dest] else []
    return [*found, ONCE if words.count(words[at]) == 1 else AGAIN]


def _orders(pair: Marked) -> list[Order]:
    """Places among those of a kind before dest, which is not counted itself."""
    every, found = kinds(pair.tokens), []
    for kind in ORDERED if pair.src < pair.dest else ():
        if kind in every[pair.src]:
            alike = [i for i in range(pair.dest) if kind in every[i]]
            found += [Order(which, kind) for which, at in _RANKS.items() if pair.src in alike[at]]
    return found
