"""How does influence pass through MLPs, while tracing and in a finished circuit?

How far back does an answer go? Through MLPs and values to the words, a layer of all runs at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit, Edge
from keyhole.circuits.records import Accpp, SideName, Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.models.mlps import NoMlp
from keyhole.models.numbers import tolerance_of
from keyhole.tracing.candidates import Sites
from keyhole.tracing.exactness import facts_of
from keyhole.tracing.mlp_attribution import parts_at
from keyhole.tracing.mlp_causes import Cause, covering, explain_places
from keyhole.tracing.mlp_directions import (
    EXPLAINED,
    Directions,
    Flow,
    Key,
    Reader,
    Readings,
    Shares,
    Through,
    values_along,
)
from keyhole.tracing.mlp_places import Places, mlp_places, weights_of
from keyhole.tracing.rounding import mlp_bound
from keyhole.tracing.settings import answer_directions
from keyhole.tracing.upstream import Writes

if TYPE_CHECKING:
    from keyhole.models.run import Run
    from keyhole.tracing.firing import Explained
    from keyhole.tracing.seeds import Seed

_CHANGED = (
    "node {node} of the circuit hands on influence, and in this prompt nobody reads what it writes: the file was "
    "changed. Trace the circuit again."
)
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
        keys, weights = self._readable_mlps(layer, runs), self.writes.mlp(layer)
        if isinstance(weights, NoMlp):
            for run, writer in keys:
                self.flows[run].reasons[writer] = "cannot be read"
        elif keys:
            spots = [(run, writer.dest) for run, writer in keys]
            places = mlp_places(self.writes, spots, weights, layer, constants=self.settings.constants == "baseline")
            self._hand_on_mlps(keys, places, self.directions.of(keys).to(places.x))

    def _readable_mlps(self, layer: int, runs: Sequence[int]) -> list[Key]:
        """The MLPs of a layer that carry enough, and whose readers read them where they write."""
        reached = [(run, writer) for run in runs for writer in self.flows[run].reached("mlp", layer)]
        for run, writer in reached:
            if (run, writer) not in self.directions:
                self.flows[run].reasons[writer] = "at other keys"
        return [key for key in reached if key in self.directions]

    def _hand_on_mlps(self, keys: Sequence[Key], places: Places, D: Float[Tensor, "spot d_model"]) -> None:
        """MLPs that are reconstructed along the direction they are read hand on what they carry."""
        along, limits = (D * places.wrote).sum(1).tolist(), self._limits_of(places, D)
        readers, rows, g = list[Reader](), list[int](), list[Tensor]()
        for i, write in enumerate(explain_places(places, D, self.settings.cover)):
            (run, writer), value = keys[i], write.value
            flow = self.flows[run]
            g.append(write.g)
            if not value > 0 or abs(along[i] - value) > limits[i]:
                flow.reasons[writer] = "not rebuilt" if value > 0 else "at other keys"
                continue
            flow.mlps[writer] = Shares.of(write)
            for who, share, part in flow.hand_on(writer, flow.influence[writer], write.causes, "mlp"):
                readers.append((run, who, share, part * value))
                rows.append(i)
        self.directions.add(readers, torch.stack(g), rows)

    def _limits_of(self, places: Places, D: Float[Tensor, "spot d_model"]) -> list[float]:
        """How far what MLPs wrote along a direction may be from what their folded weights give."""
        if self.writes.runs[0].is_rounded:
            known = facts_of(self.writes.model).layers[places.layer].mlp
            wrong = known is None or known > tolerance_of(torch.float32)
            return [0.0] * len(D) if wrong else mlp_bound(places, D)
        limit = tolerance_of(self.writes.runs[0].dtype)
        return [limit * size for size in (D.norm(dim=1) * places.wrote.norm(dim=1)).tolist()]

    def explain_firings(self, explained: "Explained") -> None:
        """The heads of a layer: what they move, in one pass, and where they look, side by side."""
        keys = [(run, Writer("head", explained.layer, *place)) for run, *place in explained.places()]
        moved, g = self._moved(explained, keys)
        handed, readers, rows = list[Handed](), list[Reader](), list[int]()
        for i, (run, writer) in enumerate(keys):
            flow, firing = self.flows[run], explained.firing(i)
            sides = [signals for side in firing.sides if (signals := list(flow.handing(side)))]
            influence = flow.influence[writer]
            if i in moved:
                taken = flow.hand_on(writer, influence / 2 if sides else influence, moved[i].causes, "value")
                readers += [(run, who, share, part * moved[i].s) for who, share, part in taken]
                rows += [moved[i].row] * len(taken)
                influence = influence / 2
            for signals in sides:
                total = sum(signal.ig for signal in signals)
                handed += [
                    Handed(run, writer, i, signal, influence / len(sides) * signal.ig / total) for signal in signals
                ]
            if sides:
                flow.explained.add(writer)
            elif i not in moved:
                flow.reasons[writer] = "no signals" if firing.sides else "below tau"
        self.directions.add(readers, g, rows)
        self.reach_signals(Readings(self.writes, explained.layer, explained.sites), handed)

    def reach_signals(self, readings: Readings, handed: Sequence[Handed]) -> None:
        """Sides' influence to their signals, and along which directions these are read."""
        for h in handed:
            self.flows[h.run].reach(h.signal.writer, h.share, (h.head, h.signal.side))
        for side in get_args(SideName):
            followed = [h for h in handed if h.signal.side == side and h.signal.writer.kind in EXPLAINED]
            if not followed:
                continue
            d = readings.along(side, [h.firing for h in followed], [h.signal.channels for h in followed])
            wrote = self.writes.written([h.run for h in followed], [h.signal.writer for h in followed])
            read = (d * wrote).sum(1).tolist()
            values = [value if value >= _AT_SRC * h.signal.ig else 0.0 for h, value in zip(followed, read, strict=True)]
            readers = [(h.run, h.signal.writer, h.share, value) for h, value in zip(followed, values, strict=True)]
            self.directions.add(readers, d)

    def _moved(
        self, explained: "Explained", keys: Sequence[Key]
    ) -> tuple[dict[int, "_Value"], Float[Tensor, "value d_model"]]:
        """Who wrote, at each source, what its head moves along the direction it is read; none where it pushes away.

        And the directions at the sources.
        """
        read = [i for i, key in enumerate(keys) if self.settings.values and key in self.directions]
        if not read:
            return {}, self.writes.local[0, 0, :0]
        at = torch.tensor(read, device=self.writes.device)
        weights, D = (
            torch.from_numpy(explained.attention[read]).to(at.device),
            self.directions.of([keys[i] for i in read]),
        )
        g = values_along(self.writes, explained.layer, explained.sites[at], weights, D)
        spots = [(keys[i][0], keys[i][1].src) for i in read]
        parts = parts_at(self.writes, spots, g, layer=explained.layer, attended=False)
        varying = parts.without_constants() if self.settings.constants == "baseline" else parts
        whole, named = parts.values.sum(1).tolist(), varying.values.sum(1).tolist()
        rest = [a - b for a, b in zip(whole, named, strict=True)]
        values = dict[int, _Value]()
        for row, causes in enumerate(covering(varying, whole, self.settings.cover, rest)):
            if causes:  # a value is linear: a part is what goes with it, alone or not
                same = tuple(replace(cause, weight=cause.part, alone=cause.part) for cause in causes)
                values[read[row]] = _Value(same, whole[row], row)
        return values, g


# Along which directions is what a circuit's MLPs write read? The circuit keeps them. Older files and stores have none:
# of these they are reconstructed from the edges, top down.
#
# Each MLP's D is what its readers read, weighted by the influence that they hand it, as when the circuit was traced.


@dataclass(frozen=True)
class ReadMlp:
    """One MLP of a circuit: its place, and the direction that all its readers together read."""

    node: int
    place: Places  # one spot
    direction: Float[Tensor, "d_model"]


def read_mlps(circuit: Circuit, run: "Run") -> dict[int, ReadMlp]:
    """Every MLP that a circuit explains, by its node."""
    parameters = circuit.parameters
    if not isinstance(parameters, Accpp) or parameters.through != "mlps":
        raise KeyholeError('this circuit ends at MLPs: trace with through="mlps" to explain and verify them.')
    flows = Flows(Writes([run]), Through(constants=parameters.constants or "baseline"))
    if circuit.directions and circuit.directions.keys() == set(circuit.mlps.node.tolist()):
        return _as_kept(flows, circuit)
    along, seeds = answer_directions(flows.writes, parameters, circuit.probe), _into(circuit, "target")
    if odd := [edge.sender for edge in seeds if circuit.nodes[edge.sender].dest not in along]:
        raise KeyholeError(_CHANGED.format(node=odd[0]))
    _reach(flows, circuit, [(edge, along[circuit.nodes[edge.sender].dest]) for edge in seeds])
    mlps: dict[int, ReadMlp] = {}
    for layer in reversed(range(len(run.layers))):
        mlps |= _mlps(flows, circuit, layer)
        _heads(flows, circuit, layer)
    return mlps


def _as_kept(flows: Flows, circuit: Circuit) -> dict[int, ReadMlp]:
    """By the directions that the circuit keeps, each of which its MLP must write along."""
    mlps: dict[int, ReadMlp] = {}
    for layer in sorted({circuit.nodes[node].layer or 0 for node in circuit.directions}, reverse=True):
        nodes, places = _places(flows, circuit, layer)
        D = torch.from_numpy(np.stack([circuit.directions[node] for node in nodes])).to(places.x)
        for i, (node, value) in enumerate(zip(nodes, (places.wrote * D).sum(1).tolist(), strict=True)):
            if not value > 0:
                raise KeyholeError(_CHANGED.format(node=node))
            mlps[node] = ReadMlp(node, places.at(i), D[i])
    return mlps


def _places(flows: Flows, circuit: Circuit, layer: int) -> tuple[list[int], Places]:
    """The MLPs of one layer that a circuit explains, and where they write."""
    nodes = [node for node in circuit.mlps.node.tolist() if circuit.nodes[node].layer == layer]
    spots = [(0, circuit.nodes[node].dest) for node in nodes]
    weights = weights_of(flows.writes.runs[0], layer)
    constants = flows.settings.constants == "baseline"
    return nodes, mlp_places(flows.writes, spots, weights, layer, constants=constants)


def _into(circuit: Circuit, side: str, node: int | None = None) -> list[Edge]:
    """The edges that hand influence on, through one side."""
    return [e for e in circuit.edges if e.side == side and e.influence and node in (None, e.receiver)]


def _reach(flows: Flows, circuit: Circuit, edges: Sequence[tuple[Edge, Float[Tensor, "d_model"]]]) -> None:
    """What edges hand on to writers that are read along a direction."""
    if not edges:
        return
    writers = [circuit.nodes[edge.sender].writer for edge, _ in edges]
    along, wrote = torch.stack([d for _, d in edges]).double(), flows.writes.written([0] * len(edges), writers).double()
    values, shares = (along * wrote).sum(1).tolist(), [edge.influence or 0.0 for edge, _ in edges]
    flows.directions.add([(0, *reader) for reader in zip(writers, shares, values, strict=True)], along)


def _mlps(flows: Flows, circuit: Circuit, layer: int) -> dict[int, ReadMlp]:
    if not any(circuit.nodes[node].layer == layer for node in circuit.mlps.node.tolist()):
        return {}
    nodes, places = _places(flows, circuit, layer)
    D = _directions(flows, circuit, nodes).to(places.x)
    g, _ = places.back(places.along(D))
    _reach(flows, circuit, [(edge, g[i]) for i, node in enumerate(nodes) for edge in _into(circuit, "mlp", node)])
    return {node: ReadMlp(node, places.at(i), D[i]) for i, node in enumerate(nodes)}


def _heads(flows: Flows, circuit: Circuit, layer: int) -> None:
    """What a layer's heads move, and where they look."""
    handing = {edge.receiver for edge in circuit.edges if edge.influence}
    nodes = [i for i in handing if circuit.nodes[i].kind == "head" and circuit.nodes[i].layer == layer]
    if not nodes:
        return
    writes, heads = flows.writes, [circuit.nodes[i].writer for i in nodes]
    sites = Sites.of([(0, w.head or 0, w.dest, w.src) for w in heads], writes.device)
    values = [(i, edge) for i, node in enumerate(nodes) for edge in _into(circuit, "value", node)]
    if values:
        at = torch.tensor([i for i, _ in values], device=writes.device)
        weights = torch.tensor([circuit.attention[nodes[i]] for i, _ in values], dtype=torch.float64)
        D = _directions(flows, circuit, [nodes[i] for i, _ in values])
        g = values_along(writes, layer, sites[at], weights.to(at.device), D)
        _reach(flows, circuit, [(edge, along) for (_, edge), along in zip(values, g, strict=True)])
    handed = [
        Handed(0, heads[i], i, _signal(circuit, edge, side), edge.influence or 0.0)
        for side in get_args(SideName)
        for i, node in enumerate(nodes)
        for edge in _into(circuit, side, node)
    ]
    flows.reach_signals(Readings(writes, layer, sites), handed)


def _directions(flows: Flows, circuit: Circuit, nodes: Sequence[int]) -> Float[Tensor, "node d_model"]:
    """Along which directions some nodes are read; a file may tell of readers that read nothing of them."""
    keys = [(0, circuit.nodes[node].writer) for node in nodes]
    for node, key in zip(nodes, keys, strict=True):
        if key not in flows.directions:
            raise KeyholeError(_CHANGED.format(node=node))
    return flows.directions.of(keys)


def _signal(circuit: Circuit, edge: Edge, side: SideName) -> Signal:
    return Signal(circuit.nodes[edge.sender].writer, side, edge.channels, edge.weight, edge.ig, edge.alone)
