"""What a result says is said once: its text, its page, its notebook's frame and its files have the same parts."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from keyhole import KeyholeError
from keyhole.figures.style import blank
from keyhole.report import Bar, Picture, Report, Reported, Section, Spans, Table, as_html
from keyhole.report.terminal import as_text

TABLE = Table(("head", ">share"), [("3.1", 0.12345678), ("3.6", None)])


@dataclass(frozen=True)
class Small(Reported):
    """A result with all that a report can have, or with words alone."""

    whole: bool = True

    def report(self) -> Report:
        sections = [
            Section("Shares", ["How much?", "", Picture(self._draw, "a map"), TABLE]),
            Section("Nothing", ["", Table(("a",), [])]),
            Section("Long", [Table(("text",), [(Spans([("to", "dest"), (" Mary", "")]),)])], page_only=True),
        ]
        if self.whole:
            return Report("A study", "It was done.", sections, TABLE, Picture(self._draw, "a map"))
        return Report("A study", "It was done.", [])

    def record(self) -> dict[str, Any]:
        return {"shares": [0.5]}

    def _draw(self) -> Figure:
        return blank(1, 1)


def test_a_terminal_has_the_words_and_the_tables() -> None:
    assert str(Small()).splitlines() == [
        *("A study", "", "It was done.", "", "Shares", "How much?", ""),
        *("head  share", "───────────", "3.1   0.123", "3.6       -"),
    ]


def test_the_text_is_a_text_in_notebooks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """There rich would display it, and leave an empty text."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert str(Small()).startswith("A study\n\nIt was done.")


def test_a_bar_is_as_long_as_its_part() -> None:
    table = Table(("", ">term", ""), [("a", "+2.0", Bar(1.0)), ("b", "-0.5", Bar(-0.25)), ("c", "0", Bar(math.nan))])
    report = Report("Bars", "Three terms.", [Section("Terms", [table])])
    lines = [line.strip() for line in as_text(report).splitlines()[-3:]]
    assert lines == [f"a  +2.0  {'█' * 24}", f"b  -0.5  {'█' * 6}", "c     0"]
    assert re.findall(r"left:([\d.]+)%;width:([\d.]+)%", as_html(report)) == [
        *(("50.0", "50.0"), ("37.5", "12.5"), ("50.0", "0.0"))
    ]
    assert table.as_csv().splitlines()[2] == "b,-0.5,-0.250"


def test_a_page_has_what_a_terminal_leaves_out_and_a_notebook_frames_it() -> None:
    page = Small().to_html()
    assert page.count("<img ") == 1 and 'alt="a map"' in page and '<mark class="dest">to</mark> Mary' in page
    assert "Nothing" not in page and page.count("<a href") == 2
    assert 'title="A study" srcdoc="&lt;!doctype html&gt;' in Small()._repr_html_()


def test_files_have_every_digit(tmp_path: Path) -> None:
    for name in ("a.csv", "a.json", "a.html", "a.svg"):
        assert Small().save(tmp_path / name) == tmp_path / name
    assert (tmp_path / "a.csv").read_text() == "head,share\n3.1,0.12345678\n3.6,\n"
    assert json.loads((tmp_path / "a.json").read_text()) == Small().record()
    assert (tmp_path / "a.html").read_text() == Small().to_html() and "<svg" in (tmp_path / "a.svg").read_text()


@pytest.mark.parametrize(("name", "why"), [("a.png", "no figure"), ("a.csv", "no table"), ("a.txt", "should end in")])
def test_what_a_report_has_not_is_refused(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(KeyholeError, match=why):
        Small(whole=False).save(tmp_path / name)
    assert not list(tmp_path.iterdir())
