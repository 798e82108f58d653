"""How far back does an answer go? Through MLPs and values to the words, a layer of all runs at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.writer import SideName, Signal, Writer
from keyhole.models.architecture.mlps import NoMlp
from keyhole.models.numbers.tolerance import tolerance_of
from keyhole.tracing.mlps.along import Directions, Key, Reader
from keyhole.tracing.mlps.attribution import parts_at
from keyhole.tracing.mlps.causes import Cause, covering
from keyhole.tracing.mlps.directions import Readings, values_along
from keyhole.tracing.mlps.explain import explain_places
from keyhole.tracing.mlps.flow import EXPLAINED, Flow, Shares, Through
from keyhole.tracing.mlps.places import Places, mlp_places

if TYPE_CHECKING:
    from keyhole.tracing.answers.seeds import Seed
    from keyhole.tracing.firings.explained import Explained
    from keyhole.tracing.writes.upstream import Writes

_AT_SRC = 0.1  # a src-side signal that does less of its work at src has its causes elsewhere: "at other keys"


@dataclass(frozen=True)
class Handed:
    """A signal that takes influence from a firing."""

    run: int
    head: Writer
    firing: int  # which of the readings is its
    signal: Signal
    share: float


@dataclass(frozen=True)
class _Value:
    """What a head moves along the direction it is read: its causes at the source."""

    causes: tuple[Cause, ...]
    s: float
    row: int  # which of the directions is its


class Flows:
    """Influence on its way down in all runs of a batch, and along which directions what is written there is read."""

    def __init__(self, writes: "Writes", settings: Through) -> None:
        self.writes, self.settings = writes, settings
        self.directions = Directions(writes.model.dims.d_model, writes.device)
        self.flows = [Flow(settings) for _ in writes.runs]

    def seed(self, run: int, seeds: Sequence["Seed"]) -> None:
        """The answer hands all of itself to its seeds."""
        total = sum(seed.weight for seed in seeds)
        for seed in seeds:
            self.flows[run].reach(seed.writer, seed.weight / total, (None, "target"))
        readers = [(run, seed.writer, seed.weight / total, seed.weight) for seed in seeds if seed.along is not None]
        if readers:
            self.directions.add(readers, torch.stack([s.along for s in seeds if s.along is not None]))

    def explain_mlps(self, layer: int, runs: Sequence[int]) -> None:
        """All MLPs of a layer that carry enough, in these runs, in one pass back."""
        found, weights = self._readable_mlps(layer, runs), self.writes.mlp(layer)
        if isinstance(weights, NoMlp):
            for run, writer in found:
                self.flows[run].reasons[writer] = "cannot be read"
        elif found:
            spots = [(run, writer.dest) for run, writer in found]
            places = mlp_places(self.writes, spots, weights, layer, constants=self.settings.constants == "baseline")
            self._hand_on_mlps(found, places, self.directions.of(found).to(places.x))

    def _readable_mlps(self, layer: int, runs: Sequence[int]) -> list[Key]:
        """The MLPs of a layer that carry enough, and whose readers read them where they write."""
        reached = [(run, writer) for run in runs for writer in self.flows[run].reached("mlp", layer)]
        for run, writer in reached:
            if (run, writer) not in self.directions:
                self.flows[run].reasons[writer] = "at other keys"
        return [key for key in reached if key in self.directions]

    def _hand_on_mlps(self, found: Sequence[Key], places: Places, D: Float[Tensor, "spot d_model"]) -> None:
        """MLPs that are rebuilt along the direction they are read, if not in every one, hand on what they carry."""
        wrote, limit = places.wrote, tolerance_of(self.writes.runs[0].logits.dtype)
        own, sizes = (D * wrote).sum(1).tolist(), (D.norm(dim=1) * wrote.norm(dim=1)).tolist()
        readers, rows, g = list[Reader](), list[int](), list[Tensor]()
        for i, write in enumerate(explain_places(places, D, self.settings.cover)):
            (run, writer), value = found[i], write.value
            flow = self.flows[run]
            g.append(write.g)
            if not value > 0 or abs(own[i] - value) > limit * sizes[i]:
                flow.reasons[writer] = "not rebuilt" if value > 0 else "at other keys"
                continue
            flow.mlps[writer] = Shares.of(write)
            for who, share, part in flow.hand_on(writer, flow.influence[writer], write.causes, "mlp"):
                readers.append((run, who, share, part * value))
                rows.append(i)
        self.directions.add(readers, torch.stack(g), rows)

    def explain_firings(self, found: "Explained") -> None:
        """The heads of a layer: what they move, in one pass, and where they look, side by side."""
        keys = [(run, Writer("head", found.layer, *place)) for run, *place in found.places()]
        moved, g = self._moved(found, keys)
        handed, readers, rows = list[Handed](), list[Reader](), list[int]()
        for i, (run, writer) in enumerate(keys):
            flow, firing = self.flows[run], found.firing(i)
            sides = [signals for side in firing.sides if (signals := list(flow.handing(side)))]
            own = flow.influence[writer]
            if i in moved:
                taken = flow.hand_on(writer, own / 2 if sides else own, moved[i].causes, "value")
                readers += [(run, who, share, part * moved[i].s) for who, share, part in taken]
                rows += [moved[i].row] * len(taken)
                own = own / 2
            for signals in sides:
                total = sum(signal.ig for signal in signals)
                handed += [Handed(run, writer, i, signal, own / len(sides) * signal.ig / total) for signal in signals]
            if sides:
                flow.explained.add(writer)
            elif i not in moved:
                flow.reasons[writer] = "no signals" if firing.sides else "below tau"
        self.directions.add(readers, g, rows)
        self.reach_signals(Readings(self.writes, found.layer, found.sites), handed)

    def reach_signals(self, readings: Readings, handed: Sequence[Handed]) -> None:
        """Sides' influence to their signals, and along which directions these are read."""
        for one in handed:
            self.flows[one.run].reach(one.signal.writer, one.share, (one.head, one.signal.side))
        for side in get_args(SideName):
            told = [h for h in handed if h.signal.side == side and h.signal.writer.kind in EXPLAINED]
            if not told:
                continue
            d = readings.along(side, [one.firing for one in told], [one.signal.channels for one in told])
            wrote = self.writes.written([one.run for one in told], [one.signal.writer for one in told])
            read = (d * wrote).sum(1).tolist()
            values = [value if value >= _AT_SRC * one.signal.ig else 0.0 for one, value in zip(told, read, strict=True)]
            readers = [(h.run, h.signal.writer, h.share, value) for h, value in zip(told, values, strict=True)]
            self.directions.add(readers, d)

    def _moved(
        self, found: "Explained", keys: Sequence[Key]
    ) -> tuple[dict[int, "_Value"], Float[Tensor, "value d_model"]]:
        """Who wrote, at each source, what its head moves along the direction it is read; none where it pushes away.

        And the directions at the sources.
        """
        read = [i for i, key in enumerate(keys) if self.settings.values and key in self.directions]
        if not read:
            return {}, self.writes.local[0, 0, :0]
        at = torch.tensor(read, device=self.writes.device)
        weights, D = torch.from_numpy(found.attention[read]).to(at.device), self.directions.of([keys[i] for i in read])
        g = values_along(self.writes, found.layer, found.sites[at], weights, D)
        spots = [(keys[i][0], keys[i][1].src) for i in read]
        own = parts_at(self.writes, spots, g, layer=found.layer, attended=False)
        told = own.without_constants() if self.settings.constants == "baseline" else own
        whole, named = own.values.sum(1).tolist(), told.values.sum(1).tolist()
        rest = [a - b for a, b in zip(whole, named, strict=True)]
        values = dict[int, _Value]()
        for row, causes in enumerate(covering(told, whole, self.settings.cover, rest)):
            if causes:  # a value is linear: a part is what goes with it, alone or not
                same = tuple(replace(cause, weight=cause.part, alone=cause.part) for cause in causes)
                values[read[row]] = _Value(same, whole[row], row)
        return values, g
