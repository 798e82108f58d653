"""How is a rule told in words, and how is it read back? One plain sentence, which is all that the judge receives.

    dest is "to" or "for", and src is a name, the first name so far, 5 to 12 tokens before dest

Tokens are quoted as in JSON, so nothing in them can be mistaken for the sentence around them.
"""

import json
import re
from collections.abc import Iterable
from typing import cast

from keyhole.errors import KeyholeError
from keyhole.naming.language.clauses import (
    ORDERED,
    RELATIONS,
    SPOTS,
    WHICH,
    Clause,
    Distance,
    Kind,
    Order,
    Predicate,
    Relation,
    Spot,
    Which,
    Word,
)
from keyhole.naming.language.kinds import KINDS

Rule = tuple[Clause, ...]
_ITSELF, _PREVIOUS = "dest itself", "the token just before dest"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_WORDS = re.compile(f"{_QUOTED}(?: or {_QUOTED})*")
_ORDER = re.compile(f"the ({'|'.join(WHICH)}) ({'|'.join(ORDERED)}) so far")
_DISTANCE = re.compile(r"(?:(\d+) to (\d+)|(\d+)|at least (\d+)) tokens before dest")
_SPLIT = re.compile(rf"((?:[^\",]|,(?! )|{_QUOTED})+)(?:, |$)")


def rule(clauses: Iterable[Clause]) -> Rule:
    """Clauses in the order of telling: dest and its neighbour, then src and its own."""
    return tuple(sorted(clauses, key=lambda clause: SPOTS.index(clause.spot)))


def render(clauses: Iterable[Clause]) -> str:
    """A rule as one sentence.

    >>> render([Clause("src", Kind("name")), Clause("dest", Word(("to",))), Clause("src", Distance(1, 1))])
    'dest is "to", and src is a name, the token just before dest'
    """
    told = rule(clauses)
    if not told:
        raise KeyholeError("a sentence says at least one thing.")
    spots = dict.fromkeys(clause.spot for clause in told)
    return ", and ".join(
        f"{spot} is {', '.join(_said(one.says) for one in told if one.spot == spot)}" for spot in spots
    )


def parse(text: str) -> Rule:
    """The rule that a sentence tells; anything else is refused.

    >>> parse('dest is "to"')
    (Clause(spot='dest', says=Word(words=('to',))),)
    """
    found, spot, at = [], None, 0
    while at < len(text):
        part = _SPLIT.match(text, at)
        if part is None:
            raise KeyholeError(f"{text!r} is no sentence of a rule: it cannot be read from {text[at:]!r} on.")
        said, at = part[1], part.end()
        for one in SPOTS:
            start = f"{one} is " if spot is None else f"and {one} is "
            if said.startswith(start):
                spot, said = one, said.removeprefix(start)
                break
        found.append(_clause(text, spot, said))
    if not found or rule(found) != tuple(found) or text.endswith(", "):
        raise KeyholeError(f"{text!r} is no sentence of a rule.")
    return tuple(found)


def _said(says: Predicate) -> str:
    match says:
        case Word(words):
            return " or ".join(json.dumps(word, ensure_ascii=False) for word in words)
        case Kind(kind):
            return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
        case Relation(text):
            return text
        case Order(which, kind):
            return f"the {which} {kind} so far"
        case Distance(low, high):
            return _distance(low, high)


def _distance(low: int, high: int | None) -> str:
    if low == high and low < 2:
        return _PREVIOUS if low else _ITSELF
    count = f"at least {low}" if high is None else f"{low}" if low == high else f"{low} to {high}"
    return f"{count} tokens before dest"


_KINDS = {_said(Kind(kind)): kind for kind in KINDS}


def _clause(text: str, spot: Spot | None, said: str) -> Clause:
    says = _predicate(said) if spot is not None else None
    for_src = isinstance(says, Order | Distance) and spot != "src"
    astray = isinstance(says, Relation) and spot not in RELATIONS[says.text]
    if spot is None or says is None or for_src or astray or _said(says) != said:
        raise KeyholeError(f"{text!r} is no sentence of a rule: {said!r} says nothing that can be looked up.")
    return Clause(spot, says)


def _predicate(said: str) -> Predicate | None:
    if _WORDS.fullmatch(said):
        return Word(tuple(json.loads(word) for word in re.findall(_QUOTED, said)))
    if said in _KINDS:
        return Kind(_KINDS[said])
    if said in RELATIONS:
        return Relation(said)
    if said in (_ITSELF, _PREVIOUS):
        return Distance(int(said == _PREVIOUS), int(said == _PREVIOUS))
    if found := _ORDER.fullmatch(said):
        return Order(cast(Which, found[1]), found[2])
    if found := _DISTANCE.fullmatch(said):
        low, high, exact, least = found.groups()
        return Distance(int(low or exact or least), None if least else int(high or exact))
    return None
