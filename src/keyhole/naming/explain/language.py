"""Which clauses may a name have, and which kinds of tokens can they name?

The kind of a token follows from its letters, its neighbours in the text, and a few short lists of words.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from keyhole.naming.judge.questions import Marked
from keyhole.tasks.words import CATEGORIES, OBJECTS, PEOPLE, PLACES, THINGS, words_of

LISTS: dict[str, frozenset[str]] = {
    kind: frozenset(words)
    for kind, words in {
        "article": words_of("the a an"),
        "determiner": words_of("this that these those some any every each no all both his her its their my your our"),
        "pronoun": words_of("i you he she it we they me him us them who whom himself herself itself themselves"),
        "preposition": words_of(
            "to of in on at by for from with into onto over under about after before between through against"
        ),
        "conjunction": words_of("and or but nor so because while when if although though as than since until"),
        "auxiliary verb": words_of(
            """is are was were be been being am has have had do does did will would shall should can could may
            might must not"""
        ),
        "title": words_of("mr mrs miss ms dr sir lady lord mr. mrs. dr."),
        "number word": words_of("one two three four five six seven eight nine ten"),
        "adverb of time or place": words_of("then there here now later soon once today yesterday how where why what"),
        "place": PLACES,
        "object": OBJECTS + THINGS,
        "person": PEOPLE,
        **{singular: CATEGORIES[plural] for singular, plural in (("animal", "animals"), ("fruit", "fruits"))},
        **{singular: CATEGORIES[plural] for singular, plural in (("colour", "colors"), ("liquid", "liquids"))},
    }.items()
}
FUNCTION = ("article", "determiner", "pronoun", "preposition", "conjunction", "auxiliary verb")
_NEVER_NAMES = frozenset().union(*(LISTS[kind] for kind in (*FUNCTION, "title", "number word")))
_STARTERS = LISTS["adverb of time or place"] | frozenset(words_of("yes oh well let both last last there's"))
_MARKS = {"comma": ",", "sentence end": ".!?", "quotation mark": "\"'`\u201c\u201d\u2018\u2019", "bracket": "()[]{}"}
_ENDINGS = ("ing", "ed", "ly", "s")
KINDS = (
    *LISTS,
    *_MARKS,
    *(f"word in -{ending}" for ending in _ENDINGS),
    *("special token", "line break", "punctuation mark", "number", "word piece", "capitalised word", "name"),
    *("function word", "content word"),
)
_SPECIAL = re.compile(r"<[^<>\s]+>|\[[A-Z]+\]")


@lru_cache(maxsize=100_000)
def normal(token: str) -> str:
    r"""A token without spaces and capitals, as words are compared; a token of spaces alone stays as it is.

    >>> normal(" To"), normal("\n")
    ('to', '\n')
    """
    return token.strip().casefold() or token


@lru_cache(maxsize=20_000)
def kinds(tokens: tuple[str, ...]) -> tuple[frozenset[str], ...]:
    """The kinds of every token of a text.

    >>> sorted(kinds(("When", " Mary", " gave", " 12"))[1])
    ['capitalised word', 'content word', 'name']
    """
    spaced = any(token[:1] == " " and token.strip() for token in tokens)
    pieces = [spaced and _goes_on(tokens, i) for i in range(len(tokens))]
    return tuple(frozenset(_kinds(token, piece)) for token, piece in zip(tokens, pieces, strict=True))


def _goes_on(tokens: tuple[str, ...], i: int) -> bool:
    """Does a token continue the word of the token before? This shows only where tokens include their spaces."""
    return i > 0 and tokens[i][:1].isalpha() and tokens[i - 1][-1:].isalpha()


def _kinds(token: str, piece: bool) -> set[str]:
    word, bare = normal(token), token.strip()
    if _SPECIAL.fullmatch(bare):
        return {"special token"}
    if not bare:
        return {"line break"} if "\n" in token else set()
    of_token = {"line break"} if "\n" in token else set()
    if not any(letter.isalnum() for letter in bare):
        return of_token | {"punctuation mark"} | {kind for kind, marks in _MARKS.items() if bare[0] in marks}
    if bare.isdigit():
        return of_token | {"number"}
    if piece:
        return of_token | {"word piece"}
    of_token |= {kind for kind, words in LISTS.items() if word in words}
    of_token |= {"capitalised word"} if bare[0].isupper() else set()
    if not of_token.isdisjoint(FUNCTION):
        return of_token | {"function word"}
    of_token.add("content word")
    of_token |= {f"word in -{ending}" for ending in _ENDINGS if word.endswith(ending) and len(word) > len(ending) + 2}
    return of_token | ({"name"} if _is_name(bare, word) else set())


def _is_name(bare: str, word: str) -> bool:
    return len(bare) > 1 and bare.isalpha() and bare.istitle() and word not in _NEVER_NAMES and word not in _STARTERS


# What can a clause say about a pair of tokens? One fact about dest, src or one of their neighbours.

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
RELATIONS: dict[str, tuple[Spot, ...]] = {  # with the tokens that each can be about
    **dict.fromkeys((SAME, AFTER, AGAIN, ONCE), ("src",)),
    **dict.fromkeys((BEFORE, NEW, LAST), ("dest",)),
    FIRST: ("dest", "src"),
}


@dataclass(frozen=True)
class Word:
    """The token is one of these words, whatever its capitals and spaces."""

    words: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """The token is of this kind."""

    kind: str


@dataclass(frozen=True)
class Relation:
    """The token has this relation to the text, or to dest."""

    text: str


@dataclass(frozen=True)
class Order:
    """Src is the first, second or latest token of a kind before dest."""

    which: Which
    kind: str


@dataclass(frozen=True)
class Distance:
    """Src is `low` to `high` tokens before dest; `high` None: at least `low`."""

    low: int
    high: int | None


Predicate = Word | Kind | Relation | Order | Distance


@dataclass(frozen=True)
class Clause:
    """One fact about one token."""

    spot: Spot
    says: Predicate


def place(pair: Marked, spot: Spot) -> int | None:
    """The position of this token; None: the text has none, or dest cannot see it."""
    at = pair.dest if "dest" in spot else pair.src
    at += -1 if "before" in spot else 1 if "after" in spot else 0
    return at if 0 <= at <= pair.dest else None


def holds(clause: Clause, pair: Marked) -> bool:
    """Is the clause true of this pair?"""
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
    """All clauses that are true of a pair, except distances, which have too many spans."""
    tokens = _tokens(pair.tokens)
    for spot in SPOTS:
        at = place(pair, spot)
        if at is not None:
            yield from tokens[spot][at]
            yield from (Clause(spot, Relation(text)) for text in _relations(pair, spot))
    yield from (Clause("src", order) for order in _orders(pair))


@lru_cache(maxsize=2000)  # many pairs share a text
def _tokens(tokens: tuple[str, ...]) -> dict[Spot, list[tuple[Clause, ...]]]:
    """The clauses that are true of every token, by the spot that it may have."""
    says: list[tuple[Predicate, ...]] = [
        (Word((normal(token),)), *(Kind(kind) for kind in KINDS if kind in token_kinds))
        for token, token_kinds in zip(tokens, kinds(tokens), strict=True)
    ]
    return {spot: [tuple(Clause(spot, predicate) for predicate in predicates) for predicates in says] for spot in SPOTS}


def _relations(pair: Marked, spot: Spot) -> list[str]:
    at = place(pair, spot)
    if at is None or spot not in ("dest", "src"):
        return []
    words = [normal(token) for token in pair.tokens[: pair.dest + 1]]
    relations = [FIRST] if at == 0 else []
    if spot == "dest":
        relations += [LAST] if at == len(pair.tokens) - 1 else []
        return [*relations, BEFORE if words[at] in words[:at] else NEW]
    relations += [SAME] if at < pair.dest and words[at] == words[pair.dest] else []
    relations += [AFTER] if 0 < at < pair.dest and words[at - 1] == words[pair.dest] else []
    return [*relations, ONCE if words.count(words[at]) == 1 else AGAIN]


def _orders(pair: Marked) -> list[Order]:
    """The rank of src among the tokens of its kinds before dest."""
    every, orders = kinds(pair.tokens), []
    for kind in ORDERED if pair.src < pair.dest else ():
        if kind in every[pair.src]:
            alike = [i for i in range(pair.dest) if kind in every[i]]
            orders += [Order(which, kind) for which, at in _RANKS.items() if pair.src in alike[at]]
    return orders
