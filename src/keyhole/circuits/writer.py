"""Who wrote, and into what? The identities that the residual stream is split by, and that circuits speak of."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from keyhole.models.heads import head_name

if TYPE_CHECKING:
    from keyhole.circuits.circuit import Node
    from keyhole.qk.omega import Basis

Kind = Literal["embedding", "head", "mlp", "bias", "mixer", "offset", "mlp_offset", "value_offset"]
NodeKind = Literal[Kind, "target"]
OFFSETS: tuple[Kind, ...] = ("offset", "mlp_offset", "value_offset")  # a reader's own constants: nobody writes them
SideName = Literal["dest", "src"]


@dataclass(frozen=True)
class Writer:
    """Whatever adds a vector to the residual stream at token `dest`; heads are split by the token they read."""

    kind: Kind
    layer: int
    head: int | None
    dest: int
    src: int  # equal to dest for all but heads

    @property
    def key(self) -> tuple[int, int, str, int, int]:
        """For sorting: by layer, then head, then kind and tokens."""
        return (self.layer, -1 if self.head is None else self.head, self.kind, self.dest, self.src)


@dataclass(frozen=True, slots=True)
class Component:
    """Whoever writes, or the target, without its tokens; with the roles of these, where they are counted."""

    kind: NodeKind
    layer: int | None
    head: int | None
    dest: str | None = None
    src: str | None = None

    @classmethod
    def of(cls, node: "Writer | Node") -> "Component":
        """Which component is a writer, or a node of a circuit?"""
        return cls(node.kind, node.layer, node.head)

    def at(self, dest: int, src: int) -> Writer:
        """The writer that it is at these tokens."""
        assert self.kind != "target" and self.layer is not None, "the target writes nothing"
        return Writer(self.kind, self.layer, self.head, dest, src)

    @property
    def key(self) -> tuple[float, int, str, str, str]:
        """For sorting: by layer, the target last, then head, then kind and roles."""
        layer, head = (math.inf if self.layer is None else self.layer), (-1 if self.head is None else self.head)
        return layer, head, self.kind, self.dest or "", self.src or ""

    def __str__(self) -> str:
        """Its name.

        >>> str(Component("head", 9, 6)), str(Component("mlp", 3, None)), str(Component("target", None, None))
        ('9.6', 'MLP 3', 'answer')
        """
        if self.kind in ("target", "embedding"):
            return "answer" if self.kind == "target" else self.kind
        if self.kind == "head" and self.layer is not None and self.head is not None:
            return head_name((self.layer, self.head))
        return f"{'MLP' if self.kind == 'mlp' else self.kind} {self.layer}"


@dataclass(frozen=True)
class Signal:
    """What one writer puts into some channels of a firing, on one side; with what the search found it to do.

    Channels have numbers in a basis. Those of the homogeneous one are SVT's, which traces whole heads: the writer is
    then the head with all its sources, and `writer.src` only names the one that it attends to most.
    """

    writer: Writer
    side: SideName
    channels: tuple[int, ...]  # in the order of their removal
    weight: float = math.nan  # drop of the attention weight in the order of removal
    ig: float = math.nan
    alone: float = math.nan  # drop when only this signal is removed
    basis: "Basis" = "linear"  # that the channels are numbered in

    @property
    def whole(self) -> bool:
        """Is the writer a whole head, all its sources together?"""
        return self.basis == "homogeneous"


@dataclass(frozen=True, slots=True)  # a circuit may have millions
class Removal:
    """One candidate taken away in the search: a writer's share of one channel."""

    writer: Writer
    channel: int
    ig: float
    after: float  # the attention weight once this and all before it are gone
