"""Would anything pass? Names of other signals, the commonest tokens alone, random directions of the same heads.

A random direction reads something, too: where it fires most, texts often have something in common, and a name that says
so is right. So beside whether a name is right stands whether it is more than a random direction's would be: its rank
among theirs. By that, random directions pass at the nominal rate, whatever can be said of them;
20 of them or more are needed for anything to pass at 5 %.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence

from keyhole.naming.scores import Tested

Head = tuple[int, int]


def beyond(own: Sequence[Tested | None], others: Sequence[Tested | None]) -> list[float | None]:
    """How many random directions do as well as each signal? p-values; None: it has no test, or there are no others.

    As well: at least its accuracy, and of equal ones at least its AUC. One without a name, or untested, does worse
    than all. The signal counts among them, or the first would have a p-value of zero.
    """
    ranks = sorted(_rank(one) for one in others)
    return [
        (1 + len(ranks) - bisect_left(ranks, _rank(one))) / (1 + len(ranks)) if one is not None and ranks else None
        for one in own
    ]


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
