"""Where is a result now? Written as JSON, as a page, as a table or as a figure, by the suffix of the path."""

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Protocol

from matplotlib.figure import Figure

from keyhole.figures.style import SUFFIXES, save
from keyhole.files import json_text, require_file, write_at_once

WRITTEN = (".json", ".html", ".csv", *SUFFIXES)


class Result(Protocol):
    """What can be written: a record with a page, a picture and a table."""

    def record(self) -> dict[str, Any]:
        """As plain data."""

    def to_html(self) -> str:
        """As a page."""

    def plot(self) -> Figure:
        """As a picture."""

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """As columns and rows."""


def save_result(result: Result, path: Path | str) -> Path:
    """Write a result; what cannot be written is refused."""
    path = require_file(path, WRITTEN)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return save(result.plot(), path)
    if suffix == ".csv":
        out = StringIO()
        columns, rows = result.table()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([name.removeprefix(">") for name in columns])
        writer.writerows(rows)
        write_at_once(path, out.getvalue())
    else:
        write_at_once(path, result.to_html() if suffix == ".html" else json_text(result.record()) + "\n")
    return path
