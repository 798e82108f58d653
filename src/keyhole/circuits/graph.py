"""What is a circuit made of, seen as objects? Nodes, edges, firings that were searched, MLPs that were explained."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from keyhole.circuits.records import NodeKind, Removal, SideName, Writer
from keyhole.errors import KeyholeError

if TYPE_CHECKING:
    from keyhole.circuits.columns import Nodes
    from keyhole.claims.making import Prompts
    from keyhole.claims.records import Claim
    from keyhole.edits.making import Scope
    from keyhole.edits.records import Edit
    from keyhole.qk.omega import Basis
    from keyhole.tasks.example import Example

EdgeSide = Literal[SideName, "target", "mlp", "value"]


@dataclass(frozen=True, slots=True)
class Node:
    """A writer at a token, a head moving from src to dest, or the target.

    All but heads have dest = src, and all but heads and their offsets head None; the target has layer None.
    """

    kind: NodeKind  # of writer, or the target
    layer: int | None  # from 0
    head: int | None  # None for all but heads and their offsets
    dest: int  # token that is written to
    src: int  # token that a head reads

    @classmethod
    def of(cls, writer: Writer) -> "Node":
        """A writer as a node.

        Args:
            writer: The writer.

        >>> from keyhole.circuits.records import Writer
        >>> Node.of(Writer("mlp", 0, None, 2, 2)).kind
        'mlp'
        """
        return cls(writer.kind, writer.layer, writer.head, writer.dest, writer.src)

    @property
    def writer(self) -> Writer:
        """Who writes here; the target is no writer."""
        assert self.kind != "target" and self.layer is not None, "the target writes nothing"
        return Writer(self.kind, self.layer, self.head, self.dest, self.src)

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        """For sorting: writers in their order, the target after them."""
        return (1 << 30, -1, self.kind, self.dest, self.src) if self.kind == "target" else self.writer.key


class Origin(NamedTuple):
    """What an edge must know of its circuit to be edited."""

    nodes: "Nodes"
    basis: "Basis"
    keys: str  # which keys a removal on the src side touched
    model: str  # fingerprint
    tokens: tuple[str, ...] = ()  # of the prompt


class _OfCircuit:
    """A row that knows its circuit; not a field, so that equal rows of two circuits are equal."""

    __slots__ = ("_origin",)


@dataclass(frozen=True, slots=True)
class Edge(_OfCircuit):
    """A signal: what the writer `sender` puts into some channels of the firing `receiver`, on one side.

    Or a cause: what it does to what the MLP or the value `receiver` writes, as shares of that.
    """

    sender: int  # index of a node
    receiver: int  # index of the node that reads it
    side: EdgeSide  # of a firing; or target (a seed), mlp, value
    # drop of the attention in the order of removal (by svt the contribution, as ig and alone are, too); of a seed its
    # push, of a given start its attention weight, of a cause what goes with it
    weight: float
    ig: float  # integrated gradients; of a cause its part
    alone: float  # drop when only this goes
    channels: tuple[int, ...]  # in the order of their removal; empty on edges that are no signals
    influence: float | None = None  # share of the answer that is handed on here; None: not accounted for

    def edit(self, *, factor: float = 0.0, scope: "Scope" = "here") -> "Edit":
        """The signal or cause as an edit, for `run.with_edits` and `model.generate(prompt, edits=[...])`.

        Args:
            factor: 0 removes it, 2 doubles it, -1 turns it round.
            scope: "here" at the tokens of the firing, "on" from its dest on, "everywhere" at all tokens.

        >>> import keyhole
        >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
        >>> circuit = run.trace("Mary", against="John", through="heads")
        >>> edge = next(edge for edge in circuit.edges if edge.side == "src")
        >>> edge.edit(factor=2).factor
        2
        """
        from keyhole.edits.making import edge_edit

        origin = getattr(self, "_origin", None)
        if origin is None:
            raise KeyholeError("this edge stands outside of its circuit: take it from circuit.edges.")
        return edge_edit(self, origin, factor=factor, scope=scope)

    def claim(self, example: "Example", *, prompts: "Prompts" = None) -> "Claim":
        """What it says, as a claim about a task: the answer needs this signal, or a head moves this token.

        Args:
            example: The circuit's prompt, whose roles name its tokens in others.
            prompts: Those that the claim is tested on, or a task. Default: the example's own task.

        >>> import keyhole
        >>> from keyhole.tasks import ioi
        >>> example = ioi(1, 2, wordings=[0], order="ABBA")[0]
        >>> run = keyhole.load().run(example.text)
        >>> circuit = run.trace(example.answer, against=example.wrong, through="heads")
        >>> circuit.edges[-1].claim(example).kind in ("moves", "needs")
        True
        """
        from keyhole.claims.making import edge_claim

        origin = getattr(self, "_origin", None)
        if origin is None:
            raise KeyholeError("this edge stands outside of its circuit: take it from circuit.edges.")
        return edge_claim(self, origin, example, prompts=prompts)

    @property
    def source(self) -> int:
        """The old name of `sender`."""
        return _renamed("source", "sender", self.sender)

    @property
    def target(self) -> int:
        """The old name of `receiver`."""
        return _renamed("target", "receiver", self.receiver)


@dataclass(frozen=True)
class Traced:
    """One firing that was searched: its threshold and everything removed on each side, in order (see `Side`)."""

    node: int
    tau: float
    visible: int
    dest: tuple[Removal, ...]
    src: tuple[Removal, ...]


@dataclass(frozen=True)
class TracedMlp:
    """One MLP that was explained: what is left without its causes, and which neurons wrote."""

    node: int
    offset: float  # all as shares of what it writes
    left: float
    left_renormed: float
    kept: float
    cancellation: float
    causes: tuple[int, ...]  # nodes, largest first
    neurons: tuple[tuple[int, float], ...]


def _renamed(old: str, new: str, value: int) -> int:
    warnings.warn(
        f"Edge.{old} is Edge.{new} now; the old name goes with the next release.", FutureWarning, stacklevel=3
    )
    return value
