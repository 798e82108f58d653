"""How do results look in a terminal? Lines, bars, JSON, and tables that fit its width.

How does a table fit a terminal? Words fold, columns move below; no cell is ever cut.

A number that loses its last digits is a wrong number, so there are only two ways to save width. Texts fold at their
spaces, the widest column first. What is still too wide is continued in a second table under the first, which repeats
the names of the rows.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from keyhole.files import json_text
from keyhole.progress import Pace
from keyhole.strict import shortened

Cell = str | Text
_GAP = 2  # between two columns: the box's and the padding


@dataclass(frozen=True)
class _Shape:
    """One column: its name, whether it holds numbers, and the widths at which nothing in it is cut."""

    name: str
    number: bool
    narrowest: int
    widest: int


def lay_out(columns: Sequence[str], rows: Sequence[Sequence[Cell]], width: int | None) -> list[Table]:
    """One table, or several under each other where one would be wider than `width` (None: there is no limit).

    A column whose name begins with > holds numbers: it is aligned right and its cells do not fold. The columns before
    the first such one name the rows, or else the first column does.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    shapes = [_shape(name, [row[i] for row in cells]) for i, name in enumerate(columns)]
    numbers = [i for i, shape in enumerate(shapes) if shape.number]
    names = list(range(max(1, numbers[0] if numbers else 1)))
    return [_table(shapes, cells, part, width) for part in _parts(shapes, names, width)]


def _shape(name: str, cells: Sequence[Text]) -> _Shape:
    number, title = name.startswith(">"), Text(name.removeprefix(">"))
    whole = max((cell.cell_len for cell in cells), default=0)
    narrowest = max([_longest_word(title), whole if number else max(map(_longest_word, cells), default=0)])
    return _Shape(title.plain, number, narrowest, max(title.cell_len, whole))


def _longest_word(text: Text) -> int:
    return max((Text(word).cell_len for word in text.plain.split()), default=0)


def _parts(shapes: Sequence[_Shape], names: list[int], width: int | None) -> list[list[int]]:
    """Which columns stand in which table: as many as fit when folded to the utmost, at least one beside the names."""
    if width is None or _total([shape.narrowest for shape in shapes]) <= width:
        return [list(range(len(shapes)))]
    parts = [list(names)]
    for i in range(len(names), len(shapes)):
        if len(parts[-1]) > len(names) and _total([shapes[j].narrowest for j in (*parts[-1], i)]) > width:
            parts.append(list(names))
        parts[-1].append(i)
    return parts


def _table(shapes: Sequence[_Shape], cells: Sequence[Sequence[Text]], part: Sequence[int], width: int | None) -> Table:
    chosen = [shapes[i] for i in part]
    widths = _widths(chosen, width)
    # The table's own width: where nothing folds any more, it is wider than the terminal rather than cut.
    made = Table(width=_total(widths), box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for shape, wide in zip(chosen, widths, strict=True):
        made.add_column(shape.name, justify="right" if shape.number else "left", width=wide)
    for row in cells:
        made.add_row(*(row[i] for i in part))
    return made


def _widths(shapes: Sequence[_Shape], width: int | None) -> list[int]:
    """The widest columns give way until all fit, or until nothing folds any more."""
    widths = [shape.widest for shape in shapes]
    while width is not None and _total(widths) > width:
        foldable = [i for i, shape in enumerate(shapes) if widths[i] > shape.narrowest]
        if not foldable:
            break
        widths[max(foldable, key=lambda i: widths[i])] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


# How does Keyhole speak in a terminal? Lines, tables, bars and errors in the width there is, and JSON.

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


def rich(what: RenderableType, style: str | None = None) -> None:
    """Styled text on standard output, folded at spaces to the width."""
    _console().print(what, style=style)


def plain(text: str) -> None:
    """Text on standard output, as it is."""
    _console().print(Text(text), soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, otherwise: int | None = None) -> None:
    """Rows on standard output, no cell cut; a column whose name begins with > holds numbers. See `keyhole.show`.

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
