"""How do circuits become sets of terms? Components, edges or channels, perhaps with the roles of their tokens.

The role of a token is the nearest named one at or before it, with the distance.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Component
from keyhole.errors import KeyholeError, require_choice
from keyhole.store.manifest import traced_prompts
from keyhole.store.store import Where
from keyhole.studies.families.distances import (
    KINDS,
    NONE,
    SIDES,
    Block,
    Granularity,
    Places,
    circuit_blocks,
    store_blocks,
)
from keyhole.tasks.example import Example, place_names

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

    from keyhole.store.store import Store


@dataclass(frozen=True)
class RoleCodes:
    """The role of every token of every circuit, as a number into `texts`."""

    texts: tuple[str, ...]
    flat: Int[np.ndarray, "tokens"]
    first: Int[np.ndarray, "circuits"]  # where each circuit's tokens begin in `flat`

    def at(self, circuit: Int[np.ndarray, "rows"], position: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """The role of these tokens of these circuits."""
        return np.asarray(self.flat[self.first[circuit] + position])


def role_codes(prompts: Iterable[tuple[Example, tuple[str, ...]]]) -> RoleCodes:
    """The roles of all tokens of these prompts, each given with its tokens."""
    known: dict[str, int] = {}
    flat: list[int] = []
    first: list[int] = []
    for example, tokens in prompts:
        first.append(len(flat))
        names = place_names(example.places(tokens), len(tokens))
        flat += [known.setdefault(name, len(known)) for name in names]
    return RoleCodes(tuple(known), np.array(flat, np.int64), np.array(first, np.int64))


def stored_prompts(store: "Store", prompts: Int[np.ndarray, "circuits"]) -> Iterator[tuple[Example, tuple[str, ...]]]:
    """The texts with their roles, and the tokens, of these prompts of a store; no circuit is read."""
    wanted = {"prompt": prompts.tolist()}
    spans = store.table("prompts", columns=["prompt", "text", "roles", "role_start", "role_end"], where=wanted)
    tokens = store.table("circuits", columns=["prompt", "tokens"], where=wanted)
    if spans["prompt"].to_pylist() != prompts.tolist() or tokens["prompt"].to_pylist() != prompts.tolist():
        raise KeyholeError(f"{store.path} has prompts out of order: run `keyhole bulk` again, which repairs it.")
    for batch, circuits in zip(_pieces(spans), _pieces(tokens), strict=True):
        for row, circuit in zip(batch, circuits, strict=True):
            roles = dict(zip(row["roles"], zip(row["role_start"], row["role_end"], strict=True), strict=True))
            yield Example("", row["text"], "", (), (), roles, "", ""), tuple(circuit["tokens"])


def _pieces(table: "pa.Table", rows: int = 4096) -> Iterator[list[dict[str, Any]]]:
    """A table's rows as records, some at a time: all texts at once would not fit into memory."""
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows).to_pylist()


# Terms are packed into whole numbers, so that numpy can compare millions of rows: first a component, then an edge.

COUNTED = ("head", "mlp", "mixer")  # writers that are terms; embeddings, biases and the target are none by themselves
_HEAD, _KIND, _ROLE = 12, 4, 16  # bits of a component's parts, which follow the layer
_COMPONENT, _SIDE, _CHANNEL = 22, 3, 16  # bits of a term's parts
_NO_LAYER = (1 << 12) - 1


@dataclass(frozen=True, slots=True)
class Term:
    """One element of a circuit's set: a component, an edge between two, or a channel of such an edge."""

    source: Component
    target: Component | None = None
    side: str | None = None
    channel: int | None = None  # None also for edges that are no signals, which have no channels


@dataclass(frozen=True)
class Rows:
    """The circuits that become sets: their numbers, and the roles of their tokens."""

    prompts: Int[np.ndarray, "circuits"]
    roles: RoleCodes | None

    def at(self, prompt: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """The index of each prompt in `prompts`."""
        order = np.argsort(self.prompts, kind="stable")
        return order[np.searchsorted(self.prompts, prompt, sorter=order)]


@dataclass
class _Ids:
    """Numbers any keys from 0, in the order in which they appear."""

    known: dict[int, int] = field(default_factory=dict)

    def of(self, keys: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        met, inverse = np.unique(keys, return_inverse=True)
        ids = [self.known.setdefault(key, len(self.known)) for key in met.tolist()]
        return np.array(ids, np.int64)[inverse]


@dataclass
class Met:
    """The components and terms that have appeared so far."""

    side: bool  # are edges different terms if their sides differ?
    components: _Ids = field(default_factory=_Ids)
    terms: _Ids = field(default_factory=_Ids)

    def read(
        self, block: Block, rows: Rows, *, weighted: bool
    ) -> tuple[Int[np.ndarray, "found"], Int[np.ndarray, "found"], Float[np.ndarray, "found"]]:
        """(circuit, term, influence or 1) of the rows that count; an edge is one term, or one for each channel."""
        circuit = rows.at(block.prompt)
        counts = np.isin(block.source.kind, [KINDS.index(kind) for kind in COUNTED])
        shares = np.maximum(block.widths, 1)
        channel = np.full(shares.sum(), NONE)
        channel[np.repeat(block.widths > 0, shares)] = block.channels
        row = np.repeat(np.arange(len(circuit)), shares)
        row, channel = row[counts[row]], channel[counts[row]]
        number = self._component(block.source, circuit, rows.roles) << _COMPONENT
        if block.target is not None:
            number |= self._component(block.target, circuit, rows.roles) + 1
        number = number << _SIDE | (block.side + 1 if self.side else 0)
        term = self.terms.of(number[row] << _CHANNEL | (channel + 1))
        value = (block.influence / shares)[row] if weighted else np.ones(len(row))
        if np.isnan(value).any():
            raise KeyholeError("these circuits keep to heads and have no influence to weigh by: trace through MLPs.")
        return circuit[row].astype(np.int32), term.astype(np.int32), value

    def in_order(self, roles: tuple[str, ...]) -> tuple[tuple[Term, ...], Int[np.ndarray, "terms"]]:
        """All terms from the lowest layer up, and the place of each number in that order."""
        components = [_component(key, roles) for key in self.components.known]
        ranks = np.empty(len(components) + 1, np.int64)
        ranks[sorted(range(len(components)), key=lambda i: components[i].key)] = np.arange(len(components))
        ranks[-1] = NONE  # no target
        keys = np.fromiter(self.terms.known, np.int64, len(self.terms.known))
        channel, keys = (keys & ((1 << _CHANNEL) - 1)) - 1, keys >> _CHANNEL
        side, keys = (keys & ((1 << _SIDE) - 1)) - 1, keys >> _SIDE
        target, source = (keys & ((1 << _COMPONENT) - 1)) - 1, keys >> _COMPONENT
        order = np.lexsort((channel, side, ranks[target], ranks[source]))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        columns = (column[order].tolist() for column in (source, target, side, channel))
        terms = tuple(
            Term(components[s], None if t < 0 else components[t], None if e < 0 else SIDES[e], None if c < 0 else c)
            for s, t, e, c in zip(*columns, strict=True)
        )
        return terms, places

    def _component(
        self, places: Places, circuit: Int[np.ndarray, "rows"], roles: RoleCodes | None
    ) -> Int[np.ndarray, "rows"]:
        """The number of each row's component, by its layer, head and kind, and the roles of its tokens."""
        if max(places.layer.max(initial=0), places.head.max(initial=0)) >= _NO_LAYER:
            raise KeyholeError(f"layers and heads are counted up to {_NO_LAYER} here.")
        number = np.where(places.layer == NONE, _NO_LAYER, places.layer) << _HEAD | (places.head + 1)
        number = number << _KIND | places.kind
        for position in (places.dest, places.src):
            role = 0 if roles is None else roles.at(circuit, position) + 1
            number = number << _ROLE | role
        ids = self.components.of(number)
        if len(self.components.known) >= 1 << _COMPONENT:
            raise KeyholeError("these circuits have millions of components with roles: ask for sets without roles.")
        return ids


def _component(key: int, roles: tuple[str, ...]) -> Component:
    src, key = key & ((1 << _ROLE) - 1), key >> _ROLE
    dest, key = key & ((1 << _ROLE) - 1), key >> _ROLE
    kind, key = key & ((1 << _KIND) - 1), key >> _KIND
    head, layer = key & ((1 << _HEAD) - 1), key >> _HEAD
    named = (roles[role - 1] if role else None for role in (dest, src))
    return Component(KINDS[kind], None if layer == _NO_LAYER else layer, head - 1 if head else None, *named)


# As in the papers, sets leave tokens out, and embeddings, biases and offsets do not count. Two choices go further:
# edges may differ by their side, and by the roles of the tokens that they join. A weighted set has the influence that
# passes through each of its terms; an edge gives an equal share to each of its channels.


@dataclass(frozen=True, repr=False)
class Sets:
    """Circuits as sets: row i is the circuit of prompt `prompts[i]`, column j says how much it has of `terms[j]`."""

    granularity: Granularity
    prompts: Int[np.ndarray, "circuits"]
    terms: tuple[Term, ...]
    matrix: "csr_array"  # 1 where a circuit has a term; or the term's influence

    __repr__ = brief

    def __len__(self) -> int:
        return len(self.prompts)


def store_sets(
    store: "Store",
    granularity: Granularity,
    *,
    side: bool = True,
    role: bool = False,
    weighted: bool = False,
    where: Where = None,
    prompts: Sequence[int] | None = None,
) -> Sets:
    """The circuits of a store as sets, without reading circuits one by one.

    Args:
        store: From `keyhole.bulk` or `keyhole.open_store`.
        granularity: The terms of a set: "heads" (and MLPs), "edges", or edges with their "channels".
        side: Whether dest, src and value edges are different terms.
        role: Whether terms differ that stand at tokens of other roles.
        weighted: Whether the matrix has the influence of each term, instead of 1.
        where: Which prompts, by values of the table `prompts`. Default: all that have a circuit.
        prompts: Numbers of prompts, of those that `where` selects. Default: all of these.

    Returns:
        A matrix of circuits and terms, with the numbers of the prompts and the terms.

    >>> import keyhole, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", keyhole.load(), n=3, out=f"{folder}/ioi.store")
    ...     sets = store_sets(store, "heads", prompts=[0, 2])
    >>> sets.prompts.tolist(), sets.matrix.shape == (2, len(sets.terms))
    ([0, 2], True)
    """
    require_choice("granularity", granularity, Granularity)
    numbers = _asked(store, where, prompts)
    roles = role_codes(stored_prompts(store, numbers)) if role else None
    return _sets(
        store_blocks(store, granularity, numbers), granularity, Rows(numbers, roles), side=side, weighted=weighted
    )


def circuit_sets(
    circuits: Sequence[Circuit],
    granularity: Granularity,
    *,
    side: bool = True,
    role: bool = False,
    weighted: bool = False,
    prompts: Sequence[int] | None = None,
    examples: Sequence[Example] | None = None,
) -> Sets:
    """Circuits at hand as sets.

    Args:
        circuits: Of one model.
        granularity: The terms of a set: "heads" (and MLPs), "edges", or edges with their "channels".
        side: Whether dest, src and value edges are different terms.
        role: Whether terms differ that stand at tokens of other roles; needs `examples`.
        weighted: Whether the matrix has the influence of each term, instead of 1.
        prompts: A number for each circuit. Default: counted from 0.
        examples: The example of each circuit, which has the roles of its tokens.

    Returns:
        A matrix of circuits and terms, with the numbers of the circuits and the terms.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> sets = circuit_sets([run.trace("Mary", through="heads")], "heads")
    >>> str(sets.terms[-1].source), float(sets.matrix[0, -1])
    ('MLP 3', 1.0)
    """
    require_choice("granularity", granularity, Granularity)
    numbers = np.array(range(len(circuits)) if prompts is None else prompts, np.int64)
    if len(numbers) != len(circuits) or len(set(numbers.tolist())) != len(circuits):
        raise KeyholeError(f"{len(circuits)} circuits need as many different numbers, not {len(numbers)}.")
    if role and (examples is None or len(examples) != len(circuits)):
        raise KeyholeError("roles of tokens are those of the circuits' examples: give one for each circuit.")
    tokens = [circuit.tokens for circuit in circuits]
    roles = role_codes(zip(examples, tokens, strict=True)) if role and examples is not None else None
    blocks = circuit_blocks(zip(numbers.tolist(), circuits, strict=True), granularity)
    return _sets(blocks, granularity, Rows(numbers, roles), side=side, weighted=weighted)


def _asked(store: "Store", where: Where, prompts: Sequence[int] | None) -> Int[np.ndarray, "circuits"]:
    traced = traced_prompts(store, where)
    if prompts is None:
        return traced
    numbers = np.unique(np.array(prompts, np.int64))
    missing = np.setdiff1d(numbers, traced)
    if len(missing):
        raise KeyholeError(f"prompt {missing[0]} has no circuit here, or is not among those that `where` asks for.")
    return numbers


def _sets(blocks: Iterable[Block], granularity: Granularity, rows: Rows, *, side: bool, weighted: bool) -> Sets:
    from scipy.sparse import coo_array

    met = Met(side)
    parts = [met.read(block, rows, weighted=weighted) for block in blocks]
    circuit, term, value = (np.concatenate([part[i] for part in parts]) for i in range(3))
    terms, order = met.in_order(() if rows.roles is None else rows.roles.texts)
    matrix = coo_array((value, (circuit, order[term])), shape=(len(rows.prompts), len(terms))).tocsr()
    matrix.sum_duplicates()
    if not weighted:
        matrix.data[:] = 1
    matrix.eliminate_zeros()
    return Sets(granularity, rows.prompts, terms, matrix)
