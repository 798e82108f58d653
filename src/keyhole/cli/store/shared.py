"""The command that looks for directions that heads share, and for channels that serve two tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.options import DeviceOption, DtypeOption, JsonOption, RevisionOption
from keyhole.cli.store.options import (
    OutOption,
    SeedOption,
    StoreArgument,
    StoreModelOption,
    answer,
    require_places,
    stored_model,
    table,
)

if TYPE_CHECKING:
    from keyhole.shared.record import Shared


def shared(
    store: StoreArgument,
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A store of another task, of the same model.")
    ] = None,
    model: StoreModelOption = None,
    prompts: Annotated[int, typer.Option(min=1, help="How many of the store's are run anew for signals.")] = 64,
    draws: Annotated[int, typer.Option(min=19, help="Of shuffled heads; twice as many of dealt prompts.")] = 99,
    seed: SeedOption = 0,
    out: OutOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Do heads coordinate through shared directions, and use the same channels in two tasks?

    Counts near-equal signals of heads in different layers, beside other channels of the same heads, with and without
    what all streams have in common. With OTHER, each head's channels in both tasks are compared, beside halves of one.

    Examples:

        keyhole shared ioi.store

        keyhole shared ioi.store years.store --out shared.html --out shared.csv
    """
    places = require_places(out)
    with show.progress("Importing torch and transformers"):
        from keyhole.shared.signals import shared as study
        from keyhole.store import open_store
    opened = open_store(store)
    second = None if other is None else open_store(other)
    loaded = stored_model(opened, model, revision=revision, dtype=dtype, device=device)
    found = study(opened, second, loaded, prompts=prompts, draws=draws, seed=seed, stage=show.progress_bar)
    answer(found, places, lambda: _tell(found), json=json)


def _tell(found: Shared) -> None:
    from keyhole.shared import text

    show.plain(text.opening(found) + "\n")
    for side in found.sides:
        show.plain("\n  ".join(text.head_lines(side)) + "\n")
        if side.signals or side.channels:
            table(*text.likeness_table(side))
    if len(found.stores) > 1:
        show.plain("\n".join(text.task_lines(found)) + "\n")
        if found.tasks:
            table(*text.task_rows(found))
