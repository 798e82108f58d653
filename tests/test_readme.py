"""The README's Python and shell examples run as they stand."""

import re
import shlex
import subprocess
import sys

import pytest

from conftest import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_examples_run() -> None:
    code = "\n".join(blocks("python"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("True")


COMMANDS = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]


@pytest.mark.parametrize("line", [c for c in COMMANDS if c.startswith("keyhole") and "path/to" not in c])
def test_shell_examples_run(line: str) -> None:
    command = [sys.executable, "-c", "from keyhole.cli import main; main()", *shlex.split(line)[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout and not done.stderr, done.stderr


def test_the_two_commands_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for line in COMMANDS:
        if line.startswith("make "):
            assert f"\n{line.split()[1]}:" in makefile


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
