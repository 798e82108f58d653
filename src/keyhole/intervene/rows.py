"""What did removals do? One row each, and all those of a circuit."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any, Literal

from keyhole.brief import brief
from keyhole.circuits.circuit import EdgeSide
from keyhole.intervene.remove import Mode

AGREES = 1e-4  # how close prediction and measurement must be
What = Literal["side", "signal", "causes", "chain"]


@dataclass(frozen=True)
class Row:
    """One removal.

    `side`    all signals of one side of a firing: its attention
    `signal`  one signal (edge) of a firing: its attention
    `causes`  all causes of an MLP, taken from what it reads: what is left of its write, as a share
    `chain`   the same, and what that changes put into one reader (edge) alone: a firing's attention, what is left of
              another MLP's write, or the answer; under global removal, into everything
    """

    node: int
    side: EdgeSide
    edge: int | None
    before: float
    after: float
    predicted: float
    agrees: bool | None  # None where no particular value is promised: global removal, and the answer
    metric_before: float
    metric_after: float
    control_drops: tuple[float, ...]
    control_metrics: tuple[float, ...]
    norm_ratio: float
    cosine: float
    what: What = "side"

    @property
    def drop(self) -> float:
        """How much attention, write or answer was lost."""
        return self.before - self.after

    @property
    def control(self) -> float:
        """Mean absolute drop of the controls."""
        return mean(abs(d) for d in self.control_drops) if self.control_drops else float("nan")


@dataclass(frozen=True)
class Verification:
    """All removals of one circuit."""

    mode: Mode  # how signals were removed
    draws: int  # random controls for each removal
    rows: tuple[Row, ...]  # a removal each
    note: str = ""  # what could not be measured, and why

    @property
    def sides(self) -> tuple[Row, ...]:
        """Whole sides of firings."""
        return tuple(row for row in self.rows if row.what == "side")

    @property
    def edges(self) -> tuple[Row, ...]:
        """Single signals."""
        return tuple(row for row in self.rows if row.what == "signal")

    @property
    def causes(self) -> tuple[Row, ...]:
        """Causes of MLPs."""
        return tuple(row for row in self.rows if row.what == "causes")

    def chains(self, *sides: EdgeSide) -> tuple[Row, ...]:
        """Causes of MLPs, seen in what reads them: firings ("dest", "src": the default), MLPs, the answer."""
        return tuple(row for row in self.rows if row.what == "chain" and row.side in (sides or ("dest", "src")))

    @property
    def agrees(self) -> bool:
        """Does all that is measured equal what was predicted, where something was?"""
        return all(row.agrees is not False for row in self.rows)

    def ratio(self, rows: "Sequence[Row] | None" = None) -> float:
        """Median drop over the median absolute drop of the controls (of whole sides, unless rows are given)."""
        rows = self.sides if rows is None else rows
        controls = [abs(d) for row in rows for d in row.control_drops]
        if not rows or not controls:
            return float("nan")
        return median(row.drop for row in rows) / max(median(controls), 1e-12)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        groups = {"sides": self.sides, "signals": self.edges, "causes": self.causes}
        groups |= {"firings": self.chains(), "mlps": self.chains("mlp"), "answer": self.chains("target")}
        ratios = {name: self.ratio(group) for name, group in groups.items() if group}
        told = {"mode": self.mode, "agrees": self.agrees, "ratio": self.ratio(), "ratios": ratios, "note": self.note}
        return {**told, "rows": [{**asdict(row), "drop": row.drop, "control": row.control} for row in self.rows]}

    def __str__(self) -> str:
        from keyhole.intervene.report import verification_text

        return verification_text(self)

    __repr__ = brief

    def _repr_html_(self) -> str:
        from keyhole.web.reprs import verification_html

        return verification_html(self)
