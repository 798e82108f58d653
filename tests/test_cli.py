"""The command line in a real process: answers, JSON, and bad input with one sentence and exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import Sizes, tiny

PROMPT = "When Mary and John went to the store, John gave a drink to"


def keyhole(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from keyhole.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders without tokenizers: good, wrong, damaged, short."""
    root = tmp_path_factory.mktemp("models")
    for variant in ("gpt2", "cohere-qknorm", "mamba", "xglm", "olmo-clip"):
        tiny(variant).save_pretrained(root / variant)
    tiny("gpt2", Sizes(positions=8)).save_pretrained(root / "short")
    tiny("llama").save_pretrained(root / "damaged")
    weights = root / "damaged" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    (root / "empty").mkdir()
    (root / "broken.gguf").write_bytes(b"GGUF but not really")
    return root


def test_check_works_on_a_folder_without_a_tokenizer(folders: Path) -> None:
    done = keyhole("check", str(folders / "gpt2"), "--verbose")
    assert done.returncode == 0 and "exact" in done.stdout and "layer" in done.stdout and not done.stderr


def test_check_exits_with_one_when_not_exact(folders: Path) -> None:
    done = keyhole("check", str(folders / "gpt2"), "--tolerance", "1e-12")
    assert done.returncode == 1 and "NOT exact" in done.stdout


def test_check_json(folders: Path) -> None:
    record = json.loads(keyhole("check", "--model", str(folders / "cohere-qknorm"), "--json").stdout)
    assert record["exact"] and record["scores"] < 1e-4 and len(record["layers"]) == 3


def test_heads_on_the_organism() -> None:
    done = keyhole("heads", PROMPT, "--dest", "-1")
    assert done.returncode == 0 and "Mary" in done.stdout and not done.stderr


def test_heads_json_on_token_ids(folders: Path) -> None:
    done = keyhole("heads", "--model", str(folders / "gpt2"), "--token-ids", "5,6,7,5,6", "--json", "--sinks")
    record = json.loads(done.stdout)
    assert record["token_ids"] == [5, 6, 7, 5, 6] and record["firings"] and record["split"]
    first = record["split"][0]
    assert sum(first["terms"]) + first["rest"] == pytest.approx(first["score"], abs=1e-3)


def test_channels_json_and_text(folders: Path) -> None:
    where = ("--model", str(folders / "gpt2"), "--token-ids", "5,6,7,5,6", "--head", "1.2", "--src", "1")
    record = json.loads(keyhole("channels", *where, "--json", "--basis", "homogeneous").stdout)
    assert record["basis"] == "homogeneous" and len(record["relative_terms"]) == len(record["sigma"]) == 8
    assert set(record["controls"]) == {"refactor", "ambient"}
    text = keyhole("channels", *where)
    assert "S(v)" in text.stdout and "N_recon" in text.stdout and "█" in text.stdout


def test_help_has_examples() -> None:
    for command in ("check", "heads", "channels"):
        assert f"keyhole {command}" in keyhole(command, "--help").stdout


BAD = {
    "unknown hub name": (("heads", "a b", "-m", "no-such-model"), "cannot load no-such-model"),
    "unreachable hub": (("check", "nobody/nothing"), "hub is unreachable"),
    "no such folder": (("check", "./nowhere/at/all"), "neither a model folder nor a .gguf file"),
    "folder without a model": (("check", "{root}/empty"), "no config.json"),
    "damaged weights": (("check", "{root}/damaged"), "cannot load"),
    "damaged gguf": (("check", "{root}/broken.gguf"), "cannot load"),
    "missing gguf": (("check", "{root}/none.gguf"), "there is no file"),
    "unsupported architecture": (("check", "{root}/xglm"), "'xglm' are not supported"),
    "no attention": (("check", "{root}/mamba"), "'mamba' are not supported"),
    "unsupported setting": (("check", "{root}/olmo-clip"), "clip_qkv"),
    "text without a tokenizer": (("heads", "hello there", "-m", "{root}/gpt2"), "has no tokenizer"),
    "unknown word": (("heads", "When Mary met Zaphod and Ford"), "does not know 'Zaphod', 'Ford'"),
    "one token": (("heads", "-m", "{root}/gpt2", "--token-ids", "5"), "at least two"),
    "empty prompt": (("heads", "", "--no-bos"), "at least two"),
    "too long": (("heads", "-m", "{root}/short", "--token-ids", "1 1 1 1 1 1 1 1 1"), "only 8 positions"),
    "id outside the vocabulary": (("heads", "-m", "{root}/gpt2", "--token-ids", "5,999"), "outside the vocabulary"),
    "ids that are not numbers": (("heads", "-m", "{root}/gpt2", "--token-ids", "a,b"), "whole numbers"),
    "neither prompt nor ids": (("heads",), "give a prompt"),
    "dest out of range": (("heads", PROMPT, "--dest", "99"), "outside the prompt"),
    "head that is no head": (("channels", PROMPT, "--head", "three", "--src", "Mary"), "such as 3.1"),
    "layer out of range": (("channels", PROMPT, "--head", "77.0", "--src", "Mary"), "no layer 77"),
    "head out of range": (("channels", PROMPT, "--head", "0.77", "--src", "Mary"), "no head 0.77"),
    "src after dest": (("channels", PROMPT, "--head", "1.1", "--dest", "2", "--src", "5"), "comes after dest"),
    "ambiguous text": (("channels", PROMPT, "--head", "1.1", "--src", "John"), "ambiguous"),
    "absent text": (("channels", PROMPT, "--head", "1.1", "--src", "Paris"), "not a token of the prompt"),
    "unknown dtype": (("check", "--dtype", "int3"), "no dtype 'int3'"),
    "unknown basis": (("channels", PROMPT, "--head", "1.1", "--src", "Mary", "--basis", "x"), "no basis 'x'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_code_two(case: str, folders: Path) -> None:
    args, message = BAD[case]
    done = keyhole(*(a.format(root=folders) for a in args))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr and not done.stdout
