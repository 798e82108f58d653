"""The command that names signals: what do they mean, and are the names right?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.options import DeviceOption, DtypeOption, JsonOption, RevisionOption, load_model
from keyhole.errors import KeyholeError
from keyhole.files import require_file

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.naming.named import Naming

_WRITTEN = (".json", ".html", ".csv")
_SHARES = ("detection", ">signals", ">pass", ">share", ">95 %")


def name(
    what: Annotated[str, typer.Argument(help="A circuit (.json), a store of circuits, or a head such as 3.1.")],
    corpus: Annotated[
        str | None, typer.Option(help="A text file, .jsonl, or hf:NAME of a dataset. Default: what is at hand.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Default: that of the circuit or store, else the organism.")
    ] = None,
    most: Annotated[int, typer.Option(min=1, help="How many signals: the most frequent, or strongest.")] = 100,
    random: Annotated[int, typer.Option(min=0, help="Random directions of the same heads, as a control.")] = 200,
    tokens: Annotated[int, typer.Option(min=1, help="How much to read.")] = 250_000,
    by: Annotated[
        str | None, typer.Option(help="Tell a store's representatives side by side, by a label such as order.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of texts, random directions and questions.")] = 0,
    folder: Annotated[Path | None, typer.Option(help="Keep examples here; the same command goes on from it.")] = None,
    out: Annotated[list[Path] | None, typer.Option(help="Write .json (for --names), .html or .csv; repeatable.")] = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """What do signals mean, and are the names right?

    Every signal is looked for in a corpus, named by what its strongest places have in common, and the name tested on
    places that were not looked at (Fisher's exact test, corrected for the number of signals). Beside it: names of other
    signals, the commonest tokens as a name, and random directions of the same heads, for which the same is done. The
    strongest or most frequent signals are named, each direction once, whoever writes it.

    Examples:

        keyhole name ioi.store --out names.json --out names.html

        keyhole name mary.json --most 40

        keyhole name 3.1 --corpus texts.txt --random 50

        keyhole name ioi.store --by order --folder examples
    """
    for path in out or []:
        require_file(path, _WRITTEN)
    from keyhole.naming.naming import name as find
    from keyhole.naming.naming import read

    read_what: Any = read(what)
    if by is not None:
        _require_label(read_what, by)
    loaded = _model(read_what, model, (revision, dtype, device))
    asked: dict[str, Any] = {"most": most, "random": random, "tokens": tokens, "seed": seed, "folder": folder}
    with show.progress_bar("Naming") as progress:
        found = find(read_what, loaded, corpus=corpus, **asked, progress=progress)
    if json:
        from keyhole.naming.files import to_json

        print(to_json(found), end="")
    else:
        _tell(found)
        if by is not None:
            _tell_sides(read_what, found, loaded, by)
    for path in out or []:  # after the answer, which a full disk must not cost
        found.save(path)
        if not json:
            show.plain(f"wrote {path}")


def _tell(found: Naming) -> None:
    from keyhole.figures.names import COLUMNS, name_row

    show.table(COLUMNS, [[_cell(cell) for cell in name_row(one)] for one in found.signals])
    show.plain(str(found))


def _cell(cell: Any) -> str:
    return "-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _require_label(what: Any, by: str) -> None:
    from keyhole.naming.representatives import require_label
    from keyhole.store.store import Store

    if not isinstance(what, Store):
        raise KeyholeError("--by tells the representatives of a store side by side: give a store.")
    require_label(what, by)


def _tell_sides(store: Any, found: Naming, model: Model, by: str) -> None:
    from keyhole.naming.representatives import side_by_side

    show.plain("\n\n".join(str(one) for one in side_by_side(store, found, model, by=by)))


def _model(what: Any, given: str | None, how: tuple[str | None, Any, str | None]) -> Model:
    """The model of a circuit or store, unless another place to load it from is given."""
    told = getattr(getattr(what, "manifest", what), "model", None)
    source = given if given is not None or told is None or told.get("name") == "organism" else str(told.get("name"))
    return load_model(source, *how)
