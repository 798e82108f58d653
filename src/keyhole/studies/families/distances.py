"""How far apart are circuits? Their nodes or edges as columns of numbers, and Jaccard distances between sets.

Rows come from a store's tables or from circuits at hand, in the same form.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from jaxtyping import Float, Int

from keyhole.circuits.circuit import Circuit, EdgeSide, Node
from keyhole.circuits.records import Kind, NodeKind
from keyhole.errors import KeyholeError
from keyhole.progress import Progress, silent
from keyhole.store.store import AGAIN
from keyhole.studies.settings import Granularity as Granularity

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

    from keyhole.store.store import Store

WHAT = {"heads": "heads and MLPs", "edges": "edges", "channels": "edges with their channels"}
KINDS: tuple[NodeKind, ...] = (*get_args(Kind), "target")
SIDES: tuple[str, ...] = get_args(EdgeSide)
PLACE = ("kind", "layer", "head", "dest", "src")
NONE = -1
_CIRCUITS = 512  # whose rows form one block
assert set(KINDS) == {*get_args(Kind), *(set(get_args(NodeKind)) - set(get_args(Kind)))}


@dataclass(frozen=True)
class Places:
    """Who writes or reads, a row each; -1 where a row has no such value. `kind` is an index into KINDS."""

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
    side: Int[np.ndarray, "rows"]  # an index into SIDES; -1 for nodes
    channels: Int[np.ndarray, "channels"]  # of all rows, one after the other
    widths: Int[np.ndarray, "rows"]  # how many channels each row has
    influence: Float[np.ndarray, "rows"]  # NaN: not measured


def store_blocks(store: "Store", granularity: Granularity, prompts: Int[np.ndarray, "circuits"]) -> Iterator[Block]:
    """The rows of these prompts in a store, in its own batches."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = "nodes" if granularity == "heads" else "edges"
    ends = ("",) if granularity == "heads" else ("from_", "to_")
    names = ["prompt", *(end + name for end in ends for name in PLACE), "influence"]
    names += [] if granularity == "heads" else ["side"]
    names += ["channels"] if granularity == "channels" else []
    wanted = pc.field("prompt").isin(prompts)  # even if these are all: another process may be writing more
    try:
        for batch in store.dataset(table).to_batches(columns=names, filter=wanted):
            yield _from_batch(batch, ends)
    except (pa.ArrowException, OSError) as error:
        raise KeyholeError(f"the table {table} is damaged: {' '.join(str(error).split())}. {AGAIN}") from error


def circuit_blocks(circuits: Iterable[tuple[int, Circuit]], granularity: Granularity) -> Iterator[Block]:
    """The rows of circuits at hand, each given with its number."""
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
        return Block(_whole([node[0] for node in nodes]), places, None, zeros + NONE, nothing, zeros, _real(influence))
    edges = [(number, circuit, edge) for number, circuit in pairs for edge in circuit.edges]
    channel_lists = [edge.channels if granularity == "channels" else () for _, _, edge in edges]
    return Block(
        prompt=_whole([number for number, _, _ in edges]),
        source=_of_nodes([circuit.nodes[edge.sender] for _, circuit, edge in edges]),
        target=_of_nodes([circuit.nodes[edge.receiver] for _, circuit, edge in edges]),
        side=_whole([SIDES.index(edge.side) for _, _, edge in edges]),
        channels=_whole([channel for channels in channel_lists for channel in channels]),
        widths=_whole([len(channels) for channels in channel_lists]),
        influence=_real([edge.influence for _, _, edge in edges]),
    )


def _of_nodes(nodes: Sequence[Node]) -> Places:
    numbers = {name: [getattr(node, name) for node in nodes] for name in PLACE[1:]}
    columns = {
        name: _whole([NONE if number is None else number for number in values]) for name, values in numbers.items()
    }
    return Places(_whole([KINDS.index(node.kind) for node in nodes]), **columns)


def _from_batch(batch: "pa.RecordBatch", ends: Sequence[str]) -> Block:
    columns = {name: batch.column(name) for name in batch.schema.names}
    places = [
        Places(_codes(columns[end + "kind"], KINDS), *(_ints(columns[end + n]) for n in PLACE[1:])) for end in ends
    ]
    rows = batch.num_rows
    zeros = np.zeros(rows, np.int64)
    lists = columns.get("channels")
    return Block(
        prompt=_ints(columns["prompt"]),
        source=places[0],
        target=places[1] if len(places) > 1 else None,
        side=_codes(columns["side"], SIDES) if "side" in columns else zeros + NONE,
        channels=np.zeros(0, np.int64) if lists is None else _ints(lists.flatten()),
        widths=zeros if lists is None else _ints(lists.value_lengths()),
        influence=columns["influence"].to_numpy(zero_copy_only=False).astype(np.float64),
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
    return np.array([np.nan if value is None else value for value in values], np.float64)


# How far apart are circuits? Jaccard of their sets or of their weights, exactly: 1 - sum of minima / sum of maxima.
#
# The sums over terms are done for all pairs at once. Terms that many circuits have go through dense products, a block
# of circuits at a time. Rare terms, which are most, go through sparse products, which skip circuits without them.

FREQUENT = 0.05  # share of circuits from which a term is cheaper in a dense product
_ROWS = 1024  # circuits of a block


def jaccard(matrix: "csr_array", *, progress: Progress = silent) -> Float[np.ndarray, "circuits circuits"]:
    """How far apart are all pairs of circuits? 0 for equal sets, 1 where nothing is shared; two empty sets are equal.

    Args:
        matrix: Circuits as rows, terms as columns, with weights of at least 0: the matrix of a `Sets`.
        progress: Called with the number of rows done and their total.

    >>> from scipy.sparse import csr_array
    >>> jaccard(csr_array([[1.0, 1, 0], [0, 1, 1], [0, 0, 1]])).round(3).tolist()
    [[0.0, 0.6669999957084656, 1.0], [0.6669999957084656, 0.0, 0.5], [1.0, 0.5, 0.0]]
    """
    distances = between(matrix, matrix, progress=progress)
    np.fill_diagonal(distances, 0)
    return distances


def between(
    rows: "csr_array", columns: "csr_array", *, progress: Progress = silent
) -> Float[np.ndarray, "rows columns"]:
    """How far is every circuit of one matrix from every circuit of another, over the same terms?

    Args:
        rows: Circuits as rows, terms as columns.
        columns: Other circuits with the same terms.
        progress: Called with the number of rows done and their total.

    >>> from scipy.sparse import csr_array
    >>> between(csr_array([[1.0, 1, 0]]), csr_array([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]])).tolist()
    [[0.0, 0.5, 1.0]]
    """
    distances = np.empty((rows.shape[0], columns.shape[0]), np.float32)
    for here, block in between_blocks(rows, columns):
        distances[here] = block
        progress(here.stop, rows.shape[0])
    return distances


def between_blocks(
    rows: "csr_array", columns: "csr_array"
) -> Iterator[tuple[slice, Float[np.ndarray, "block columns"]]]:
    """The distances of `between`, a block of rows at a time."""
    often, rare = _by_frequency(columns)
    binary = _is_binary(rows) and _is_binary(columns)
    dense = columns[:, often].astype(np.float32).toarray()
    sparse = columns[:, rare].T.tocsr()
    sums, others = _sums(rows), _sums(columns)
    for start in range(0, rows.shape[0], _ROWS):
        here = slice(start, min(start + _ROWS, rows.shape[0]))
        block = rows[here]
        own_dense, own_rare = block[:, often].astype(np.float32).toarray(), block[:, rare].tocsr()
        if binary:
            shared = own_dense @ dense.T + (own_rare @ sparse).astype(np.float32).toarray()
        else:
            shared = _dense_minima(own_dense, dense)
            _add_rare_minima(shared, own_rare, sparse)
        total = sums[here, None] + others[None, :] - shared
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = np.where(total > 0, 1 - shared / total, 0)
        yield here, np.clip(distance, 0, 1, dtype=np.float32)


def in_common(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The weighted Jaccard similarity of two rows (terms last): minima over maxima; 0 where both are empty.

    >>> float(in_common(np.array([1.0, 0.5, 0.0]), np.array([1.0, 0.0, 0.5])))
    0.5
    """
    both, either = np.minimum(first, second).sum(-1), np.maximum(first, second).sum(-1)
    return np.asarray(both / np.maximum(either, 1e-12))


def condensed(distances: Float[np.ndarray, "circuits circuits"]) -> Float[np.ndarray, "pairs"]:
    """The upper triangle, row by row, as scipy's linkage takes it: in double precision, in which it works."""
    n = len(distances)
    pairs, at = np.empty(n * (n - 1) // 2, np.float64), 0
    for i in range(n - 1):
        pairs[at : at + n - 1 - i] = distances[i, i + 1 :]
        at += n - 1 - i
    return pairs


def _by_frequency(matrix: "csr_array") -> tuple[Int[np.ndarray, "often"], Int[np.ndarray, "rare"]]:
    counts = np.bincount(matrix.indices, minlength=matrix.shape[1])
    often = counts > FREQUENT * matrix.shape[0]
    return np.flatnonzero(often), np.flatnonzero(~often & (counts > 0))


def _is_binary(matrix: "csr_array") -> bool:
    return bool((matrix.data == 1).all())


def _sums(matrix: "csr_array") -> Float[np.ndarray, "circuits"]:
    return np.asarray(matrix.sum(axis=1), np.float32).ravel()


def _dense_minima(
    rows: Float[np.ndarray, "rows terms"], columns: Float[np.ndarray, "columns terms"]
) -> Float[np.ndarray, "rows columns"]:
    """Sums of minima: (a + b - |a - b|) / 2, of which the last part is a distance that torch computes fast."""
    import torch

    differences = torch.cdist(torch.from_numpy(rows), torch.from_numpy(columns), p=1).numpy()
    return np.asarray((rows.sum(1)[:, None] + columns.sum(1)[None, :] - differences) / 2, np.float32)


def _add_rare_minima(shared: Float[np.ndarray, "rows columns"], rows: "csr_array", columns: "csr_array") -> None:
    """Add the minima of rare terms where both have them. `others` has terms as rows."""
    by_term = rows.T.tocsr()
    for term in np.flatnonzero(np.diff(by_term.indptr)):
        left, right = (slice(*matrix.indptr[term : term + 2]) for matrix in (by_term, columns))
        both = np.minimum.outer(by_term.data[left], columns.data[right])
        shared[np.ix_(by_term.indices[left], columns.indices[right])] += both
