"""A .gguf file opened again: the same bits in seconds, and never an error because of the cache."""

import errno
import os
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from typer.testing import CliRunner

import keyhole
from conftest import SMOLLM2
from ggufs import write_gguf
from keyhole import KeyholeError, Model, cache
from keyhole.cli.app import app
from keyhole.files import user_cache

PROMPT = "a b c d a b"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KEYHOLE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GGUF files that transformers was asked to read."""
    asked: list[str] = []
    original = transformers.AutoModelForCausalLM.from_pretrained

    def from_pretrained(path: Any, **options: Any) -> Any:
        asked.extend(filter(None, [options.get("gguf_file")]))
        return original(path, **options)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    return asked


def assert_same(first: Model, again: Model, prompt: str = PROMPT) -> None:
    """Equal to the last bit: weights, buffers, what the tokenizer does, and what the model answers."""
    for one, other in ((first.hf.state_dict(), again.hf.state_dict()), *_buffers(first, again)):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)
    assert type(first.tokenizer) is type(again.tokenizer)
    rules = [model.tokenizer.backend_tokenizer.to_str() for model in (first, again)]
    assert rules[0] == rules[1]
    own = {"_name_or_path", "quantization_config", "architectures"}  # of the place, not of the model
    configs = [{k: v for k, v in m.hf.config.to_dict().items() if k not in own} for m in (first, again)]
    assert configs[0] == configs[1]
    assert first.fingerprint() == again.fingerprint() and first.name == again.name
    runs = [model.run(prompt) for model in (first, again)]
    assert runs[0].token_ids == runs[1].token_ids and torch.equal(runs[0].logits, runs[1].logits)


def _buffers(*models: Model) -> list[tuple[dict[str, torch.Tensor], ...]]:
    return [tuple(dict(model.hf.named_buffers()) for model in models)]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
def test_the_second_load_has_the_same_bits(kind: str, architecture: str, tmp_path: Path, parses: list[str]) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", kind=kind, architecture=architecture)
    first, again = keyhole.load(path), keyhole.load(path)
    assert parses == ["tiny.gguf"]
    assert_same(first, again)


@pytest.mark.slow
def test_smollm2_comes_back_with_the_same_bits() -> None:
    assert_same(keyhole.load(SMOLLM2), keyhole.load(SMOLLM2), "When Mary and John went to the store, John gave")


def test_dtypes_are_kept_apart(tmp_path: Path, parses: list[str]) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    for dtype in (torch.float32, torch.bfloat16, torch.float64, "auto"):
        first, again = keyhole.load(path, dtype=dtype), keyhole.load(path, dtype=dtype)
        assert_same(first, again)
        assert dtype == "auto" or again.hf.dtype == dtype
    assert len(parses) == len(cache.entries()) == 4


def test_content_counts_and_not_the_name(tmp_path: Path, parses: list[str]) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    moved = shutil.copy(path, tmp_path / "moved.gguf")
    keyhole.load(path)
    assert keyhole.load(moved).name == str(moved) and parses == ["tiny.gguf"]
    write_gguf(path, seed=1)
    assert_same(keyhole.load(path), keyhole.load(path))
    assert parses == ["tiny.gguf", "tiny.gguf"]


def test_half_precision_needs_no_more_room_than_it_had(tmp_path: Path) -> None:
    for kind, most in (("F16", 1.5), ("F32", 1.2)):
        path = write_gguf(tmp_path / f"{kind}.gguf", kind=kind)
        keyhole.load(path)
        weights = cache.entries()[0].path / "model.safetensors"
        assert weights.stat().st_size < most * path.stat().st_size


DAMAGES = {
    "a flipped bit": lambda entry: _flip(entry / "model.safetensors"),
    "half a file": lambda entry: os.truncate(entry / "model.safetensors", 100),
    "no tokenizer": lambda entry: (entry / "tokenizer.json").unlink(),
    "no manifest": lambda entry: (entry / "keyhole.json").unlink(),
    "another manifest": lambda entry: (entry / "keyhole.json").write_text("[]"),
}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_made_again(damage: str, tmp_path: Path, parses: list[str]) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    first = keyhole.load(path)
    DAMAGES[damage](cache.entries()[0].path)
    assert_same(first, keyhole.load(path))
    assert_same(first, keyhole.load(path))
    assert len(parses) == 2 and len(cache.entries()) == 1


def test_a_cache_that_cannot_be_used_is_no_error(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    caplog.set_level("INFO", "keyhole")
    own_cache.write_text("a file where the folder should be")
    expected = keyhole.load(path)
    assert "is not kept" in caplog.text and own_cache.is_file()
    own_cache.unlink()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("keyhole.models.gguf.save_file", full)
        assert_same(expected, keyhole.load(path))
        assert "No space left" in caplog.text and not os.listdir(own_cache)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    assert_same(expected, keyhole.load(path))
    assert "the disk has less than" in caplog.text and not os.listdir(own_cache)


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYHOLE_CACHE", "")
    assert user_cache() is None and cache.entries() == ()
    keyhole.load(write_gguf(tmp_path / "tiny.gguf"))
    monkeypatch.delenv("KEYHOLE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert user_cache() == tmp_path / "keyhole"


def test_several_may_write_at_once(tmp_path: Path, own_cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")

    def write(folder: Path) -> None:
        (folder / "file").write_bytes(bytes(1000))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.keep("name", "title", {}, size=1000, write=write), range(40)))
    assert os.listdir(own_cache) == ["name"] and cache.find("name") is not None
    keyhole.load(path)


# -- what is no GGUF file --------------------------------------------------------------------------------------------


def test_a_cut_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in (5, 12, 30, 200, 700, len(whole) // 2, len(whole) - 100, len(whole) - 1):
        cut.write_bytes(whole[:size])
        with pytest.raises(KeyholeError, match=r"is cut short.*Fetch it again") as told:
            keyhole.load(cut)
        assert ("inside its header" in str(told.value)) == (size <= 700)
    assert not cache.entries()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"Once upon a time there was a text.", "is no GGUF file"),
        (b"GGUF but not really", "is damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60) + bytes(64), "is damaged|is cut short"),
    ],
)
def test_what_is_no_gguf_file_is_refused(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_bytes(content)
    with pytest.raises(KeyholeError, match=reason):
        keyhole.load(path)


# -- without a word, and at the command line -------------------------------------------------------------------------


def test_loading_says_nothing_and_leaves_settings_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logging = transformers.utils.logging
    path = write_gguf(tmp_path / "tiny.gguf")
    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        model = keyhole.load(path)
        keyhole.load(path)
        keyhole.load(cache.entries()[0].path)  # a folder
        keyhole.load()
        assert capfd.readouterr() == ("", "")
        assert logging.get_verbosity() == logging.INFO and logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity(before[0])
        if not before[1]:
            logging.disable_progress_bar()
    assert model.run(PROMPT).logits.isfinite().all()


def test_the_cache_is_listed_and_cleared(tmp_path: Path, own_cache: Path) -> None:
    def at(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["cache", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    assert "0 kept, 0 MB" in at()
    for name in ("one", "two", "three"):
        keyhole.load(write_gguf(tmp_path / f"{name}.gguf", seed=len(name) + ord(name[0])))
    (own_cache / ".abandoned.part").mkdir()
    assert "3 kept" in at() and "one.gguf" in at()
    third = next(entry for entry in cache.entries() if entry.title == "three.gguf")
    assert "1 cleared" in at("clear", "one.gguf") and "1 cleared" in at("clear", third.name[:6])
    assert [entry.title for entry in cache.entries()] == ["two.gguf"]
    with pytest.raises(KeyholeError, match="no 'nonsense'"):
        cache.clear("nonsense")
    assert "1 cleared" in at("clear") and not os.listdir(own_cache)
