"""Commands that compare methods by the faithfulness of their best edges, and measure how much of a circuit stays."""

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
from keyhole.errors import KeyholeError
from keyhole.files import writable_folder
from keyhole.progress import duration
from keyhole.studies.curves.settings import CurveSettings
from keyhole.studies.settings import StabilitySettings

_LONG = 20.0  # seconds: shorter work is not announced


@from_records()
def curves(
    store: StoreArgument,
    *,
    source: StoreModel,
    settings: CurveSettings,
    files: Annotated[
        list[Path] | None,
        typer.Option("--file", help="Circuit file of EAP-IG or MIB to compare; repeatable. Default: none."),
    ] = None,
    save_scores: Annotated[
        Path | None,
        typer.Option(help="Folder to write every method's signed scores to, as files of MIB. Default: none."),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(
            help="Make a circuit for each group of prompts, and compare it with one for all and with random groups. "
            "Groups: families, template, or a label of the store; repeatable. With one method; default: no "
            "groups."
        ),
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Which edges carry the answer? Each method's best edges between components are kept, and the rest is cut.

    f is the share of the answer that is left; CPR is the area under f over the share of edges, CMD the area between f
    and 1 (MIB's measures); |1 - f| is shown at 100 and 1,000 edges, too. Methods are shown some prompts of the store,
    and edges are cut in others. accpp, heads (ACC++ that ends at MLPs) and svt trace circuits; share, gradients (EAP
    if the baseline is a counterfactual), integrated, eap-ig-inputs and gim attribute to edges; sufficient takes the
    edges of small circuits that a search finds; random is the floor. Circuits that others found (--file; JSON of
    EAP-IG or MIB) are ranked by their own scores.

    Examples:

        keyhole curves ioi.store

        keyhole curves ioi.store --baseline counterfactual --ranking absolute --methods share,eap-ig-inputs,random

        keyhole curves ioi.store --baseline counterfactual --ranking absolute --split families --split template

        keyhole curves smol.store --model SmolLM2.gguf --prompts 16 --out curves.html --out curves.png
    """
    places = require_places(out)
    folder = None if save_scores is None else writable_folder(save_scores)
    with show.progress("Importing torch and transformers"):
        from keyhole.circuits.exports import read_mib
        from keyhole.store.store import open_store
        from keyhole.studies.curves.curves import curves as measure
        from keyhole.studies.curves.splits import splits as compare
    if split and (files or folder is not None):
        raise KeyholeError("--split compares groups of prompts by one method: leave out --file and --save-scores.")
    given = [read_mib(path) for path in files or []]
    opened = open_store(store)
    loaded = source.load_of(opened)
    if split:
        with show.progress_bar("Cutting edges") as progress:
            compared = compare(opened, split, loaded, settings, announce=_announce, progress=progress)
        answer(compared, places, json=json)
        return
    with show.progress_bar("Cutting edges") as progress:
        result = measure(opened, loaded, settings, files=given, announce=_announce, progress=progress)
    written = [] if folder is None else result.save_scores(folder)
    answer(result, places, json=json)
    if not json:
        for path in written:
            show.plain(f"wrote {path}")


def _announce(seconds: float) -> None:
    """How long it will take, where that is worth saying."""
    if seconds > _LONG:
        show.note(f"this will take about {duration(seconds)}; Ctrl-C stops it, and nothing is written before the end.")


@from_records()
def stability(
    store: StoreArgument,
    *,
    source: StoreModel,
    settings: StabilitySettings,
    other: Annotated[
        Path | None, typer.Option(help="Store of another task of the same model, as a lower bound. Default: none.")
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """How much of a circuit stays in half precision, or with another tau, wording or name?

    Jaccard of heads and MLPs, of edges, of edges with their channels, and of influence. It is compared with floors:
    another prompt of the same wording, an unrelated prompt, another task (--other).

    Examples:

        keyhole stability ioi.store

        keyhole stability smol.store --model SmolLM2.gguf --prompts 16 --other years.store

        keyhole stability ioi.store --roles --out stability.html --out stability.png
    """
    places = require_places(out)
    with show.progress("Importing torch and transformers"):
        from keyhole.store.store import open_store
        from keyhole.studies.stability.stability import stability as measure
    opened, floor = open_store(store), None if other is None else open_store(other)
    loaded = source.load_of(opened)
    with show.progress_bar("Tracing again") as progress:
        result = measure(opened, loaded, other=floor, settings=settings, progress=progress)
    answer(result, places, json=json)
