"""Commands about firings on the first token and shared directions.

The command that studies firings on the first token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.bulk import (
    OutOption,
    SeedOption,
    StoreArgument,
    StoreModel,
    answer,
    require_places,
)
from keyhole.cli.from_record import from_records
from keyhole.cli.options import JsonOption, TauOption, read_tau


@from_records()
def sinks(
    store: StoreArgument,
    *,
    source: StoreModel,
    prompts: Annotated[
        int, typer.Option(min=6, help="How many of the store's prompts; a third of them is held out.")
    ] = 24,
    tau: TauOption = "dynamic",
    draws: Annotated[int, typer.Option(min=19, help="How many draws of shuffled heads and of resampled prompts.")] = 99,
    controls: Annotated[
        int, typer.Option(min=1, help="How many other subspaces of each kind are removed as controls.")
    ] = 9,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Which few signals drive firings on the first token, and which heads share them?

    Explains firings of all heads above the first layer in some of a store's prompts, compares their signals across
    layers beside other channels of the same heads, with and without what all streams have in common, and removes what
    they share, head by head and in the model's own pass. The first token's massive coordinates are named.

    Examples:

        keyhole sinks ioi.store

        keyhole sinks smol.store --prompts 48 --out sinks.html --out sinks.png

        keyhole sinks ioi.store --json
    """
    places = require_places(out)
    with show.progress("Importing torch and transformers"):
        from keyhole.store.store import open_store
        from keyhole.studies.sinks.explore import sinks as study
    opened = open_store(store)
    loaded = source.load_of(opened)
    found = study(
        opened,
        loaded,
        prompts=prompts,
        tau=read_tau(tau),
        draws=draws,
        controls=controls,
        seed=seed,
        stage=show.progress_bar,
    )
    answer(found, places, json=json)


# The command that looks for directions that heads share, and for channels that serve two tasks.


@from_records()
def shared(
    store: StoreArgument,
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A store of another task of the same model. Default: none.")
    ] = None,
    *,
    source: StoreModel,
    prompts: Annotated[
        int, typer.Option(min=1, help="How many of the store's prompts are run again for their signals.")
    ] = 64,
    draws: Annotated[
        int,
        typer.Option(min=19, help="How many draws of shuffled heads; twice as many of prompts dealt to two halves."),
    ] = 99,
    seed: SeedOption = 0,
    out: OutOption = None,
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
        from keyhole.store.store import open_store
        from keyhole.studies.directions.directions import shared as study
    opened = open_store(store)
    second = None if other is None else open_store(other)
    loaded = source.load_of(opened)
    found = study(opened, second, loaded, prompts=prompts, draws=draws, seed=seed, stage=show.progress_bar)
    answer(found, places, json=json)
