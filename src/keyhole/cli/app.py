"""Which commands are there, and how is one run?

The command that shows which words a model knows.
"""

import os
import sys
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import entry_points, version
from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.bulk import bulk
from keyhole.cli.circuits import explain, trace
from keyhole.cli.claim import claim
from keyhole.cli.contrast import contrast
from keyhole.cli.curves import curves, stability
from keyhole.cli.discover import discover
from keyhole.cli.families import compare, families
from keyhole.cli.generate import generate
from keyhole.cli.help import Grouped, Sectioned
from keyhole.cli.house import cache, explore, tasks
from keyhole.cli.look import channels, check, heads, plot
from keyhole.cli.mcp import mcp
from keyhole.cli.models import basis as _basis  # noqa: F401 - registers itself with lab
from keyhole.cli.models import emergence as _emergence  # noqa: F401 - registers itself with lab
from keyhole.cli.name import name as name_command
from keyhole.cli.options import JsonOption, ModelOption, ModelOptions
from keyhole.cli.sinks import shared, sinks
from keyhole.cli.toys import lab
from keyhole.cli.verify import backups, verify
from keyhole.cli.where import features, where
from keyhole.errors import KeyholeError
from keyhole.strict import shortened
from keyhole.version import __version__


def words(
    pattern: Annotated[
        str | None,
        typer.Argument(help="Part of a word, or a pattern such as 'Mar*'. Default: the words of the built-in tasks."),
    ] = None,
    model: ModelOption = None,
    top: Annotated[int, typer.Option(min=1, help="How many tokens are shown.")] = 40,
    revision: Annotated[
        str | None, typer.Option(help="Revision of a hub model: a branch, tag or commit. Default: the newest.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Which words does a model know as one token?

    Without a pattern: the words that the built-in tasks are made of, by kind, and all others of a small vocabulary
    such as the organism's.

    Examples:

        keyhole words

        keyhole words box

        keyhole words 'Mar*' --model SmolLM2.gguf
    """
    from keyhole.models.tokens import tokens_like
    from keyhole.tasks.corpus import words_by_kind

    loaded = ModelOptions(model, revision).load()
    if pattern is None:
        kinds = words_by_kind(loaded)
        if json:
            show.as_json({"model": loaded.name, "words": kinds})
        else:
            rows = [(kind, " ".join(known)) for kind, known in kinds.items()]
            show.table(("kind", "words"), rows, otherwise=80)
        return
    tokens = tokens_like(loaded, pattern)
    if json:
        show.as_json({"model": loaded.name, "tokens": [asdict(token) for token in tokens]})
        return
    show.table((">id", "token"), [(str(token.id), repr(token.text)) for token in tokens[:top]])
    show.plain(f"{min(top, len(tokens))} of {len(tokens)} tokens shown")


# The commands of `keyhole`, in sections; those of other packages too.
#
# Modules of this package import the library inside their functions, and above them only for type checkers: help,
# usage errors and `--version` then load neither torch nor transformers, which take seconds.

app = typer.Typer(
    name="keyhole",
    cls=Grouped,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help costs half the time of boxes and colours
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
    add_completion=False,
)
SECTIONS = {  # of `keyhole --help`
    "Look at a model or a prompt": (explore, mcp, check, words, heads, plot, channels, generate, cache),
    "Trace one answer": (explain, trace, verify, backups, claim),
    "Many prompts": (tasks, bulk, families, compare, sinks, shared, curves, stability),
    "Find features": (contrast, discover, where, features),
    "Name signals": (name_command,),
}
LABORATORY = "Laboratory: published results, and models with known answers"
for section, commands in SECTIONS.items():
    for command in commands:
        app.command(cls=Sectioned if command in (trace, bulk, backups) else None, rich_help_panel=section)(command)
for plugin in entry_points(group="keyhole.commands"):  # of other packages: keyhole_papers has `reproduce`
    app.command(plugin.name, rich_help_panel=LABORATORY)(plugin.load())
app.add_typer(lab, name="lab", rich_help_panel=LABORATORY)


def _versions(wanted: bool) -> bool:
    if wanted:
        versions = [f"{name} {version(name)}" for name in ("torch", "transformers")]
        print(", ".join([f"keyhole {__version__}", *versions]))
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_versions, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """Why does this attention head attend here?"""


def main() -> None:
    """Entry point: a KeyholeError is one line and exit code 2, never a traceback."""
    _quiet_libraries()
    show.tell_notes()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except KeyholeError as error:
        show.error(str(error))
        sys.exit(2)
    except BrokenPipeError:  # whoever read the answer has gone
        _forget_output()
        sys.exit(1)
    except OSError as error:  # a full disk above all: files that are named are looked at before
        _forget_output()
        where = "the answer" if error.filename is None else shortened(str(error.filename))
        show.error(f"cannot read or write {where}: {error.strerror or error}. Give another place, or make room.")
        sys.exit(2)


def _forget_output() -> None:
    """Send what is still to be printed nowhere: Python would try once more at its end, and complain."""
    with suppress(OSError, ValueError):  # no file is behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _quiet_libraries() -> None:
    """Keep warnings of libraries out of the terminal; set before they are imported, and a user's setting stays."""
    for name in ("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"):
        os.environ.setdefault(name, "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
