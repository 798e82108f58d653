"""The commands that find where a signal fires, and which features of a sparse autoencoder it is made of."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.brief import Head
from keyhole.cli.from_record import from_records
from keyhole.cli.options import CircuitModel, JsonOption, ModelOptions
from keyhole.cli.verify import model_named
from keyhole.errors import KeyholeError
from keyhole.settings.naming import WhereSettings

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.features.sae import Nearest
    from keyhole.models.model import Model
    from keyhole.naming.explain.sentences import Lens
    from keyhole.naming.subjects.subject import Shown, Subject

COLUMNS = (">value", ">attention", "src", "dest", "text")


@from_records()
def where(
    what: Annotated[
        str,
        typer.Argument(
            help="A head 3.1, a channel 3.1:4 (3.1:4- for its opposite), an edge mary.json#12 or a feature f.json#0."
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Text to read: a text file, .jsonl, or hf:NAME of a dataset. Default: text of tasks for the organism, "
            "else English prose."
        ),
    ] = None,
    *,
    source: ModelOptions,
    settings: WhereSettings,
    lens: Annotated[
        bool,
        typer.Option(
            "--lens", help="Show the tokens whose embeddings and unembeddings are nearest to its directions, too."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Where else does a signal, a channel or a head fire? Its strongest places in a corpus.

    Each text has its two tokens marked: [[dest]] attends to ((src)). The value of a signal or channel is the product of
    what dest asks for and what src offers, where both are positive. The value of a head is its attention as a multiple
    of uniform attention. A circuit's edges are numbered from 0, in the order of its file. Without --corpus the organism
    reads text of its tasks, and other models the English prose that `make .cache/prose.txt` fetches.

    Examples:

        keyhole where 3.1

        keyhole where mary.json#12 --json

        keyhole where features.json#3
    """
    from keyhole.naming.corpus.gather import where as find
    from keyhole.naming.subjects.operands import read_what

    loaded = source.load(_model_of(what, source.model))
    subject = read_what(loaded, what)
    near = _lens(loaded, subject) if lens else None
    with show.progress_bar("Reading") as progress:
        places = find(loaded, subject, corpus, settings=settings, progress=progress)
    if json:
        show.as_json({**asdict(places), "model": loaded.name, **({} if near is None else {"lens": asdict(near)})})
        return
    if near is not None:
        show.plain(f"{near}\n")
    show.plain(f"{places.id} in {places.tokens:,} tokens of {places.chunks:,} texts ([[dest]] attends to ((src)))")
    if not places.shown:
        show.plain("it fires nowhere: no pair of tokens has two positive values.")
        return
    show.table(COLUMNS, [_row(shown) for shown in places.shown])


def _lens(model: Model, subject: Subject | Head) -> Lens:
    from keyhole.naming.explain.sentences import lens

    if isinstance(subject, tuple):
        raise KeyholeError("--lens is for one channel (3.1:4), edge (mary.json#12) or feature, not for a whole head.")
    return lens(model, subject)


def _row(shown: Shown) -> tuple[str, ...]:
    from keyhole.naming.attached import marked_text

    src, dest = (f"{at}:{shown.tokens[at].strip() or repr(shown.tokens[at])}" for at in (shown.src, shown.dest))
    return f"{shown.value:.3g}", f"{shown.attention:.3f}", src, dest, marked_text(shown)


def _model_of(what: str, given: str | None) -> str | None:
    """The model that a circuit or features name, unless another place to load it from is given."""
    if given is not None or "#" not in what:
        return given
    from keyhole.models.organism import source_named
    from keyhole.naming.subjects.operands import made_by

    return source_named((made_by(what) or {}).get("name"))


# Which features of a sparse autoencoder are signals made of?


@from_records()
def features(
    circuit: Annotated[str, typer.Argument(help="A circuit file, or one of its edges: mary.json#12.")],
    sae: Annotated[
        Path,
        typer.Option(
            help="File of the autoencoder's weights: .safetensors of SAELens or sparsify, or Gemma Scope's .npz."
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="How many features of an edge are shown.")] = 10,
    edges: Annotated[
        int, typer.Option(min=1, help="With a whole circuit: how many of its strongest signals are looked up.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the random directions.")] = 0,
    *,
    source: CircuitModel,
    json: JsonOption = False,
) -> None:
    """Which features of a sparse autoencoder are a circuit's signals made of?

    A signal is the part of its writer's write that lies in the channels of the head it ends at. Shown are the nearest
    features by cosine, and how much of the signal the best ones span together, each compared with as many random
    directions. The autoencoder should be one of the residual stream near the writer's layer.

    Examples:

        keyhole features mary.json --sae sae_weights.safetensors

        keyhole features mary.json#12 --sae sae_weights.safetensors --top 20
    """
    from keyhole.circuits.files import load_circuit
    from keyhole.features.sae import edge_vector, nearest_features, read_dictionary, signal_numbers

    path, number = _edge(circuit)
    read = load_circuit(path)
    loaded = source.load(model_named(read, source.model))
    decoder = read_dictionary(sae, loaded.dims.d_model)
    numbers = signal_numbers(read)[:edges] if number is None else [number]
    if not numbers:
        raise KeyholeError(f"{path} has no signals into heads that are written somewhere.")
    nearest = {i: nearest_features(edge_vector(read, i, loaded), decoder, top=top, seed=seed) for i in numbers}
    if json:
        show.as_json({"edges": [{"edge": i, **asdict(near), "share": near.share} for i, near in nearest.items()]})
    elif number is None:
        show.table(*_table(read, nearest))
    else:
        show.plain(f"edge {number}, {_label(read, number)}\n{nearest[number]}")


def _edge(text: str) -> tuple[str, int | None]:
    path, sharp, number = text.rpartition("#")
    if not sharp:
        return text, None
    if not number.isdigit():
        raise KeyholeError(f"an edge is named by its number, as in mary.json#12, not by {number!r}.")
    return path, int(number)


def _label(circuit: Circuit, number: int) -> str:
    from keyhole.circuits.text import node_label

    edge = circuit.edges[number]
    ends = [node_label(circuit.nodes[i], circuit.tokens) for i in (edge.sender, edge.receiver)]
    return f"{ends[0]} -> {ends[1]} {edge.side}"


def _table(circuit: Circuit, nearest: dict[int, Nearest]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    columns = (">edge", "signal", ">feature", ">cosine", ">random", ">share", ">random")
    return columns, [
        (
            *(str(i), _label(circuit, i), str(near.features[0].index)),
            *(f"{near.features[0].cosine:+.3f}", f"{near.random_cosine:.3f}"),
            *(f"{near.share:.0%}", f"{near.random_share:.0%}"),
        )
        for i, near in nearest.items()
    ]
