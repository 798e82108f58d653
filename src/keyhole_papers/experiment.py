"""What is an experiment? Four short functions: one measures, and its record is judged, told and drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from matplotlib.figure import Figure

from keyhole.figures import save
from keyhole_papers.choices import Heeded
from keyhole_papers.job import Job
from keyhole_papers.outcome import Outcome, Verdict

Record = TypeVar("Record")


@dataclass(frozen=True)
class Told:
    """A record in words and numbers."""

    measured: str  # one or two sentences with the numbers, intervals over seeds included
    numbers: Mapping[str, float | int | list[float]] = field(default_factory=dict)
    note: str = ""  # what was asked, and what stood in for what


def undrawn(record: object) -> Mapping[str, Figure]:
    """No picture."""
    return {}


@dataclass(frozen=True)
class Experiment(Generic[Record]):
    """How a published item is measured, and what is made of that. Verdicts follow from the record alone."""

    measure: Callable[[Job], Record]  # all of the work; a frozen dataclass
    judge: Callable[[Record], Verdict]
    tell: Callable[[Record], Told]
    draw: Callable[[Record], Mapping[str, Figure]] = undrawn  # pictures by the names of their files
    heeds: frozenset[Heeded] = frozenset()  # choices that change what is measured

    def __call__(self, job: Job) -> Outcome:
        """The item, measured here and now."""
        return self.outcome(self.measure(job), job.folder)

    def outcome(self, record: Record, folder: Path) -> Outcome:
        """What a record comes to, with its pictures in a folder."""
        told = self.tell(record)
        figures = tuple(save(figure, folder / f"{name}.png") for name, figure in self.draw(record).items())
        return Outcome(self.judge(record), told.measured, told.numbers, figures, told.note)
