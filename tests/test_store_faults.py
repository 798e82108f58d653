"""Stops, damage, a full disk, two writers, other stores: detected and explained, and nothing is lost."""

import errno
import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from keyhole import KeyholeError
from keyhole.errors import UnwritableError
from keyhole.store import Outcome, Store, make_part, make_store, manifest_of, open_store
from keyhole.store.manifest import SCHEMA
from keyhole.store.parts import alone
from stores import PART, SETTINGS, contents, manifest_for, stored

AGAIN = "Run the command that made it again"


@pytest.fixture(scope="module")
def whole(outcomes: list[Outcome], tmp_path_factory: pytest.TempPathFactory) -> Store:
    """An uninterrupted store."""
    return stored(tmp_path_factory.mktemp("stores") / "whole", outcomes)


@pytest.fixture
def store(outcomes: list[Outcome], tmp_path: Path) -> Store:
    """One to be damaged."""
    return stored(tmp_path / "ioi.store", outcomes)


def write(store: Store, outcomes: list[Outcome], *numbers: int) -> None:
    for number in numbers:
        store.write(number, [outcomes[i] for i in store.manifest.span(number)])


def go_on(path: Path, outcomes: list[Outcome]) -> Store:
    """What a second run does: all that is not done."""
    store = make_store(path, manifest_for(outcomes))
    with store.writing():
        write(store, outcomes, *sorted({*range(store.manifest.parts)} - store.done()))
    return store


def of_part(store: Store, table: str, number: int) -> Path:
    (path,) = (store.path / table).glob(f"{number:05d}-*")
    return path


# Stops.


class StoppedError(BaseException):
    """As good as kill -9: nothing in the library catches it."""


@pytest.mark.parametrize("step", [0, 1, 4, 10, 11, 12, 17, 22, 23])
def test_a_stop_at_any_step_loses_nothing(
    step: int, outcomes: list[Outcome], whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every flush is a step: of a file and its folder, for five tables and a record. Drafts stay, as after a kill."""
    store, left, original, unlink = make_store(tmp_path, manifest_for(outcomes)), [step], os.fsync, Path.unlink

    def fsync(handle: int) -> None:
        if not left[0]:
            raise StoppedError
        left[0] -= 1
        original(handle)

    def keep_drafts(path: Path, missing_ok: bool = False) -> None:
        if path.suffix != ".part":
            unlink(path, missing_ok)

    with pytest.raises(StoppedError), monkeypatch.context() as patched, store.writing():
        patched.setattr(os, "fsync", fsync)
        patched.setattr(Path, "unlink", keep_drafts)
        write(store, outcomes, 0, 1)
    half = open_store(tmp_path)
    assert half.done() == frozenset(range(len(half) // PART)) and not half.check().damaged
    assert list(half) == outcomes[: len(half)] and len(half) == PART * (
        (step >= 11) + (step >= 23)
    )  # a record counts once it is renamed
    assert contents(go_on(tmp_path, outcomes).path) == contents(whole.path)
    assert not [path for path in tmp_path.rglob(".*") if path.suffix == ".part"]


def test_what_is_not_there_yet_is_told(outcomes: list[Outcome], tmp_path: Path) -> None:
    store = make_store(tmp_path, manifest_for(outcomes))
    assert len(store) == 0 and list(store) == [] and store.table("edges").num_rows == 0 and "no outcomes" in str(store)
    with store.writing():
        write(store, outcomes, 2, 0)
    assert repr(store) == f"<Store {tmp_path}: 2 of 4 parts, 6 of 10 prompts>" and store.done() == {0, 2}
    assert [one.index for one in store] == [0, 1, 2, 6, 7, 8]
    with pytest.raises(KeyholeError, match=f"prompt 3 has no outcome yet.*{AGAIN}"):
        _ = store[3]


# Damage.


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    """Change a bit of the largest column, at the end of its last page."""
    row_group = pq.read_metadata(path).row_group(0)
    column = max((row_group.column(i) for i in range(row_group.num_columns)), key=lambda c: c.total_compressed_size)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    content[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "table", "reason"),
    [
        (truncate, "edges", r"part 1: edges/00001-\w+\.parquet is damaged: it has \d+ bytes of \d+"),
        (Path.unlink, "nodes", r"part 1: nodes/00001-\w+\.parquet is missing"),
        (truncate, "parts", r"part 1: parts/00001-\w+\.json is damaged: it is not valid JSON"),
        (lambda path: path.write_text("{}"), "parts", "a record should have exactly files, part"),
        (lambda path: path.write_bytes(b""), "prompts", "it has 0 bytes"),
    ],
)
def test_damage_is_found_told_and_mended(
    harm: Any, table: str, reason: str, store: Store, outcomes: list[Outcome], whole: Store
) -> None:
    harm(of_part(store, table, 1))
    check = store.check()
    assert check.done == {0, 2, 3} and [one.number for one in check.damaged] == [1]
    assert re.match(reason if reason.startswith("part") else ".*" + reason, str(check.damaged[0]))
    for read in (lambda: list(store), lambda: store.circuit(4), lambda: store.table("edges")):
        with pytest.raises(KeyholeError, match=f"{reason}.*{AGAIN}"):
            read()
    assert store[0] == outcomes[0] and store[9] == outcomes[9]  # parts that are whole are read
    assert contents(go_on(store.path, outcomes).path) == contents(whole.path)


@pytest.mark.parametrize("table", ["prompts", "circuits", "nodes", "edges", "removals"])
def test_one_bit_is_found(table: str, store: Store, outcomes: list[Outcome]) -> None:
    """By the checksum of the file when all is checked, by those of its pages when it is read."""
    flip(of_part(store, table, 1))
    check = store.check()
    assert [one.number for one in check.damaged] == [1] and check.done == {0, 2, 3}
    assert "checksum" in check.damaged[0].reason
    for read in (lambda: list(store), lambda: store.table(table)):
        with pytest.raises(KeyholeError, match=f"damaged.*{AGAIN}"):
            read()
    assert go_on(store.path, outcomes).done() == {0, 1, 2, 3}


def test_what_is_not_asked_for_is_not_read(store: Store) -> None:
    """Nobody notices a page that is damaged if neither its rows nor its column are asked for."""
    flip(of_part(store, "edges", 1))
    rows = store.table("edges", columns=["prompt", "side"])["prompt"].to_pylist()
    assert set(rows) == {*range(7)}
    for where in ({"prompt": 2}, {"prompt": [0, 2]}, {"label_number": ["2", "0"]}, pc.field("prompt") < 3):
        assert set(store.table("edges", where=where)["prompt"].to_pylist()) <= {0, 1, 2}
    assert store.circuit(6) and store.circuit(0)
    with pytest.raises(KeyholeError, match="the table edges is damaged"):
        store.table("edges", where={"prompt": [2, 3]})


def test_rows_that_fit_no_circuit_are_refused(store: Store, outcomes: list[Outcome], tmp_path: Path) -> None:
    """A part that somebody made up, with checksums that fit, is validated as a circuit file is."""
    part = make_part(store.manifest, 1, outcomes[3:6])
    other = make_part(store.manifest, 0, outcomes[:3])
    forged = replace(part, files={**part.files, "removals": other.files["removals"]})
    with store.writing():
        store.keep(forged)
    assert store.done() == {0, 1, 2, 3}
    with pytest.raises(KeyholeError, match=r"prompt 4 cannot be read: it has 0 removals, where its row says \d+"):
        store.circuit(4)


def test_a_foreign_part_is_told_and_put_aside(store: Store, outcomes: list[Outcome], tmp_path: Path) -> None:
    other = stored(tmp_path / "other", outcomes, settings={"through": "heads"})
    own = contents(store.path)
    for table in ("edges", "parts"):
        foreign = of_part(other, table, 2)
        (store.path / table / foreign.name).write_bytes(foreign.read_bytes())
    check = store.check()
    assert check.done == {0, 1, 2, 3} and [one.number for one in check.damaged] == [None, None]
    assert "is of another model, setting or prompts" in str(check.damaged[0]) and list(store) == outcomes
    with store.writing():
        pass
    kept = contents(store.path)
    assert {name for name in kept if name not in own} == {
        f"aside/{table}/{of_part(other, table, 2).name}" for table in ("edges", "parts")
    }
    assert not store.check().damaged and own.items() <= kept.items()


# A disk that is full or cannot be written.


@pytest.mark.parametrize("step", [0, 3, 10])
def test_a_full_disk_leaves_what_was_complete(
    step: int, outcomes: list[Outcome], whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, left, original = make_store(tmp_path, manifest_for(outcomes)), [step], os.fsync

    def fsync(handle: int) -> None:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left[0] -= 1
        original(handle)

    with store.writing():
        write(store, outcomes, 0)
        with monkeypatch.context() as patched, pytest.raises(UnwritableError) as told:
            patched.setattr(os, "fsync", fsync)
            write(store, outcomes, 1)
    assert "cannot write part 1" in str(told.value) and "No space left on device" in str(told.value)
    assert "1 of 4 parts, 3 of 10 prompts" in str(told.value) and "run the same command again" in str(told.value)
    assert store.done() == {0} and list(store) == outcomes[:3]
    assert not list(tmp_path.rglob("*.part"))
    assert contents(go_on(tmp_path, outcomes).path) == contents(whole.path)


# One writer at a time.


def test_a_second_writer_is_told_who_the_first_is(store: Store, outcomes: list[Outcome]) -> None:
    second = open_store(store.path)
    with store.writing():
        who = f"process {os.getpid()} on .*, since 20.*, writes to {re.escape(str(store.path))}"
        with pytest.raises(UnwritableError, match=who), second.writing():
            pass
        with pytest.raises(KeyholeError, match=r"inside `with store\.writing"):
            write(second, outcomes, 0)
        assert list(second) == outcomes  # readers need not wait
    with second.writing():
        write(second, outcomes, 0)
    with pytest.raises(KeyholeError, match=r"inside `with store\.writing"):
        write(second, outcomes, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_dead_writer_keeps_nobody_out(store: Store) -> None:
    """One that is killed leaves its lock file and its name behind, and neither counts."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        with alone(store.path):
            os.write(tell, b"held")
            time.sleep(60)
        os._exit(0)
    assert os.read(told, 4) == b"held"
    with pytest.raises(UnwritableError, match=f"process {child} on"), store.writing():
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert json.loads((store.path / ".writer.json").read_text())["pid"] == child
    with store.writing():
        assert json.loads((store.path / ".writer.json").read_text())["pid"] == os.getpid()
    assert not (store.path / ".writer.json").exists()


# Another store.


def test_another_store_is_refused_each_difference_named(store: Store, outcomes: list[Outcome]) -> None:
    circuit = outcomes[0].circuit
    assert circuit is not None
    for other, reason in (
        ({"model": {**circuit.model, "fingerprint": "f00"}}, f"{circuit.model['fingerprint']}' there and 'f00' here"),
        ({"settings": {**SETTINGS, "through": "heads"}}, "settings through is 'mlps' there and 'heads' here"),
        ({"settings": {}}, "settings eps is 0.01 there and None here; settings seeds is 'linear'"),
        ({"task": {"name": "ioi", "seed": 4}}, "task seed is 3 there and 4 here"),
        ({"part": 5}, "part is 3 there and 5 here"),
        ({"signals": 64}, "signals is None there and 64 here"),
    ):
        with pytest.raises(KeyholeError, match=re.escape(reason)):
            make_store(store.path, manifest_for(outcomes, **other))
    fewer = manifest_for(outcomes[:9])
    with pytest.raises(KeyholeError, match="n is 10 there and 9 here"):
        make_store(store.path, fewer)
    last = replace(outcomes[9], example=replace(outcomes[9].example, text="Another prompt"))
    with pytest.raises(KeyholeError, match="1 of 4 parts have other prompts, first prompts 9 to 9"):
        make_store(store.path, manifest_for([*outcomes[:9], last]))
    assert list(store) == outcomes


def test_the_same_store_may_go_on_elsewhere(store: Store, outcomes: list[Outcome]) -> None:
    """Versions and the model's name decide no number, and are kept with what they made."""
    circuit = outcomes[0].circuit
    assert circuit is not None
    other = manifest_for(outcomes, versions={"torch": "9.9"}, model={**circuit.model, "name": "/elsewhere"})
    assert make_store(store.path, other).manifest == store.manifest
    assert [other.name(i) for i in range(4)] == [store.manifest.name(i) for i in range(4)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"keyhole": "store", "schema": 99}', f"its schema is 99, and this version reads {SCHEMA}. A newer Keyhole"),
        ('{"schema": 1}', "it is no manifest of a store"),
        ("[]", "it is no manifest of a store"),
        ("{", "it is not valid JSON"),
        ('{"keyhole": "store", "schema": 1}', "which should have exactly the keys"),
    ],
)
def test_a_manifest_that_is_none_is_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(KeyholeError, match=re.escape(reason)):
        open_store(tmp_path)


def test_a_manifest_that_does_not_hold_together_is_refused(store: Store) -> None:
    told = json.loads((store.path / "manifest.json").read_text())
    for what, reason in (
        ({"n": 50}, "50 prompts in parts of 3 are not 4 parts"),
        ({"part": 0}, "10 prompts in parts of 0 are not 4 parts"),
        ({"prompts": [1]}, r"prompts\[0\] is 1, which is no text"),
        ({"model": {}}, "no fingerprint"),
        ({"settings": []}, r"settings is \[\], which is no object"),
        ({"labels": [1]}, r"labels\[0\] is 1, which is no text"),
        ({"signals": "all"}, "signals is .all., which is no whole number"),
        ({"extra": 1}, "should have exactly"),
    ):
        (store.path / "manifest.json").write_text(json.dumps({**told, **what}))
        with pytest.raises(KeyholeError, match=reason):
            open_store(store.path)


def test_a_folder_of_other_things_is_no_store(tmp_path: Path, outcomes: list[Outcome]) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(KeyholeError, match=r"a folder with other things \(thesis\.tex\): give a new one"):
        make_store(tmp_path, manifest_for(outcomes))
    assert os.listdir(tmp_path) == ["thesis.tex"]
    with pytest.raises(KeyholeError, match="is no store: it has no manifest"):
        open_store(tmp_path)
    with pytest.raises(KeyholeError, match="is a file, where a folder is needed"):
        make_store(tmp_path / "thesis.tex", manifest_for(outcomes))


def test_a_store_that_was_replaced_is_not_written(store: Store, outcomes: list[Outcome]) -> None:
    stale = open_store(store.path)
    (store.path / "manifest.json").unlink()
    make_store(store.path, manifest_for(outcomes, settings={"through": "heads"}))
    with pytest.raises(KeyholeError, match="was made anew since it was opened"), stale.writing():
        pass
    part = make_part(stale.manifest, 0, outcomes[:3])
    fresh = open_store(store.path)
    with fresh.writing(), pytest.raises(KeyholeError, match="part 0 was made for another store"):
        fresh.keep(part)


def test_settings_are_plain_values(outcomes: list[Outcome]) -> None:
    for settings, reason in (({"tau": max}, "not JSON serializable"), ({"tau": float("nan")}, "settings should be")):
        with pytest.raises(KeyholeError, match=reason):
            manifest_for(outcomes, settings=settings)
    assert manifest_for(outcomes, settings={"start": ((1, 2),)}).settings == {"start": [[1, 2]]}
    with pytest.raises(KeyholeError, match="0 prompts in parts of 3 are no run"):
        manifest_of([], model={}, settings={}, task={}, versions={}, part=3)


def test_names_sort_as_rows_do(outcomes: list[Outcome]) -> None:
    manifest = manifest_for(outcomes)
    many = replace(manifest, n=300_000 * 3, prompts=manifest.prompts[:1] * 300_000)
    assert many.name(7).startswith("000007-") and manifest.name(3).startswith("00003-")
    assert manifest.span(3) == range(9, 10)
