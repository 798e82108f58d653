"""Would anything pass? Names of other signals, and the commonest tokens alone, before the same judge and questions."""

import random
from collections.abc import Sequence

Head = tuple[int, int]


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
