"""Commands about firings on the first token, and about directions and channels that heads and tasks share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.bulk import (
    OutOption,
    StoreArgument,
    StoreModel,
    answer,
    require_places,
)
from keyhole.cli.from_record import from_records
from keyhole.cli.options import JsonOption
from keyhole.studies.settings import SharedSettings, SinkSettings


@from_records()
def sinks(
    store: StoreArgument,
    *,
    source: StoreModel,
    settings: SinkSettings,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Which few signals drive firings on the first token, and which heads share them?

    Explains firings of all heads above the first layer in some of a store's prompts. Compares their signals across
    layers with those in other channels of the same heads, with and without what all streams have in common. Removes
    what they share, head by head and in the model's own pass. Names the first token's massive coordinates.

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
    answer(study(opened, loaded, settings=settings, stage=show.progress_bar), places, json=json)


@from_records()
def shared(
    store: StoreArgument,
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="A store of another task of the same model. Default: none.")
    ] = None,
    *,
    source: StoreModel,
    settings: SharedSettings,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Do heads coordinate through shared directions, and use the same channels in two tasks?

    Counts near-equal signals of heads in different layers, compared with those in other channels of the same heads,
    with and without what all streams have in common. With OTHER, each head's channels in both tasks are compared; two
    halves of one task say how alike they could be.

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
    answer(study(opened, second, loaded, settings=settings, stage=show.progress_bar), places, json=json)
