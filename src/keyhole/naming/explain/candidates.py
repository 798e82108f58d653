"""What might be said of these pairs? Everything that is true of some, as a table of clauses against pairs."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import isqrt

import numpy as np
from jaxtyping import Bool

from keyhole.naming.judging.questions import Marked, marked
from keyhole.naming.language.clauses import Clause, Distance, true_of
from keyhole.naming.shown import Shown

_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24)  # where distances may begin; they end before the next ones
_RARE = 3  # of fewer examples, nothing can be shown
_OFTEN = 24  # pairs that are drawn from each text of the background


@dataclass(frozen=True)
class Pairs:
    """Where the signal fires, and where it does not: pairs at random, and hard negatives."""

    fires: tuple[Marked, ...]
    drawn: tuple[Marked, ...]
    hard: tuple[Marked, ...]

    @property
    def every(self) -> tuple[Marked, ...]:
        """Those that fire, then those at random, then the hard ones."""
        return (*self.fires, *self.drawn, *self.hard)


def pairs_of(examples: Sequence[Shown], background: Sequence[Shown], seed: int) -> Pairs:
    """One example of each text: several of one text say the same thing again.

    Of the background's texts any pair is one at random, so more are drawn than were kept: rare words need many.
    """
    fires = {one.tokens: marked(one) for one in reversed(examples)}  # the first of each text stays
    kept = [one for one in background if one.pick == "random"]
    rng = random.Random(seed)
    more = [_draw(one.tokens, rng) for one in {one.tokens: one for one in kept}.values() for _ in range(_OFTEN)]
    hard = tuple(dict.fromkeys(marked(one) for one in background if one.pick != "random"))
    return Pairs(tuple(reversed(fires.values())), (*(marked(one) for one in kept), *more), hard)


def _draw(tokens: tuple[str, ...], rng: random.Random) -> Marked:
    """Any visible pair, each as likely as another."""
    number = rng.randrange(len(tokens) * (len(tokens) + 1) // 2)
    dest = (isqrt(8 * number + 1) - 1) // 2
    return Marked(tokens, dest, number - dest * (dest + 1) // 2)


def candidates(pairs: Pairs) -> tuple[list[Clause], Bool[np.ndarray, "clauses pairs"]]:
    """Clauses that are true of at least three examples, and of which pairs each is true."""
    often = Counter(chain.from_iterable(map(true_of, pairs.fires)))  # no pair has a clause twice
    clauses = [clause for clause, times in often.items() if times >= _RARE]
    rows = {clause: i for i, clause in enumerate(clauses)}
    table = np.zeros((len(clauses), len(pairs.every)), dtype=bool)
    for column, pair in enumerate(pairs.every):
        table[[rows[clause] for clause in true_of(pair) if clause in rows], column] = True
    spans = _distances(max((len(pair.tokens) for pair in pairs.fires), default=0))
    far = np.array([pair.dest - pair.src for pair in pairs.every])
    spread = [(span.low <= far) & (far <= (np.inf if span.high is None else span.high)) for span in spans]
    return [*clauses, *(Clause("src", span) for span in spans)], np.concatenate([table, np.array(spread)])


def _distances(length: int) -> list[Distance]:
    """Spans of distances from each step to each; the last has no end."""
    starts = [step for step in _STEPS if step < length]
    ends = [*(step - 1 for step in starts[1:]), None]
    spans = [Distance(low, high) for i, low in enumerate(starts) for high in ends[i:]]
    return [span for span in spans if span != Distance(0, None)]
