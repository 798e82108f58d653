"""What commands on stores share: the store, its model, the seed, and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.choices import Dtype
from keyhole.cli.options import load_model, write_each
from keyhole.files import require_file
from keyhole.stats import cell_text

if TYPE_CHECKING:
    from keyhole.figures.results import Result
    from keyhole.models.model import Model
    from keyhole.store import Store

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="A store that `keyhole bulk` made.")]
StoreModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Where the store's model is. Default: the place it was loaded from.")
]
OutOption = Annotated[
    list[Path] | None,
    typer.Option(help="Write it, too: .json, .html (a page), .csv (a table), .png, .svg or .pdf. May be repeated."),
]
SeedOption = Annotated[int, typer.Option(help="Of all that is drawn.")]
_WRITTEN = (".json", ".html", ".csv", ".png", ".svg", ".pdf")


def require_places(out: list[Path] | None) -> list[Path]:
    """Where results go, refused before any work if nothing can be written there."""
    return [require_file(path, _WRITTEN) for path in out or []]


def stored_model(store: Store, given: str | None, *, revision: str | None, dtype: Dtype, device: str | None) -> Model:
    """The model that made a store, checked by its weights."""
    from keyhole.models.organism import source_named
    from keyhole.store import model_of

    source = source_named(store.manifest.model.get("name")) if given is None else given
    return model_of(store, load_model(source, revision, dtype, device))


def table(columns: Sequence[str], rows: Sequence[Sequence[str | float | int | None]]) -> None:
    """Show a table of numbers and texts."""
    show.table(columns, [[cell_text(cell) for cell in row] for row in rows])


def answer(result: Result, places: list[Path], tell: Callable[[], None], *, json: bool) -> None:
    """Tell a result, as JSON or in words, and write it to every place; then say where it is."""
    if json:
        show.as_json(result.record())
    else:
        tell()
    if not places:
        return
    from keyhole.figures.results import save_result

    write_each(places, lambda path: save_result(result, path), json=json)
