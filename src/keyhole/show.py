"""How does Keyhole speak in a terminal? Lines, reports, bars and errors in the width there is, and JSON."""

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

_LONGEST = 2000  # characters of an error: it may quote a file
_NO_LIMIT = 100_000  # columns of a file or a pipe
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


@contextmanager
def progress(what: str) -> Iterator[None]:
    """A spinner with the time on standard error, gone when the work is done; silent when not in a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    err = _console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        bar.add_task(what, total=None)
        yield


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar that is told (done, total), on standard error; silent when not in a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    err = _console(stderr=True)
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def paced_bar(what: str, every: float = 60.0) -> Iterator[Callable[[int, int], None]]:
    """The same with rate and time left, for hours of work; where there is no terminal, a line now and then."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[pace]}"))
    err, pace, spoken = _console(stderr=True), Pace(), [time.monotonic()]
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=None, pace="")

        def tell(done: int, total: int) -> None:
            told = pace.told(done, total)
            bar.update(task, completed=done, total=total, pace=told)
            if not err.is_terminal and time.monotonic() - spoken[0] >= every:
                spoken[0] = time.monotonic()
                err.print(Text(f"{what}: {done:,} of {total:,}, {told}"), soft_wrap=True)

        yield tell


def width() -> int | None:
    """How many columns are there? None in a file or a pipe, unless COLUMNS says."""
    out = Console()
    return out.width if out.is_terminal or os.environ.get("COLUMNS", "").isdecimal() else None


def in_terminal() -> bool:
    """Does somebody read standard output as it comes?"""
    return Console().is_terminal


def rich(what: RenderableType, style: str | None = None) -> None:
    """Styled text on standard output, folded at spaces to the width."""
    _console().print(what, style=style)


def plain(text: str) -> None:
    """Text on standard output, as it is."""
    _console().print(Text(text), soft_wrap=True)


def piece(text: str) -> None:
    """A part of a text on standard output, at once and without a new line."""
    console = _console()
    console.print(Text(text), end="", soft_wrap=True)
    console.file.flush()


def report(told: Report | Section) -> None:
    """What a result says, or a part of it, on standard output."""
    made = blocks(told, width()) if isinstance(told, Report) else section_blocks(told, width())
    for block in made:
        _console().print(block, crop=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell | Text]], *, otherwise: int | None = None) -> None:
    """Rows on standard output, no cell cut; a column whose name begins with > holds numbers.

    In a file or a pipe, as wide as they are, or `otherwise`.
    """
    for made in lay_out(columns, rows, width() or otherwise):
        _console().print(made, crop=False)
        _console().print()


def tell_notes() -> None:
    """From now on, what the library notes goes to standard error, a line each."""
    logger, handler = logging.getLogger("keyhole"), logging.Handler(logging.INFO)
    handler.emit = _note  # type: ignore[method-assign]
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)


def _note(record: logging.LogRecord) -> None:
    note(record.getMessage())


def note(message: str) -> None:
    """One line on standard error, which is no error."""
    _console(stderr=True).print(Text(f"note: {message}"), soft_wrap=True)


def error(message: str) -> None:
    """One line on standard error."""
    text = Text("error: ", style="bold red") + Text(shortened(message, _LONGEST))
    _console(stderr=True).print(text, soft_wrap=True)


def as_json(record: dict[str, Any]) -> None:
    """A record on standard output, as JSON (NaN and infinity as null)."""
    print(json_text(record))


class _Console(Console):
    """Shows control characters as pictures: tokens may be any bytes, and a terminal would obey some of them."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=segment.text.translate(_PICTURES))


def _console(*, stderr: bool = False) -> Console:
    return _Console(stderr=stderr, highlight=False, width=None if stderr else width() or _NO_LIMIT)
