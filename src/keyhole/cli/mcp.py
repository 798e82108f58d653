"""The command that answers agents: a server of the Model Context Protocol over standard input and output."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from keyhole.cli.from_record import from_records
from keyhole.errors import KeyholeError
from keyhole.files import user_path
from keyhole.settings.agents import AgentSettings
from keyhole.strict import quoted

_NAMED = re.compile(r"(?P<name>[\w.-]+)=(?P<source>.+)")


@from_records()
def mcp(
    folder: Annotated[
        Path,
        typer.Argument(help="The folder whose circuits and other files agents may read, and where they may write."),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            metavar="NAME[=PATH]",
            help="A model that agents may use, and by which name: organism, or NAME=PATH with a hub name, folder or "
            ".gguf file; repeatable, the first is the default one. Default: the organism alone.",
        ),
    ] = None,
    *,
    settings: AgentSettings,
) -> None:
    """Answer agents: check, trace, explain and test circuits as tools of the Model Context Protocol.

    An agent's program starts this command itself, and talks to it over standard input and output. Circuit files in the
    folder are resources. Nothing outside the folder is read or written, but for the models named here. It needs the
    package mcp: pip install 'keyhole[mcp]'.

    Examples:

        keyhole mcp circuits

        keyhole mcp circuits --model organism --model small=SmolLM2.gguf
    """
    models = read_models(model or ["organism"])
    from keyhole.agents.server import serve

    serve(folder, models, settings)


def read_models(texts: list[str]) -> dict[str, str]:
    """Where each model is loaded from, by the name that agents use.

    >>> read_models(["organism", "small=gpt2"])
    {'organism': 'organism', 'small': 'gpt2'}
    """
    models: dict[str, str] = {}
    for text in texts:
        match = _NAMED.fullmatch(text)
        name, source = (match["name"], match["source"]) if match else (text, text)
        if not source.strip() or (match is None and "=" in text):
            raise KeyholeError(f"--model takes a name, or NAME=PATH such as small=SmolLM2.gguf, not {quoted(text)}.")
        if name in models:
            raise KeyholeError(f"--model names {quoted(name)} twice: give each model a name of its own.")
        path = user_path(source)
        models[name] = str(path.absolute()) if match and path.exists() else source
    return models
