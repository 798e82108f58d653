"""Stores of bulk runs, compared: every table, in the order of its rows, and every file to the byte."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keyhole import Model
from keyhole.store import Store, Tracing, bulk, open_store
from keyhole.store.schema import tables

TASK = "ioi"
N, PART, BATCH = 60, 3, 2  # many small parts, so that there is always one to be interrupted
PARTS = N // PART


def command(out: Path, *more: str) -> list[str]:
    """A bulk run of the organism, as it is typed."""
    sizes = ["--n", str(N), "--part", str(PART), "--batch", str(BATCH)]
    return ["bulk", TASK, *sizes, "--seed", "7", "--out", str(out), *more]


def again(model: Model, out: Path, **options: Any) -> Store:
    """The same run from Python."""
    asked = {"n": N, "seed": 7, "part": PART, "tracing": Tracing(batch=BATCH), "out": out}
    return bulk(TASK, model, **{**asked, **options})


def unfinished(whole: Path, path: Path, *numbers: int) -> None:
    """A copy of a store as it was before it had some parts: a run that was interrupted there."""
    shutil.copytree(whole, path)
    manifest = open_store(whole).manifest
    for number in numbers:
        for file in path.rglob(f"{manifest.name(number)}.*"):
            file.unlink()
    assert records(path) == manifest.parts - len(numbers)


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
    """Progress that does something once, when so many parts were done."""
    waiting, first = [do], list[int]()

    def told(done: int, total: int) -> None:
        first.append(done)
        if waiting and done - first[0] >= number * PART:
            waiting.pop()()

    return told


def statuses(store: Store) -> list[str]:
    """What became of each prompt."""
    return [outcome.status for outcome in store]
