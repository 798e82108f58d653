"""Stores of bulk runs, compared: every table, in the order of its rows, and every file to the byte."""

from collections.abc import Callable
from pathlib import Path

from keyhole.store import Store, open_store
from keyhole.store.schema import tables

TASK = "ioi"
N, PART, BATCH = 96, 3, 2  # many small parts, so that there is always one to be interrupted


def command(out: Path, *more: str, n: int = N) -> list[str]:
    """A bulk run of the organism, as it is typed."""
    sizes = ["--n", str(n), "--part", str(PART), "--batch", str(BATCH)]
    return ["bulk", TASK, *sizes, "--seed", "7", "--out", str(out), *more]


def files_of(path: Path) -> dict[str, bytes]:
    """Every Parquet file of a store."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*.parquet"))}


def records(path: Path) -> int:
    """How many parts are complete?"""
    return len(list((path / "parts").glob("*.json")))


def require_same(found: Path, expected: Path) -> None:
    """Refuse tables that differ in any value, or in the order of their rows."""
    mine, its = open_store(found), open_store(expected)
    assert len(mine) == len(its) == its.manifest.n
    for name in tables(its.manifest):
        assert mine.table(name).equals(its.table(name)), name
    assert files_of(found) == files_of(expected)


def at_part(number: int, do: Callable[[], None]) -> Callable[[int, int], None]:
    """Progress that does something once, when so many parts are done."""
    waiting = [do]

    def told(done: int, total: int) -> None:
        if waiting and done >= number * PART:
            waiting.pop()()

    return told


def statuses(store: Store) -> list[str]:
    """What became of each prompt."""
    return [outcome.status for outcome in store]
