"""The command that lists and clears what Keyhole keeps on this machine."""

import time
from typing import Annotated

import typer

from keyhole import cache as kept
from keyhole import show
from keyhole.cli.choices import CacheAction
from keyhole.cli.options import JsonOption
from keyhole.files import user_cache


def cache(
    action: Annotated[CacheAction | None, typer.Argument(help="Without it, a list.", show_default=False)] = None,
    name: Annotated[
        str | None, typer.Argument(help="Clear only this name or file of the list.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """What does Keyhole keep on this machine? Converted .gguf files, so that the next load takes seconds.

    They are in the user's cache folder; the environment variable KEYHOLE_CACHE names another one, or none if it is
    set to nothing.

    Examples:

        keyhole cache

        keyhole cache clear

        keyhole cache clear SmolLM2.gguf
    """
    found, root = kept.entries() if action is None else kept.clear(name), user_cache()
    if json:
        entries = [{"name": e.name, "title": e.title, **e.about, "bytes": e.size, "made": e.made} for e in found]
        show.as_json({"folder": None if root is None else str(root), "entries": entries})
        return
    if found:
        show.table(("name", "made of", "dtype", ">size", "date"), [_cells(entry) for entry in found])
    where = "KEYHOLE_CACHE is set to nothing, or there is no home" if root is None else f"in {root}"
    done = "kept" if action is None else "cleared"
    show.plain(f"{len(found)} {done}, {kept.readable(sum(entry.size for entry in found))}: {where}")


def _cells(entry: kept.Entry) -> tuple[str, ...]:
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made))
    return entry.name, entry.title, str(entry.about.get("dtype", "")), kept.readable(entry.size), date
