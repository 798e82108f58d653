"""What does a result say? Sections of texts, tables and pictures; whoever shows it decides how they look.

A result says it once, in its method `report`. Its text (`terminal.py`), its page (`page.py`), what a notebook shows,
and its files follow from that: see `Reported`.
"""

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keyhole.errors import KeyholeError
from keyhole.files import json_text, require_file, write_at_once

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
WRITTEN = (".json", ".html", ".csv", *PICTURES)
DPI = 160  # of pictures that are not drawn as lines


@dataclass(frozen=True)
class Spans:
    """A text of which pieces are marked: each with "" or the name of its mark, such as dest."""

    parts: Sequence[tuple[str, str]]

    def __str__(self) -> str:
        return "".join(text for text, _ in self.parts)


@dataclass(frozen=True)
class Bar:
    """A part of the longest value, between -1 and 1, as a bar whose colour is its sign's; NaN is none."""

    share: float
    signed: bool = True  # does a page begin it in the middle, or at the left?

    def __str__(self) -> str:
        return f"{self.share:.3f}"


Cell = str | float | int | Spans | Bar | None


class Table(NamedTuple):
    """Columns and rows. A column whose name begins with > holds numbers: they stand on the right and never fold.

    Cells are texts, or numbers that are written to three digits; None and NaN are dashes. A table without rows is
    not shown.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def as_csv(self) -> str:
        """Numbers with all of their digits.

        >>> Table(("head", ">share"), [("3.6", 0.5)]).as_csv().splitlines()
        ['head,share', '3.6,0.5']
        """
        out = StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([name.removeprefix(">") for name in self.columns])
        writer.writerows(self.rows)
        return out.getvalue()


@dataclass(frozen=True)
class Picture:
    """A figure that is drawn once it is looked at: drawing takes a second, and a terminal has no use for it."""

    draw: "Callable[[], Figure]"
    alt: str  # what it shows, for those who cannot see it


@dataclass(frozen=True)
class Section:
    """A part of a report. Paragraphs of a text are separated by an empty line; empty texts are left out."""

    heading: str
    parts: Sequence[str | Table | Picture]
    linked: bool = True  # is it in the page's list of contents?
    page_only: bool = False  # is it too long for a terminal?

    @property
    def shown(self) -> Sequence[str | Table | Picture]:
        """Its parts that hold anything; a section without any is left out."""
        return [part for part in self.parts if (part.rows if isinstance(part, Table) else part)]

    def __post_init__(self) -> None:
        for table in (part for part in self.parts if isinstance(part, Table)):
            if any(len(row) != len(table.columns) for row in table.rows):
                raise KeyholeError(
                    f"a table of {len(table.columns)} columns has rows of other lengths: {self.heading}."
                )


@dataclass(frozen=True)
class Report:
    """What a result says."""

    title: str
    summary: str  # what was done and what came of it, without which no number below is understood
    sections: Sequence[Section]
    table: Table | None = None  # what a .csv file has: numbers to go on with
    picture: Picture | None = None  # what a picture's file has


class Reported(ABC):
    """A result that can be read: it has `report` and `record`, from which all ways to show and keep it follow."""

    @abstractmethod
    def report(self) -> Report:
        """What it says."""

    @abstractmethod
    def record(self) -> dict[str, Any]:
        """As plain data: what JSON has."""

    def plot(self) -> "Figure":
        """Its figure; raises KeyholeError if there is nothing to draw."""
        picture = self.report().picture
        if picture is None:
            raise KeyholeError(f"a {type(self).__name__} has no figure: save it as .json, .html or .csv.")
        return picture.draw()

    def table(self) -> Table:
        """Columns and rows, with all digits: what a .csv file has."""
        table = self.report().table
        if table is None:
            raise KeyholeError(f"a {type(self).__name__} has no table of its own: save it as .json or .html.")
        return table

    def to_html(self) -> str:
        """One self-contained page."""
        from keyhole.report.page import as_html

        return as_html(self.report())

    def save(self, path: Path | str) -> Path:
        """Write it: .json (all numbers), .html (a page), .csv (its table), or its figure as .png, .svg or .pdf.

        Args:
            path: The file; its suffix says which kind.
        """
        from keyhole.figures.style import save

        path = require_file(path, WRITTEN)
        suffix = path.suffix.lower()
        if suffix in PICTURES:
            return save(self.plot(), path)
        forms = {".json": lambda: json_text(self.record()) + "\n", ".csv": lambda: self.table().as_csv()}
        write_at_once(path, forms.get(suffix, self.to_html)())
        return path

    def __str__(self) -> str:
        from keyhole.report.terminal import as_text

        return as_text(self.report())

    def _repr_html_(self) -> str:
        from keyhole.web.notebook import Page

        report = self.report()
        return Page(report.title, self.to_html())._repr_html_()
