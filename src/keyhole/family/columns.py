"""Which rows do circuits come to? Nodes or edges as columns of numbers, from a store or from circuits alike."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from keyhole.circuits.circuit import Circuit, EdgeSide, Node
from keyhole.circuits.writer import Kind, NodeKind
from keyhole.errors import KeyholeError
from keyhole.store.reading import AGAIN

if TYPE_CHECKING:
    import pyarrow as pa

    from keyhole.store.store import Store

Granularity = Literal["heads", "edges", "channels"]
KINDS: tuple[NodeKind, ...] = (*get_args(Kind), "target")
SIDES: tuple[str, ...] = get_args(EdgeSide)
PLACE = ("kind", "layer", "head", "dest", "src")
NONE = -1
_CIRCUITS = 512  # whose rows are made together
assert set(KINDS) == {*get_args(Kind), *(set(get_args(NodeKind)) - set(get_args(Kind)))}


@dataclass(frozen=True)
class Places:
    """Who writes or reads, a row each; what a row has not is -1. `kind` counts in KINDS."""

    kind: Int[np.ndarray, "rows"]
    layer: Int[np.ndarray, "rows"]
    head: Int[np.ndarray, "rows"]
    dest: Int[np.ndarray, "rows"]
    src: Int[np.ndarray, "rows"]


@dataclass(frozen=True)
class Block:
    """Rows of some circuits: nodes (without `target`), or edges."""

    prompt: Int[np.ndarray, "rows"]
    source: Places
    target: Places | None
    side: Int[np.ndarray, "rows"]  # counts in SIDES; -1 for nodes
    channels: Int[np.ndarray, "channels"]  # of all rows, one after the other
    widths: Int[np.ndarray, "rows"]  # how many channels each row has
    influence: Float[np.ndarray, "rows"]  # NaN: not accounted for


def store_blocks(store: "Store", granularity: Granularity, prompts: Int[np.ndarray, "circuits"]) -> Iterator[Block]:
    """The rows of these prompts in a store, as they lie there."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = "nodes" if granularity == "heads" else "edges"
    ends = ("",) if granularity == "heads" else ("from_", "to_")
    names = ["prompt", *(end + name for end in ends for name in PLACE), "influence"]
    names += [] if granularity == "heads" else ["side"]
    names += ["channels"] if granularity == "channels" else []
    asked = pc.field("prompt").isin(prompts)  # of all of them, too: another process may write more meanwhile
    try:
        for batch in store.dataset(table).to_batches(columns=names, filter=asked):
            yield _from_batch(batch, ends)
    except (pa.ArrowException, OSError) as error:
        raise KeyholeError(f"the table {table} is damaged: {' '.join(str(error).split())}. {AGAIN}") from error


def circuit_blocks(circuits: Iterable[tuple[int, Circuit]], granularity: Granularity) -> Iterator[Block]:
    """The rows of these circuits, each given with its number."""
    waiting: list[tuple[int, Circuit]] = []
    for pair in circuits:
        waiting.append(pair)
        if len(waiting) == _CIRCUITS:
            yield _from_circuits(waiting, granularity)
            waiting = []
    yield _from_circuits(waiting, granularity)


def _from_circuits(pairs: Sequence[tuple[int, Circuit]], granularity: Granularity) -> Block:
    if granularity == "heads":
        nodes = [(number, circuit, i) for number, circuit in pairs for i in range(len(circuit.nodes))]
        influence = [circuit.influence[i] if circuit.influence else None for _, circuit, i in nodes]
        places = _of_nodes([circuit.nodes[i] for _, circuit, i in nodes])
        zeros, nothing = np.zeros(len(nodes), np.int64), np.zeros(0, np.int64)
        return Block(_whole([one[0] for one in nodes]), places, None, zeros + NONE, nothing, zeros, _real(influence))
    edges = [(number, circuit, edge) for number, circuit in pairs for edge in circuit.edges]
    own = [edge.channels if granularity == "channels" else () for _, _, edge in edges]
    return Block(
        prompt=_whole([number for number, _, _ in edges]),
        source=_of_nodes([circuit.nodes[edge.source] for _, circuit, edge in edges]),
        target=_of_nodes([circuit.nodes[edge.target] for _, circuit, edge in edges]),
        side=_whole([SIDES.index(edge.side) for _, _, edge in edges]),
        channels=_whole([channel for channels in own for channel in channels]),
        widths=_whole([len(channels) for channels in own]),
        influence=_real([edge.influence for _, _, edge in edges]),
    )


def _of_nodes(nodes: Sequence[Node]) -> Places:
    numbers = {name: [getattr(node, name) for node in nodes] for name in PLACE[1:]}
    told = {name: _whole([NONE if one is None else one for one in values]) for name, values in numbers.items()}
    return Places(_whole([KINDS.index(node.kind) for node in nodes]), **told)


def _from_batch(batch: "pa.RecordBatch", ends: Sequence[str]) -> Block:
    found = {name: batch.column(name) for name in batch.schema.names}
    places = [Places(_codes(found[end + "kind"], KINDS), *(_ints(found[end + n]) for n in PLACE[1:])) for end in ends]
    rows = batch.num_rows
    zeros = np.zeros(rows, np.int64)
    lists = found.get("channels")
    return Block(
        prompt=_ints(found["prompt"]),
        source=places[0],
        target=places[1] if len(places) > 1 else None,
        side=_codes(found["side"], SIDES) if "side" in found else zeros + NONE,
        channels=np.zeros(0, np.int64) if lists is None else _ints(lists.flatten()),
        widths=zeros if lists is None else _ints(lists.value_lengths()),
        influence=found["influence"].to_numpy(zero_copy_only=False).astype(np.float64),
    )


def _codes(column: "pa.Array", known: Sequence[str]) -> Int[np.ndarray, "rows"]:
    """Texts as their numbers in `known`."""
    encoded = column.dictionary_encode()
    numbers = _whole([known.index(text) for text in encoded.dictionary.to_pylist()])
    return numbers[encoded.indices.to_numpy(zero_copy_only=False)] if len(column) else numbers


def _ints(column: "pa.Array") -> Int[np.ndarray, "rows"]:
    return np.asarray(column.fill_null(NONE).to_numpy(zero_copy_only=False), np.int64)


def _whole(values: Sequence[int]) -> Int[np.ndarray, "rows"]:
    return np.array(values, np.int64)


def _real(values: Sequence[Any]) -> Float[np.ndarray, "rows"]:
    return np.array([np.nan if one is None else one for one in values], np.float64)
