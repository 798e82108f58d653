"""Which cuts belong to a circuit? Of a side, an edge, everything that leaves a node, a path; and what measures them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from keyhole.circuits.circuit import Circuit, Edge, Traced
from keyhole.circuits.consistency import require_fits, require_model
from keyhole.circuits.records import Accpp, SideName, Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import Cut, Metric

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run


def side_cut(circuit: Circuit, traced: Traced, side: SideName) -> Cut:
    """Everything that the search removed on one side of a firing; of an SVT circuit, all signals of the side."""
    signals = side_signals(circuit, traced, side)
    if not signals:
        raise KeyholeError(f"nothing was removed on the {side} side of this firing: there is nothing to cut.")
    return _cut(circuit, traced.node, signals)


def side_signals(circuit: Circuit, traced: Traced, side: SideName) -> list[Signal]:
    """Whatever was removed on one side of a firing, a signal for each writer."""
    if not isinstance(circuit.parameters, Accpp):
        edges = [edge for edge in circuit.edges if (edge.target, edge.side) == (traced.node, side)]
        return [circuit.signal(edge) for edge in distinct_edges(circuit, edges)]
    channels: dict[Writer, list[int]] = {}
    for removal in getattr(traced, side):
        channels.setdefault(removal.writer, []).append(removal.channel)
    return [Signal(who, side, tuple(ks)) for who, ks in channels.items()]


def distinct_edges(circuit: Circuit, edges: Iterable[Edge]) -> list[Edge]:
    """Edges that are different signals: an SVT circuit has one for every source of a head, each of the whole head."""
    chosen: dict[tuple[int, str, Writer], Edge] = {}
    for edge in edges:
        signal = circuit.signal(edge)
        writer = replace(signal.writer, src=signal.writer.dest) if signal.whole else signal.writer
        chosen.setdefault((edge.target, signal.side, writer), edge)
    return list(chosen.values())


def edge_cut(circuit: Circuit, edge: Edge) -> Cut:
    """One signal."""
    return _cut(circuit, edge.target, [circuit.signal(edge)])


def parallel(circuit: Circuit, *nodes: int) -> list[Cut]:
    """All signals out of one or more nodes at once: the edges that leave them side by side, none twice."""
    edges = [edge for edge in circuit.edges if edge.source in nodes and edge.side in ("dest", "src")]
    return [edge_cut(circuit, edge) for edge in distinct_edges(circuit, edges)]


def serial(circuit: Circuit, path: Sequence[int]) -> list[Cut]:
    """The signals along a path of nodes, one after the other."""
    cuts = []
    for source, target in pairwise(path):
        found = [e for e in circuit.edges if (e.source, e.target) == (source, target) and e.side in ("dest", "src")]
        if not found:
            raise KeyholeError(f"nodes {source} and {target} are not joined by a signal.")
        cuts += [edge_cut(circuit, edge) for edge in found]
    return cuts


def _cut(circuit: Circuit, node: int, signals: Sequence[Signal]) -> Cut:
    firing = circuit.nodes[node]
    assert firing.layer is not None and firing.head is not None
    keys = circuit.parameters.keys if isinstance(circuit.parameters, Accpp) else "source"
    return Cut(firing.layer, firing.head, firing.dest, firing.src, tuple(signals), keys)


def metric_of(circuit: Circuit) -> Metric:
    """What a circuit's answer is measured by."""
    parameters = circuit.parameters
    return Metric(parameters.end, parameters.target_ids, parameters.against_ids)


def run_of(circuit: Circuit, model: "Model | None") -> "Run":
    """The run behind a circuit, made again for a circuit that was read from a file."""
    if circuit.run is not None and model is None:
        return circuit.run
    if model is None:
        raise KeyholeError("this circuit was read from a file: give the model that made it as `model`.")
    require_model(circuit, model)
    run = model.run(list(circuit.token_ids), bos=False)
    require_fits(circuit, run)
    return run


def fresh_run(circuit: Circuit, model: "Model | None") -> "Run":
    """The run that a circuit came from, if its model is as it was; of a circuit from a file, its prompt run again."""
    if circuit.run is None:
        return run_of(circuit, model)
    circuit.run.require_fresh()
    return circuit.run
