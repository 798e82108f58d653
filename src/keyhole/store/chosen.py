"""Which prompts of a store have a circuit, and which few of them stand for all?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from jaxtyping import Int

if TYPE_CHECKING:
    from keyhole.store.reading import Where
    from keyhole.store.store import Store

T = TypeVar("T")


def traced_prompts(store: "Store", where: "Where" = None) -> Int[np.ndarray, "circuits"]:
    """The prompts that have a circuit, of those that `where` (of the table `prompts`) asks for; in order."""
    found = store.table("prompts", columns=["prompt"], where=where)["prompt"].to_numpy()
    return np.intersect1d(found, store.table("circuits", columns=["prompt"])["prompt"].to_numpy())


def spread(items: Sequence[T], n: int) -> list[T]:
    """N of these from all over: stores are often sorted by wording.

    >>> spread(range(10), 3), spread("ab", 5), spread("", 5)
    ([0, 3, 6], ['a', 'b'], [])
    """
    n = min(n, len(items))
    return [items[i * len(items) // n] for i in range(n)]
