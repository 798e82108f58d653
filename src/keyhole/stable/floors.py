"""What have circuits in common that nobody says are the same? Pairs of other prompts, which a change must be above."""

import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from keyhole.stable.stays import Asked
from keyhole.store.chosen import some_prompts, traced_prompts

if TYPE_CHECKING:
    from keyhole.store.store import Store

Pairs = list[tuple[Asked, Asked]]
Fits = Callable[[dict[str, Any], dict[str, Any]], bool]
_MOST = 6  # labels


def floors(
    store: "Store", asked: Mapping[int, Asked], other: "Store | None", rng: random.Random
) -> tuple[dict[str, Pairs], dict[str, str]]:
    """Pairs that are not the same question, by what they share; and what there is none of.

    Partners are drawn from the whole store: of a few dozen prompts, hardly two have one wording. `other`: a store of
    another task.
    """
    labels = [f"label_{name}" for name in store.manifest.labels]
    table = store.table("prompts", columns=["prompt", "template", "answer", "text", *labels])
    traced = set(traced_prompts(store).tolist())
    every = {row["prompt"]: row for row in table.to_pylist() if row["prompt"] in traced}
    found, missing = dict[str, Pairs](), dict[str, str]()
    for name, fits in _kinds(list(every.values()), labels).items():
        some = {i: [j for j, row in every.items() if fits(row, every[i])] for i in asked}
        partners = {i: rng.choice(those) for i, those in some.items() if those}
        if partners:
            circuits = asked_of(store, partners.values())
            found[name] = [(asked[i], circuits[partner]) for i, partner in partners.items()]
        else:
            missing[name] = "no two prompts of this store are so"
    if other is not None:
        others = list(asked_of(other, some_prompts(other, len(asked))).values())
        if others:
            found["another task"] = [(one, rng.choice(others)) for one in asked.values()]
        else:
            missing["another task"] = f"{other.path} has no circuits"
    return found, missing


def _kinds(every: list[dict[str, Any]], labels: list[str]) -> dict[str, Fits]:
    """What two prompts can share: a label that not all have and some share; or nothing, not even the answer."""

    def alike(column: str) -> Fits:
        return lambda row, own: row[column] == own[column] is not None and row["text"] != own["text"]

    def tells(column: str) -> bool:
        values = {row[column] for row in every}
        return 1 < len(values) <= len(every) // 2

    shared = [column for column in ("template", *labels) if tells(column)][:_MOST]
    several = "template" in shared
    return {f"another prompt, same {column.removeprefix('label_')}": alike(column) for column in shared} | {
        "another prompt, unrelated": lambda row, own: (
            row["answer"] != own["answer"] and not (several and row["template"] == own["template"])
        )
    }


def asked_of(store: "Store", numbers: Iterable[int]) -> dict[int, Asked]:
    """Prompts of a store with their circuits, by their numbers."""
    found = store.outcomes({"prompt": sorted(set(numbers))})
    return {one.index: (one.example, one.circuit) for one in found if one.circuit is not None}
