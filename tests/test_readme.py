"""The README's Python and shell examples run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import keyhole
from conftest import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run_here(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, cwd=folder)


def test_python_examples_run(tmp_path: Path) -> None:
    done = run_here(["-c", "\n".join(blocks("python"))], tmp_path)
    assert done.returncode == 0, done.stderr
    exact, aligned = done.stdout.split()[-2:]
    assert exact == "True" and float(aligned) > 0.8 and (tmp_path / "mary.json").is_file()
    found = re.search(r"^(\(\d, \d\)) (\d+) ([\d.]+) ([\d.]+)\n([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+)$", done.stdout, re.M)
    assert found is not None
    head, rank, share, p, moved, random, full, normalised = found.groups()
    assert head == "(1, 6)" and int(rank) > 0 and float(share) > 0.3 and float(p) < 0.01
    assert float(random) < float(moved) < float(full) and float(normalised) > 0.2


COMMANDS = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
SHELL = [line for line in COMMANDS if line.startswith("keyhole") and "path/to" not in line]
FILES = {name: [line for line in SHELL if name in line] for name in ("mary.json", "ioi.store")}  # written, then read


@pytest.mark.parametrize(("name", "lines"), FILES.items(), ids=FILES)
def test_shell_examples_write_and_read_files(name: str, lines: list[str], tmp_path: Path) -> None:
    assert len(lines) == {"mary.json": 2, "ioi.store": 4}[name]
    for line in lines:
        runs(line, tmp_path)


@pytest.mark.parametrize("line", [line for line in SHELL if not any(name in line for name in FILES)])
def test_shell_examples_run(line: str, tmp_path: Path) -> None:
    runs(line, tmp_path)


def runs(line: str, folder: Path) -> None:
    done = keyhole(*shlex.split(line)[1:], folder=folder)
    loud = [told for told in done.stderr.splitlines() if not told.startswith("note: about")]  # what it will take
    assert done.returncode == 0 and done.stdout and not loud, (line, done.stderr)


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    asked = {line.split()[1] for line in COMMANDS if line.startswith("make ")}
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
