"""The command that compares stores, families, circuits and published circuits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.choices import CutMode
from keyhole.cli.options import DeviceOption, DtypeOption, JsonOption, RevisionOption, load_model
from keyhole.cli.store.options import OutOption, SeedOption, StoreModelOption, answer, require_places, stored_model

if TYPE_CHECKING:
    from keyhole.comparison.compare import Comparison
    from keyhole.models.model import Model


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A store, a part of it, a circuit, or published:NAME.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    model: StoreModelOption = None,
    members: Annotated[
        int, typer.Option("--prompts", "--members", min=0, help="Of each side, that are run; 0: compare sets only.")
    ] = 40,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Share of circuits from which on terms count.")] = 0.1,
    mode: Annotated[
        CutMode, typer.Option(help="How edges are removed: scores, one head, or all that follows.")
    ] = "local",
    draws: Annotated[int, typer.Option(min=1, help="Random controls per prompt.")] = 3,
    seed: SeedOption = 0,
    top: Annotated[int, typer.Option(min=1, help="How many terms to show.")] = 12,
    out: OutOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
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
        from keyhole.comparison.compare import compare as compare_both
        from keyhole.comparison.operands import store_of

    def load() -> Model:
        store = store_of(a) or store_of(b)
        if store is None:
            return load_model(model, revision, dtype, device)
        return stored_model(store, model, revision=revision, dtype=dtype, device=device)

    found = compare_both(
        a,
        b,
        model=model if (revision, dtype, device) == (None, "float32", None) else load(),
        members=members,
        threshold=threshold,
        mode=mode,
        draws=draws,
        seed=seed,
        stage=show.progress_bar,
    )
    answer(found, places, lambda: _tell(found, top), json=json)


def _tell(found: Comparison, top: int) -> None:
    from keyhole.comparison import told

    show.plain(told.heading(found) + "\n")
    if found.terms:
        show.table(*told.summary_table(found))
        show.table(*told.terms_table(found.terms[-1], top))
    if found.signals is not None and found.signals.rows:
        show.table(*told.signals_table(found.signals.rows))
        if lines := told.signal_lines(found.signals):
            show.plain("\n".join(lines) + "\n")
    if found.exclusive is not None:
        show.table(*told.exclusive_table(found.exclusive))
        show.plain("\n".join(told.verdict_lines(found.exclusive)))
    if found.published:
        show.table(*told.published_table(found))
    for note in found.notes:
        show.plain(f"note: {note}")
