"""The command that keeps the best edges and cuts the rest: which method's edges carry the answer?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from keyhole import show
from keyhole.cli.choices import Baseline, EdgeMethod
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
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.faithful.faithfulness import Curves


def curves(
    store: StoreArgument,
    model: StoreModelOption = None,
    prompts: Annotated[
        int, typer.Option(min=2, help="Prompts that methods are shown, and as many others to cut.")
    ] = 32,
    baseline: Annotated[Baseline, typer.Option(help="What stands in for what is cut: its mean, or nothing.")] = "mean",
    methods: Annotated[
        str | None,
        typer.Option(help="Some of accpp, heads, svt, gradients, integrated, random, parted by commas. Default: all."),
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--file", help="A circuit of EAP-IG or MIB, scored beside them; repeatable.")
    ] = None,
    draws: Annotated[int, typer.Option(min=1, help="Of random edges.")] = 3,
    seed: SeedOption = 0,
    out: OutOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which edges carry the answer? Each method's best edges between components are kept, and the rest is cut.

    f is the share of the answer that is left; CPR is the area under f over the share of edges, CMD the area between f
    and 1 (MIB's measures). Methods are shown some prompts of the store, and edges are cut in others. accpp, heads
    (ACC++ that ends at MLPs) and svt trace circuits; gradients and integrated attribute to edges; random is the floor.
    Circuits that others found (--file; JSON of EAP-IG or MIB) are ranked by their own scores, wherever these are from.

    Examples:

        keyhole curves ioi.store

        keyhole curves ioi.store --methods accpp,gradients,random --baseline zero

        keyhole curves gpt2.store --methods accpp,random --file eap_ig.json

        keyhole curves smol.store --model SmolLM2.gguf --prompts 16 --out curves.html --out curves.png
    """
    asked, places = _methods(methods), require_places(out)
    with show.progress("Importing torch and transformers"):
        from keyhole.circuits.mib import read_mib
        from keyhole.faithful.curves import curves as measure
        from keyhole.store import open_store
    given = [read_mib(path) for path in files or []]
    opened = open_store(store)
    loaded = stored_model(opened, model, revision=revision, dtype=dtype, device=device)
    with show.progress_bar("Cutting edges") as progress:
        found = measure(
            opened,
            loaded,
            methods=asked,
            files=given,
            prompts=prompts,
            baseline=baseline,
            draws=draws,
            seed=seed,
            progress=progress,
        )
    answer(found, places, lambda: _tell(found), json=json)


def _tell(found: Curves) -> None:
    show.plain(found.summary + "\n")
    table(*found.cells)
    if found.own_told:
        show.plain(found.own_told)


def _methods(text: str | None) -> list[EdgeMethod] | None:
    """Names parted by commas."""
    if text is None:
        return None
    asked = [name.strip() for name in text.split(",")]
    known = get_args(EdgeMethod)
    if unknown := [name for name in asked if name not in known]:
        raise KeyholeError(f"--methods takes some of {', '.join(known)}, parted by commas, not {unknown[0]!r}.")
    return cast("list[EdgeMethod]", asked)
