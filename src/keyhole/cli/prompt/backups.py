"""The command that removes heads in pairs: which heads take over when another is gone?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.options import (
    CircuitModelOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    RevisionOption,
    load_model,
    read_head,
)
from keyhole.cli.prompt.measuring import CounterfactualOption, LikeOption, baseline_of
from keyhole.cli.prompt.proof import model_named
from keyhole.cli.store.options import OutOption, SeedOption, answer, require_places, table

if TYPE_CHECKING:
    from keyhole.faithfulness.backup_record import Backups


def backups(
    file: Annotated[Path, typer.Argument(help="A circuit file (.json).")],
    model: CircuitModelOption = None,
    first: Annotated[
        int, typer.Option(min=1, help="How many of the circuit's heads are removed first, by influence.")
    ] = 8,
    heads: Annotated[
        list[str] | None, typer.Option("--head", help="This head instead, such as 3.6; repeatable.")
    ] = None,
    draws: Annotated[int, typer.Option(min=20, help="Random pairs to compare with.")] = 1000,
    like: LikeOption = None,
    counterfactual: CounterfactualOption = None,
    seed: SeedOption = 0,
    out: OutOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which heads take over when another is removed? Heads are removed in pairs, compared with random pairs.

    A head whose effect grows once another is gone is its backup: it wakes (it writes something else), counts more (it
    writes the same), or holds the answer back less. A removed head writes its baseline at all tokens (--like,
    --counterfactual). Heads with backups are removed together with them. In each head, what the softmax hands to other
    keys is predicted and measured.

    It says first how long it will take. Ctrl-C ends it, shows the heads that are finished, and exits with 130.

    Examples:

        keyhole backups mary.json

        keyhole backups mary.json --like ioi.jsonl --first 4 --out backups.html

        keyhole backups mary.json --head 3.6 --like resting
    """
    places, named = require_places(out), tuple(read_head(text) for text in heads or [])
    baseline = baseline_of(like, counterfactual)
    from keyhole.circuits.files import load_circuit

    circuit = load_circuit(file)
    loaded = load_model(model_named(circuit, model), revision, dtype, device)
    from keyhole.faithfulness.backups import PairSettings
    from keyhole.faithfulness.backups import backups as measure

    settings = PairSettings(first=first, named=named, draws=draws, seed=seed)
    with show.paced_bar("Removing pairs", every=15.0) as progress:
        result = measure(circuit, loaded, settings=settings, progress=progress, **baseline)
    answer(result, places, lambda: _show(result), json=json)
    if result.stopped is not None:
        raise typer.Exit(130)


def _show(result: Backups) -> None:
    show.plain(result.summary + "\n")
    table(*result.cells)
    columns, rows = result.joint_cells
    if rows:
        show.plain("A head removed alone, with its backups, and with as many random heads:")
        table(columns, rows)
