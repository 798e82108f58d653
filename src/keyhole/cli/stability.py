"""The command that asks again: how much of a circuit stays when something small changes?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.options import JsonOption


def stability(
    store: Annotated[Path, typer.Argument(help="A store of circuits (`keyhole bulk` makes one).")],
    model: Annotated[str | None, typer.Option("--model", "-m", help="Default: the one that the store names.")] = None,
    prompts: Annotated[int, typer.Option(min=2, help="How many prompts, from all over the store.")] = 32,
    roles: Annotated[bool, typer.Option("--roles", help="Tell terms apart by the roles of their tokens, too.")] = False,
    other: Annotated[Path | None, typer.Option(help="A store of another task of the same model, for a floor.")] = None,
    seed: Annotated[int, typer.Option(help="Of wordings, names and pairs.")] = 0,
    out: Annotated[
        list[Path] | None, typer.Option(help="Where to write: .html, .json, .png, .svg, .pdf. Repeatable.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """How much of a circuit stays? Its prompt is asked again in half precision, with another tau, wording or name.

    Jaccard of heads (and MLPs), of edges, of edges with their channels, and of influence, beside floors: another prompt
    of the same wording, an unrelated prompt, another task (--other).

    Examples:

        keyhole stability ioi.store

        keyhole stability smol.store --model SmolLM2.gguf --prompts 16 --other years.store

        keyhole stability ioi.store --roles --out stability.html --out stability.png
    """
    from keyhole.figures.stability import FORMATS
    from keyhole.files import require_file
    from keyhole.stable.stability import stability as measure
    from keyhole.store import model_of, open_store

    places = [require_file(path, FORMATS) for path in out or []]
    opened, beside = open_store(store), None if other is None else open_store(other)
    with show.progress("Loading the model"):
        loaded = model_of(opened, model)
    with show.progress_bar("Asking again") as progress:
        found = measure(opened, loaded, prompts=prompts, roles=roles, other=beside, seed=seed, progress=progress)
    for path in places:
        found.save(path)
    if json:
        show.as_json(found.record())
        return
    columns, rows = found.cells
    show.table(columns, [tuple("-" if cell is None else str(cell) for cell in row) for row in rows])
    show.plain(found.summary)
