"""Which tokens are over-represented where a signal fires? Statistics, as a sentence that a rule reads back.

How is a rule told in words, and how is it read back? One plain sentence, which is all that the judge receives.

    dest is "to" or "for", and src is a name, the first name so far, 5 to 12 tokens before dest

Tokens are quoted as in JSON, so nothing in them can be mistaken for the sentence around them.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from typing import cast

import numpy as np
from jaxtyping import Bool

from keyhole.errors import KeyholeError
from keyhole.naming.explain.candidates import Claim, Name, Pairs, candidates, pairs_of
from keyhole.naming.explain.language import (
    KINDS,
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
    normal,
)
from keyhole.naming.subjects.subject import Shown
from keyhole.stats import benjamini_hochberg, fisher

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


# What do the examples have in common that other pairs have not? Counted and tested, told as one sentence.
#
# Candidates are words and kinds of dest, src and their neighbours, repetitions, places and distances. The first
# clause is the one that best tells examples from background,
#
#     gain = share of examples - (share of pairs at random + share of hard negatives) / 2
#
# of those that Fisher's exact test, corrected for all candidates, finds over-represented. Each further one is chosen
# in the same way among the pairs of which all clauses so far are true, until none adds enough: so a clause that pairs
# at random rarely meet is told, too, as long as the whole loses little by it. If nothing passes, there is no valid
# interpretation.

_ADDS = 0.2  # of gain, by each clause, among the pairs that those before leave
_NEARLY = 0.05  # of gain: as good
_MOST_WORDS = 6  # that one clause may list
_PER_WORD = 0.02  # of gain, by each further word of a list


@dataclass(frozen=True)
class _Choice:
    """A clause that might be next: of which pairs it is true, what it brings, and how likely that is by chance."""

    clause: Clause
    true: Bool[np.ndarray, "pairs"]
    gain: float  # among the pairs that the clauses before leave
    p: float
    corrected: float


def statistics(
    examples: Sequence[Shown],
    background: Sequence[Shown],
    *,
    level: float = 0.05,
    clauses: int = 4,
    seed: int = 0,
) -> Name:
    """The sentence that best tells examples from background, of at most so many clauses.

    What is in the background and not picked at random counts as hard: examples of another signal, too, which tells what
    separates the two.
    """
    pairs = pairs_of(examples, background, seed)
    if not pairs.fires or not (pairs.drawn or pairs.hard):
        return Name(None, "statistics")
    names, table = candidates(pairs)
    left, chosen = np.ones(table.shape[1], dtype=bool), list[_Choice]()
    while len(chosen) < clauses:
        best = _best(names, table, left, pairs, level=level)
        if best is None:
            break
        chosen.append(best)
        left = left & best.true
    kept = _needed(chosen, pairs)
    if not kept:
        return Name(None, "statistics")
    return Name(render(one.clause for one in kept), "statistics", tuple(_claim(one, pairs) for one in kept))


def _gain(true: Bool[np.ndarray, "pairs"], left: Bool[np.ndarray, "pairs"], pairs: Pairs) -> float:
    """By how much this is truer of the examples than of the others, hard ones and those at random alike.

    Of those that are left; where no other is left, nothing can be gained.
    """
    fires, *others = _shares(true, left, pairs)
    known = [share for share in others if share is not None]
    return fires - sum(known) / len(known) if fires is not None and known else 0.0


def _shares(
    true: Bool[np.ndarray, "pairs"], left: Bool[np.ndarray, "pairs"], pairs: Pairs
) -> tuple[float | None, float | None, float | None]:
    """Of examples, pairs at random and hard negatives; None: there are none."""
    n, m = len(pairs.fires), len(pairs.fires) + len(pairs.drawn)
    parts = [true[part][left[part]] for part in (slice(n), slice(n, m), slice(m, None))]
    fires, drawn, hard = (float(part.mean()) if len(part) else None for part in parts)
    return fires, drawn, hard


def _best(
    names: list[Clause],
    table: Bool[np.ndarray, "clauses pairs"],
    left: Bool[np.ndarray, "pairs"],
    pairs: Pairs,
    *,
    level: float,
) -> _Choice | None:
    """The clause, or list of words, that gains most of those that pass; of nearly equal ones the rarest elsewhere.

    So "dest is a name" rather than "dest is a capitalised word", where only chance can tell which gains more.
    """
    n, among = len(pairs.fires), table & left
    of, of_others = int(left[:n].sum()), int(left[n:].sum())
    some, others = among[:, :n].sum(1).tolist(), among[:, n:].sum(1).tolist()
    ps = [fisher(a, of, b, of_others) if a * of_others > b * of else 1.0 for a, b in zip(some, others, strict=True)]
    corrected = benjamini_hochberg(ps)
    passing = [
        _Choice(names[i], table[i], _gain(table[i], left, pairs), ps[i], corrected[i])
        for i in range(len(names))
        if corrected[i] <= level
    ]
    lists = [made for spot in SPOTS if (made := _listed(passing, spot, left, pairs)) is not None]
    every, so_far = np.ones_like(left), _gain(left, np.ones_like(left), pairs)
    good = [
        one
        for one in (*passing, *lists)
        if one.gain >= _ADDS and _gain(one.true & left, every, pairs) >= so_far - _NEARLY  # the whole keeps its own
    ]
    most = max((one.gain for one in good), default=0.0)
    narrow = [one for one in good if one.gain >= most - _NEARLY]
    return min(narrow, key=lambda one: (_shares(one.true, every, pairs)[1] or 0.0, -one.gain), default=None)


def _listed(passing: list[_Choice], spot: Spot, left: Bool[np.ndarray, "pairs"], pairs: Pairs) -> _Choice | None:
    """Words that pass on their own, as one list; as unlikely as the likeliest of them."""
    words = [one for one in passing if one.clause.spot == spot and isinstance(one.clause.says, Word)]
    made: _Choice | None = None
    for one in sorted(words, key=lambda one: -one.gain):
        if made is None:
            made = one
            continue
        assert isinstance(made.clause.says, Word) and isinstance(one.clause.says, Word)
        true = made.true | one.true
        gain = _gain(true, left, pairs)
        if len(made.clause.says.words) < _MOST_WORDS and gain - made.gain >= _PER_WORD:
            both = Clause(spot, Word(made.clause.says.words + one.clause.says.words))
            made = _Choice(both, true, gain, max(made.p, one.p), max(made.corrected, one.corrected))
    return made


def _needed(chosen: list[_Choice], pairs: Pairs) -> list[_Choice]:
    """Without those that later ones have made idle: a name is a capitalised word anyway."""
    kept = list(chosen)
    for one in chosen:
        rest = [other for other in kept if other is not one]
        if rest and _gain(one.true, _all(rest), pairs) < _ADDS / 2:
            kept = rest
    return kept


def _all(choices: list[_Choice]) -> Bool[np.ndarray, "pairs"]:
    return np.asarray(np.logical_and.reduce([one.true for one in choices]))


def _claim(one: _Choice, pairs: Pairs) -> Claim:
    n = len(pairs.fires)
    yes, no = int(one.true[:n].sum()) + 0.5, int((~one.true[:n]).sum()) + 0.5
    others, not_others = int(one.true[n:].sum()) + 0.5, int((~one.true[n:]).sum()) + 0.5
    odds = log(yes * not_others / (no * others))
    fires, drawn, hard = _shares(one.true, np.ones_like(one.true), pairs)
    return Claim(render([one.clause]), fires or 0.0, drawn, hard, odds, one.p, one.corrected)


# Would the commonest tokens of the examples do as a name? A control: nothing is compared, nothing is tested.


def tokens_alone(examples: Sequence[Shown], background: Sequence[Shown] = (), *, words: int = 3) -> Name:
    """The commonest tokens at dest and at src, as a sentence; the background is not looked at.

    >>> one = Shown(0, ("a", " to", " b"), 1, 0, 1.0, 1.0, "top")
    >>> tokens_alone([one]).text
    'dest is "to", and src is "a"'
    """
    if not examples:
        return Name(None, "tokens alone")
    dest = _commonest([one.tokens[one.dest] for one in examples], words)
    src = _commonest([one.tokens[one.src] for one in examples], words)
    return Name(render([Clause("dest", Word(dest)), Clause("src", Word(src))]), "tokens alone")


def _commonest(tokens: Sequence[str], words: int) -> tuple[str, ...]:
    return tuple(word for word, _ in Counter(map(normal, tokens)).most_common(words))
