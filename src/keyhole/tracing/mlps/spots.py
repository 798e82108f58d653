"""At which tokens of which runs? MLPs of several runs of a model are explained together."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyhole.tracing.upstream import Writes


@dataclass(frozen=True, eq=False)
class Spot:
    """One token of one run."""

    writes: "Writes"
    token: int


def by_run(spots: Sequence[Spot]) -> list[tuple["Writes", list[int]]]:
    """The tokens of each run; spots of a run stand together."""
    runs = [list(group) for _, group in groupby(spots, key=lambda spot: id(spot.writes))]
    return [(group[0].writes, [spot.token for spot in group]) for group in runs]
