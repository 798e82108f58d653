"""The README's Python and shell examples run as they stand, and what it shows is what they answer."""

import re
import shlex
from pathlib import Path

import pytest

from commands import keyhole
from conftest import ROOT
from shown import answers, differences, shown

README = (ROOT / "README.md").read_text()


def test_what_is_shown_is_so(tmp_path: Path) -> None:
    things = [one for one in shown(README) if one.python or one.answer is not None]
    assert sum(one.python for one in things) == 1 and sum(one.answer is not None for one in things) == 2
    told = answers(things, tmp_path)
    for one, answered in zip(things, told, strict=True):
        if one.answer is not None:
            assert differences(one.answer, answered) is None, (one.code, differences(one.answer, answered))
    python = next(text for one, text in zip(things, told, strict=True) if one.python)
    assert (tmp_path / "mary.json").is_file() and python.splitlines()[0].startswith("head 3.6  ")


GUIDES = {one.code for page in (ROOT / "docs").glob("*.md") for one in shown(page.read_text(encoding="utf-8"))}
SHELL = [  # what a guide shows is run there
    line
    for line in (one.code.partition("#")[0].strip() for one in shown(README) if not one.python and one.answer is None)
    if line not in GUIDES
]
FILES = {name: [line for line in SHELL if name in line] for name in ("mary.json", "ioi.store")}  # written, then read


@pytest.mark.parametrize(("name", "lines"), FILES.items(), ids=FILES)
def test_shell_examples_write_and_read_files(name: str, lines: list[str], tmp_path: Path) -> None:
    assert len(lines) == {"mary.json": 1, "ioi.store": 1}[name]
    for line in lines:
        runs(line, tmp_path)


@pytest.mark.parametrize("line", [line for line in SHELL if not any(name in line for name in FILES)])
def test_shell_examples_run(line: str, tmp_path: Path) -> None:
    runs(line, tmp_path)


def runs(line: str, folder: Path) -> None:
    done = keyhole(*shlex.split(line, comments=True)[1:], folder=folder)
    quiet = re.compile(r"note: about |\w+: [\d,]+ of ")  # what it will take, and how far it is
    loud = [told for told in done.stderr.splitlines() if not quiet.match(told)]
    assert done.returncode == 0 and done.stdout and not loud, (line, done.stderr)


def test_every_command_named_exists() -> None:
    known = set(re.findall(r"^  ([a-z]+)  ", keyhole("--help").stdout, re.MULTILINE))
    named = set(re.findall(r"`keyhole ([a-z]+)", README)) | set(re.findall(r"^keyhole ([a-z]+)", README, re.MULTILINE))
    assert len(named) >= 15 and named <= known, named - known


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    asked = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert {"demo", "test"} <= asked and all(f"\n{target}:" in makefile for target in asked)


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def numbers(line: str) -> list[float]:
    return [float(cell) for cell in re.findall(r"\| (\d\S*e-\d+) ", line)]


def test_the_table_of_models_is_the_measured_one() -> None:
    """README shows the worst row of docs/models.md, and the organism and SmolLM2 as they are there."""
    measured = (ROOT / "docs" / "models.md").read_text().splitlines()
    table = {line.split(" | ")[0].strip("| "): numbers(line) for line in measured if len(numbers(line)) == 3}
    tiny = [row for name, row in table.items() if name not in ("the organism", "SmolLM2-135M-Instruct")]
    shown = [line for line in README.splitlines() if len(numbers(line)) == 3]
    assert numbers(shown[0]) == [max(row[i] for row in tiny) for i in range(3)]
    assert numbers(shown[1]) == table["the organism"] and numbers(shown[2]) == table["SmolLM2-135M-Instruct"]
