"""Would anything pass? Names of other signals, the commonest tokens alone, random directions of the same heads.

A random direction reads something, too: where it fires most, texts often have something in common, and a name that says
so is right. So a name passes only if it is more right than random directions' names are, by its rank among theirs: of
names that say no more than these do, the nominal share passes at most. One p-value has to serve for both questions, the
larger of Fisher's and the rank's, corrected over all signals, those without a name, too: ranks count random directions
without one, and if signals without one were left out, chance would have more tries than are corrected for. Ranks among
few are coarse: n random directions give no p-value below 1 / (n + 1).
"""

import math
import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from keyhole.models.heads import Head
from keyhole.naming.judging.scores import LEVEL, Tested
from keyhole.stats import benjamini_hochberg

SHUFFLED, ALONE, RANDOM, RANDOM_PASS = "shuffled names", "tokens alone", "random directions", "random that pass"


def beyond(own: Sequence[Tested | None], others: Sequence[Tested | None]) -> list[Tested | None]:
    """The same tests beside those of random directions: how many of these do as well? None stays None.

    As well: at least its accuracy, and of equal ones at least its AUC. One without a name, or untested, does worse
    than all. The signal counts among them, or the first would have a p-value of zero.
    """
    ranks = sorted(_rank(one) for one in others)
    if not ranks:
        return list(own)
    shares = [1.0 if one is None else _as_well(one, ranks) for one in own]
    both = benjamini_hochberg([1.0 if one is None else max(one.p, p) for one, p in zip(own, shares, strict=True)])
    return [
        None if one is None else replace(one, beyond=p, passing=corrected)
        for one, p, corrected in zip(own, shares, both, strict=True)
    ]


def too_few(random_directions: int) -> str | None:
    """Why no name can pass beside so few random directions, and how many it takes; None: they suffice.

    >>> print(too_few(10))
    no name can pass: beside 10 random directions the smallest p-value is 1/11, above 0.05. Take --random 19 or more.
    """
    least = math.ceil(1 / LEVEL) - 1
    if random_directions >= least:
        return None
    smallest = f"beside {random_directions} random directions the smallest p-value is 1/{random_directions + 1}"
    return f"no name can pass: {smallest}, above {LEVEL}. Take --random {least} or more."


def _as_well(one: Tested, ranks: Sequence[tuple[float, float]]) -> float:
    return (1 + len(ranks) - bisect_left(ranks, _rank(one))) / (1 + len(ranks))


def _rank(one: Tested | None) -> tuple[float, float]:
    return (-1.0, 0.0) if one is None else (one.accuracy, one.auc or 0.0)


def shuffled(heads: Sequence[Head], seed: int = 0) -> list[int | None]:
    """For each signal another one of a different head, whose name it gets; None: all others are of its own head.

    Every name is given away at most once. Sorted by head and moved on by the largest head's number of signals, no
    signal meets its own head unless this head has more than half of all.

    >>> shuffled([(0, 0), (0, 0)]), shuffled([(0, 0), (3, 1)])
    ([None, None], [1, 0])
    """
    rng, order = random.Random(seed), list(range(len(heads)))
    rng.shuffle(order)
    ranks = {head: rng.random() for head in sorted(set(heads))}
    order.sort(key=lambda i: ranks[heads[i]])  # stable: within a head, as shuffled
    step = max((heads.count(head) for head in ranks), default=0)
    found: list[int | None] = [None] * len(heads)
    for at, i in enumerate(order):
        other = order[(at + step) % len(order)]
        found[i] = other if heads[other] != heads[i] else None
    return found
