"""What kind of token is this? Told by its letters, its neighbours in the text, and a few short lists of words."""

import re
from functools import lru_cache

from keyhole.tasks.text.words import CATEGORIES, OBJECTS, PEOPLE, PLACES, THINGS, words_of

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
        **{one: CATEGORIES[several] for one, several in (("animal", "animals"), ("fruit", "fruits"))},
        **{one: CATEGORIES[several] for one, several in (("colour", "colors"), ("liquid", "liquids"))},
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
    r"""A token without its spaces and capitals: what "a form of" it means. Of spaces alone, they are the token.

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
    """Does a token go on with the word of the token before? Only where tokens carry their spaces can that be seen."""
    return i > 0 and tokens[i][:1].isalpha() and tokens[i - 1][-1:].isalpha()


def _kinds(token: str, piece: bool) -> set[str]:
    word, bare = normal(token), token.strip()
    if _SPECIAL.fullmatch(bare):
        return {"special token"}
    if not bare:
        return {"line break"} if "\n" in token else set()
    found = {"line break"} if "\n" in token else set()
    if not any(letter.isalnum() for letter in bare):
        return found | {"punctuation mark"} | {kind for kind, marks in _MARKS.items() if bare[0] in marks}
    if bare.isdigit():
        return found | {"number"}
    if piece:
        return found | {"word piece"}
    found |= {kind for kind, words in LISTS.items() if word in words}
    found |= {"capitalised word"} if bare[0].isupper() else set()
    if not found.isdisjoint(FUNCTION):
        return found | {"function word"}
    found.add("content word")
    found |= {f"word in -{ending}" for ending in _ENDINGS if word.endswith(ending) and len(word) > len(ending) + 2}
    return found | ({"name"} if _is_name(bare, word) else set())


def _is_name(bare: str, word: str) -> bool:
    return len(bare) > 1 and bare.isalpha() and bare.istitle() and word not in _NEVER_NAMES and word not in _STARTERS
