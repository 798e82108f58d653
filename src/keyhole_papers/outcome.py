"""What came out of an experiment? One shape for all of them, so that a report can put them side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Verdict = Literal["reproduced", "partly", "not", "untold", "needs a model", "later"]  # untold: the run cannot decide


@dataclass(frozen=True)
class Outcome:
    """One published figure or table, measured here."""

    verdict: Verdict
    measured: str  # one or two sentences with the numbers, intervals over seeds included
    numbers: Mapping[str, float | int | list[float]] = field(default_factory=dict)
    figures: tuple[Path, ...] = ()
    note: str = ""  # what stood in for what: another model, fewer seeds, a claim that does not hold
