"""How is `--help` laid out? In sections: options by the method they belong to, commands by purpose."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

from keyhole.strict import shortened

_LONGEST = 2000  # characters of a usage error


class Sectioned(TyperCommand):
    """A command whose help has a section per option panel. Without rich, typer's own help ignores panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:  # these classes are click's, or typer's copy of click's
        """Write a section for arguments, one for options without a panel, and one for every panel."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(param, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Grouped(TyperGroup):
    """A group whose help lists commands by panel, each with its whole first sentence. Click would truncate it."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what a usage error quotes of the command line may be long, and is cut."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # click's, or typer's copy of click's: known by its message
            if isinstance(message := getattr(error, "message", None), str):
                error.message = shortened(message, _LONGEST)  # type: ignore[attr-defined]
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for every panel, with descriptions aligned in one column across sections."""
        width = max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None)
            title = panel if isinstance(panel, str) else "Commands"
            sections.setdefault(title, []).append((name.ljust(width), first_sentence(command.help or "")))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def first_sentence(text: str) -> str:
    r"""The first sentence of a command's help, on one line.

    >>> first_sentence("Where else does this fire? The strongest places.")
    'Where else does this fire?'
    >>> first_sentence("Reads a .gguf file, and S(v)\nof heads.")
    'Reads a .gguf file, and S(v) of heads.'
    """
    sentences = re.split(r"(?<=[.?!])\s+", " ".join(text.split("\n\n")[0].split()))
    return sentences[0]
