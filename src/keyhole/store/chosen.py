"""Which prompts of a store have a circuit, and which few of them stand for all?"""

from collections.abc import Mapping, Sequence
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


def label_columns(store: "Store", where: Mapping[str, object]) -> dict[str, object]:
    """What is asked of a store's prompts, labels called by their own names: their columns have texts alone."""
    labels = {name: f"label_{name}" for name in store.manifest.labels}
    found = {labels.get(name, name): value for name, value in where.items()}
    return {
        name: str(value) if name in labels.values() and isinstance(value, int) else value
        for name, value in found.items()
    }


def by_template(store: "Store", prompts: Sequence[int]) -> list[int]:
    """These prompts, those of one template together.

    Tasks write a few prompts with one order of names, then as many with the other, and so on. Prompts at even distances
    may then all be of one order; of this list they are of all.
    """
    table = store.table("prompts", columns=["prompt", "template"], where={"prompt": list(prompts)})
    template = dict(zip(table["prompt"].to_pylist(), table["template"].to_pylist(), strict=True))
    return sorted(prompts, key=lambda prompt: (template[prompt] or "", prompt))


def some_prompts(store: "Store", n: int) -> list[int]:
    """At most n prompts with a circuit, as many of each template as its share."""
    return spread(by_template(store, traced_prompts(store).tolist()), n)


def spread(items: Sequence[T], n: int) -> list[T]:
    """N of these, evenly from all over.

    >>> spread(range(10), 3), spread("ab", 5), spread("", 5)
    ([0, 3, 6], ['a', 'b'], [])
    """
    n = min(n, len(items))
    return [items[i * len(items) // n] for i in range(n)]
