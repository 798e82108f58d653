"""Which edit takes away what was traced? Edges, nodes, firings and features as edits, at their tokens or at others."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from keyhole.brief import Head
from keyhole.circuits.records import Signal
from keyhole.edits.records import (
    EVERYWHERE,
    At,
    CauseEdit,
    Edit,
    FeatureEdit,
    SignalEdit,
    Source,
    WriteEdit,
)
from keyhole.errors import KeyholeError, require_choice

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Circuit
    from keyhole.circuits.graph import Edge, Node, Origin
    from keyhole.tracing.firing import Firing

Scope = Literal["here", "on", "everywhere"]  # at the firing's own tokens, from its dest on, or at all tokens


def edge_edit(edge: "Edge", origin: "Origin", *, factor: float = 0.0, scope: Scope = "here") -> Edit:
    """What an edge of a circuit stands for, as an edit. See `Edge.edit`."""
    sender, receiver = origin.nodes[edge.sender], origin.nodes[edge.receiver]
    if edge.side == "mlp":
        assert receiver.layer is not None
        require_choice("scope", scope, Scope)
        source = Source.of(sender.writer, whole=scope != "here")
        dest = _at(scope, receiver.dest)[0]
        return CauseEdit(layer=receiver.layer, writers=(source,), factor=factor, dest=dest, model=origin.model)
    if edge.side != "dest" and edge.side != "src":
        where = "the answer" if edge.side == "target" else "a value"
        raise KeyholeError(f"an edge into {where} is no signal: edit its sender, as in circuit.edit(node).")
    if origin.basis != "linear":
        raise KeyholeError("signals of this circuit are in the basis of svt: trace with the method accpp to edit them.")
    assert receiver.layer is not None and receiver.head is not None
    signal = Signal(sender.writer, edge.side, edge.channels)
    tokens = _tokens(scope, edge.side, receiver.dest, receiver.src, keys=origin.keys)
    edit = _signal_edit(signal, (receiver.layer, receiver.head), tokens, whole=scope != "here")
    return replace(edit, factor=factor, model=origin.model)


def _signal_edit(signal: Signal, head: Head, tokens: tuple[At, At], *, whole: bool) -> SignalEdit:
    """A signal into a head's scores, removed at these tokens of dest and src."""
    if signal.writer.kind == "rounding":
        raise KeyholeError(
            "what was rounded away is another number in every pass: it is a signal that cannot be edited."
        )
    dest, src = tokens
    writer = Source.of(signal.writer, whole=whole)
    return SignalEdit(head=head, side=signal.side, channels=signal.channels, writer=writer, dest=dest, src=src)


def node_edit(node: "Node", *, factor: float = 0.0, scope: Scope = "here", model: str = "") -> Edit:
    """Everything that a node writes, as an edit."""
    if node.kind not in ("head", "mlp", "mixer", "embedding"):
        raise KeyholeError(
            f"a node of kind {node.kind} writes nothing that can be edited: take a head, an MLP or an edge."
        )
    require_choice("scope", scope, Scope)
    writer = Source.of(node.writer, whole=scope != "here")
    return WriteEdit(writer=writer, factor=factor, dest=_at(scope, node.dest)[0], model=model)


def circuit_edit(circuit: "Circuit", part: "Edge | Node", *, factor: float = 0.0, scope: Scope = "here") -> Edit:
    """An edge or a node of a circuit as an edit. See `Circuit.edit`."""
    from keyhole.circuits.graph import Node

    if isinstance(part, Node):
        return node_edit(part, factor=factor, scope=scope, model=str(circuit.model.get("fingerprint", "")))
    assert circuit.edges.origin is not None
    return edge_edit(part, circuit.edges.origin, factor=factor, scope=scope)


def firing_edits(firing: "Firing", *, factor: float = 0.0, scope: Scope = "here") -> tuple[Edit, ...]:
    """All signals of a firing, as edits. See `Firing.edits`."""
    if not any(side.signals for side in firing.sides):
        raise KeyholeError(f"head {firing.layer}.{firing.head} has no signals here, and so nothing to edit.")
    model, edits = firing.run.model.fingerprint(), []
    for signal in (signal for side in firing.sides for signal in side.signals):
        tokens = _tokens(scope, signal.side, firing.dest, firing.src)
        edit = _signal_edit(signal, (firing.layer, firing.head), tokens, whole=scope != "here")
        edits.append(replace(edit, factor=factor, model=model))
    return tuple(edits)


def feature_edit(
    feature: Any, *, side: Literal["dest", "src"] = "src", factor: float = 0.0, frame: str = "post_rope"
) -> FeatureEdit:
    """A feature of a contrast, or a discovered one, as an edit of its head's queries or keys, at every token.

    Its frame is that of the `Features` it comes from; "relative" features depend on two tokens at once and are refused.
    """
    if frame not in ("post_rope", "pre_rope"):
        raise KeyholeError(
            f"a feature in the frame {frame!r} is no subspace of queries or keys alone: it cannot be edited."
        )
    if not feature.rank:
        raise KeyholeError(f"feature {feature.name!r} has rank 0 in this head: there is nothing to edit.")
    basis = (feature.U if side == "dest" else feature.V).double().T.tolist()
    return FeatureEdit(
        head=feature.head,
        side=side,
        basis=tuple(map(tuple, basis)),
        frame=frame,  # type: ignore[arg-type]
        name=feature.name,
        factor=factor,
    )


def _tokens(scope: Scope, side: str, dest: int, src: int, keys: str = "all") -> tuple[At, At]:
    """Where the signal of a firing is edited: its query, or the keys that the search touched."""
    require_choice("scope", scope, Scope)
    at, others = _at(scope, dest)
    if scope != "here" or side == "dest":
        return at, others
    return at, At((src,)) if keys == "source" else At(tuple(range(dest + 1)))


def _at(scope: Scope, dest: int) -> tuple[At, At]:
    places = {"here": At((dest,)), "on": At(start=dest), "everywhere": EVERYWHERE}
    return places[scope], EVERYWHERE
