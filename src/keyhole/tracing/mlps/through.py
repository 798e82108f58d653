"""How far back does an answer go? Through MLPs and values to the words, with the influence that each step hands on.

Influence says which share of the answer passes through a node: 1 at the target, and every explained node hands all of
its own on, by attributions. What an MLP (or a head) writes is read by several consumers, each along a direction of its
own; weighted by influence these are one direction D, so that each (layer, token) is explained once.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import EdgeSide
from keyhole.circuits.writer import SideName, Signal, Writer
from keyhole.errors import KeyholeError, require_choice
from keyhole.models.tolerance import tolerance_of
from keyhole.tracing.mlps.attribution import parts_at
from keyhole.tracing.mlps.directions import Reading, value_along
from keyhole.tracing.mlps.explain import Cause, Constants, MlpWrite, check_cover, covering, write_of
from keyhole.tracing.mlps.places import mlp_places

if TYPE_CHECKING:
    from keyhole.tracing.firing import Firing, Side
    from keyhole.tracing.seeds import Seed
    from keyhole.tracing.upstream import Writes

Step = tuple[Writer, Writer | None, EdgeSide]  # who, into whom (None: the answer), through which side
_CONSTANT = ("bias", "offset")  # written whatever the prompt says


def offset_of(mlp: Writer) -> Writer:
    """What an MLP writes with nothing, or constants alone, to read: a writer of its own."""
    return Writer("mlp_offset", mlp.layer, None, mlp.dest, mlp.dest)


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
        if along is None or value <= 0 or writer.kind not in ("mlp", "head"):
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

    def explain_mlps(self, layer: int) -> None:
        """All MLPs of a layer that carry enough, in one pass back."""
        found = [writer for writer in self.reached("mlp", layer) if writer in self.along]
        self.reasons |= {w: "at other keys" for w in self.reached("mlp", layer) if w not in self.along}
        weights = self.writes.run.model.mlp(layer) if found else None
        if weights is None:
            return
        constants = self.settings.constants == "baseline"
        places = mlp_places(self.writes, weights, layer, [writer.dest for writer in found], constants=constants)
        D = torch.stack([self.along[writer] for writer in found]).to(places.x)
        g, offset = places.back(D)
        attended = not places.weights.parallel
        parts = parts_at(self.writes, [w.dest for w in found], g, layer=layer, attended=attended)
        read = (D * places.own).sum(1).tolist()
        errors = places.errors.tolist()
        for i, writer in enumerate(found):
            if read[i] <= 0 or errors[i] > tolerance_of(self.writes.run.logits.dtype):
                self.reasons[writer] = "at other keys" if read[i] <= 0 else "not rebuilt"
                continue
            write = write_of(places, i, D[i], parts[i], float(offset[i]), cover=self.settings.cover)
            self.mlps[writer] = write
            self._hand_on(writer, self.influence[writer], write.causes, write.value, g[i], side="mlp")

    def explain_firing(self, firing: "Firing") -> None:
        """One head: where it looks, side by side, and what it moves."""
        assert firing.head is not None
        writer = Writer("head", firing.layer, firing.head, firing.dest, firing.src)
        sides = [(side, list(self._handing(side))) for side in firing.sides]
        sides = [(side, signals) for side, signals in sides if signals]
        own = self.influence[writer]
        moved: tuple[Cause, ...] = ()
        value = 0.0
        if self.settings.values and writer in self.along:
            d, g = self.along[writer], value_along(firing, self.writes, self.along[writer])
            moved = self._moved(firing, g)
            value = own * (0.5 if sides else 1.0) if moved else 0.0
            self._hand_on(writer, value, moved, float(d @ self.writes.written(writer).to(d)), g, side="value")
        if sides:
            reading = Reading.of(firing, self.writes)
            for side, signals in sides:
                self._hand_to_signals(writer, (own - value) / len(sides), side.side, signals, reading)
        if sides or moved:
            self.explained.add(writer)
        else:
            self.reasons[writer] = "no signals" if firing.sides else "below tau"

    def _hand_to_signals(
        self, writer: Writer, share: float, side: SideName, signals: Sequence[Signal], reading: Reading
    ) -> None:
        """A side's influence to its signals, by what integrated gradients give them."""
        total = sum(signal.ig for signal in signals)
        for signal in signals:
            who, d, read = signal.writer, None, 0.0
            if who.kind in ("mlp", "head"):
                d = reading.along(signal)
                read = float(d @ self.writes.written(who))
            self.reach(who, share * signal.ig / total, d, read, (writer, side))

    def leaves(self) -> dict[Writer, str]:
        """Every writer that was not explained, and why."""
        return {writer: self._reason(writer) for writer in self.influence if writer not in self.explained}

    def _handing(self, side: "Side") -> Iterator[Signal]:
        """The signals that take a side's influence: those of the prompt, where it has any."""
        useful = [signal for signal in side.signals if signal.ig > 0]
        told = [signal for signal in useful if signal.writer.kind not in _CONSTANT]
        yield from told if told and self.settings.constants == "baseline" else useful

    def _moved(self, firing: "Firing", g: Float[Tensor, "d_model"]) -> tuple[Cause, ...]:
        """Who wrote, at the source, what this head moves along the direction it is read; none where it pushes away."""
        (parts,) = parts_at(self.writes, [firing.src], g[None], layer=firing.layer, attended=False)
        told = parts.without_constants() if self.settings.constants == "baseline" else parts
        whole, named = float(parts.values.sum()), float(told.values.sum())
        if min(whole, named) <= 0:
            return ()
        causes = covering(told, named, self.settings.cover)
        return tuple(Cause(c.writer, *[c.part * named / whole] * 3) for c in causes)  # it is linear: all the same

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
        if writer.kind not in ("mlp", "head"):
            return "constant" if writer.kind == "mlp_offset" else writer.kind
        if writer.dest == 0:
            return "at the first token"
        if self.influence[writer] < self.settings.eps:
            return "pruned"
        if writer in self.reasons:
            return self.reasons[writer]
        if writer.kind == "mlp":
            return "no facts"
        return "in layer 0" if writer.layer == 0 else "sink"
