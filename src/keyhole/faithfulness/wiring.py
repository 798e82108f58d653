"""Which edges are there between the components of a model? Everybody who writes, into everybody who reads later.

A component is whole: a head with all it moves to a token, an MLP, the embedding. A head reads three times (its query,
its keys, its values), and the answer reads once, at the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int

from keyhole.circuits.circuit import EdgeSide, Node
from keyhole.circuits.writer import Component, NodeKind

if TYPE_CHECKING:
    from keyhole.models.model import Model


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
    seen = list[int]()  # writers before each reader
    for layer, beside in enumerate(parallel):
        below, heads = len(writers), range(model.dims.heads)
        sides: tuple[EdgeSide, ...] = ("dest", "src", "value")
        readers += [Reader(side, layer, head) for side in sides for head in heads]
        writers += [Component("head", layer, head) for head in heads]
        readers.append(Reader("mlp", layer))
        seen += [below] * (len(sides) * len(heads)) + [below if beside else len(writers)]
        writers.append(Component("mlp", layer, None))
    readers.append(Reader("target"))
    seen.append(len(writers))
    joined = np.arange(len(writers))[:, None] < np.array(seen)[None]
    return Wiring(tuple(writers), tuple(readers), joined)
