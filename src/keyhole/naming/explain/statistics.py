"""What do the examples have in common that other pairs have not? Counted and tested, told as one sentence.

Candidates are words and kinds of dest, src and their neighbours, repetitions, places and distances. The first clause
is the one that best tells examples from background,

    gain = share of examples - (share of pairs at random + share of hard negatives) / 2

of those that Fisher's exact test, corrected for all candidates, finds over-represented. Each further one is chosen in
the same way among the pairs of which all clauses so far are true, until none adds enough. If nothing passes, there is
no valid interpretation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from jaxtyping import Bool

from keyhole.naming.clauses import SPOTS, Clause, Spot, Word
from keyhole.naming.explain.candidates import Pairs, candidates, pairs_of
from keyhole.naming.name import Claim, Name
from keyhole.naming.sentence import render
from keyhole.naming.shown import Shown
from keyhole.stats import benjamini_hochberg, fisher

_ADDS = 0.05  # of gain, by each clause: as much as one of ten questions at least half the time
_WORDS = 6  # that one clause may list
_PER_WORD = 0.02  # of gain, that a further word in a list must bring


@dataclass(frozen=True)
class _Choice:
    """A clause that might be next: of which pairs it is true, what it brings, and how likely that is by chance."""

    clause: Clause
    true: Bool[np.ndarray, "pairs"]
    gain: float  # of it and those before
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
    """The sentence that best tells examples from background, of at most so many clauses."""
    pairs = pairs_of(examples, background, seed)
    if not pairs.fires or not pairs.drawn:
        return Name(None, "statistics")
    names, table = candidates(pairs)
    left, chosen = np.ones(table.shape[1], dtype=bool), list[_Choice]()
    while len(chosen) < clauses:
        best = _best(names, table, left, pairs, level)
        if best is None or best.gain - _gain(left, pairs) < _ADDS:
            break
        chosen.append(best)
        left = left & best.true
    kept = _needed(chosen, pairs)
    if not kept:
        return Name(None, "statistics")
    return Name(render(one.clause for one in kept), "statistics", tuple(_claim(one, pairs) for one in kept))


def _gain(true: Bool[np.ndarray, "pairs"], pairs: Pairs) -> float:
    """By how much this is truer of the examples than of the others, hard ones and those at random alike."""
    fires, drawn, hard = _shares(true, pairs)
    return fires - (drawn if hard is None else (drawn + hard) / 2)


def _shares(true: Bool[np.ndarray, "pairs"], pairs: Pairs) -> tuple[float, float, float | None]:
    n, m = len(pairs.fires), len(pairs.fires) + len(pairs.drawn)
    return float(true[:n].mean()), float(true[n:m].mean()), float(true[m:].mean()) if pairs.hard else None


def _best(
    names: list[Clause],
    table: Bool[np.ndarray, "clauses pairs"],
    left: Bool[np.ndarray, "pairs"],
    pairs: Pairs,
    level: float,
) -> _Choice | None:
    """The clause, or the list of words, that gains most among those that pass; the simpler of equal ones."""
    n, among = len(pairs.fires), table & left
    of, of_others = int(left[:n].sum()), int(left[n:].sum())
    some, others = among[:, :n].sum(1).tolist(), among[:, n:].sum(1).tolist()
    ps = [fisher(a, of, b, of_others) if a * of_others > b * of else 1.0 for a, b in zip(some, others, strict=True)]
    corrected = benjamini_hochberg(ps)
    passing = [
        _Choice(names[i], table[i], _gain(among[i], pairs), ps[i], corrected[i])
        for i in range(len(names))
        if corrected[i] <= level
    ]
    lists = [made for spot in SPOTS if (made := _listed(passing, spot, left, pairs)) is not None]
    return max([*passing, *lists], key=lambda one: (round(one.gain, 9), -one.p), default=None)


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
        gain = _gain(true & left, pairs)
        if len(made.clause.says.words) < _WORDS and gain - made.gain >= _PER_WORD:
            both = Clause(spot, Word(made.clause.says.words + one.clause.says.words))
            made = _Choice(both, true, gain, max(made.p, one.p), max(made.corrected, one.corrected))
    return made


def _needed(chosen: list[_Choice], pairs: Pairs) -> list[_Choice]:
    """Without those that later ones have made idle: a name is a capitalised word anyway."""
    kept = list(chosen)
    for one in chosen:
        rest = [other for other in kept if other is not one]
        if rest and _gain(_all(kept), pairs) - _gain(_all(rest), pairs) < _PER_WORD:
            kept = rest
    return kept


def _all(choices: list[_Choice]) -> Bool[np.ndarray, "pairs"]:
    return np.logical_and.reduce([one.true for one in choices])


def _claim(one: _Choice, pairs: Pairs) -> Claim:
    n = len(pairs.fires)
    yes, no = int(one.true[:n].sum()) + 0.5, int((~one.true[:n]).sum()) + 0.5
    others, not_others = int(one.true[n:].sum()) + 0.5, int((~one.true[n:]).sum()) + 0.5
    odds = log(yes * not_others / (no * others))
    return Claim(render([one.clause]), *_shares(one.true, pairs), odds, one.p, one.corrected)
