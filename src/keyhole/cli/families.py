"""Commands that find families of circuits in a store, and compare stores, families, circuits and published circuits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from keyhole.cli.options import JsonOption, read_choices
from keyhole.studies.settings import CompareSettings, FamilySettings

if TYPE_CHECKING:
    from keyhole.models.model import Model


@from_records()
def families(
    store: StoreArgument,
    *,
    settings: FamilySettings,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="Take only prompts with this label, such as order=ABBA; repeatable. Default: all labels."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Take prompts that are answered wrongly and circuits without heads, too.")
    ] = False,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Do the circuits of a task come in families? Which, how surely, and what do they follow?

    Circuits are compared as sets of heads, of edges, or of edges with their channels, and those that share much are
    joined. The best cut counts as families if other prompts would give the same, and if it is better than the cuts of
    circuits without families; otherwise there is one family. The report also has the agreement with every label of the
    prompts at all three granularities, the circuit that represents each family, and how much of the averaged circuit
    any prompt has.

    Examples:

        keyhole families ioi.store

        keyhole families ioi.store --role --out families.html --out families.png

        keyhole families ioi.store --granularity heads --role --k 2 --json

        keyhole families ioi.store --where order=ABBA --weighted
    """
    places = require_places(out)
    with show.progress("Importing"):
        from keyhole.store.manifest import label_columns
        from keyhole.store.store import open_store
        from keyhole.studies.families.families import RIGHT
        from keyhole.studies.families.families import families as find
    opened = open_store(store)
    labels = label_columns(opened, read_choices(only, "--where", "order=ABBA"))
    where: dict[str, Any] = ({} if everything else dict(RIGHT)) | labels
    with show.progress_bar("Comparing circuits") as progress:
        result = find(opened, where=where, settings=settings, progress=progress)
    answer(result, places, json=json)


@from_records()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A store, a part of it, a circuit, or published:NAME.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it is compared with, given in the same way.")],
    *,
    source: StoreModel,
    settings: CompareSettings,
    top: Annotated[int, typer.Option(min=1, help="How many terms are shown.")] = 12,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """What do two circuits, families or stores share, and do their heads do the same?

    Three comparisons: how often circuits of each side have each head, edge and channel; per head, the cosine of its
    signals in the two representatives, compared with pairs of prompts of one side; and edges that one representative
    has alone, removed on both sides, compared with controls. Against a published circuit: precision, recall and F1.

    A and B are each one of: ioi.store, ioi.store:1 (a family of `keyhole families`), ioi.store[order=ABBA] (prompts
    with a label), ioi.store#129 (the circuit of a prompt), mary.json, published:gpt2-ioi, published:gpt2-greater-than,
    or a circuit file of EAP-IG or MIB (eap.mib, eap.json).

    Examples:

        keyhole compare "ioi.store[order=ABBA]" "ioi.store[order=BABA]" --out families.html

        keyhole compare ioi.store:1 ioi.store:2 --prompts 100 --json

        keyhole compare gpt2.store published:gpt2-ioi --out scores.png

        keyhole compare mary.json eap_ig.mib
    """
    places = require_places(out)
    with show.progress("Importing torch and transformers"):
        from keyhole.studies.comparison.compare import compare as compare_both
        from keyhole.studies.comparison.operands import store_of

    def load() -> Model:
        store = store_of(a) or store_of(b)
        if store is None:
            return source.load()
        return source.load_of(store)

    comparison = compare_both(
        a,
        b,
        model=source.model if source == StoreModel(source.model) else load(),
        settings=settings,
        stage=show.progress_bar,
    )
    answer(comparison, places, shown=comparison.report(top), json=json)
