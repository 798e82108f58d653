"""The command that opens the explorer: a local page on prompts, firings, circuits and stores."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show

if TYPE_CHECKING:
    from keyhole.web.server.security import Door


def explore(
    model: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Hub names, model folders or .gguf files, beside the organism."),
    ] = None,
    model_option: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="The same as an argument. May be repeated.")
    ] = None,
    store: Annotated[list[Path] | None, typer.Option(help="A store that `keyhole bulk` made. May be repeated.")] = None,
    names: Annotated[Path | None, typer.Option(help="Names of signals (`keyhole name`).")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0: any free port.")] = 7373,
    host: Annotated[str, typer.Option(help="Another address than this machine's own opens it to the network.")] = (
        "127.0.0.1"
    ),
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, and open nothing.")] = False,
) -> None:
    """Look at prompts, heads, firings, circuits and stores in the browser. Nothing leaves this machine.

    Prints one line with the address and its token, which lets your browser in, once it listens; models are loaded
    after that. Ctrl-C ends it.

    Examples:

        keyhole explore

        keyhole explore SmolLM2.gguf --store ioi.store --no-browser

        keyhole explore --port 0 --names names.json
    """
    from keyhole.errors import KeyholeError

    for path in store or []:
        if not (path / "manifest.json").is_file():
            raise KeyholeError(f"{path} is no store: it has no manifest.json. `keyhole bulk` makes one.")
    if names is not None and not names.is_file():
        raise KeyholeError(f"there is no file of names {names}: `keyhole name` makes one.")
    from keyhole.web.server.security import LOOPBACK

    if host not in LOOPBACK:
        logging.getLogger(__name__).warning(
            f"--host {host} opens this server to the network: whoever has the token, which is sent unencrypted, can "
            "load models, read the stores and use this machine's time."
        )
    from keyhole.web.server.kept import Given
    from keyhole.web.server.listen import serve

    def ready(door: Door) -> None:
        print(door.address, flush=True)
        if sys.stderr.isatty():
            show.note("open this address in a browser; Ctrl-C stops the server.")
        if not no_browser:
            import threading
            import webbrowser

            # Beside the server, which must go on meanwhile: browsers of the terminal keep their caller waiting.
            threading.Thread(target=webbrowser.open, args=(door.address,), daemon=True).start()

    serve(Given((*(model or ()), *(model_option or ())), tuple(store or ()), names), host=host, port=port, ready=ready)
