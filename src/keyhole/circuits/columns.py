"""How is a circuit stored? As one table each for nodes, edges, firings and MLPs, with a NumPy array per field.

A table is also a sequence of objects, which are built on first access: `circuit.edges[3].weight` is a number,
`circuit.edges.weight` is the array of all weights.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from functools import cache, cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, overload

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from keyhole.circuits.graph import Edge, Node, Origin, Traced, TracedMlp
from keyhole.circuits.records import Removal, SideName, Writer
from keyhole.errors import KeyholeError

Row = TypeVar("Row")
Table = TypeVar("Table", bound="Columns[Any]")
Indices = Int[np.ndarray, "row"]
Numbers = Float[np.ndarray, "row"]
Texts = Shaped[np.ndarray, "row"]
# For the node of each explained MLP, the direction along which its write is read: the sum over its readers, each
# weighted by its influence. They are kept so that verification need not derive them again from the answer down.
Directions = Mapping[int, Float[np.ndarray, "d_model"]]
BOTH: tuple[SideName, SideName] = ("dest", "src")
SHARES = ("offset", "left", "left_renormed", "kept", "cancellation")  # fields of an MLP
NONE = -1  # stands for None in integer columns (layer of the target, head of other nodes); float columns use NaN
_MAYBE = ("layer", "head", "influence")  # columns that may hold None
_LONGEST = 12  # characters of a text in a column: "value_offset". NumPy would cut longer ones off without a word.
_DTYPES: Mapping[Any, Any] = {Indices: np.int64, Numbers: np.float64, Texts: f"U{_LONGEST}"}


@dataclass(frozen=True, eq=False)
class Lists:
    """Lists of different lengths: the values of all lists concatenated, and the length of each list."""

    values: Shaped[np.ndarray, "value"]
    sizes: Int[np.ndarray, "list"]

    @property
    def starts(self) -> Int[np.ndarray, "list"]:
        """Index of the first value of each list."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    def tuples(self) -> list[tuple[Any, ...]]:
        """The lists as Python tuples."""
        values, ends = self.values.tolist(), np.cumsum(self.sizes).tolist()
        return [tuple(values[a:b]) for a, b in zip([0, *ends], ends, strict=False)]

    def __getitem__(self, at: Int[np.ndarray, "row"]) -> "Lists":
        """The lists at these indices, in this order."""
        sizes = self.sizes[at]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return Lists(self.values[np.repeat(self.starts[at], sizes) + within], sizes)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Lists)
            and np.array_equal(self.sizes, other.sizes)
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False, repr=False)
class Columns(Sequence[Row]):
    """A table: rows of one kind, with a column per field. Row objects are built on first access."""

    row: ClassVar[type]  # the class of a row object

    @classmethod
    def of(cls: type[Table], rows: Iterable[Any]) -> Table:
        """A table of these row objects."""
        return cls.of_cells(map(cls._cells, rows))

    @classmethod
    def of_cells(cls: type[Table], rows: Iterable[Sequence[Any]]) -> Table:
        """A table of rows that are given as plain cells, in the order of the columns."""
        names = _names(cls)
        columns = list(zip(*rows, strict=True)) or [()] * len(names)
        return cls(*(_column(cls, name, cells) for name, cells in zip(names, columns, strict=True)))

    @classmethod
    def _cells(cls, row: Any) -> Sequence[Any]:
        cells: Sequence[Any] = attrgetter(*_names(cls))(row)
        return cells

    def _objects(self) -> Iterator[Row]:
        return map(self.row, *(self.plain(column.name) for column in fields(self)))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """All rows as objects."""
        return tuple(self._objects())

    def plain(self, name: str) -> list[Any]:
        """A column as a list of Python values, with None where a value is missing."""
        column = getattr(self, name)
        if isinstance(column, Lists):
            return column.tuples()
        values: list[Any] = column.tolist()
        if name not in _MAYBE:
            return values
        if column.dtype.kind == "f":
            return [None if value != value else value for value in values]
        return [None if value == NONE else value for value in values]

    def take(self: Table, rows: Sequence[int] | Indices) -> Table:
        """The rows at these indices, in this order."""
        at = np.asarray(rows, dtype=np.int64)
        return type(self)(**{column.name: getattr(self, column.name)[at] for column in fields(self)})

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return self.rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __add__(self, other: Iterable[Row]) -> tuple[Row, ...]:
        return (*self.rows, *other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            return all(_equal(getattr(self, column.name), getattr(other, column.name)) for column in fields(self))
        return isinstance(other, Sequence) and self.rows == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} {type(self).__name__.lower()}>"


@dataclass(frozen=True, eq=False, repr=False)
class Nodes(Columns[Node]):
    """The nodes of a circuit: writers, and the target."""

    row = Node
    kind: Texts
    layer: Indices
    head: Indices
    dest: Indices
    src: Indices


@dataclass(frozen=True, eq=False, repr=False)
class Edges(Columns[Edge]):
    """The edges of a circuit: signals into firings, and causes of MLP writes."""

    row = Edge
    sender: Indices
    receiver: Indices
    side: Texts
    weight: Numbers
    ig: Numbers
    alone: Numbers
    channels: Lists
    influence: Numbers

    origin: ClassVar[Origin | None] = None  # set on the instance by the circuit that holds these edges

    def within(self, origin: Origin) -> "Edges":
        """These edges as part of a circuit; a copy if they already belong to another circuit."""
        edges = self if self.origin is None else copy(self)
        edges.__dict__.pop("rows", None)
        object.__setattr__(edges, "origin", origin)
        return edges

    def _objects(self) -> Iterator[Edge]:
        for edge in super()._objects():
            object.__setattr__(edge, "_origin", self.origin)
            yield edge

    @property
    def signals(self) -> Bool[np.ndarray, "row"]:
        """A mask of the edges that are signals, that is, edges into a query or a key."""
        return np.asarray((self.side == "dest") | (self.side == "src"))


@dataclass(frozen=True, eq=False, repr=False)
class Removals(Columns[Removal]):
    """Signals that the search removed to explain firings, in the order of removal."""

    row = Removal
    kind: Texts
    layer: Indices
    head: Indices
    dest: Indices
    src: Indices
    channel: Indices
    ig: Numbers
    after: Numbers

    @classmethod
    def _cells(cls, row: Removal) -> Sequence[Any]:
        who = row.writer
        return who.kind, who.layer, who.head, who.dest, who.src, row.channel, row.ig, row.after

    def _objects(self) -> Iterator[Removal]:
        *who, channel, ig, after = (self.plain(column.name) for column in fields(self))
        cells = list(zip(*who, strict=True))
        writers = {
            each: Writer(*each) for each in set(cells)
        }  # each stands in many rows: a fifth of the time otherwise
        return map(Removal, map(writers.__getitem__, cells), channel, ig, after)


@dataclass(frozen=True, eq=False, repr=False)
class Firings(Columns[Traced]):
    """Firings that were explained by a search."""

    row = Traced
    node: Indices
    tau: Numbers
    visible: Indices
    sizes: Int[np.ndarray, "row 2"]  # how many were removed on the dest side, and on the src side
    removals: Removals  # firing by firing; within a firing the dest side comes first

    @classmethod
    def of(cls, rows: Iterable[Traced]) -> "Firings":
        """A table of these row objects."""
        traced = tuple(rows)
        columns = {
            name: _column(cls, name, [getattr(row, name) for row in traced]) for name in ("node", "tau", "visible")
        }
        sizes = np.array([[len(row.dest), len(row.src)] for row in traced], dtype=np.int64).reshape(-1, 2)
        return cls(**columns, sizes=sizes, removals=Removals.of(chain(*((*row.dest, *row.src) for row in traced))))

    def take(self, rows: Sequence[int] | Indices) -> "Firings":
        """The rows at these indices, in this order."""
        at, each = np.asarray(rows, dtype=np.int64), self.sizes.sum(axis=1)
        removed = Lists(np.arange(each.sum()), each)[at].values
        node, tau, visible, sizes = (column[at] for column in (self.node, self.tau, self.visible, self.sizes))
        return type(self)(node, tau, visible, sizes, self.removals.take(removed))

    @property
    def of_removals(self) -> tuple[Indices, Texts]:
        """For each removal: the row of its firing in this table, and its side."""
        of = np.repeat(np.arange(2 * len(self)), self.sizes.ravel())
        return of // 2, np.array(BOTH)[of % 2]

    def _objects(self) -> Iterator[Traced]:
        removals, start = self.removals.rows, 0
        columns = (self.node, self.tau, self.visible, self.sizes)
        for node, tau, visible, (dest, src) in zip(*(column.tolist() for column in columns), strict=True):
            middle, end = start + dest, start + dest + src
            yield Traced(node, tau, visible, removals[start:middle], removals[middle:end])
            start = end


@dataclass(frozen=True, eq=False, repr=False)
class Mlps(Columns[TracedMlp]):
    """MLPs whose writes were explained."""

    row = TracedMlp
    node: Indices
    offset: Numbers
    left: Numbers
    left_renormed: Numbers
    kept: Numbers
    cancellation: Numbers
    causes: Lists
    neurons: Lists
    shares: Lists  # one share per neuron in `neurons`

    @classmethod
    def _cells(cls, row: TracedMlp) -> Sequence[Any]:
        shares = [getattr(row, name) for name in SHARES]
        return row.node, *shares, row.causes, [neuron for neuron, _ in row.neurons], [share for _, share in row.neurons]

    def _objects(self) -> Iterator[TracedMlp]:
        *columns, neurons, shares = (self.plain(column.name) for column in fields(self))
        wrote = [tuple(zip(*pair, strict=True)) for pair in zip(neurons, shares, strict=True)]
        return map(TracedMlp, *columns, wrote)


@cache
def _names(table: type[Columns[Any]]) -> tuple[str, ...]:
    return tuple(column.name for column in fields(table))


_LISTS = {"channels": np.int64, "causes": np.int64, "neurons": np.int64, "shares": np.float64}  # dtype of their values


def _column(table: type[Columns[Any]], name: str, values: Sequence[Any]) -> Any:
    """A column made of plain values; values that do not convert to its dtype are refused."""
    place = f"column {name} of {table.__name__.lower()}"
    try:
        if name in _LISTS:
            joined = np.array(list(chain.from_iterable(values)), dtype=_LISTS[name])
            return Lists(joined, np.fromiter(map(len, values), np.int64, len(values)))
        kind = next(_DTYPES[column.type] for column in fields(table) if column.name == name)
        nothing = np.nan if kind is np.float64 else NONE
        too_long = [value for value in values if isinstance(value, str) and len(value) > _LONGEST]
        if too_long:
            raise ValueError(f"{too_long[0]!r} has more than {_LONGEST} characters")
        return np.array([nothing if value is None else value for value in values], dtype=kind)
    except OverflowError as error:
        raise KeyholeError(f"{place} has a number that no model has: {error}.") from error
    except (TypeError, ValueError) as error:
        raise KeyholeError(f"{place} cannot hold what was found: {error}.") from error


def _equal(column: Any, other: Any) -> bool:
    if isinstance(column, np.ndarray):
        return np.array_equal(column, other, equal_nan=column.dtype.kind == "f")
    return bool(column == other)
