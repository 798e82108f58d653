"""What do two circuits have in common? Jaccard of heads, edges, channels, and of influence; and how that reads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.family.sets import circuit_sets
from keyhole.stats import Interval, as_text, interval
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("heads", "edges", "channels", "influence")
Asked = tuple[Example, Circuit]


@dataclass(frozen=True)
class Stays:
    """One change, and how much of each prompt's circuit stayed."""

    __repr__ = brief

    name: str
    floor: bool  # a comparison of circuits that nobody says are the same
    jaccard: Mapping[str, tuple[float, ...]]  # of each prompt, by measure
    refused: Mapping[str, int]  # how many prompts could not be compared, by reason

    @property
    def n(self) -> int:
        """How many pairs were compared."""
        return len(self.jaccard["heads"])

    def told(self, measure: str) -> Interval | None:
        """The mean, and its 95 % interval within what is possible; None where it was not measured."""
        values = self.jaccard.get(measure, ())
        if not values:
            return None
        mean, low, high = interval(values)
        return Interval(mean, max(low, 0.0), min(high, 1.0))  # in this order NaN, of a single pair, stays NaN


@dataclass(frozen=True)
class Stability:
    """How much of a model's circuits of a task stays."""

    __repr__ = brief

    model: str
    task: str
    prompts: int
    roles: bool
    rows: tuple[Stays, ...]
    left_out: Mapping[str, str]  # changes that do not fit, and why

    def __getitem__(self, name: str) -> Stays:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyholeError(f"there is no change {name!r}: there are {', '.join(row.name for row in self.rows)}.")

    def record(self) -> dict[str, Any]:
        """As plain data."""
        rows = [
            {"change": row.name, "floor": row.floor, "n": row.n, **{m: row.told(m) for m in MEASURES}}
            | {"refused": dict(row.refused)}
            for row in self.rows
        ]
        told = {"model": self.model, "task": self.task, "prompts": self.prompts, "roles": self.roles}
        return {**told, "rows": rows, "left_out": dict(self.left_out)}

    @property
    def cells(self) -> tuple[tuple[str, ...], list[tuple[str | int | None, ...]]]:
        """Columns and rows of a table."""
        rows = []
        for row in self.rows:
            told = [row.told(measure) for measure in MEASURES]
            cells = [None if one is None else as_text(one, 2) for one in told]
            rows.append((row.name, row.n, *cells))
        return ("change", ">n", *(f">{measure}" for measure in MEASURES)), rows

    @property
    def summary(self) -> str:
        """What was done, in words, and what could not be."""
        where = "with the roles of tokens" if self.roles else "without tokens"
        told = (
            f"{self.model}, {self.task}: Jaccard of {self.prompts} circuits with those of a changed question, {where}. "
            "Influence: shares of the answer that pass the same heads and MLPs. 95 % intervals over prompts."
        )
        refused = [f"{row.name}: {n} not compared ({why})" for row in self.rows for why, n in row.refused.items()]
        left = [f"{name}: left out, for {why}" for name, why in self.left_out.items()]
        return "\n".join([told, *refused, *left])

    def __str__(self) -> str:
        lines = [
            f"{row.name:<28} n {row.n:>3}  "
            + "  ".join(f"{m} {as_text(told, 2)}" for m in MEASURES if (told := row.told(m)) is not None)
            for row in self.rows
        ]
        return "\n".join([*lines, self.summary])

    def plot(self) -> "Figure":
        """How much stays, beside the floors. See `keyhole.figures.store.stability`."""
        from keyhole.figures.store.stability import stability_figure

        return stability_figure(self)

    def to_html(self) -> str:
        """One page. See `keyhole.figures.store.stability`."""
        from keyhole.figures.store.stability import stability_page

        return stability_page(self)

    def save(self, path: str | Path) -> Path:
        """Write .json, .html (a page), .csv (a row for each change and measure), or a figure: .png, .svg or .pdf."""
        from keyhole.figures.results import save_result

        return save_result(self, path)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str | float, ...]]]:
        """Columns and rows: a row for each change and measure."""
        columns = ("change", ">n", "measure", ">jaccard", ">low", ">high")
        every = [(row, measure, row.told(measure)) for row in self.rows for measure in MEASURES]
        return columns, [(row.name, row.n, measure, *told) for row, measure, told in every if told is not None]


def in_common(pairs: Sequence[tuple[Asked, Asked]], *, roles: bool = False) -> dict[str, tuple[float, ...]]:
    """Jaccard of every pair by every measure; by influence, only where circuits have some."""
    examples, circuits = (list(column) for column in zip(*_flat(pairs), strict=True))
    weighs = all(circuit.influence for circuit in circuits)
    found = {}
    for measure in MEASURES if weighs else MEASURES[:-1]:
        granularity: Any = "heads" if measure == "influence" else measure
        sets = circuit_sets(circuits, granularity, role=roles, weighted=measure == "influence", examples=examples)
        found[measure] = tuple(jaccard_of_pairs(sets.matrix[::2], sets.matrix[1::2]).tolist())
    return found


def jaccard_of_pairs(one: Any, other: Any) -> Float[np.ndarray, "pairs"]:
    """Row by row of two sparse matrices: what both have over what any has, with its weight; 1 of two empty ones.

    >>> from scipy.sparse import csr_array
    >>> jaccard_of_pairs(csr_array([[1.0, 1, 0]]), csr_array([[0, 1.0, 1]]))
    array([0.33333333])
    """
    both, every = (np.asarray(part.sum(1)).ravel() for part in (one.minimum(other), one.maximum(other)))
    return np.where(every > 0, both / np.where(every > 0, every, 1), 1.0)


def _flat(pairs: Iterable[tuple[Asked, Asked]]) -> list[Asked]:
    return [asked for pair in pairs for asked in pair]
