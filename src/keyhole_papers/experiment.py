"""What is an experiment? Three short functions: one measures, and its record is read as findings, and drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from matplotlib.figure import Figure

from keyhole.figures import save
from keyhole_papers.choices import Heeded
from keyhole_papers.finding import Findings
from keyhole_papers.job import Job
from keyhole_papers.results import Result

Record = TypeVar("Record")


def undrawn(record: object) -> Mapping[str, Figure]:
    """No picture."""
    return {}


@dataclass(frozen=True)
class Experiment(Generic[Record]):
    """How a published item is measured; findings and pictures follow from the record alone."""

    measure: Callable[[Job], Record]  # all of the work; a frozen dataclass
    findings: Callable[[Record], Findings]
    draw: Callable[[Record], Mapping[str, Figure]] = undrawn  # pictures by the names of their files
    heeds: frozenset[Heeded] = frozenset()  # choices that change what is measured

    def __call__(self, job: Job) -> Result:
        """The item, measured here and now."""
        return self.result(self.measure(job), job.folder)

    def result(self, record: Record, folder: Path) -> Result:
        """What a record comes to, with its pictures in a folder."""
        found = self.findings(record)
        return Result("", found.verdict, found.measured, found.numbers, drawn(self.draw(record), folder), found.note)


def drawn(figures: Mapping[str, Figure], folder: Path) -> tuple[str, ...]:
    """Pictures saved in a folder: their names there."""
    return tuple(save(figure, folder / f"{name}.png").name for name, figure in figures.items())
