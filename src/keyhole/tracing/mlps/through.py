"""How far back does an answer go? Through MLPs and values to the words, with the influence that each step hands on.

Influence says which share of the answer passes through a node: 1 at the target, and every explained node hands all of
its own on, by attributions. What an MLP (or a head) writes is read by several consumers, each along a direction of its
own; weighted by influence these are one direction D, so that each (layer, token) is explained once.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import EdgeSide
from keyhole.circuits.writer import Kind, SideName, Signal, Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.mlps import NoMlp
from keyhole.models.tolerance import tolerance_of
from keyhole.tracing.mlps.attribution import parts_at
from keyhole.tracing.mlps.causes import Cause, covering
from keyhole.tracing.mlps.directions import Reading, value_along
from keyhole.tracing.mlps.explain import Constants, MlpWrite, check_cover, explain_places
from keyhole.tracing.mlps.places import mlp_places
from keyhole.tracing.mlps.spots import Spot

if TYPE_CHECKING:
    from keyhole.tracing.firing import Firing, Side
    from keyhole.tracing.seeds import Seed
    from keyhole.tracing.upstream import Writes

Step = tuple[Writer, Writer | None, EdgeSide]  # who, into whom (None: the answer), through which side
_CONSTANT = ("bias", "offset")  # written whatever the prompt says
_EXPLAINED = ("mlp", "head")
_AT_SRC = 0.1  # a src-side signal that does less of its work at src has its causes elsewhere: "at other keys"


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
class _Value:
    """What a head moves along the direction it is read: its causes at the source."""

    causes: tuple[Cause, ...]
    s: float
    g: Float[Tensor, "d_model"]


@dataclass
class Flow:
    """Influence on its way down: what reaches each writer, along which direction, and through which steps."""

    writes: "Writes"
    settings: Through
    influence: defaultdict[Writer, float] = field(default_factory=lambda: defaultdict(float))
    steps: defaultdict[Step, float] = field(default_factory=lambda: defaultdict(float))
    along: dict[Writer, Float[Tensor, "d_model"]] = field(default_factory=dict)
    causes: dict[Step, Cause] = field(default_factory=dict)  # of mlp and value steps
    mlps: dict[Writer, MlpWrite] = field(default_factory=dict)
    explained: set[Writer] = field(default_factory=set)
    reasons: dict[Writer, str] = field(default_factory=dict)  # why a writer that could have been explained was not

    def seed(self, seeds: Sequence["Seed"]) -> None:
        """The answer hands all of itself to its seeds."""
        total = sum(seed.weight for seed in seeds)
        for seed in seeds:
            self.reach(seed.writer, seed.weight / total, seed.along, seed.weight, (None, "target"))

    def reach(
        self,
        writer: Writer,
        share: float,
        along: Float[Tensor, "d_model"] | None,
        value: float,
        into: tuple[Writer | None, EdgeSide],
    ) -> None:
        """Hand influence to a writer whose write is read along a direction, with that value."""
        self.influence[writer] += share
        self.steps[(writer, *into)] += share
        if along is None or value <= 0 or writer.kind not in _EXPLAINED:
            return
        read = (share / value) * along.double()
        self.along[writer] = self.along[writer] + read if writer in self.along else read

    def reached(self, kind: str, layer: int) -> list[Writer]:
        """Writers of a layer that carry enough to be explained, and can be: not at the first token."""
        own = [w for w in self.influence if (w.kind, w.layer) == (kind, layer)]
        return sorted(
            (w for w in own if self.influence[w] >= self.settings.eps and w.dest > 0),
            key=lambda w: (w.head or 0, w.dest, w.src),
        )

    def readable_mlps(self, layer: int) -> list[Writer]:
        """The MLPs of a layer that carry enough, and whose readers read them where they write."""
        reached = self.reached("mlp", layer)
        self.reasons |= {w: "at other keys" for w in reached if w not in self.along}
        return [writer for writer in reached if writer in self.along]

    def explain_mlp(self, writer: Writer, write: MlpWrite) -> None:
        """One MLP, given what a pass back through it found; rebuilt along the direction, if not in every one."""
        wrote = self.writes.written(writer).to(write.direction)
        error = abs(float(write.direction @ wrote) - write.value) / float(write.direction.norm() * wrote.norm())
        if not write.value > 0 or error > tolerance_of(self.writes.run.logits.dtype):
            self.reasons[writer] = "not rebuilt" if write.value > 0 else "at other keys"
            return
        self.mlps[writer] = write
        self._hand_on(writer, self.influence[writer], write.causes, write.value, write.g, side="mlp")

    def explain_firings(self, firings: Sequence["Firing"]) -> None:
        """The heads of a layer: what they move, in one pass, and where they look, side by side."""
        moved = self._moved([firing for firing in firings if self.settings.values and _head(firing) in self.along])
        for firing in firings:
            writer = _head(firing)
            sides = [(side, list(self._handing(side))) for side in firing.sides]
            sides = [(side, signals) for side, signals in sides if signals]
            own, value = self.influence[writer], moved.get(writer)
            if value is not None:
                self._hand_on(writer, own / 2 if sides else own, value.causes, value.s, value.g, side="value")
                own = own / 2
            if sides:
                reading = Reading.of(firing, self.writes)
                for side, signals in sides:
                    total = sum(signal.ig for signal in signals)
                    shares = [own / len(sides) * signal.ig / total for signal in signals]
                    self.reach_signals(writer, side.side, signals, shares, reading=reading)
                self.explained.add(writer)
            elif value is None:
                self.reasons[writer] = "no signals" if firing.sides else "below tau"

    def reach_signals(
        self, writer: Writer, side: SideName, signals: Sequence[Signal], shares: Sequence[float], *, reading: Reading
    ) -> None:
        """A side's influence to its signals."""
        told = [signal for signal in signals if signal.writer.kind in _EXPLAINED]
        along = dict(zip(told, reading.along(side, told), strict=True)) if told else {}
        for signal, share in zip(signals, shares, strict=True):
            who, d, read = signal.writer, along.get(signal), 0.0
            if d is not None:
                read = float(d @ self.writes.written(who))
                d = d if read >= _AT_SRC * signal.ig else None
            self.reach(who, share, d, read, (writer, side))

    def leaves(self) -> dict[Writer, str]:
        """Every writer that was not explained, and why."""
        return {writer: self._reason(writer) for writer in self.influence if writer not in self.explained}

    def _handing(self, side: "Side") -> Iterator[Signal]:
        """The signals that take a side's influence: those of the prompt, where it has any."""
        useful = [signal for signal in side.signals if signal.ig > 0]
        told = [signal for signal in useful if signal.writer.kind not in _CONSTANT]
        yield from told if told and self.settings.constants == "baseline" else useful

    def _moved(self, firings: Sequence["Firing"]) -> dict[Writer, "_Value"]:
        """Who wrote, at each source, what its head moves along the direction it is read; none where it pushes away."""
        if not firings:
            return {}
        g = [value_along(firing, self.writes, self.along[_head(firing)]) for firing in firings]
        spots = [Spot(self.writes, firing.src) for firing in firings]
        parts = parts_at(spots, torch.stack(g), layer=firings[0].layer, attended=False)
        found = {}
        for firing, along, own in zip(firings, g, parts, strict=True):
            told = own.without_constants() if self.settings.constants == "baseline" else own
            whole, named = float(own.values.sum()), float(told.values.sum())
            causes = covering(told, whole, self.settings.cover, whole - named) if whole > 0 else ()
            if causes:  # a value is linear: a part is what goes with it, alone or not
                same = tuple(replace(cause, weight=cause.part, alone=cause.part) for cause in causes)
                found[_head(firing)] = _Value(same, whole, along)
        return found

    def _hand_on(
        self, writer: Writer, share: float, causes: Sequence[Cause], s: float, g: Tensor, *, side: EdgeSide
    ) -> None:
        """All of an explained write's influence to its causes, by their parts."""
        total = sum(cause.part for cause in causes)
        if total <= 0:
            return
        for cause in causes:
            who = cause.writer or offset_of(writer)
            self.reach(who, share * cause.part / total, g, cause.part * s, (writer, side))
            self.causes[(who, writer, side)] = cause
        self.explained.add(writer)

    def _reason(self, writer: Writer) -> str:
        if writer.kind not in _EXPLAINED:
            return "constant" if writer.kind in ("mlp_offset", "value_offset") else writer.kind
        if writer.dest == 0:
            return "at the first token"
        if self.influence[writer] < self.settings.eps:
            return "pruned"
        if writer in self.reasons:
            return self.reasons[writer]
        return "in layer 0" if writer.layer == 0 else "sink"


def explain_mlps(flows: Sequence[Flow], layer: int) -> None:
    """All MLPs of a layer that carry enough, in all runs of a model that are traced alike, in one pass back."""
    found = [(flow, writer) for flow in flows for writer in flow.readable_mlps(layer)]
    if not found:
        return
    weights = flows[0].writes.mlp(layer)
    if isinstance(weights, NoMlp):
        for flow, writer in found:
            flow.reasons[writer] = "cannot be read"
        return
    settings = flows[0].settings
    spots = [Spot(flow.writes, writer.dest) for flow, writer in found]
    places = mlp_places(spots, weights, layer, constants=settings.constants == "baseline")
    D = torch.stack([flow.along[writer] for flow, writer in found]).to(places.x)
    for (flow, writer), write in zip(found, explain_places(places, D, settings.cover), strict=True):
        flow.explain_mlp(writer, write)


def _head(firing: "Firing") -> Writer:
    return Writer("head", firing.layer, firing.head, firing.dest, firing.src)
