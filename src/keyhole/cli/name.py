"""The command that names signals: what do they mean, and are the names right?"""

from __future__ import annotations

from dataclasses import asdict
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
    what: Annotated[
        str, typer.Argument(help="A circuit (.json), a store, a head 3.1, a channel 3.1:4 or an edge mary.json#12.")
    ],
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
    beside: Annotated[
        str | None, typer.Option(help="What separates one channel or edge from this one, which attends alike?")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of texts, random directions and questions.")] = 0,
    folder: Annotated[Path | None, typer.Option(help="Keep examples here; the same command goes on from it.")] = None,
    out: Annotated[list[Path] | None, typer.Option(help="Write .json (for --names), .html, .csv; repeatable.")] = None,
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

        keyhole name ioi.store --by order --folder examples --out names.html

        keyhole name 3.1:4 --beside 3.1:9
    """
    for path in out or []:
        require_file(path, _WRITTEN)
    from keyhole.naming.naming import name as find
    from keyhole.naming.naming import read

    read_it: Any = read(what)
    _check(read_it, by, beside, out, json=json)
    loaded = _model(read_it, model, (revision, dtype, device))
    if beside is not None:
        _tell_apart(loaded, (what, beside), corpus, tokens=tokens, seed=seed, json=json)
        return
    asked: dict[str, Any] = {"most": most, "random": random, "tokens": tokens, "seed": seed, "folder": folder}
    with show.progress_bar("Naming") as progress:
        found = find(read_it, loaded, corpus=corpus, **asked, progress=progress)
    if json:
        from keyhole.naming.attached.files import to_json

        print(to_json(found), end="")
    else:
        _tell(found)
    sides, cues = ((), ()) if by is None else _sides(read_it, found, loaded, by)
    for path in out or []:  # after the answer, which a full disk must not cost
        _write(found, path, sides, cues)
        if not json:
            show.plain(f"wrote {path}")


def _check(what: Any, by: str | None, beside: str | None, out: list[Path] | None, *, json: bool) -> None:
    """Refuse what does not go together, before any work is done."""
    from keyhole.naming.beside.representatives import require_label
    from keyhole.store.store import Store

    if beside is not None and not (isinstance(what, str) and not by and not out):
        raise KeyholeError("--beside is for one channel (3.1:4) or edge (mary.json#12), without --by and --out.")
    if by is None:
        return
    if not isinstance(what, Store) or json:
        raise KeyholeError("--by tells the representatives of a store side by side, as text: give a store, no --json.")
    require_label(what, by)


def _tell(found: Naming) -> None:
    from keyhole.figures.names import COLUMNS, name_row

    show.table(COLUMNS, [[_cell(cell) for cell in name_row(one)] for one in found.signals])
    show.plain(str(found))


def _cell(cell: Any) -> str:
    return "-" if cell is None else f"{cell:.3g}" if isinstance(cell, float) else str(cell)


def _sides(store: Any, found: Naming, model: Model, by: str) -> tuple[Any, Any]:
    """Representatives side by side, told; and their cues."""
    from keyhole.naming.beside.representatives import cues_of, side_by_side

    with show.progress("Comparing circuits"):
        sides = side_by_side(store, found, model, by=by)
        cues = cues_of(store, sides, model, seed=found.seed)
    show.plain("\n" + "\n\n".join(map(str, sides)))
    if cues:
        show.plain("\nprompts that break a cue: does the signal still fire?")
        signals = dict.fromkeys(one.signal for one in cues)
        show.plain("\n".join(f"{s}\n" + "\n".join(f"  {one}" for one in cues if one.signal == s) for s in signals))
    return sides, cues


def _write(found: Naming, path: Path, sides: Any, cues: Any) -> None:
    from keyhole.figures.names import names_page
    from keyhole.files import write_at_once

    if path.suffix.lower() == ".html":
        write_at_once(path, names_page(found, sides, cues))
    else:
        found.save(path)


def _tell_apart(model: Model, pair: tuple[str, str], corpus: str | None, *, tokens: int, seed: int, json: bool) -> None:
    from keyhole.naming.beside.apart import tell_apart
    from keyhole.naming.subject import Subject
    from keyhole.naming.where import read_what

    a, b = (read_what(model, text) for text in pair)
    if not (isinstance(a, Subject) and isinstance(b, Subject)):
        raise KeyholeError("--beside is for one channel (3.1:4) or edge (mary.json#12), not for a whole head.")
    with show.progress_bar("Reading") as progress:
        found = tell_apart(model, a, b, corpus, tokens=tokens, seed=seed, progress=progress)
    if json:
        show.as_json({"apart": [{**asdict(one), "passes": one.passes} for one in found], "model": model.name})
    else:
        show.plain("\n".join(map(str, found)))


def _model(what: Any, given: str | None, how: tuple[str | None, Any, str | None]) -> Model:
    """The model of a circuit or store, unless another place to load it from is given."""
    if isinstance(what, str) and "#" in what:
        from keyhole.circuits.files import load_circuit

        what = load_circuit(what.rpartition("#")[0])
    told = getattr(getattr(what, "manifest", what), "model", None)
    source = given if given is not None or told is None or told.get("name") == "organism" else str(told.get("name"))
    return load_model(source, *how)
