"""The command that holds signals against a sparse autoencoder: which of its features are they made of?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole import show
from keyhole.cli.options import CircuitModelOption, DeviceOption, DtypeOption, JsonOption, RevisionOption, load_model
from keyhole.cli.prompt.proof import model_named
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.bridges import Nearest
    from keyhole.circuits.circuit import Circuit


def features(
    circuit: Annotated[str, typer.Argument(help="A circuit file, or one of its edges: mary.json#12.")],
    sae: Annotated[
        Path,
        typer.Option(help="The autoencoder's weights: .safetensors of SAELens or sparsify, Gemma Scope's .npz, ..."),
    ],
    top: Annotated[int, typer.Option(min=1, help="Features of an edge.")] = 10,
    edges: Annotated[int, typer.Option(min=1, help="Without an edge: the strongest so many signals.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the random directions.")] = 0,
    model: CircuitModelOption = None,
    revision: RevisionOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Which features of a sparse autoencoder are a circuit's signals made of?

    A signal is the part of what its writer wrote that lies in the channels of the head it ends at. Nearest features by
    cosine; how much of the signal the best ones span together; beside each, what as many random directions reach. The
    autoencoder should be one of the residual stream near the writer's layer.

    Examples:

        keyhole features mary.json --sae sae_weights.safetensors

        keyhole features mary.json#12 --sae sae_weights.safetensors --top 20
    """
    from keyhole.bridges import edge_vector, nearest_features, read_dictionary
    from keyhole.bridges.vectors import signal_numbers
    from keyhole.circuits.files import load_circuit

    path, number = _edge(circuit)
    read = load_circuit(path)
    loaded = load_model(model_named(read, model), revision, dtype, device)
    decoder = read_dictionary(sae, loaded.dims.d_model)
    numbers = signal_numbers(read)[:edges] if number is None else [number]
    if not numbers:
        raise KeyholeError(f"{path} has no signals into heads that are written somewhere.")
    found = {i: nearest_features(edge_vector(read, i, loaded), decoder, top=top, seed=seed) for i in numbers}
    if json:
        show.as_json({"edges": [{"edge": i, **asdict(one), "share": one.share} for i, one in found.items()]})
        return
    for i in numbers if number is not None else []:
        show.plain(f"edge {i}, {_label(read, i)}\n{found[i]}")
    if number is None:
        show.table(*_table(read, found))


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
    ends = [node_label(circuit.nodes[i], circuit.tokens) for i in (edge.source, edge.target)]
    return f"{ends[0]} -> {ends[1]} {edge.side}"


def _table(circuit: Circuit, found: dict[int, Nearest]) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    columns = (">edge", "signal", ">feature", ">cosine", ">random", ">share", ">random")
    return columns, [
        (
            *(str(i), _label(circuit, i), str(one.features[0].index)),
            *(f"{one.features[0].cosine:+.3f}", f"{one.random_cosine:.3f}"),
            *(f"{one.share:.0%}", f"{one.random_share:.0%}"),
        )
        for i, one in found.items()
    ]
