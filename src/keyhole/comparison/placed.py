"""Where in another prompt would an edge be? A signal with the roles of its tokens, and the cut that removes it there.

Whether two circuits share an edge is asked without tokens, per channel (writer, head, side, channel), so that an edge
that merely stands elsewhere is not one circuit's own. Where it is removed in another prompt is asked by roles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from keyhole.circuits.circuit import Circuit
from keyhole.circuits.parameters import Accpp
from keyhole.circuits.writer import Component, Kind, SideName, Signal
from keyhole.comparison.members import Member
from keyhole.errors import KeyholeError
from keyhole.family.terms import Term
from keyhole.intervene import Cut
from keyhole.intervene.cuts import distinct_edges
from keyhole.models.heads import Head, head_name
from keyhole.qk.omega import Basis
from keyhole.tasks.places import place_of
from keyhole.tracing.firings.candidates import Keys

WRITERS: tuple[Kind, ...] = ("head", "mlp", "mixer")  # whose signals count, as in families


@dataclass(frozen=True)
class PlacedEdge:
    """A signal of one firing, its tokens called by their roles."""

    writer: Component
    writer_dest: str
    writer_src: str
    head: Head
    dest: str
    src: str
    side: SideName
    channels: tuple[int, ...]
    keys: Keys = "all"
    basis: Basis = "linear"

    @property
    def terms(self) -> tuple[Term, ...]:
        """What it counts as, a channel at a time."""
        target = Component("head", *self.head)
        return tuple(Term(self.writer, target, self.side, channel) for channel in self.channels)

    def __str__(self) -> str:
        moved = f"{self.writer_dest} <- {self.writer_src}" if self.writer.kind == "head" else self.writer_dest
        channels = ",".join(map(str, self.channels))
        return f"{self.writer} ({moved}) -> {head_name(self.head)} ({self.dest} <- {self.src}) {self.side} [{channels}]"


def placed_edges(member: Member) -> tuple[PlacedEdge, ...]:
    """The signals of a circuit that can be looked for in other prompts."""
    if member.names is None:
        raise KeyholeError("edges are placed in other prompts by roles, and this prompt has none.")
    circuit, names, found = member.circuit, member.names, []
    basis = circuit.parameters.basis
    keys: Keys = circuit.parameters.keys if isinstance(circuit.parameters, Accpp) else "source"
    for edge in distinct_edges(circuit, (edge for edge in circuit.edges if edge.side in ("dest", "src"))):
        source, into = circuit.nodes[edge.source], circuit.nodes[edge.target]
        if source.kind not in WRITERS:
            continue
        who, layer, head = source.writer, into.layer, into.head
        assert layer is not None and head is not None and (edge.side == "dest" or edge.side == "src")
        tokens = (names[who.dest], names[who.src]), (names[into.dest], names[into.src])
        ends = (*tokens[0], (layer, head), *tokens[1])
        found.append(PlacedEdge(Component.of(who), *ends, edge.side, edge.channels, keys, basis))
    return tuple(found)


def of_one_alone(mine: Sequence[PlacedEdge], its: Sequence[PlacedEdge]) -> tuple[PlacedEdge, ...]:
    """The edges of one circuit with the channels that the other has nowhere."""
    return _with_channels(mine, {term for edge in its for term in edge.terms}, inside=False)


def of_both(mine: Sequence[PlacedEdge], its: Sequence[PlacedEdge]) -> tuple[PlacedEdge, ...]:
    """The edges of one circuit with the channels that the other has somewhere, too."""
    return _with_channels(mine, {term for edge in its for term in edge.terms}, inside=True)


def _with_channels(edges: Sequence[PlacedEdge], known: set[Term], *, inside: bool) -> tuple[PlacedEdge, ...]:
    found = []
    for edge in edges:
        kept = tuple(term.channel for term in edge.terms if (term in known) == inside and term.channel is not None)
        if kept:
            found.append(replace(edge, channels=kept))
    return tuple(found)


def cut_in(edge: PlacedEdge, names: tuple[str, ...]) -> Cut | None:
    """The removal of an edge in a prompt whose tokens have these names; None: it has no place there.

    A token may be missing, or the other way round: nothing is moved from a token to an earlier one.
    """
    asked = (edge.writer_dest, edge.writer_src, edge.dest, edge.src)
    found = [place_of(name, names) for name in asked]
    at = [place for place in found if place is not None]
    if len(at) < len(found):
        return None
    writer_dest, writer_src, dest, src = at
    if writer_src > writer_dest or src > dest or writer_dest != (dest if edge.side == "dest" else src):
        return None
    writer = edge.writer.at(writer_dest, writer_src)
    return Cut(*edge.head, dest, src, (Signal(writer, edge.side, edge.channels, basis=edge.basis),), edge.keys)


def not_signals(circuit: Circuit) -> int:
    """Edges of counted writers that are no signals of a firing: into the answer, an MLP or a value. None can be cut."""
    return sum(
        edge.side not in ("dest", "src") and circuit.nodes[edge.source].kind in WRITERS for edge in circuit.edges
    )
