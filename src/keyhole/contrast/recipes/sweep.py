"""Does a feature's rank grow with the number of entities? The same contrast with two, three, ... of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keyhole.contrast.data.sites import Contrast
from keyhole.contrast.features.finding import find_features
from keyhole.contrast.onepass.collect import collect
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class RankRow:
    """One head's ranks with so many entities."""

    head: Head
    entities: int
    energy: int
    null: int
    halves: int


def sweep_ranks(
    model: "Model",
    make: Callable[[int], Contrast],
    counts: Sequence[int],
    heads: Sequence[Head],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[RankRow, ...]:
    """Ranks of some heads for contrasts with each number of entities; `options` as in `collect` and `find_features`."""
    if not counts or not heads:
        raise KeyholeError("a sweep needs numbers of entities and heads.")
    passed = {name: options.pop(name) for name in ("frame", "negatives", "seed") if name in options}
    rows = []
    for done, count in enumerate(counts):
        features = find_features(collect(model, make(count), **passed), **options)
        if features.null is None or features.halves is None:
            raise KeyholeError("a sweep tells ranks by permutations: ask for at least one.")
        for head in heads:
            at = features.at(head)
            ranks = (int(table[at]) for table in (features.energy, features.null, features.halves))
            rows.append(RankRow(head, count, *ranks))
        if progress is not None:
            progress(done + 1, len(counts))
    return tuple(rows)
