"""Which terms do rows of circuits come to? Packed into whole numbers, so that rows are compared by the million."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from keyhole.circuits.writer import Component
from keyhole.errors import KeyholeError
from keyhole.family.columns import KINDS, NONE, SIDES, Block, Places
from keyhole.family.roles import RoleCodes

COUNTED = ("head", "mlp", "mixer")  # whose writes are terms; the target is where they lead
_HEAD, _KIND, _ROLE = 12, 4, 16  # bits of a component's number, after its layer's
_COMPONENT, _SIDE, _CHANNEL = 22, 3, 16  # and of a term's
_NO_LAYER = (1 << 12) - 1


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that a circuit has: a component, an edge between two, or a channel of such an edge."""

    source: Component
    target: Component | None = None
    side: str | None = None
    channel: int | None = None  # None also on edges that are no signals


@dataclass(frozen=True)
class Rows:
    """Which circuits are asked for: their numbers, and the roles of their tokens."""

    prompts: Int[np.ndarray, "circuits"]
    roles: RoleCodes | None

    def at(self, prompt: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        """The place of each prompt among those that are asked for, which it is one of."""
        order = np.argsort(self.prompts, kind="stable")
        return order[np.searchsorted(self.prompts, prompt, sorter=order)]


@dataclass
class _Ids:
    """Numbers as they are met, numbered anew from 0."""

    known: dict[int, int] = field(default_factory=dict)

    def of(self, keys: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows"]:
        met, inverse = np.unique(keys, return_inverse=True)
        ids = [self.known.setdefault(key, len(self.known)) for key in met.tolist()]
        return np.array(ids, np.int64)[inverse]


@dataclass
class Met:
    """The terms that were met so far."""

    side: bool  # does it tell two edges apart?
    components: _Ids = field(default_factory=_Ids)
    terms: _Ids = field(default_factory=_Ids)

    def read(
        self, block: Block, rows: Rows, *, weighted: bool
    ) -> tuple[Int[np.ndarray, "found"], Int[np.ndarray, "found"], Float[np.ndarray, "found"]]:
        """(circuit, term, influence or 1) of rows that count; an edge is as many terms as it has channels, or one."""
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
        """All terms from the lowest layer up, and the place of each that was met; whatever was met first."""
        found = [_component(key, roles) for key in self.components.known]
        ranks = np.empty(len(found) + 1, np.int64)
        ranks[sorted(range(len(found)), key=lambda i: found[i].key)] = np.arange(len(found))
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
            Term(found[s], None if t < 0 else found[t], None if e < 0 else SIDES[e], None if c < 0 else c)
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
    told = (roles[one - 1] if one else None for one in (dest, src))
    return Component(KINDS[kind], None if layer == _NO_LAYER else layer, head - 1 if head else None, *told)
