"""Do the guides say what happens? Their commands and snippets are run, and what they answer is compared."""

import re
import shlex
from pathlib import Path

import pytest

from commands import keyhole
from conftest import ROOT
from shown import answers, differences, same_line, shown

PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if shown(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_guide_shows_is_so(page: Path, tmp_path: Path) -> None:
    things = shown(page.read_text(encoding="utf-8"))
    for one, answered in zip(things, answers(things, tmp_path), strict=True):
        if one.answer is not None:
            wrong = differences(one.answer, answered)
            assert wrong is None, f"{page.name}: {one.code.strip()}\n{wrong}"


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_lines_for_the_shell_run(page: Path, tmp_path: Path) -> None:
    """In their order, in one folder; those on models that are not here are left out."""
    text = page.read_text(encoding="utf-8")
    lines = [
        line
        for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["keyhole"] and words[1] != "explore" and "--model" not in words and ".jsonl" not in line:
            done = keyhole(*words[1:], folder=tmp_path, timeout=1200)
            assert done.returncode == 0, (line, done.stderr)


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
