"""How does a report read in a browser? One self-contained page of texts, tables and pictures, light and dark."""

import base64
import html
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from string import Template

from keyhole.report.report import DPI, Bar, Cell, Picture, Report, Section, Spans, Table
from keyhole.stats import cell_text

_PAGE = Path(__file__).with_name("page.html")  # its style; it has no script, and loads nothing


def as_html(report: Report) -> str:
    """A report as a self-contained page; every text is escaped, so that tokens read as they are.

    Args:
        report: The report.

    >>> page = as_html(Report("Title", "<bos> is a token", [Section("Part", ["text"])]))
    >>> "&lt;bos&gt; is a token" in page
    True
    """
    sections = [section for section in report.sections if section.shown]
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        title=html.escape(report.title),
        summary=_paragraphs(report.summary),
        contents="".join(_link(i, section) for i, section in enumerate(sections) if section.linked),
        sections="".join(_section(i, section) for i, section in enumerate(sections)),
    )


def _link(number: int, section: Section) -> str:
    return f'<a href="#part{number}">{html.escape(section.heading)}</a>'


def _section(number: int, section: Section) -> str:
    parts = "".join(map(_part, section.shown))
    return f'<section><h2 id="part{number}">{html.escape(section.heading)}</h2>{parts}</section>'


def _part(part: str | Table | Picture) -> str:
    if isinstance(part, str):
        return _paragraphs(part)
    return _picture(part) if isinstance(part, Picture) else _table(*part)


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
        "<tr>" + "".join(f"<td{kind}>{cell_html(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def cell_html(cell: Cell) -> str:
    """A cell as a browser shows it, escaped.

    >>> [cell_html(cell) for cell in (0.12345, 3, None, float("nan"), "<bos>")]
    ['0.123', '3', '—', '—', '&lt;bos&gt;']
    """
    if isinstance(cell, Spans):
        return "".join(_span(*part) for part in cell.parts)
    if isinstance(cell, Bar):
        return _bar(cell)
    return html.escape(cell_text(cell, "—"))


def _bar(cell: Bar) -> str:
    """From the middle to either side, or from the left; its look is its own, as notebooks have it, too.

    >>> _bar(Bar(0.5)).count("width:25.0%")
    1
    """
    share = 0.0 if cell.share != cell.share else max(-1.0, min(1.0, cell.share))
    width = abs(share) * (50 if cell.signed else 100)
    left = 0 if not cell.signed else 50 if share >= 0 else 50 - width
    hue = "#3465a4" if share >= 0 else "#cc4b37"
    inner = f"position:absolute;top:2px;bottom:2px;left:{left:.1f}%;width:{width:.1f}%;background:{hue}"
    return (
        '<div style="position:relative;width:160px;height:12px;background:rgba(128,128,128,.12);border-radius:2px">'
        f'<div style="{inner};border-radius:2px"></div></div>'
    )


def _span(text: str, mark: str) -> str:
    return f'<mark class="{html.escape(mark)}">{html.escape(text)}</mark>' if mark else html.escape(text)


def _picture(picture: Picture) -> str:
    """A picture as a bitmap. As SVG, a map of a million distances would have a million elements."""
    drawn = BytesIO()
    picture.draw().savefig(drawn, format="png", dpi=DPI)
    data = base64.b64encode(drawn.getvalue()).decode()
    return f'<img alt="{html.escape(picture.alt)}" src="data:image/png;base64,{data}">'
