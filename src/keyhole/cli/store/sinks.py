"""The command that studies firings on the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.options import DeviceOption, DtypeOption, JsonOption, RevisionOption, TauOption, read_tau
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
    from keyhole.sink.record import Sinks


def sinks(
    store: StoreArgument,
    model: StoreModelOption = None,
    prompts: Annotated[int, typer.Option(min=6, help="How many of the store's; one in three is held out.")] = 24,
    tau: TauOption = "dynamic",
    draws: Annotated[int, typer.Option(min=19, help="Of shuffled heads, and of resampled prompts.")] = 99,
    controls: Annotated[int, typer.Option(min=1, help="Other subspaces that are removed, of each kind.")] = 9,
    seed: SeedOption = 0,
    out: OutOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
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
        from keyhole.sink import sinks as study
        from keyhole.store import open_store
    opened = open_store(store)
    loaded = stored_model(opened, model, revision=revision, dtype=dtype, device=device)
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
    answer(found, places, lambda: _tell(found), json=json)


def _tell(found: Sinks) -> None:
    from keyhole.sink import text

    show.plain(text.opening(found) + "\n")
    for side in found.sides:
        show.plain("\n  ".join([f"{side.side} side: {side.found}", *text.head_lines(side)]) + "\n")
        if side.likeness:
            table(*text.likeness_table(side))
        if side.removals:
            table(*text.removal_table(side))
    show.plain("\n".join(text.massive_lines(found)))
