"""The command that finds families of circuits in a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.choices import Granularity
from keyhole.cli.options import JsonOption, read_choices
from keyhole.cli.store.options import OutOption, SeedOption, StoreArgument, answer, require_places, table

if TYPE_CHECKING:
    from keyhole.family.agreement import Beside
    from keyhole.family.averages import Average
    from keyhole.family.record import Families, Family

_FAMILIES = ("family", ">circuits", ">prompt", ">stability", ">silhouette", ">distance", ">terms", "most members share")
_LABELS = ("sets of", "label", ">values", ">ARI", ">NMI", ">ARI, cut into as many", ">explained", ">nearest alike")
_AVERAGES = ("averaged", ">circuits", ">terms of one", ">of half", ">nearest", ">mean", ">held", ">missed", ">again")


def families(
    store: StoreArgument,
    granularity: Annotated[Granularity, typer.Option(help="What circuits are sets of.")] = "channels",
    side: Annotated[bool, typer.Option("--side/--no-side", help="Tell dest, src and value edges apart.")] = True,
    role: Annotated[bool, typer.Option("--role/--no-role", help="Tell the roles of tokens apart.")] = False,
    weighted: Annotated[bool, typer.Option("--weighted", help="By influence, and not by presence alone.")] = False,
    k: Annotated[int | None, typer.Option(min=2, help="How many families. Default: found.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--where", help="Only such prompts: order=ABBA. May be repeated.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also prompts that are answered wrongly, and circuits without heads.")
    ] = False,
    most: Annotated[int, typer.Option(min=10, help="Of more circuits, a sample of so many is cut.")] = 10_000,
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
        from keyhole.family.families import RIGHT
        from keyhole.family.families import families as find
        from keyhole.store.chosen import label_columns
        from keyhole.store.store import open_store
    opened = open_store(store)
    asked_for = label_columns(opened, read_choices(only, "--where", "order=ABBA"))
    where: dict[str, Any] = ({} if everything else dict(RIGHT)) | asked_for
    asked: dict[str, Any] = {"granularity": granularity, "side": side, "role": role, "weighted": weighted, "k": k}
    with show.progress_bar("Comparing circuits") as progress:
        found = find(opened, **asked, where=where, most=most, seed=seed, progress=progress)
    answer(found, places, lambda: _tell(found), json=json)


def _tell(found: Families) -> None:
    from keyhole.family.report import asked_text, numbers_text, plain_verdict, rest_text

    show.plain(f"{plain_verdict(found)}\n")
    show.plain(f"{asked_text(found)}\n")
    numbers = " ".join(filter(None, [numbers_text(found), rest_text(found)]))
    if numbers:
        show.plain(f"{numbers}\n")
    table(_FAMILIES, [_family_row(one) for one in found.families])
    show.plain("labels of the prompts (what 95 % of shuffled labels stay below)")
    show.table(_LABELS, _label_rows(found))
    show.plain("averaged circuits: what half of the circuits have, beside the circuits (Jaccard)")
    show.table(_AVERAGES, [_average_row(one) for one in found.averages])


def _family_row(one: Family) -> list[str | float | int]:
    from keyhole.family.report import common_text

    quality = (one.stability, one.silhouette, one.mean_distance)
    return [str(one.number), one.size, str(one.representative), *quality, round(one.mean_size), common_text(one)]


def _label_rows(found: Families) -> list[list[str]]:
    from keyhole.family.report import level_rows

    return [
        [level.granularity, one.label, str(one.values)]
        + [_beside(x) for x in (one.ari, one.nmi, one.tree, one.explained, one.nearest)]
        for level, one in level_rows(found)
    ]


def _average_row(one: Average) -> list[str]:
    shares = [f"{x:.0%}" for x in (one.nearest, one.typical, one.held, one.missed, one.again)]
    return [one.group, f"{one.circuits:,}", f"{one.mean_size:.0f}", str(one.size), *shares]


def _beside(one: Beside | None) -> str:
    return "-" if one is None else f"{one.value:.3f} ({one.high:.3f})"
