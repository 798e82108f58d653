"""What can be removed from a circuit? Sides, edges and paths of signals; and the causes of an MLP's write."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit, Edge, Traced
from keyhole.circuits.consistency import require_fits, require_model
from keyhole.circuits.records import Accpp, SideName, Signal, Writer
from keyhole.errors import KeyholeError
from keyhole.intervene.removal import AGREES, Cut, Metric
from keyhole.intervene.rerun import Edits, MlpEdit, Rerun, WriterEdit, rerun
from keyhole.models.numbers import exact_matmul, tolerance_of
from keyhole.tracing.mlp_attribution import Parts, norms_at
from keyhole.tracing.mlp_places import Places

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run
    from keyhole.tracing.mlp_causes import MlpWrite


def side_cut(circuit: Circuit, traced: Traced, side: SideName) -> Cut:
    """Everything that the search removed on one side of a firing; of an SVT circuit, all signals of the side.

    Args:
        circuit: The circuit.
        traced: One of `circuit.firings`.
        side: "dest" or "src".

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> traced = next(traced for traced in circuit.firings if traced.src)
    >>> side_cut(circuit, traced, "src").side
    'src'
    """
    signals = side_signals(circuit, traced, side)
    if not signals:
        raise KeyholeError(f"nothing was removed on the {side} side of this firing: there is nothing to cut.")
    return _cut(circuit, traced.node, signals)


def side_signals(circuit: Circuit, traced: Traced, side: SideName) -> list[Signal]:
    """Everything that was removed on one side of a firing, as one signal for each writer."""
    if not isinstance(circuit.parameters, Accpp):
        edges = [edge for edge in circuit.edges if (edge.receiver, edge.side) == (traced.node, side)]
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
        chosen.setdefault((edge.receiver, signal.side, writer), edge)
    return list(chosen.values())


def edge_cut(circuit: Circuit, edge: Edge) -> Cut:
    """One signal, as something to remove.

    Args:
        circuit: The circuit.
        edge: One of its edges into a firing.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> edge = next(edge for edge in circuit.edges if edge.side in ("dest", "src"))
    >>> edge_cut(circuit, edge).side
    'dest'
    """
    return _cut(circuit, edge.receiver, [circuit.signal(edge)])


def parallel(circuit: Circuit, *nodes: int) -> list[Cut]:
    """All signals out of one or more nodes at once: the edges that leave them side by side, none twice.

    Args:
        circuit: The circuit.
        *nodes: Indices of nodes.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> sender = next(edge.sender for edge in circuit.edges if edge.side in ("dest", "src"))
    >>> len(parallel(circuit, sender)) >= 1
    True
    """
    edges = [edge for edge in circuit.edges if edge.sender in nodes and edge.side in ("dest", "src")]
    return [edge_cut(circuit, edge) for edge in distinct_edges(circuit, edges)]


def serial(circuit: Circuit, path: Sequence[int]) -> list[Cut]:
    """The signals along a path of nodes, one after the other.

    Args:
        circuit: The circuit.
        path: Indices of nodes, from a writer to what reads it last.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> edge = next(edge for edge in circuit.edges if edge.side in ("dest", "src"))
    >>> len(serial(circuit, [edge.sender, edge.receiver]))
    1
    """
    cuts = []
    for source, target in pairwise(path):
        edges = [e for e in circuit.edges if (e.sender, e.receiver) == (source, target) and e.side in ("dest", "src")]
        if not edges:
            raise KeyholeError(f"nodes {source} and {target} are not joined by a signal.")
        cuts += [edge_cut(circuit, edge) for edge in edges]
    return cuts


def _cut(circuit: Circuit, node: int, signals: Sequence[Signal]) -> Cut:
    firing = circuit.nodes[node]
    assert firing.layer is not None and firing.head is not None
    keys = circuit.parameters.keys if isinstance(circuit.parameters, Accpp) else "source"
    return Cut(firing.layer, firing.head, firing.dest, firing.src, tuple(signals), keys)


def metric_of(circuit: Circuit) -> Metric:
    """What a circuit's answer is measured by."""
    parameters = circuit.parameters
    return Metric(parameters.end, parameters.target_ids, parameters.against_ids, parameters.continuation)


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
    circuit.run._require_fresh()
    return circuit.run


# Do the causes of an MLP's write hold? They are removed from its input in the model's own forward pass, with controls.
#
# The MLP is called with its normed input minus gain * centre(causes) / n_t: the norm's scale is that of the run, as in
# the explanation, and a router reads the unchanged input. An offset that is a cause is subtracted from what the MLP
# writes. Everything downstream is recomputed, so the answer shows the effect of this removal alone. Controls remove as
# many other writers of the nearest norms at the same place.


@dataclass(frozen=True, eq=False)
class Claim:
    """What an explanation claims of an MLP's write: who caused it, and what is left without them."""

    place: Places  # one spot, with the frozen scales
    direction: Float[Tensor, "d_model"]
    causes: tuple[Writer, ...]  # without the offset, which is none of the input
    offset: bool  # is it a cause, too?

    @property
    def run(self) -> "Run":
        """The run it is said of."""
        return self.place.stream.runs[self.place.spots[0][0]]

    @property
    def pos(self) -> int:
        """At which token."""
        return self.place.spots[0][1]

    @cached_property
    def value(self) -> float:
        """What is written along the direction."""
        return float(self.place.computed[0] @ self.direction.to(self.place.x))

    @cached_property
    def constant(self) -> Float[Tensor, "d_model"]:
        """What is taken from the write with its causes: the offset, where it is one."""
        return self.place.write(self.place.x0)[0] if self.offset else torch.zeros_like(self.place.x[0])

    def edit(self, removed: Float[Tensor, "d_model"]) -> MlpEdit:
        """The change of the MLP's normed input that takes a vector from what it reads."""
        delta = self.place.weights.read(-removed) / self.place.scale[0].to(removed)
        every = torch.zeros_like(self.run.layers[0].resid, dtype=delta.dtype)
        every[self.pos] = delta
        return MlpEdit(self.place.layer, every)

    def written(self, result: Rerun, copy: int) -> Float[Tensor, "d_model"]:
        """What the MLP gave in an edited copy, with the scale that a norm after it had in the run."""
        out = result.mlps[copy, self.place.layer][self.pos].to(self.place.x)
        return self.place.weights.written(out) / self.place.out_scale[0]

    def share(self, written: Float[Tensor, "d_model"]) -> float:
        """A write along the direction, as a share of the run's own."""
        return float(written @ self.direction.to(self.place.x)) / self.value

    def removals(self, draws: int) -> list[Edits]:
        """Without its causes, and without as many other writers, each set next to them in norm."""
        row, writes = self.place.spots[0][0], self.place.stream
        sets = [list(self.causes), *_controls(self, draws)]
        read = [self.edit(writes.written([row] * len(members), members).sum(0)) for members in sets]
        every = torch.zeros_like(read[0].delta)
        every[self.pos] = -self.constant.to(every)
        taken = (WriterEdit("mlp", self.place.layer, every),) if self.offset else ()
        return [Edits(mlps=(edit,), writers=taken if i == 0 else ()) for i, edit in enumerate(read)]

    def left(self, result: Rerun, copy: int, removal: int) -> Float[Tensor, "d_model"]:
        """What is written after one of the removals; with the causes, the first, the constant is gone as well."""
        written = self.written(result, copy)
        return written - self.constant if removal == 0 else written


def claim_of(write: "MlpWrite") -> Claim:
    """The claim of an explanation."""
    written = tuple(cause.writer for cause in write.causes if cause.writer is not None)
    return Claim(write.places, write.direction, written, len(written) < len(write.causes))


@dataclass(frozen=True)
class CausesRemoved:
    """What is left of an MLP's write, as shares of it, and what the answer loses."""

    __repr__ = brief

    predicted: float  # `left` of the explanation
    left: float
    control_left: tuple[float, ...]
    metric_before: float
    metric_after: float
    control_metrics: tuple[float, ...]
    agrees: bool  # is what is left what was predicted?

    def __str__(self) -> str:
        controls = ", ".join(f"{left:+.2f}" for left in self.control_left) or "none"
        answers = ", ".join(f"{after - self.metric_before:+.2f}" for after in self.control_metrics) or "none"
        return (
            f"taken away in the model's own pass: {self.left:+.2f} is left (other writers as large: {controls}); "
            f"the answer changes by {self.metric_after - self.metric_before:+.2f} ({answers})"
        )


def left_agrees(left: float, predicted: float, dtype: torch.dtype) -> bool:
    """Is what is left of a write what was predicted, as far as the model's precision can tell?"""
    return abs(left - predicted) <= left_tolerance(predicted, dtype)


def left_tolerance(predicted: float, dtype: torch.dtype) -> float:
    """How far what is left of a write may be from what was predicted: relative to it, where it is more than all."""
    return max(AGREES, tolerance_of(dtype)) * max(1.0, abs(predicted))


def remove_causes(write: "MlpWrite", metric: Metric, *, draws: int = 3) -> CausesRemoved:
    """Remove an MLP's causes from what it reads, and as many other writers as a control.

    Args:
        write: What `run.explain_mlp` returned.
        metric: What the answer is measured by.
        draws: How many control sets, each of writers with nearly the causes' norms.

    Returns:
        What is left of the write, as predicted and as measured, and what the answer loses; the same of the controls.

    >>> import keyhole
    >>> from keyhole.intervene import Metric, remove_causes
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> write = run.explain_mlp(3, -1, run.toward("Mary"))
    >>> remove_causes(write, Metric(len(run) - 1)).agrees
    True
    """
    claim, run = claim_of(write), write.run
    with exact_matmul():
        result = rerun(run, claim.removals(draws))
        copies = range(len(result.captured.logits))
        shares = [claim.share(claim.left(result, copy, copy)) for copy in copies]
        metrics = [metric.of(result.captured.logits[copy, metric.at]) for copy in copies]
    return CausesRemoved(
        predicted=write.left,
        left=shares[0],
        control_left=tuple(shares[1:]),
        metric_before=metric.of(run.logits[metric.at]),
        metric_after=metrics[0],
        control_metrics=tuple(metrics[1:]),
        agrees=left_agrees(shares[0], write.left, run.logits.dtype),
    )


def _controls(claim: Claim, draws: int) -> list[list[Writer]]:
    """Sets of other writers at the place, each next in norm to one of the causes; fewer sets where there are few."""
    place, chosen = claim.place, claim.causes
    (spot,), writes = place.spots, place.stream
    norms = norms_at(writes, spot, layer=place.layer, attended=not place.weights.parallel)
    sizes = writes.written([spot[0]] * len(chosen), chosen).norm(dim=1).tolist() if chosen else []
    near = [_nearest_writers(norms, size, set(chosen), draws) for size in sizes]
    sets: dict[frozenset[Writer], list[Writer]] = {}
    for draw in range(draws):
        taken: list[Writer] = []
        for free in ([w for w in others if w not in taken] for others in near):
            taken += free[min(draw, len(free) - 1) :][:1] if free else []
        if taken:
            sets[frozenset(taken)] = taken
    return list(sets.values())


def _nearest_writers(norms: Parts, norm: float, chosen: set[Writer], draws: int) -> list[Writer]:
    """Writers that wrote about as much, the nearest first, and that wrote at all; enough for all sets of controls."""
    values = norms.values[0]
    order = (values - norm).abs().argsort()[: 2 * len(chosen) + draws]
    near = [norms.writer(0, i) for i in order.tolist() if values[i] > 0]
    return [writer for writer in near if writer not in chosen and writer.src <= writer.dest]
