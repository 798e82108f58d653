"""Files appear whole or not at all, with the rights that the user's other files have."""

import os
from pathlib import Path

import pytest

import keyhole
from keyhole import KeyholeError
from keyhole.errors import UnwritableError
from keyhole.files import replacing, require_file, writable_folder, write_at_once
from keyhole.lab.stored import store
from keyhole.strict import parse_json
from keyhole_papers.results import write_results


def test_a_stop_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_at_once(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as out:
        out.write(b"new")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]
    write_at_once(path, "nöw")
    assert path.read_bytes() == "nöw".encode() and os.listdir(tmp_path) == ["a.txt"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, reason in (("none/a.txt", "no folder"), ("folder", "cannot write"), ("x" * 300, "cannot write")):
        with pytest.raises(KeyholeError, match=reason):
            write_at_once(tmp_path / path, b"")
    assert os.listdir(tmp_path) == ["folder"] and not os.listdir(tmp_path / "folder")


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_files_get_the_umask(umask: int, tmp_path: Path, organism: keyhole.Model) -> None:
    before = os.umask(umask)
    try:
        organism.run("When Mary and John went to the store, John gave a drink to").trace("Mary").save(
            tmp_path / "c.json"
        )
        write_results({}, tmp_path)
        store(tmp_path / "weights", {}, "nothing")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("c.json", "results.json", "weights"), 0o666 & ~umask)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_at_once(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").read_text() == "new"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableError, match=r"is a file, where x\.json needs a folder"):
        require_file(tmp_path / "file" / "x.json")


def test_a_folder_is_not_made_before_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert writable_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    for place in (tmp_path / "file", tmp_path / "file" / "b"):
        with pytest.raises(UnwritableError, match="file is a file, where a folder is needed"):
            writable_folder(place)


def test_half_a_character_is_no_text() -> None:
    """It could be read, and then neither printed nor written."""
    assert parse_json('["\\ud83d\\ude00", "\\\\ud800"]') == ["\U0001f600", "\\ud800"]
    for text in ('["\\ud83d"]', '{"\\uDE00\\ud83d": 1}'):
        with pytest.raises(KeyholeError, match="half of a character"):
            parse_json(text)
