"""Output in a terminal: lines, reports, tables, progress bars and errors, folded to its width; and JSON."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from keyhole.files import json_text
from keyhole.progress import Pace
from keyhole.report.report import Cell, Report, Section
from keyhole.report.terminal import blocks, lay_out, section_blocks
from keyhole.strict import shortened

_LONGEST = 2000  # characters of an error, which may quote a file
_NO_LIMIT = 100_000  # columns of a file or a pipe
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


@contextmanager
def progress(title: str) -> Iterator[None]:
    """A spinner with the time on standard error, gone when the work is done; silent when not in a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    err = _console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        bar.add_task(title, total=None)
        yield


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, as a function of (done, total); silent when not in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    err = _console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def paced_bar(title: str, every: float = 60.0) -> Iterator[Callable[[int, int], None]]:
    """A bar with rate and time left, for hours of work; without a terminal, a line every so many seconds."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    err, pace, spoken = _console(stderr=True), Pace(), [time.monotonic()]
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(title, total=None, pace="")

        def tell(done: int, total: int) -> None:
            pace_text = pace.text(done, total)
            bar.update(task, completed=done, total=total, pace=pace_text)
            if not err.is_terminal and time.monotonic() - spoken[0] >= every:
                spoken[0] = time.monotonic()
                err.print(Text(f"{title}: {done:,} of {total:,}, {pace_text}"), soft_wrap=True)

        yield tell


def width() -> int | None:
    """The number of columns; None in a file or a pipe, unless COLUMNS gives it."""
    out = Console()
    return out.width if out.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else None


def in_terminal() -> bool:
    """Does somebody read standard output as it comes?"""
    return Console().is_terminal


def rich(renderable: RenderableType, style: str | None = None) -> None:
    """Print styled text on standard output, folded at spaces to the width."""
    _console().print(renderable, style=style)


def plain(text: str) -> None:
    """Print text on standard output, unchanged."""
    _console().print(Text(text), soft_wrap=True)


def piece(text: str) -> None:
    """Print a part of a text on standard output, at once and without a new line."""
    console = _console()
    console.print(Text(text), end="", soft_wrap=True)
    console.file.flush()


def report(result: Report | Section) -> None:
    """Print a report, or a section of it, on standard output."""
    shown = blocks(result, width()) if isinstance(result, Report) else section_blocks(result, width())
    for block in shown:
        _console().print(block, crop=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell | Text]], *, otherwise: int | None = None) -> None:
    """Print rows on standard output, with no cell cut; a column whose name begins with > is aligned to the right.

    In a file or a pipe, the table is as wide as it needs, or `otherwise` columns.
    """
    for part in lay_out(columns, rows, width() or otherwise):
        _console().print(part, crop=False)
        _console().print()


def tell_notes() -> None:
    """From now on, print messages of the library's loggers on standard error."""
    logger, handler = logging.getLogger("keyhole"), logging.Handler(logging.INFO)
    handler.emit = _note  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def _note(record: logging.LogRecord) -> None:
    note(record.getMessage())


def note(message: str) -> None:
    """Print a note on standard error."""
    _console(stderr=True).print(Text(f"note: {message}"), soft_wrap=True)


def error(message: str) -> None:
    """Print an error on standard error."""
    text = Text("error: ", style="bold red") + Text(shortened(message, _LONGEST))
    _console(stderr=True).print(text, soft_wrap=True)


def as_json(record: dict[str, Any]) -> None:
    """Print a record on standard output, as JSON (NaN and infinity as null)."""
    print(json_text(record))


class _Console(Console):
    """Prints control characters as symbols: tokens may be any bytes, and a terminal would obey some of them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(_PICTURES))


def _console(*, stderr: bool = False) -> Console:
    return _Console(stderr=stderr, highlight=False, width=None if stderr else width() or _NO_LIMIT)
