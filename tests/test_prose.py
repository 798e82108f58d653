"""Real prose: it is found or asked for, cut to length without overlap, and read out of R's database to the letter."""

import importlib.util
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from conftest import ROOT
from keyhole import KeyholeError, Model
from keyhole.cli.discover import PASSAGE, _found
from keyhole.lab.head_summary import unrelated_text
from keyhole.models.tokens import encode
from keyhole.tasks import ioi
from keyhole.tasks.corpus import knows_tasks_alone, passages, read_prose
from keyhole.tasks.words import THINGS

PROSE = ROOT / ".cache" / "prose.txt"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose_tool", ROOT / "tools" / "prose.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Twenty paragraphs of four words that the organism knows."""
    path = tmp_path / "words.txt"
    path.write_text("\n\n".join(f"The {thing} is in" for thing in THINGS[:20]) + "\n")
    return path


# -- passages ------------------------------------------------------------------------------------------------------


def test_passages_have_their_length_and_share_no_paragraph(organism: Model, words: Path) -> None:
    lines = read_prose(words)
    assert len(lines) == 20 and all(lines)
    found = passages(organism, [9, 5, 3, 9], seed=4, path=words)
    assert [len(ids) for ids in found] == [9, 5, 3, 9]
    first = organism.tokenizer.bos_token_id
    assert all(ids[0] == first and first not in ids[1:] for ids in found)
    used = []
    for ids in found:
        text = organism.tokenizer.decode(ids[1:])
        at = THINGS.index(text.split()[1])
        used += range(at, at + -(-(len(ids) - 1) // 4))  # paragraphs of four words
        assert " ".join(lines[at:]).startswith(text)
    assert len(set(used)) == len(used) == 6
    assert passages(organism, [9, 5], seed=4, path=words) == found[:2] != passages(organism, [9, 5], 5, path=words)


def test_prose_that_is_used_up_or_missing_is_said(
    organism: Model, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyholeError, match=r"used up after \d+ of 30 passages"):
        passages(organism, [5] * 30, path=words)
    with pytest.raises(KeyholeError, match="there is no file"):
        read_prose(tmp_path / "none.txt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    with pytest.raises(KeyholeError, match=r"make \.cache/prose\.txt.*user/keyhole/prose\.txt"):
        read_prose()
    (tmp_path / "user" / "keyhole").mkdir(parents=True)
    (tmp_path / "user" / "keyhole" / "prose.txt").write_text("For the user.\n")
    assert read_prose() == ["For the user."]
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "prose.txt").write_text("For the project.\n")
    assert read_prose() == ["For the project."]


def test_unrelated_text_is_prose_as_long_as_the_prompts(smollm2: Model) -> None:
    assert PROSE.is_file(), "make test downloads this text; run it once"
    texts = [example.text for example in ioi(12, 0)]
    found, what = unrelated_text(smollm2, texts, seed=1)
    assert "Austen" in what and not knows_tasks_alone(smollm2)
    assert [len(ids) for ids in found] == [len(encode(smollm2, text, None).ids) for text in texts]
    whole = " ".join(PROSE.read_text().split())
    assert all(smollm2.tokenizer.decode(ids).strip("\ufffd") in whole for ids in found) and len(set(found)) == 12
    assert PROSE.stat().st_size > 2_000_000
    told = _found(smollm2, 3, 0)  # what `keyhole discover` reads without a file
    assert all(len(ids) == PASSAGE and smollm2.tokenizer.decode(ids).strip("\ufffd") in whole for ids in told)


def test_the_organism_reads_its_other_tasks(organism: Model) -> None:
    texts = [example.text for example in ioi(40, 0)]
    found, _ = unrelated_text(organism, texts, seed=1)
    names = {word for example in ioi(40, 0) for word in (example.answer, example.wrong)}
    read_words = {word for ids in found for word in organism.tokenizer.decode(ids).split()}
    assert [len(ids) for ids in found] == [len(encode(organism, text, None).ids) for text in texts]
    assert len(read_words) > 40 and not names & read_words


# -- where it comes from -------------------------------------------------------------------------------------------


def serialised(strings: list[str | None]) -> bytes:
    """A vector of strings, as R writes it into a lazy-load database."""
    content = struct.pack(">2s4i5s", b"X\n", 3, 262657, 197888, 5, b"UTF-8") + struct.pack(">ii", 16, len(strings))
    for one in strings:
        text = b"" if one is None else one.encode()
        content += struct.pack(">ii", 0x40009, -1 if one is None else len(text)) + text
    return struct.pack(">I", len(content)) + zlib.compress(content)


def test_novels_are_read_to_the_letter(tool: ModuleType) -> None:
    one, two = ["EMMA", "", "caf\u00e9", None], ["Persuasion"]
    assert list(tool.novels(serialised(one) + serialised(two))) == [["EMMA", "", "caf\u00e9", ""], two]
    damaged = bytearray(serialised(two))
    damaged[3] += 1
    with pytest.raises(ValueError, match="shorter than it says"):
        list(tool.novels(bytes(damaged)))
    with pytest.raises(ValueError, match="type 13"):
        tool.strings(zlib.decompress(serialised(two)[4:]).replace(struct.pack(">ii", 16, 1), struct.pack(">ii", 13, 1)))


def test_paragraphs_are_joined_and_headings_left_out(tool: ModuleType) -> None:
    long = ["CHAPTER I", "", *["It was _so_ very"] * 4, "", "Yours,"]
    assert list(tool.paragraphs(long)) == [" ".join(["It was so very"] * 4)]


def test_without_apt_it_says_what_to_do(tmp_path: Path) -> None:
    out = tmp_path / "prose.txt"
    command = [sys.executable, str(ROOT / "tools" / "prose.py"), str(out)]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 1 and not out.exists()
    assert "apt-get is not here" in done.stderr and str(out) in done.stderr and "Traceback" not in done.stderr
