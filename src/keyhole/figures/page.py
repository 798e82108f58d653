"""How does a result read in a browser? One self-contained page of texts, tables and pictures, light and dark."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from string import Template

from matplotlib.figure import Figure

from keyhole.errors import KeyholeError
from keyhole.stats import cell_text

_PAGE = Path(__file__).with_name("page.html")  # its style; it has no script, and loads nothing
_DPI = 160


@dataclass(frozen=True)
class Spans:
    """A text of which pieces are marked: each with "" or the name of its mark, such as dest."""

    parts: Sequence[tuple[str, str]]


Cell = str | float | int | Spans | None


@dataclass(frozen=True)
class Section:
    """A part of a page: what it says, then its picture, then its table. Columns that begin with > hold numbers."""

    title: str
    text: str = ""  # paragraphs are parted by an empty line
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
    figure: Figure | None = None
    said: str = ""  # what the picture shows, for those who cannot see it
    linked: bool = True  # is it in the list of contents?


def page(title: str, summary: str, sections: Sequence[Section]) -> str:
    """The page; every text is escaped, so that tokens read as they are."""
    for section in sections:
        if any(len(row) != len(section.columns) for row in section.rows):
            raise KeyholeError(f"a table of {len(section.columns)} columns has rows of other lengths: {section.title}.")
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        summary=_paragraphs(summary),
        contents="".join(_link(i, one) for i, one in enumerate(sections) if one.linked),
        sections="".join(_section(i, one) for i, one in enumerate(sections)),
    )


def _link(number: int, section: Section) -> str:
    return f'<a href="#part{number}">{html.escape(section.title)}</a>'


def _section(number: int, section: Section) -> str:
    parts = [f'<h2 id="part{number}">{html.escape(section.title)}</h2>', _paragraphs(section.text)]
    if section.figure is not None:
        parts.append(_picture(section.figure, section.said or section.title))
    if section.columns:
        parts.append(_table(section.columns, section.rows))
    return f"<section>{''.join(parts)}</section>"


def _paragraphs(text: str) -> str:
    return "".join(
        f"<p>{html.escape(part).replace(chr(10), '<br>')}</p>" for part in text.split("\n\n") if part.strip()
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    kinds = [' class="number"' if name.startswith(">") else "" for name in columns]
    head = "".join(
        f"<th{kind}>{html.escape(name.removeprefix('>'))}</th>" for kind, name in zip(kinds, columns, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{_cell(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell) -> str:
    """As it is read.

    >>> [_cell(cell) for cell in (0.12345, 3, None, float("nan"), "<bos>")]
    ['0.123', '3', '—', '—', '&lt;bos&gt;']
    """
    if isinstance(cell, Spans):
        return "".join(_span(*part) for part in cell.parts)
    return html.escape(cell_text(cell, "—"))


def _span(text: str, mark: str) -> str:
    return f'<mark class="{html.escape(mark)}">{html.escape(text)}</mark>' if mark else html.escape(text)


def _picture(figure: Figure, said: str) -> str:
    """As a bitmap: a map of a million distances would be a million marks otherwise."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    data = base64.b64encode(drawn.getvalue()).decode()
    return f'<img alt="{html.escape(said)}" src="data:image/png;base64,{data}">'
