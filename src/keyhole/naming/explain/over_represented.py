"""What do the examples have in common that other pairs have not? Counted and tested, told as one sentence.

Candidates are words and kinds of dest, src and their neighbours, repetitions, places and distances. The first clause
is the one that best tells examples from background,

    gain = share of examples - (share of pairs at random + share of hard negatives) / 2

of those that Fisher's exact test, corrected for all candidates, finds over-represented. Each further one is chosen in
the same way among the pairs of which all clauses so far are true, until none adds enough: so a clause that pairs at
random rarely meet is told, too, as long as the whole loses little by it. If nothing passes, there is no valid
interpretation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from jaxtyping import Bool

from keyhole.naming.explain.candidates import Pairs, candidates, pairs_of
from keyhole.naming.language.clauses import SPOTS, Clause, Spot, Word
from keyhole.naming.language.sentence import render
from keyhole.naming.name import Claim, Name
from keyhole.naming.shown import Shown
from keyhole.stats import benjamini_hochberg, fisher

_ADDS = 0.2  # of gain, by each clause, among the pairs that those before leave
_NEARLY = 0.05  # of gain: as good
_WORDS = 6  # that one clause may list
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
        if len(made.clause.says.words) < _WORDS and gain - made.gain >= _PER_WORD:
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
