"""The command that looks for a signal elsewhere: in which texts does it fire?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.options import DeviceOption, DtypeOption, JsonOption, ModelOption, RevisionOption, load_model
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.naming.explain.nearest_tokens import Lens
    from keyhole.naming.shown import Shown
    from keyhole.naming.subject import Subject

COLUMNS = (">value", ">attention", "src", "dest", "text")


def where(
    what: Annotated[
        str,
        typer.Argument(help="A head 3.1, channel 3.1:4 (3.1:4- its opposite), edge mary.json#12, feature f.json#0."),
    ],
    corpus: Annotated[
        str | None, typer.Option(help="A text file, .jsonl, or hf:NAME of a dataset. Default: what is at hand.")
    ] = None,
    model: ModelOption = None,
    top: Annotated[int, typer.Option(min=1, help="How many places to show.")] = 12,
    tokens: Annotated[int, typer.Option(min=1, help="How much to read.")] = 250_000,
    length: Annotated[int, typer.Option(min=4, help="Tokens of a chunk.")] = 32,
    lens: Annotated[
        bool, typer.Option("--lens", help="Tell which tokens' embeddings and unembeddings its directions are near to.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the text at hand.")] = 0,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Where else does a signal, a channel or a head fire? Its strongest places in a corpus.

    Each text has its two tokens marked: [[dest]] attends to ((src)). The value of a signal or channel is the product of
    what dest asks and what src offers, both positive; that of a head, how many times more than uniform it attends. A
    circuit's edges are numbered from 0, as its file has them. Without --corpus the organism reads text of its tasks,
    and other models the English prose that `make .cache/prose.txt` fetches.

    Examples:

        keyhole where 3.1

        keyhole where 3.1:0 --corpus texts.txt --top 5

        keyhole where mary.json#12 --json

        keyhole where features.json#3

        keyhole where 3.1:0 --lens
    """
    from keyhole.naming.what import read_what
    from keyhole.naming.where import where as find

    loaded = load_model(_model_of(what, model), revision, dtype, device)
    sought = read_what(loaded, what)
    near = _lens(loaded, sought) if lens else None
    with show.progress_bar("Reading") as progress:
        found = find(loaded, sought, corpus, top=top, length=length, tokens=tokens, seed=seed, progress=progress)
    if json:
        show.as_json({**asdict(found), "model": loaded.name, **({} if near is None else {"lens": asdict(near)})})
        return
    if near is not None:
        show.plain(f"{near}\n")
    show.plain(f"{found.what} in {found.tokens:,} tokens of {found.chunks:,} texts ([[dest]] attends to ((src)))")
    if not found.shown:
        show.plain("it fires nowhere: no pair of tokens has two positive values.")
        return
    show.table(COLUMNS, [_row(one) for one in found.shown])


def _lens(model: Model, sought: Subject | Head) -> Lens:
    from keyhole.naming.explain.nearest_tokens import lens

    if isinstance(sought, tuple):
        raise KeyholeError("--lens is of one channel (3.1:4), edge (mary.json#12) or feature, not of a whole head.")
    return lens(model, sought)


def _row(one: Shown) -> tuple[str, ...]:
    from keyhole.naming.attached.marks import marked_text

    src, dest = (f"{at}:{one.tokens[at].strip() or repr(one.tokens[at])}" for at in (one.src, one.dest))
    return f"{one.value:.3g}", f"{one.attention:.3f}", src, dest, marked_text(one)


def _model_of(what: str, given: str | None) -> str | None:
    """The model that a circuit or features name, unless another place to load it from is given."""
    if given is not None or "#" not in what:
        return given
    from keyhole.models.organism import source_named
    from keyhole.naming.what import made_by

    return source_named((made_by(what) or {}).get("name"))
