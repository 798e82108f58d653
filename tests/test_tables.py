"""Tables at every width: no number is cut, no column is lost, and no line is wider than it must be."""

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from keyhole import show
from keyhole.report.terminal import lay_out

COLUMNS = ("head", "dest", "src", ">weight", ">S(v)", "channels: share", ">normalised")
ROWS = [
    ("3.6", "14:to", "2:Mary", "0.931", "-2.373", "3:45% 2:20% 12:17%", "0.74 [0.53, 0.86]"),
    ("13.16", "114:日本語", "102:Mary", "0.002", "12.375", "13:45% 0:2%", "-1.25 [-2.53, 0.86]"),
]
WIDTHS = (10, 40, 60, 80, 120, 200, None)


def rendered(columns: tuple[str, ...], rows: list[tuple[str, ...]], width: int | None) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=width or 100_000, highlight=False)
    for table in lay_out(columns, rows, width):
        console.print(table, crop=False)
    return out.getvalue().splitlines()


def occurrences(lines: list[str]) -> list[str]:
    return [word for line in lines for word in line.split()]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_number_is_there_uncut(width: int | None) -> None:
    lines = rendered(COLUMNS, ROWS, width)
    words = occurrences(lines)
    for i, row in enumerate(ROWS):
        for name, cell in zip(COLUMNS, row, strict=True):
            whole = [cell] if name.startswith(">") else cell.split()
            assert all(any(part in line for line in lines) for part in whole), (width, i, cell)
            assert all(word in words for word in cell.split())
    assert "…" not in "".join(lines)
    for name in COLUMNS:
        assert all(word in words for word in name.removeprefix(">").split())


def test_a_wide_terminal_and_a_pipe_get_one_line_a_row() -> None:
    for width in (120, 200, None):
        assert len(rendered(COLUMNS, ROWS, width)) == 2 + len(ROWS)


def test_texts_fold_before_columns_move() -> None:
    folded = rendered(COLUMNS, ROWS, 80)
    assert sum("head" in line for line in folded) == 1 and len(folded) > 2 + len(ROWS)
    moved = rendered(COLUMNS, ROWS, 50)
    titles = [line for line in moved if "head" in line]
    assert len(titles) > 1 and all({"dest", "src"} <= set(line.split()) for line in titles)


cell = st.lists(st.from_regex(r"-?[0-9]{1,6}(\.[0-9]{1,4})?|[a-z]{1,9}", fullmatch=True), max_size=4).map(" ".join)
column = st.from_regex(r">?[a-z]{1,8}( [a-z]{1,8})?", fullmatch=True)


@given(st.data(), st.integers(5, 160))
def test_any_table_is_whole_and_no_wider_than_it_must_be(data: st.DataObject, width: int) -> None:
    columns = tuple(data.draw(st.lists(column, min_size=1, max_size=7)))
    row = st.tuples(*[cell] * len(columns))
    rows = data.draw(st.lists(row, max_size=4))
    lines = rendered(columns, rows, width)
    words = occurrences(lines)
    for text in [c for row in rows for c in row] + [name.removeprefix(">") for name in columns]:
        assert all(words.count(word) >= 1 for word in text.split())
    numbers = [c for row in rows for name, c in zip(columns, row, strict=True) if name.startswith(">")]
    assert all(any(number in line for line in lines) for number in numbers)
    tables = lay_out(columns, rows, width)
    too_wide = [table for table in tables if (table.width or 0) > width]
    names = len(lay_out(columns, rows, 1)[0].columns) - 1 if len(columns) > 1 else 0
    assert all(len(table.columns) <= max(1, names + 1) for table in too_wide)  # it holds one column beside the names
    assert all(len(line.rstrip()) <= max([width, *(table.width or 0 for table in tables)]) for line in lines)


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_what_is_shown_follows_the_width(
    columns: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    show.table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= int(columns) and "-2.373" in occurrences(lines)
    monkeypatch.delenv("COLUMNS")
    show.table(COLUMNS, ROWS * 20)
    piped = capsys.readouterr().out
    assert len(re.findall("-2.373", piped)) == 20 and len(piped.splitlines()) == 2 + 2 * 20 + 1


def test_tokens_give_a_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    """A circuit of somebody else's may have any tokens."""
    token = "\x1b]0;title\x07\x1b[31m\x9b2J\x7f\r"
    for tell in (show.plain, show.error, show.note, show.rich, lambda text: show.table(("token", ">n"), [(text, "1")])):
        tell(f"a\tb {token}")
        told = "".join(capsys.readouterr())
        assert "\u241b]0;title" in told and not set(told) & {*"\x1b\x07\x9b\x7f\r"}
