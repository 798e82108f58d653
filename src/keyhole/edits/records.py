"""What can be edited? Records that say which part of a model changes, by which factor and at which tokens.

An edit is plain data: it is kept in a JSON file, and has no tensor of one prompt. Edits of the same model compose: what
a head reads is changed in the order in which they are given.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, SupportsIndex

from keyhole.brief import Head, head_name
from keyhole.circuits.records import Kind, SideName, Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.strict import is_index, is_number, quoted

Frame = Literal["post_rope", "pre_rope"]
SOURCES: tuple[Kind, ...] = ("embedding", "head", "mlp", "bias", "mixer", "offset")  # whose signals can be edited


@dataclass(frozen=True)
class At:
    """Which tokens an edit touches: those listed, or all from one on; every token unless something is said.

    >>> print(At(), At((2, 5)), At(start=7))
    everywhere at 2,5 from 7 on
    """

    tokens: tuple[int, ...] | None = None  # positions from 0; None: all from `start` on
    start: int = 0

    def __post_init__(self) -> None:
        if self.tokens is not None:
            if isinstance(self.tokens, str) or not all(is_index(t) for t in self.tokens):
                raise KeyholeError(f"tokens are positions from 0 on, not {quoted(self.tokens)}.")
            object.__setattr__(self, "tokens", tuple(sorted(set(self.tokens))))
        if not is_index(self.start) or (self.start and self.tokens is not None):
            raise KeyholeError("a place is a list of tokens or a first token, from 0 on, and not both.")

    @property
    def everywhere(self) -> bool:
        """Does it leave out no token?"""
        return self.tokens is None and self.start == 0

    @property
    def last(self) -> int:
        """The last position that is named; -1 where none is."""
        return max(self.tokens, default=-1) if self.tokens is not None else self.start - 1

    def overlaps(self, other: "At") -> bool:
        """May a token belong to both?

        Args:
            other: Other tokens.

        >>> At((1, 2)).overlaps(At(start=2)), At((1,)).overlaps(At((3,)))
        (True, False)
        """
        if self.tokens is not None:
            return any(t in other.tokens if other.tokens is not None else t >= other.start for t in self.tokens)
        return other.tokens is None or other.overlaps(self)

    def __str__(self) -> str:
        if self.everywhere:
            return "everywhere"
        return f"from {self.start} on" if self.tokens is None else f"at {','.join(map(str, self.tokens))}"


EVERYWHERE = At()
Where = At | int | Sequence[int] | None


def place(where: Where) -> At:
    """Tokens as users give them: a position, several, an `At`; None is everywhere.

    >>> place(3), place([1, 2]), place(None)
    (At(tokens=(3,), start=0), At(tokens=(1, 2), start=0), At(tokens=None, start=0))
    """
    if where is None or isinstance(where, At):
        return where or EVERYWHERE
    return At((int(where),) if isinstance(where, SupportsIndex) else tuple(where))


@dataclass(frozen=True)
class Source:
    """A writer wherever it writes; of a head, what it moves from some tokens alone, or from all."""

    kind: Kind
    layer: int
    head: int | None = None
    src: At = EVERYWHERE  # of a head: the tokens that it moves from

    def __post_init__(self) -> None:
        require_choice("kind", self.kind, Literal["embedding", "head", "mlp", "bias", "mixer", "offset"])
        if (self.kind == "head") == (self.head is None):
            raise KeyholeError("a head has a number in its layer, and other writers have none.")

    @classmethod
    def of(cls, writer: Writer, *, whole: bool = False) -> "Source":
        """A circuit's writer as the source of an edit.

        Args:
            writer: The writer.
            whole: For a head: all that it writes at its token, whichever tokens it moved it from.

        >>> from keyhole.circuits.records import Writer
        >>> print(Source.of(Writer("head", 0, 6, 2, 1)))
        head 0.6 moved at 1
        """
        if writer.kind != "head":
            return cls(writer.kind, writer.layer)
        return cls("head", writer.layer, writer.head, EVERYWHERE if whole else At((writer.src,)))

    def __str__(self) -> str:
        if self.kind == "head" and self.head is not None:
            return f"head {head_name((self.layer, self.head))}" + ("" if self.src.everywhere else f" moved {self.src}")
        return self.kind if self.kind == "embedding" else f"{self.kind} {self.layer}"


@dataclass(frozen=True, kw_only=True)
class Edit:
    """What all edits have in common: where they are made, and in which model."""

    kind: ClassVar[str]
    dest: At = EVERYWHERE  # the tokens that attend, or at which something is written
    src: At = EVERYWHERE  # the tokens attended to
    model: str = ""  # fingerprint of the weights that it was made for; empty: any that has these heads

    def __post_init__(self) -> None:
        """Every record checks its own fields, and then calls this."""

    @property
    def changes_nothing(self) -> bool:
        """Is everything the same with and without this edit?"""
        raise NotImplementedError

    @property
    def head_edited(self) -> Head | None:
        """The head whose scores change; None of what is written, which changes no scores itself."""
        return None

    @property
    def first_layer(self) -> int:
        """The first layer that changes."""
        raise NotImplementedError

    def at(self, dest: Where = None, src: Where = None) -> "Edit":
        """The same edit at other tokens.

        Args:
            dest: The attending tokens: a position, several, or an `At`. Default: all tokens.
            src: The attended tokens, given likewise.

        >>> print(ChannelEdit(head=(3, 6), channels=(0,)).at(src=2))
        channels 0 of head 3.6 x 0 (src at 2)
        """
        return replace(self, dest=place(dest), src=place(src))

    def _where(self) -> str:
        places = [f"dest {self.dest}"] * (not self.dest.everywhere) + [f"src {self.src}"] * (not self.src.everywhere)
        return f" ({', '.join(places)})" if places else ""


@dataclass(frozen=True, kw_only=True)
class _Scaled(Edit):
    """An edit that multiplies something."""

    factor: float = 0.0  # 0 removes, 1 leaves as it is, 2 doubles, -1 turns round

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("factor", self.factor)

    @property
    def changes_nothing(self) -> bool:
        """Is everything the same with and without this edit?"""
        return self.factor == 1.0


@dataclass(frozen=True, kw_only=True)
class _OfHead(Edit):
    """An edit of what one head's scores are made of."""

    head: Head  # whose scores change: layer and head

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (len(self.head) == 2 and all(is_index(n) for n in self.head)):
            raise KeyholeError(f"a head is a layer and a number, such as (3, 6), not {quoted(self.head)}.")
        object.__setattr__(self, "head", tuple(self.head))

    @property
    def head_edited(self) -> Head | None:
        """The head whose scores change."""
        return self.head

    @property
    def first_layer(self) -> int:
        """The head's."""
        return self.head[0]


@dataclass(frozen=True, kw_only=True)
class ChannelEdit(_OfHead, _Scaled):
    """Singular channels of a head: their terms of every score times a factor, or with a query of a fixed size.

    >>> print(ChannelEdit(head=(3, 6), channels=(0, 2), factor=0.5))
    channels 0,2 of head 3.6 x 0.5
    """

    kind: ClassVar[str] = "channels"
    channels: tuple[int, ...]
    value: float | None = None  # what the query has in each channel, in place of the factor

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "channels", _channels(self.channels))
        if self.value is not None:
            require_number("value", self.value)

    @property
    def changes_nothing(self) -> bool:
        """Is everything the same with and without this edit?"""
        return self.value is None and self.factor == 1.0

    def __str__(self) -> str:
        change = f"x {self.factor:g}" if self.value is None else f"= {self.value:g}"
        return f"channels {_listed(self.channels)} of head {head_name(self.head)} {change}{self._where()}"


@dataclass(frozen=True, kw_only=True)
class SignalEdit(_OfHead, _Scaled):
    """A signal: what one writer puts into channels of a head's query (dest) or keys (src), times a factor.

    What the writer writes in the edited pass itself counts, not what it wrote in the run that the signal was found in.
    """

    kind: ClassVar[str] = "signal"
    side: SideName
    channels: tuple[int, ...]
    writer: Source

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("side", self.side, SideName)
        object.__setattr__(self, "channels", _channels(self.channels))

    def __str__(self) -> str:
        into = f"channels {_listed(self.channels)} of head {head_name(self.head)}"
        return f"{self.writer} -> {into} ({self.side} side) x {self.factor:g}{self._where()}"


@dataclass(frozen=True, kw_only=True)
class FeatureEdit(_OfHead, _Scaled):
    """A subspace of a head's queries (dest) or keys (src): its coordinates times a factor."""

    kind: ClassVar[str] = "feature"
    side: SideName
    basis: tuple[tuple[float, ...], ...] = field(repr=False)  # orthonormal rows of d_head numbers
    frame: Frame = "post_rope"  # are the rows directions after or before RoPE turns them?
    name: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("side", self.side, SideName)
        require_choice("frame", self.frame, Frame)
        rows = tuple(tuple(row) for row in self.basis)
        if not rows or not all(len(row) == len(rows[0]) and all(map(is_number, row)) for row in rows):
            raise KeyholeError("a feature's basis has one or more rows of equally many numbers.")
        for i, row in enumerate(rows):
            products = [math.fsum(a * b for a, b in zip(row, other, strict=True)) for other in rows[: i + 1]]
            if abs(products[-1] - 1) > 1e-3 or any(abs(product) > 1e-3 for product in products[:-1]):
                raise KeyholeError("the rows of a feature's basis should be orthonormal: take a QR decomposition.")
        object.__setattr__(self, "basis", rows)

    def __str__(self) -> str:
        name = f"feature {self.name!r}" if self.name else f"a feature of rank {len(self.basis)}"
        of = f"in the {'queries' if self.side == 'dest' else 'keys'} of head {head_name(self.head)}"
        return f"{name} {of} x {self.factor:g}{self._where()}"


@dataclass(frozen=True, kw_only=True)
class BiasEdit(_OfHead):
    """A constant that is added to a head's scaled scores, before any softcap: single scores, rows or columns."""

    kind: ClassVar[str] = "bias"
    amount: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_number("amount", self.amount)

    @property
    def changes_nothing(self) -> bool:
        """Is everything the same with and without this edit?"""
        return self.amount == 0.0

    def __str__(self) -> str:
        return f"scores of head {head_name(self.head)} {self.amount:+g}{self._where()}"


@dataclass(frozen=True, kw_only=True)
class WriteEdit(_Scaled):
    """Everything that a head, an MLP or another block writes, times a factor; of a head, also from some tokens alone.

    >>> print(WriteEdit(writer=Source("head", 3, 6)))
    head 3.6 x 0
    """

    kind: ClassVar[str] = "write"
    writer: Source

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.writer.kind in ("bias", "offset"):
            raise KeyholeError(f"a {self.writer.kind} is no block that can be edited: edit a head, an MLP or a mixer.")
        if not self.src.everywhere:
            raise KeyholeError("what is written has no src: the tokens that a head moves from are its writer's src.")

    @property
    def first_layer(self) -> int:
        """The writer's."""
        return self.writer.layer

    def __str__(self) -> str:
        return f"{self.writer} x {self.factor:g}{self._where()}"


@dataclass(frozen=True, kw_only=True)
class CauseEdit(_Scaled):
    """Causes of what an MLP writes: these writers in what it reads, times a factor. Its norm's scale stays."""

    kind: ClassVar[str] = "causes"
    layer: int  # of the MLP
    writers: tuple[Source, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "writers", tuple(self.writers))
        if not self.writers or any(writer.kind == "offset" for writer in self.writers):
            raise KeyholeError("causes are one or more writers; an MLP's own offset is none.")
        if not self.src.everywhere:
            raise KeyholeError("an MLP reads its own token: give dest, and no src.")

    @property
    def first_layer(self) -> int:
        """The MLP's."""
        return self.layer

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.writers))} -> mlp {self.layer} x {self.factor:g}{self._where()}"


KINDS: dict[str, type[Edit]] = {
    kind.kind: kind for kind in (ChannelEdit, SignalEdit, FeatureEdit, BiasEdit, WriteEdit, CauseEdit)
}


def require_number(name: str, value: Any) -> None:
    """Refuse what is no finite number."""
    if not is_number(value):
        raise KeyholeError(f"{name} is {quoted(value)}, but should be a number.")


def _channels(channels: Iterable[int]) -> tuple[int, ...]:
    numbers = tuple(channels)
    if not numbers or len(set(numbers)) < len(numbers) or not all(is_index(k) for k in numbers):
        raise KeyholeError(f"channels are one or more different numbers from 0 on, not {quoted(numbers)}.")
    return numbers


def _listed(channels: tuple[int, ...]) -> str:
    return ",".join(map(str, channels))
