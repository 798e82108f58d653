"""How does a report read in a terminal? Texts and tables that fit its width: words fold, columns move below.

A number that loses its last digits is a wrong number, so no cell is ever cut, and there are only two ways to save
width. Texts fold at their spaces, the widest column first. What is still too wide is continued in a second table under
the first, which repeats the names of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from keyhole.report.report import Bar, Cell, Picture, Report, Section, Spans
from keyhole.stats import cell_text

_GAP = 2  # between two columns: the box's and the padding
_BAR, _BESIDE = 24, 32  # width of the longest bar, and what stands beside it
_WIDTH = 120  # of what `str` gives, which knows no terminal


def as_text(report: Report) -> str:
    """A report as plain text, 120 columns wide.

    Args:
        report: The report.

    >>> print(as_text(Report("Title", "Summary", [Section("Part", ["text"])])))
    Title
    <BLANKLINE>
    Summary
    <BLANKLINE>
    Part
    text
    """
    out = StringIO()
    console = Console(file=out, width=_WIDTH, color_system=None, highlight=False, force_jupyter=False)
    for block in blocks(report, _WIDTH):
        console.print(block, crop=False, soft_wrap=isinstance(block, Text))
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").split("\n"))


def blocks(report: Report, width: int | None) -> Iterator[Text | Grid]:
    """What is printed, block by block, each followed by an empty line. Pictures are for pages."""
    yield Text(report.title, "bold")
    yield Text(f"\n{report.summary}\n")
    for section in report.sections:
        if not section.page_only:
            yield from section_blocks(section, width)


def section_blocks(section: Section, width: int | None) -> Iterator[Text | Grid]:
    """The same of one section."""
    parts = [part for part in section.shown if not isinstance(part, Picture)]
    if parts:
        yield Text(section.heading, "bold")
    for part in parts:
        if isinstance(part, str):
            yield Text(f"{part}\n")
        else:
            for grid in lay_out(*part, width):
                yield grid
                yield Text()


@dataclass(frozen=True)
class _Shape:
    """One column: its name, whether it holds numbers, and the widths at which nothing in it is cut."""

    name: str
    number: bool
    narrowest: int
    widest: int


def lay_out(columns: Sequence[str], rows: Sequence[Sequence[Cell | Text]], width: int | None) -> list[Grid]:
    """One table, or several under each other where one would be wider than `width` (None: there is no limit).

    A column whose name begins with > holds numbers: it is aligned right and its cells do not fold. The columns before
    the first such one name the rows, or else the first column does.
    """
    cells = [[_text(cell, width) for cell in row] for row in rows]
    shapes = [_shape(name, [row[i] for row in cells]) for i, name in enumerate(columns)]
    numbers = [i for i, shape in enumerate(shapes) if shape.number]
    names = list(range(max(1, numbers[0] if numbers else 1)))
    return [_table(shapes, cells, part, width) for part in _parts(shapes, names, width)]


def _text(cell: Cell | Text, width: int | None) -> Text:
    if isinstance(cell, Bar):
        return _bar(cell.share, max(4, min(_BAR, (width or _WIDTH) - _BESIDE)))
    return cell if isinstance(cell, Text) else Text(str(cell) if isinstance(cell, Spans) else cell_text(cell))


def _bar(share: float, longest: int) -> Text:
    shown = share == share and share != 0
    return Text("█" * max(1, round(longest * abs(share))) if shown else "", "blue" if share > 0 else "red")


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


def _table(shapes: Sequence[_Shape], cells: Sequence[Sequence[Text]], part: Sequence[int], width: int | None) -> Grid:
    chosen = [shapes[i] for i in part]
    widths = _widths(chosen, width)
    # The table's own width: where nothing folds any more, it is wider than the terminal rather than cut.
    grid = Grid(width=_total(widths), box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for shape, wide in zip(chosen, widths, strict=True):
        grid.add_column(shape.name, justify="right" if shape.number else "left", width=wide)
    for row in cells:
        grid.add_row(*(row[i] for i in part))
    return grid


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
