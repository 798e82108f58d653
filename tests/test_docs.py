"""Do the guides say what happens? Their commands and snippets are run, and what they answer is compared."""

import re
import shlex
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import typer.main

from conftest import ROOT
from keyhole import Model
from keyhole.cli.app import app
from shown import ELSEWHERE, answers, differences, same_line, shown

PROMPT = "When Mary and John went to the store, John gave a drink to"
KINDS = {"```", "```console", "```json", "```python", "```sh", "```text"}
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if shown(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_guide_shows_is_so(page: Path, tmp_path: Path) -> None:
    things = shown(page.read_text(encoding="utf-8"))
    for one, answered in zip(things, answers(things, tmp_path), strict=True):
        if one.answer is not None:
            wrong = differences(one.answer, answered)
            assert wrong is None, f"{page.name}: {one.code.strip()}\n{wrong}"


def test_every_block_is_run_or_run_elsewhere() -> None:
    """No output stands on a page without a command that is run, no command without a block that says so."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    lines = [line for page in pages for line in blocks(page.read_text(encoding="utf-8"), "sh")]
    assert all(any(re.match(part, line) for line in lines) for part in ELSEWHERE)
    for page in pages:
        text = page.read_text(encoding="utf-8")
        fences = re.findall(r"^\s*(?:```|~~~).*$", text, re.MULTILINE)
        assert {fence.strip("\n") for fence in fences} <= KINDS, page.name
        assert all(one.answer is None or one.answer.strip() != "..." for one in shown(text)), page.name
        assert not [line for line in blocks(text, "") if line.startswith(("$ ", "keyhole "))], page.name
        assert not re.search(r"^    (\$ |keyhole )", text, re.MULTILINE), page.name
        assert text.count("```text") <= len([one for one in shown(text) if one.python and one.answer]), page.name


def blocks(text: str, kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [line for name, block in found if name == kind for line in block.splitlines()]


def test_commands_within_sentences_could_be_typed() -> None:
    """They are not run, for many take hours: their words and options are those of the command line."""
    known: dict[str, set[str]] = {}

    def learn(command: Any, name: str) -> None:
        known[name] = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        for part, own in getattr(command, "commands", {}).items():
            learn(own, f"{name} {part}")

    learn(typer.main.get_command(app), "keyhole")
    every = {option for own in known.values() for option in own} | {"--help"}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for code in re.findall(r"`([^`\n]+)`", text):
            if code.startswith("keyhole "):
                name, words = "keyhole", shlex.split(code)[1:]
                while words and f"{name} {words[0]}" in known:
                    name = f"{name} {words.pop(0)}"
                options = {word.strip("[]").partition("=")[0] for word in words if word.strip("[").startswith("--")}
                assert (name != "keyhole" or options) and options <= known[name] | {"--help"}, f"{page.name}: {code}"
            elif re.match(r"--[a-z]", code) and page.name != "versions.md":  # which has uv's and pip's
                assert set(re.findall(r"(?<!\S)--[a-z-]+", code)) <= every, f"{page.name}: {code}"
        for script in re.findall(r"python ((?:benchmarks|tools|examples)/\w+\.py)", text):
            assert (ROOT / script).is_file(), f"{page.name}: {script}"


def test_the_tutorial_shows_what_it_runs() -> None:
    things = shown((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"))
    assert sum(one.answer is not None for one in things) >= 8


def test_every_page_is_on_the_site_and_every_link_leads_somewhere() -> None:
    listed = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    assert listed == set(pages)
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            place, _, part = target.partition("#")
            assert place.startswith("https://") or (ROOT / "docs" / place).exists(), f"{name}: {target}"
            if part and (place or name).endswith(".md"):
                assert part in anchors(pages[place or name]), f"{name}: {target}"


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize(
    ("said", "answered", "same"),
    [
        ("a 1.00\n", "a 1.01\n", True),
        ("a 1.00\n", "a 1.20\n", False),
        ("a 12\n", "a 13\n", False),
        ("a\n...\nz 0.5\n", "a\nb\nc\nz 0.505\n", True),
        ("a\n...\nz\n", "a\nb\n", False),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("x -3.1e-07", "x -2e-07", True),
        ("x 3e-07", "x 3e-05", False),
        ("1.6  ████ 0.4", "1.6  ███ 0.4", True),
    ],
)
def test_how_answers_are_compared(said: str, answered: str, same: bool) -> None:
    assert (differences(said, answered) is None) == same


def test_numbers_within_words_are_no_numbers() -> None:
    assert not same_line("head h1", "head h2") and same_line("(14:to <- 2:Mary)", "(14:to <- 2:Mary)")


def test_what_is_pruned_is_said_where_words_are_promised() -> None:
    """Circuits go down to the tokens, but not all of an answer does."""
    for name in ("README.md", "docs/tutorial.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        promises = [part for part in text.split("\n\n") if "down to the tokens" in part]
        assert promises and all("pruned" in part for part in promises), name


def test_the_tutorial_says_what_controls_do(organism: Model) -> None:
    """Its numbers are those of the circuit that it verifies, the largest controls among them."""
    found = organism.run(PROMPT).trace("Mary", against="John").verify()
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").partition("## 6.")[2].partition("## 7.")[0]
    said = " ".join(text.split()).partition("Controls do much less.")[2]
    sides, causes = ([abs(d) for row in rows for d in row.control_drops] for rows in (found.sides, found.mlps))
    drops, lost = (median(row.drop for row in rows) for rows in (found.sides, found.mlps))
    assert f"move attention by {median(sides):.2f} where the signals of a side move it by {drops:.2f}" in said
    most = max(row.control for row in found.mlps)
    assert f"by more than {median(causes):.2f} of it, those of one MLP by {most:.2f} on average" in said
    assert f"Its causes change it by {lost:.2f}" in said
