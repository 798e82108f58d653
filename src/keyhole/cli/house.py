"""Commands about tasks, the cache and the explorer.

The command that lists and clears what Keyhole keeps on this machine.
"""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import cache as kept
from keyhole import show
from keyhole.brief import model_label
from keyhole.cli.from_record import from_records
from keyhole.cli.options import (
    CacheAction,
    JsonOption,
    ModelOptions,
    read_choices,
)
from keyhole.errors import KeyholeError
from keyhole.files import require_file, user_cache

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.tasks.answers import Answered
    from keyhole.tasks.example import Example
    from keyhole.web.server.security import Door


def cache(
    action: Annotated[
        CacheAction | None,
        typer.Argument(help="What to do with the kept files. Default: list them.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(help="Clear only this name or file of the list. Default: all of them.", show_default=False),
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
    entries, root = kept.entries() if action is None else kept.clear(name), user_cache()
    if json:
        records = [{"name": e.name, "title": e.title, **e.about, "bytes": e.size, "made": e.created} for e in entries]
        show.as_json({"folder": None if root is None else str(root), "entries": records})
        return
    if entries:
        show.table(("name", "made of", "dtype", ">size", "date"), [_cells(entry) for entry in entries])
    where = "KEYHOLE_CACHE is set to nothing, or there is no home" if root is None else f"in {root}"
    done = "kept" if action is None else "cleared"
    show.plain(f"{len(entries)} {done}, {kept.readable(sum(entry.size for entry in entries))}: {where}")


def _cells(entry: kept.Entry) -> tuple[str, ...]:
    date = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.created))
    return entry.name, entry.title, str(entry.about.get("dtype", "")), kept.readable(entry.size), date


# The command that lists the tasks and shows or writes their prompts.

ChoicesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME=VALUE",
        help="A choice of the task, such as design=mixed; repeatable. Default: the task's usual choices.",
    ),
]
_AT_ONCE = 64  # prompts whose runs are held together


@from_records()
def tasks(
    what: Annotated[
        str | None, typer.Argument(help="A task, or a file of prompts (JSON Lines). Default: a list of all tasks.")
    ] = None,
    *,
    source: ModelOptions,
    n: Annotated[
        int | None, typer.Option(min=1, help="How many prompts. Default: the task's usual number; of a file, all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the task's prompts.")] = 0,
    chosen: ChoicesOption = None,
    run: Annotated[
        bool,
        typer.Option("--run", help="Run the model on the prompts, and show its answers and how often they are right."),
    ] = False,
    skip_wrong: Annotated[
        bool, typer.Option("--skip-wrong", help="With --run: leave out prompts that the model answers wrongly.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="File to write the prompts to, as JSON Lines. Default: none.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Which prompts have known answers? A list of tasks, or the prompts of one, for the model at hand.

    Words are filtered to single tokens of the model. What is written can be edited and used again in place of a task.

    Examples:

        keyhole tasks

        keyhole tasks ioi --n 5

        keyhole tasks ioi --model SmolLM2.gguf --n 60 --with design=mixed --out ioi.jsonl

        keyhole tasks ioi.jsonl --model SmolLM2.gguf --run --skip-wrong --out right.jsonl
    """
    if skip_wrong and not run:
        raise KeyholeError("--skip-wrong needs --run: whether an answer is right is known by running the model.")
    if what is None:
        _list_tasks(json=json)
        return
    from keyhole.tasks.catalogue import examples
    from keyhole.tasks.files import write_examples

    if out is not None:
        require_file(out, (".jsonl", ".json"))
    loaded = source.load() if run or source.model is not None else None
    prompts = examples(what, loaded, n, seed, **read_choices(chosen))
    rows = _answered(loaded, prompts) if run and loaded is not None else [Row(example) for example in prompts]
    kept = [row for row in rows if not (skip_wrong and row.answered and not row.answered.correct)]
    if out is not None:
        write_examples([row.example for row in kept], out)
    right = sum(row.answered.correct for row in rows if row.answered) if run else None
    if json:
        show.as_json({"task": what, "n": len(rows), "right": right, "examples": [_record(row) for row in kept]})
        return
    if out is None:
        _show(kept)
    counted = f", {right} of them answered right" if right is not None else ""
    show.plain(f"{len(rows)} prompts{counted}" + (f"; {len(kept)} written to {out}" if out is not None else ""))


@dataclass(frozen=True)
class Row:
    """A prompt, and what the model made of it."""

    example: Example
    answered: Answered | None = None


def _answered(model: Model, prompts: list[Example]) -> list[Row]:
    from keyhole.tasks.answers import answered

    rows: list[Row] = []
    with show.progress_bar(f"Asking {model_label(model.name)}") as progress:
        for start in range(0, len(prompts), _AT_ONCE):
            some = prompts[start : start + _AT_ONCE]
            runs = model.run_many([example.text for example in some])
            rows += [Row(example, answered(run, example)) for run, example in zip(runs, some, strict=True)]
            progress(len(rows), len(prompts))
    return rows


def _list_tasks(*, json: bool) -> None:
    from keyhole.tasks.catalogue import CATALOGUE, examples

    first = {name: examples(name, n=1)[0] for name in CATALOGUE}
    if json:
        rows = [
            {"task": name, "asks": task.asks, "choices": task.choices, "example": _record(Row(first[name]))}
            for name, task in CATALOGUE.items()
        ]
        show.as_json({"tasks": rows})
        return
    ends = {name: " ".join(example.text.split()[-8:]) for name, example in first.items()}
    cells = [
        (name, task.asks, f"... {ends[name]}", first[name].answer, " ".join(task.choices))
        for name, task in CATALOGUE.items()
    ]
    show.table(("task", "asks", "example", "answer", "choices (--with)"), cells)


def _show(rows: list[Row]) -> None:
    ran = any(row.answered for row in rows)
    cells = []
    for i, row in enumerate(rows):
        example, result = row.example, row.answered
        labels = " ".join(f"{name}={value}" for name, value in example.labels.items())
        said: tuple[str, ...] = ()
        if result is not None:
            verdict = "right" if result.correct else "wrong"
            said = (result.predicted.strip(), f"{result.probability:.3f}", verdict)
        cells.append((str(i), example.text, _few(example.answers), _few(example.against), labels, *said))
    more = ("predicted", ">p", "") if ran else ()
    show.table(("prompt", "text", "answer", "against", "labels", *more), cells)


def _few(words: tuple[str, ...], most: int = 3) -> str:
    return " ".join(words[:most]) + (f" ... {words[-1]}" if len(words) > most else "")


def _record(row: Row) -> dict[str, Any]:
    from keyhole.tasks.files import as_record

    return as_record(row.example) | ({"answered": asdict(row.answered)} if row.answered else {})


# The command that opens the explorer: a local page on prompts, firings, circuits and stores.


def explore(
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Hub names, model folders or .gguf files to offer beside the organism. Default: the organism alone.",
        ),
    ] = None,
    model_option: Annotated[
        list[str] | None,
        typer.Option(
            "--model", "-m", help="A model to offer, as the argument; repeatable. Default: the organism alone."
        ),
    ] = None,
    store: Annotated[
        list[Path] | None, typer.Option(help="A store that `keyhole bulk` made; repeatable. Default: none.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="A file of names of signals (`keyhole name`) to show. Default: none.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = 7373,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; any other than this machine's own opens the explorer to the network."),
    ] = ("127.0.0.1"),
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, and open no browser.")] = False,
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
    from keyhole.requests.kept import Given
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
