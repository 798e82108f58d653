"""The command that tests claims about mechanisms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.bulk import answer
from keyhole.cli.from_record import from_records
from keyhole.cli.options import JsonOption, ModelOptions
from keyhole.errors import KeyholeError
from keyhole.files import is_folder, require_file

if TYPE_CHECKING:
    from keyhole.claims import ClaimResult

FAILS, UNTESTABLE = 1, 3  # exit codes


@from_records()
def claim(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files of claims (.toml or .json), each with one claim.")
    ],
    *,
    source: ModelOptions,
    store: Annotated[
        Path | None, typer.Option(help="Keep the results beside this store, in its folder claims/. Default: nowhere.")
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="File to write the result to: .json, .html (a page) or .csv; repeatable. Default: none."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Does a claim about a mechanism hold? It is tested by removal, on rewrites, on negatives, and with controls.

    A file states one claim, such as: head 1.6 moves the receiver to the end. Each test has a figure with its interval
    and what is asked of it. The claim passes if every test does; what an interval leaves open is no pass.

    Exits with 0 if all claims pass, with 1 if one fails, with 3 if none fails and one cannot be tested (the model does
    not give the answers, or there is nothing to compare with), and with 2 if a file or an option is wrong.

    Examples:

        keyhole claim receiver.toml

        keyhole claim receiver.toml --model SmolLM2.gguf --out receiver.html --out receiver.json

        keyhole claim claims/*.toml --store ioi.store --json
    """
    places = [require_file(path, (".json", ".html", ".csv")) for path in out or []]
    if len(files) > 1 and places:
        raise KeyholeError(
            "--out writes one result, and these are several claims: give --store, or one file at a time."
        )
    if store is not None and not is_folder(store):
        raise KeyholeError(f"there is no store {store}: `keyhole bulk` makes one.")
    from keyhole.claims import claim as test_claim
    from keyhole.claims import keep_claim, load_claim
    from keyhole.store import open_store

    claims = [load_claim(path) for path in files]
    kept = None if store is None else open_store(store)
    model = source.load()
    results: list[ClaimResult] = []
    for record in claims:
        with show.paced_bar("Testing", every=15.0) as progress:
            result = test_claim(model, record, progress=progress)
        results.append(result)
        if not (json and len(claims) > 1):
            answer(result, places, json=json)
        if kept is not None:
            path = keep_claim(kept, result)
            show.note(f"wrote {path}") if json else show.plain(f"wrote {path}")
    if json and len(claims) > 1:
        show.as_json({"claims": [result.record() for result in results]})
    verdicts = {result.verdict for result in results}
    raise typer.Exit(FAILS if "fails" in verdicts else UNTESTABLE if "cannot be tested" in verdicts else 0)
