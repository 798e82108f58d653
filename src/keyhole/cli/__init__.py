"""The command line: every command calls one library function and shows what it returned."""

import sys

import typer

from keyhole import show
from keyhole.cli.circuits import explain, trace, verify
from keyhole.cli.contrast import contrast
from keyhole.cli.discover import discover
from keyhole.cli.emergence import emergence as _emergence  # noqa: F401 - registers itself with lab
from keyhole.cli.lab import reproduce
from keyhole.cli.look import channels, check, heads
from keyhole.cli.toys import lab
from keyhole.errors import KeyholeError

app = typer.Typer(
    name="keyhole",
    help="Why does this attention head attend here?",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (heads, channels, explain, trace, verify, contrast, discover, reproduce, check):
    app.command()(command)
app.add_typer(lab, name="lab")


def main() -> None:
    """Entry point: a KeyholeError is one line and exit code 2, never a traceback."""
    show.quiet_libraries()
    try:
        app()
    except KeyholeError as error:
        show.error(str(error))
        sys.exit(2)
