"""Help of every command: whole sentences in groups, options that say what they change and their default, examples."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
import typer.main

from keyhole.cli.app import LABORATORY, SECTIONS, app

APP: Any = typer.main.get_command(app)


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group below this one."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from walk(command, (*path, name))


COMMANDS = dict(walk(APP))
LEAVES = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}


def name_of(path: tuple[str, ...]) -> str:
    return " ".join(path)


def test_every_command_stands_in_a_group() -> None:
    words = ("look", "trace", "many", "find", "name", "laboratory")
    assert [title.lower().split()[0].rstrip(":") for title in (*SECTIONS, LABORATORY)] == list(words)
    for name, command in APP.commands.items():
        assert command.rich_help_panel in (*SECTIONS, LABORATORY), name
    listed = [name for name, command in APP.commands.items() if command.rich_help_panel == LABORATORY]
    assert listed == ["reproduce", "lab"]


@pytest.mark.parametrize("path", COMMANDS, ids=name_of)
def test_the_first_sentence_is_whole(path: tuple[str, ...]) -> None:
    """It stands in the list of commands, at any width, as it is written."""
    *groups, name = path
    group = COMMANDS[tuple(groups)] if groups else APP
    first = " ".join((COMMANDS[path].help or "").split("\n\n")[0].split())
    sentence = re.match(r"[A-Z].+?[.?](?=\s|$)", first)
    assert sentence is not None and len(sentence[0].split()) >= 4
    for width in (60, 80, 100):
        listing = " ".join(group.get_help(_context(group, width)).split())
        assert f" {name} {sentence[0]}" in listing
        assert "..." not in listing.partition("Options:")[2]


def _context(command: Any, width: int) -> Any:
    return click.Context(command, info_name="keyhole", terminal_width=width, max_content_width=width)


@pytest.mark.parametrize("path", LEAVES, ids=name_of)
def test_options_say_what_they_change_and_their_default(path: tuple[str, ...]) -> None:
    command = LEAVES[path]
    context = _context(command, 100)
    for parameter in command.get_params(context):
        if getattr(parameter, "hidden", False):
            continue
        (named, text), where = parameter.get_help_record(context), f"keyhole {name_of(path)}: {parameter.name}"
        sentence = re.sub(r"\s*\[(default: |required|env var|x|[0-9.]+<).*\]$", "", text)
        assert re.match(r"[A-Z0-9`a-z]", sentence) and sentence.endswith("."), where
        assert not re.match(r"(Of|By|In|With|From|Into)\b(?![^:]*: )", sentence), f"{where} begins in the middle"
        assert len(sentence.split()) >= 3 and "..." not in sentence, where
        flag = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
        known = parameter.required or flag or "[default: " in text or re.search(r"[Dd]efault: |Needed unless", text)
        assert known, f"{where} ({named}) does not say its default: {text}"


@pytest.mark.parametrize("path", LEAVES, ids=name_of)
def test_help_ends_with_examples_that_name_the_command(path: tuple[str, ...]) -> None:
    """Each begins with the command itself, and has only options that there are."""
    command = LEAVES[path]
    _, begins, examples = command.help.partition("Examples:")
    lines = [" ".join(block.split()) for block in examples.split("\n\n") if block.strip()]
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert begins and 1 <= len(lines) <= 5
    for line in lines:
        words = shlex.split(line)
        assert words[: len(path) + 1] == ["keyhole", *path]
        assert {word for word in words if word.startswith("--")} <= options
