"""The README's Python and shell examples run as they stand."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def run_here(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, cwd=folder)


def test_python_examples_run(tmp_path: Path) -> None:
    done = run_here(["-c", "\n".join(blocks("python"))], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("True") and (tmp_path / "mary.json").is_file()


COMMANDS = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]


def test_shell_examples_run_one_after_the_other(tmp_path: Path) -> None:
    lines = [line for line in COMMANDS if line.startswith("keyhole") and "path/to" not in line]
    assert len(lines) >= 5
    for line in lines:
        done = run_here(["-c", "from keyhole.cli import main; main()", *shlex.split(line)[1:]], tmp_path)
        assert done.returncode == 0 and done.stdout and not done.stderr, (line, done.stderr)


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in COMMANDS:
        if line.startswith("make "):
            assert f"\n{line.split()[1]}:" in makefile


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
