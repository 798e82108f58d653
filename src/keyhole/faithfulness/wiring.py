"""Which edges are there in a model, and which of them stay connected to the answer?

Which edges are there between the components of a model? Everybody who writes, into everybody who reads later.

A component is whole: a head with all it moves to a token, an MLP, the embedding. A head reads three times (its query,
its keys, its values), and the answer reads once, at the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int

from keyhole.circuits.circuit import EdgeSide, Node
from keyhole.circuits.records import Component, NodeKind
from keyhole.faithfulness.token_masks import EdgeList

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run


@dataclass(frozen=True)
class Reader:
    """A place where a component, or the answer, reads: sides are called as those of a circuit's edges."""

    side: EdgeSide
    layer: int | None = None  # None: the answer
    head: int | None = None

    @property
    def component(self) -> Component:
        """Whose place it is."""
        kind: NodeKind = self.side if self.side == "mlp" or self.side == "target" else "head"
        return Component(kind, self.layer, self.head)

    def __str__(self) -> str:
        return f"{self.component} {self.side}" if self.component.kind == "head" else str(self.component)


@dataclass(frozen=True, eq=False)
class Wiring:
    """All writers, all readers, and which of them an edge can join; both in the order of the forward pass."""

    writers: tuple[Component, ...]
    readers: tuple[Reader, ...]
    joined: Bool[np.ndarray, "writer reader"]

    @cached_property
    def edges(self) -> Int[np.ndarray, "edge 2"]:
        """Every edge, as the numbers of its writer and its reader."""
        return np.argwhere(self.joined)

    def __len__(self) -> int:
        return len(self.edges)

    @cached_property
    def _writer_numbers(self) -> dict[Component, int]:
        return {writer: i for i, writer in enumerate(self.writers)}

    @cached_property
    def _reader_numbers(self) -> dict[Reader, int]:
        return {reader: i for i, reader in enumerate(self.readers)}

    def writer_number(self, writer: Component) -> int:
        """Which of the writers is this?"""
        return self._writer_numbers[writer]

    def number(self, source: Node, target: Node, side: EdgeSide) -> tuple[int, int] | None:
        """A circuit's edge without its tokens; None for what always stays here: biases, offsets."""
        if source.kind not in ("embedding", "head", "mlp"):
            return None
        reader = Reader(side) if target.kind == "target" else Reader(side, target.layer, target.head)
        return self._writer_numbers[Component.of(source)], self._reader_numbers[reader]

    def place(self, writer: Component, reader: Reader) -> tuple[int, int] | None:
        """An edge by its two ends; None: there is none."""
        ends = self._writer_numbers.get(writer), self._reader_numbers.get(reader)
        return None if None in ends or not self.joined[ends] else ends  # type: ignore[return-value]

    def sides(self) -> dict[str, int]:
        """How many edges end at each kind of reader."""
        into = [self.readers[reader].side for _, reader in self.edges]
        return {side: into.count(side) for side in dict.fromkeys(into)}


def wiring_of(model: "Model", *, parallel: Sequence[bool]) -> Wiring:
    """All edges of a model; `parallel` says of each layer whether its MLP reads what its attention reads."""
    writers, readers = [Component("embedding", 0, None)], list[Reader]()
    below_reader = list[int]()  # writers before each reader
    for layer, beside in enumerate(parallel):
        below, heads = len(writers), range(model.dims.heads)
        sides: tuple[EdgeSide, ...] = ("dest", "src", "value")
        readers += [Reader(side, layer, head) for side in sides for head in heads]
        writers += [Component("head", layer, head) for head in heads]
        readers.append(Reader("mlp", layer))
        below_reader += [below] * (len(sides) * len(heads)) + [below if beside else len(writers)]
        writers.append(Component("mlp", layer, None))
    readers.append(Reader("target"))
    below_reader.append(len(writers))
    joined = np.arange(len(writers))[:, None] < np.array(below_reader)[None]
    return Wiring(tuple(writers), tuple(readers), joined)


# Which edges of a set lie on a way from a token to the answer? The rest goes: orphans are not silent.
#
# A component that reads only baselines does not write its baseline, so an edge out of it adds noise; one whose write
# nobody reads does nothing. Two sweeps, from the answer down and from the tokens up, until nothing changes.
#
# A query edge at t is read by its head at t. A key or value edge at s is read by its head wherever that attends to s.

LOOKS, USUAL = 0.05, 2.5  # a head looks at a key of at least this weight, or of this multiple of the uniform weight
_ANSWER = -1


@dataclass(frozen=True, eq=False)
class Reach:
    """What joins edges to each other in one prompt."""

    looks: Bool[np.ndarray, "writer dest src"]  # does this head attend there? False for all that are no heads
    component: Int[np.ndarray, "reader"]  # the writer that a reader belongs to; -1: the answer
    moves: Bool[np.ndarray, "reader"]  # is it a key or a value, read wherever its head attends to it?

    def connected(self, edges: EdgeList) -> EdgeList:
        """The edges of this list that lie on a way from a token to the answer."""
        return self.connected_sets([edges])[0]

    def connected_sets(self, sets: Sequence[EdgeList]) -> list[EdgeList]:
        """The same of each of several lists."""
        which = np.repeat(np.arange(len(sets)), [len(edges) for edges in sets])
        edges = np.concatenate(sets)
        before = -1
        while len(edges) != before:
            before = len(edges)
            for kept_by in (self._is_read, self._fed):
                kept = kept_by(edges, which, len(sets))
                edges, which = edges[kept], which[kept]
        return np.split(edges, np.searchsorted(which, np.arange(1, len(sets))))

    def _fed(self, edges: EdgeList, which: Int[np.ndarray, "edge"], n: int) -> Bool[np.ndarray, "edge"]:
        """Which edges come from a writer that reads one of these edges for what it writes there?"""
        reads = np.zeros((n, *self.looks.shape[:2]), dtype=bool)
        reads[:, 0] = True  # embeddings
        component, moves, token = self.component[edges[:, 1]], self.moves[edges[:, 1]], edges[:, 2]
        here = ~moves & (component != _ANSWER)
        reads[which[here], component[here], token[here]] = True
        heads, at = _numbered(component[moves], len(self.looks))
        moved = np.zeros((n, len(heads), self.looks.shape[2]), dtype=bool)
        moved[which[moves], at, token[moves]] = True
        reads[:, heads] |= (self.looks[heads] & moved[:, :, None]).any(3)
        return np.asarray(reads[which, edges[:, 0], edges[:, 2]])

    def _is_read(self, edges: EdgeList, which: Int[np.ndarray, "edge"], n: int) -> Bool[np.ndarray, "edge"]:
        """Which edges end at a component that somebody reads, at the token that it writes to with them?"""
        writes = np.zeros((n, *self.looks.shape[:2]), dtype=bool)
        writes[which, edges[:, 0], edges[:, 2]] = True
        component, moves, token = self.component[edges[:, 1]], self.moves[edges[:, 1]], edges[:, 2]
        read = component == _ANSWER
        here = ~moves & ~read
        read[here] = writes[which[here], component[here], token[here]]
        # at token s by its head anywhere that it looks at s from, and is read at
        heads, at = _numbered(component[moves], len(self.looks))
        read[moves] = (self.looks[heads] & writes[:, heads, :, None]).any(2)[which[moves], at, token[moves]]
        return np.asarray(read)


def _numbered(values: Int[np.ndarray, "edge"], most: int) -> tuple[Int[np.ndarray, "value"], Int[np.ndarray, "edge"]]:
    """Which values there are, and which of these each one is; as np.unique, without sorting."""
    present = np.zeros(most, dtype=bool)
    present[values] = True
    return np.flatnonzero(present), (present.cumsum() - 1)[values]


def reach_of(run: "Run", wiring: Wiring) -> Reach:
    """What joins the edges of a prompt, by the attention weights of its run."""
    n, heads = len(run), run.model.dims.heads
    looks = np.zeros((len(wiring.writers), n, n), dtype=bool)
    usual = np.minimum(LOOKS, USUAL / np.arange(1, n + 1))[:, None]
    for layer in range(run.model.dims.layers):
        record = run.attention_run(layer)
        weights = torch.cat([record.weights(record.heads, dests) for dests in record.blocks], 1).float().cpu().numpy()
        first = 1 + layer * (heads + 1)
        looks[first : first + heads] = weights >= usual
    numbers = {writer: i for i, writer in enumerate(wiring.writers)}
    component = [_ANSWER if reader.layer is None else numbers[reader.component] for reader in wiring.readers]
    moves = [reader.side in ("src", "value") for reader in wiring.readers]
    return Reach(looks, np.array(component), np.array(moves))
