"""Commands that look for families in a store and compare two.

The command that finds families of circuits in a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

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
from keyhole.cli.options import (
    CutMode,
    Granularity,
    JsonOption,
    read_choices,
)

if TYPE_CHECKING:
    from keyhole.models.model import Model


def families(
    store: StoreArgument,
    granularity: Annotated[
        Granularity,
        typer.Option(help="What circuits are compared by: their heads, their edges, or their edges with channels."),
    ] = "channels",
    side: Annotated[
        bool, typer.Option("--side/--no-side", help="Tell dest, src and value edges apart, or do not.")
    ] = True,
    role: Annotated[
        bool, typer.Option("--role/--no-role", help="Tell edges apart by the roles of their tokens, or do not.")
    ] = False,
    weighted: Annotated[
        bool, typer.Option("--weighted", help="Compare by influence, and not by presence alone.")
    ] = False,
    k: Annotated[
        int | None, typer.Option(min=2, help="How many families. Default: as many as the circuits show.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--where", help="Take only prompts with this label, such as order=ABBA; repeatable. Default: all labels."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Take prompts that are answered wrongly and circuits without heads, too.")
    ] = False,
    most: Annotated[
        int, typer.Option(min=10, help="How many circuits are compared at most; of more, a sample.")
    ] = 10_000,
    seed: SeedOption = 0,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Do the circuits of a task come in families? Which, how surely, and what do they follow?

    Circuits are sets (of heads, edges, or edges with their channels); those that share much are joined. A cut is
    believed if other prompts would give the same families and if they stand further apart than where there are none;
    otherwise there is one family. Beside it: agreement with every label of the prompts, at all three granularities, the
    circuit that represents each family, and how much of the averaged circuit is any prompt's.

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
    asked_for = label_columns(opened, read_choices(only, "--where", "order=ABBA"))
    where: dict[str, Any] = ({} if everything else dict(RIGHT)) | asked_for
    asked: dict[str, Any] = {"granularity": granularity, "side": side, "role": role, "weighted": weighted, "k": k}
    with show.progress_bar("Comparing circuits") as progress:
        found = find(opened, **asked, where=where, most=most, seed=seed, progress=progress)
    answer(found, places, json=json)


# The command that compares stores, families, circuits and published circuits.


@from_records()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A store, a part of it, a circuit, or published:NAME.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it is compared with, given in the same way.")],
    *,
    source: StoreModel,
    members: Annotated[
        int,
        typer.Option(
            "--prompts", "--members", min=0, help="How many prompts of each side are run; 0: only sets are compared."
        ),
    ] = 40,
    threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of circuits that must have a term for it to count, between 0 and 1."),
    ] = 0.1,
    mode: Annotated[
        CutMode,
        typer.Option(
            help="What is computed anew after an edge is removed: scores (exact), one head (local), or everything that "
            "follows (global)."
        ),
    ] = "local",
    draws: Annotated[int, typer.Option(min=1, help="How many random controls per prompt.")] = 3,
    seed: SeedOption = 0,
    top: Annotated[int, typer.Option(min=1, help="How many terms are shown.")] = 12,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """What do two circuits, families or stores share, and do their heads do the same?

    Sets of heads, edges and channels with their frequencies; per head, what its signals have in common in the two
    representatives, beside pairs of prompts within each side; edges of one representative alone, removed on both sides,
    beside controls. Against a published circuit: precision, recall and F1.

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

    found = compare_both(
        a,
        b,
        model=source.model if source == StoreModel(source.model) else load(),
        members=members,
        threshold=threshold,
        mode=mode,
        draws=draws,
        seed=seed,
        stage=show.progress_bar,
    )
    answer(found, places, shown=found.report(top), json=json)
