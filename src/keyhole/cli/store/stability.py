"""The command that asks again: how much of a circuit stays when something small changes?"""

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
    from keyhole.stable.stays import Stability


def stability(
    store: StoreArgument,
    model: StoreModelOption = None,
    prompts: Annotated[int, typer.Option(min=2, help="How many prompts, from all over the store.")] = 32,
    roles: Annotated[bool, typer.Option("--roles", help="Tell terms apart by the roles of their tokens, too.")] = False,
    other: Annotated[Path | None, typer.Option(help="A store of another task of the same model, for a floor.")] = None,
    seed: SeedOption = 0,
    out: OutOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """How much of a circuit stays in half precision, or with another tau, wording or name?

    Jaccard of heads (and MLPs), of edges, of edges with their channels, and of influence, beside floors: another prompt
    of the same wording, an unrelated prompt, another task (--other).

    Examples:

        keyhole stability ioi.store

        keyhole stability smol.store --model SmolLM2.gguf --prompts 16 --other years.store

        keyhole stability ioi.store --roles --out stability.html --out stability.png
    """
    places = require_places(out)
    with show.progress("Importing torch and transformers"):
        from keyhole.stable.stability import stability as measure
        from keyhole.store import open_store
    opened, beside = open_store(store), None if other is None else open_store(other)
    loaded = stored_model(opened, model, revision=revision, dtype=dtype, device=device)
    with show.progress_bar("Asking again") as progress:
        found = measure(opened, loaded, prompts=prompts, roles=roles, other=beside, seed=seed, progress=progress)
    answer(found, places, lambda: _tell(found), json=json)


def _tell(found: Stability) -> None:
    show.plain(found.summary + "\n")
    table(*found.cells)
