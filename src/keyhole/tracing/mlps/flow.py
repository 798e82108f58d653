"""How much of an answer goes through a node, and through which steps? The accounts of one run.

Influence says which share of the answer passes through a node: 1 at the target, and every explained node hands all of
its own on, by attributions.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields

from keyhole.circuits.circuit import EdgeSide
from keyhole.circuits.writer import Kind, Signal, Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.tracing.firings.firing import Side
from keyhole.tracing.mlps.causes import Cause
from keyhole.tracing.mlps.explain import Constants, MlpWrite, check_cover

Step = tuple[Writer, Writer | None, EdgeSide]  # who, into whom (None: the answer), through which side
_CONSTANT = ("bias", "offset")  # written whatever the prompt says
EXPLAINED = ("mlp", "head")


def offset_of(writer: Writer) -> Writer:
    """What an MLP writes, or a head moves, with nothing but constants to read: a writer of its own."""
    kind: Kind = "mlp_offset" if writer.kind == "mlp" else "value_offset"
    return Writer(kind, writer.layer, writer.head, writer.src, writer.src)


@dataclass(frozen=True)
class Through:
    """How circuits go on behind MLPs: settings of `trace(through=...)`."""

    cover: float = 0.8  # share of a write that its causes account for
    eps: float = 0.01  # influence below which a node is not explained
    values: bool = True  # explain what heads move, beside where they look
    constants: Constants = "baseline"  # what biases write is a baseline, or a cause as any other

    def __post_init__(self) -> None:
        require_choice("constants", self.constants, Constants)
        check_cover(self.cover)
        if not 0 <= self.eps < 1:
            raise KeyholeError(f"eps is {self.eps}, but influence lies between 0 and 1.")


@dataclass(frozen=True)
class Shares:
    """What is kept of an MLP that was explained: its causes, and what becomes of its write without them."""

    causes: tuple[Cause, ...]
    offset: float
    left: float
    left_renormed: float
    kept: float
    cancellation: float
    neurons: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, write: MlpWrite) -> "Shares":
        """Without the places, which hold all neurons of a layer."""
        return cls(**{own.name: getattr(write, own.name) for own in fields(cls)})


@dataclass
class Flow:
    """Influence on its way down in one run: what reaches each writer, and through which steps."""

    settings: Through
    influence: defaultdict[Writer, float] = field(default_factory=lambda: defaultdict(float))
    steps: defaultdict[Step, float] = field(default_factory=lambda: defaultdict(float))
    causes: dict[Step, Cause] = field(default_factory=dict)  # of mlp and value steps
    mlps: dict[Writer, Shares] = field(default_factory=dict)
    explained: set[Writer] = field(default_factory=set)
    reasons: dict[Writer, str] = field(default_factory=dict)  # why a writer that could have been explained was not
    _waiting: defaultdict[tuple[str, int], list[Writer]] = field(default_factory=lambda: defaultdict(list))

    def reach(self, writer: Writer, share: float, into: tuple[Writer | None, EdgeSide]) -> None:
        """Hand influence to a writer."""
        if writer not in self.influence:
            self._waiting[writer.kind, writer.layer].append(writer)
        self.influence[writer] += share
        self.steps[(writer, *into)] += share

    def reached(self, kind: str, layer: int) -> list[Writer]:
        """Writers of a layer that carry enough to be explained, and can be: not at the first token."""
        own = (w for w in self._waiting[kind, layer] if self.influence[w] >= self.settings.eps and w.dest > 0)
        return sorted(own, key=lambda w: (w.head or 0, w.dest, w.src))

    def handing(self, side: Side) -> Iterator[Signal]:
        """The signals that take a side's influence: those of the prompt, where it has any."""
        useful = [signal for signal in side.signals if signal.ig > 0]
        told = [signal for signal in useful if signal.writer.kind not in _CONSTANT]
        yield from told if told and self.settings.constants == "baseline" else useful

    def hand_on(
        self, writer: Writer, share: float, causes: Sequence[Cause], side: EdgeSide
    ) -> list[tuple[Writer, float, float]]:
        """All of an explained write's influence to its causes, by their parts: who takes how much, for which part."""
        total = sum(cause.part for cause in causes)
        if total <= 0:
            return []
        handed = []
        for cause in causes:
            who, own = cause.writer or offset_of(writer), share * cause.part / total
            self.reach(who, own, (writer, side))
            self.causes[(who, writer, side)] = cause
            handed.append((who, own, cause.part))
        self.explained.add(writer)
        return handed

    def leaves(self) -> dict[Writer, str]:
        """Every writer that was not explained, and why."""
        return {writer: self._reason(writer) for writer in self.influence if writer not in self.explained}

    def _reason(self, writer: Writer) -> str:
        if writer.kind not in EXPLAINED:
            return "constant" if writer.kind in ("mlp_offset", "value_offset") else writer.kind
        if writer.dest == 0:
            return "at the first token"
        if self.influence[writer] < self.settings.eps:
            return "pruned"
        if writer in self.reasons:
            return self.reasons[writer]
        return "in layer 0" if writer.layer == 0 else "sink"
