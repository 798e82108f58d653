"""Experiments whose records are still judged and told apart: until they are findings."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol

from matplotlib.figure import Figure

from keyhole_papers.choices import Heeded
from keyhole_papers.experiment import Record, drawn, undrawn
from keyhole_papers.finding import Finding
from keyhole_papers.job import Job
from keyhole_papers.provenance import Provenance
from keyhole_papers.results import Numbers, Result, Verdict
from keyhole_papers.svt.ioi import is_gpt2, of_gpt2


class Asking(Protocol):
    """A job, or a record of one: it knows which model was asked for."""

    @property
    def model(self) -> str | None:
        """As it was named."""


@dataclass(frozen=True)
class Told:
    """A record in words and numbers."""

    measured: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Experiment(Generic[Record]):
    """How a published item is measured, judged and told."""

    measure: Callable[[Job], Record]
    judge: Callable[[Record], Verdict]
    tell: Callable[[Record], Told]
    draw: Callable[[Record], Mapping[str, Figure]] = undrawn
    heeds: frozenset[Heeded] = frozenset()

    def __call__(self, job: Job) -> Result:
        """The item, measured here and now."""
        return self.result(self.measure(job), job.folder)

    def result(self, record: Record, folder: Path) -> Result:
        """What a record comes to, with its pictures in a folder."""
        told = self.tell(record)
        figures = drawn(self.draw(record), folder)
        return Result("", self.judge(record), told.measured, told.numbers, figures, told.note)


Is = Callable[[str | None], bool]


def judged(of: Asking, holds: Sequence[bool], *, first: bool = True, real: Is = is_gpt2) -> Verdict:
    """What all claims together come to."""
    return Provenance(of.model, real(of.model)).verdict(holds, first=first)


def stood_in(of: Asking, name: str = "GPT-2 small", *, real: Is = is_gpt2) -> str:
    """Which model stood in for the published one?"""
    return Provenance(of.model, real(of.model), name).stood_in


def measured_on(of: Any, *, roles: bool = False) -> str:
    """On which prompts, on which model, and how its heads were given their roles."""
    return of_gpt2(of.model, of.about, roles=roles).text


def numbered(parts: Mapping[Any, Mapping[str, Any]]) -> Numbers:
    """As numbers of a result, each with the name of its part."""
    rows = (Finding(name, value, part=str(part)) for part, own in parts.items() for name, value in own.items())
    return {row.key: row.number if row.number is not None else [] for row in rows}
