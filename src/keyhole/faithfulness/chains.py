"""Do MLPs' causes hold, and do they matter to what reads the MLP? Removed in the model's own pass, beside controls.

`exact`   causes are taken from what the MLP reads: what is left of its write is predicted
`chain`   the change of its write from that pass is put into one reader, and nothing else: into the channels of a
          firing's signal, into what the next MLP reads, or into the last residual stream. The firing's weight and what
          is left of the next MLP's write are predicted; the answer is not, for the last norm moves
`global`  everything downstream is free: nothing is predicted, and other paths may make up for it

Controls take other writers of the nearest norms from the same MLP, and go the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit, Edge, TracedMlp
from keyhole.faithfulness.removals import Removal, Row
from keyhole.intervene.cuts import Claim, left_tolerance
from keyhole.intervene.removal import Cut, Metric, Mode, head_edit, predicted, vector_delta
from keyhole.intervene.rerun import Edits, Rerun, WriterEdit, rerun_each
from keyhole.tracing.mlp_influence import ReadMlp, read_mlps

if TYPE_CHECKING:
    from keyhole.models.run import Run


def mlp_removals(circuit: Circuit, run: "Run", metric: Metric, *, mode: Mode, draws: int) -> list[Removal]:
    """Of every MLP that a circuit explains: its causes; by "chain", seen by one reader after the other."""
    if mode == "local" or (not circuit.mlps and mode != "chain"):
        return []
    reads = read_mlps(circuit, run)
    claims = {mlp.node: _claim(circuit, mlp, reads[mlp.node]) for mlp in circuit.mlps}
    work = _Work(circuit, run, metric, claims, draws)
    if mode == "chain":
        return [_chain(work, edge) for edge in work.edges]
    return [_without_causes(work, mlp, free=mode == "global") for mlp in circuit.mlps]


@dataclass(frozen=True)
class _Work:
    """A circuit with what it says of its MLPs."""

    circuit: Circuit
    run: "Run"
    metric: Metric
    claims: dict[int, Claim]
    draws: int

    @cached_property
    def edges(self) -> list[int]:
        """From an explained MLP into what reads it: signals, MLPs and the answer; values, which are linear, apart."""
        edges = enumerate(self.circuit.edges)
        return [i for i, e in edges if e.sender in self.claims and e.side != "value" and self._explained(e)]

    def _explained(self, edge: Edge) -> bool:
        return edge.side != "mlp" or edge.receiver in self.claims

    @cached_property
    def changes(self) -> dict[int, list[Float[Tensor, "d_model"]]]:
        """Of MLPs that were run without their causes: how their writes changed, then by controls. See `changes_of`."""
        return {}

    def changes_of(self, node: int) -> list[Float[Tensor, "d_model"]]:
        """How an MLP's write changes without its causes, then without as many others; run once for all its readers."""
        if node not in self.changes:
            copies = self.claims[node].removals(self.draws)
            ran = rerun_each(self.run, copies, all_logits=self.metric.at != len(self.run) - 1)
            changes = {i: _gone(self, node, i, result, at) for i, result, at in ran}
            self.changes[node] = [changes[i].change for i in range(len(copies))]
        return self.changes[node]


@dataclass(frozen=True)
class _Effect:
    """What was seen of a reader in one copy."""

    after: float
    metric: float
    predicted: float = nan


@dataclass(frozen=True)
class _Gone:
    """One MLP without its causes, or without other writers."""

    share: float  # of its write that is left
    change: Float[Tensor, "d_model"]  # of its write
    metric: float
    readers: dict[int, _Effect]  # by edge, everything downstream free


def _claim(circuit: Circuit, mlp: TracedMlp, read: ReadMlp) -> Claim:
    """As the circuit says it."""
    named = [circuit.nodes[i] for i in mlp.causes]
    written = tuple(node.writer for node in named if node.kind != "mlp_offset")
    return Claim(read.place, read.direction, written, len(written) < len(named))


def _without_causes(work: _Work, mlp: TracedMlp, *, free: bool) -> Removal:
    """An MLP without its causes first, then without as many others."""

    def rows(gone: Sequence[_Gone]) -> list[Row]:
        itself = _causes_row(work, mlp, gone)
        if not free:
            return [itself]
        edges = [edge for edge in work.edges if work.circuit.edges[edge].sender == mlp.node]
        return [replace(itself, agrees=None), *(_row(work, edge, [g.readers[edge] for g in gone]) for edge in edges)]

    return Removal(
        influence=work.circuit.influence[mlp.node],
        copies=lambda: work.claims[mlp.node].removals(work.draws),
        see=lambda k, result, copy: _gone(work, mlp.node, k, result, copy, free=free),
        rows=rows,
    )


def _gone(work: _Work, node: int, removal: int, result: Rerun, copy: int, *, free: bool = False) -> _Gone:
    claim = work.claims[node]
    left = claim.left(result, copy, removal)
    answer = work.metric.of(result.logits(work.run, copy, work.metric.at))
    edges = [edge for edge in work.edges if free and work.circuit.edges[edge].sender == node]
    readers = {edge: _Effect(_free(work, edge, result, copy, answer), answer) for edge in edges}
    change = left - claim.place.computed[0]
    return _Gone(claim.share(left), change.to(work.run.final_scale.dtype), answer, readers)


def _free(work: _Work, index: int, result: Rerun, copy: int, answer: float) -> float:
    """A reader when everything downstream is free: a firing's attention, another MLP's write, the answer."""
    edge = work.circuit.edges[index]
    if edge.side == "target":
        return answer
    node = work.circuit.nodes[edge.receiver]
    assert node.layer is not None
    if edge.side == "mlp":
        claim = work.claims[edge.receiver]
        wrote = result.mlp_write(work.run, copy, node.layer)[node.dest]
        return float(wrote.to(claim.direction) @ claim.direction) / claim.value
    assert node.head is not None
    return float(result.weights(work.run, copy, node.layer, node.head)[node.dest, node.src])


def _chain(work: _Work, index: int) -> Removal:
    """The change of an MLP's write put into one of its readers alone."""
    edge = work.circuit.edges[index]
    expected: list[float] = []  # of each copy, once they are made

    def copies() -> list[Edits]:
        puts = [_put(work, index, change) for change in work.changes_of(edge.sender)]
        expected[:] = [value for _, value in puts]
        return [edits for edits, _ in puts]

    def see(k: int, result: Rerun, copy: int) -> _Effect:
        answer = work.metric.of(result.logits(work.run, copy, work.metric.at))
        after = answer
        if edge.side == "mlp":
            reader = work.claims[edge.receiver]
            after = reader.share(reader.written(result, copy))
        elif edge.side != "target":
            after = _free(work, index, result, copy, answer)
        return _Effect(after, answer, expected[k])

    rank = edge.influence if edge.influence is not None else abs(edge.weight)
    return Removal(rank, copies, see, lambda effects: [_row(work, index, effects, promised=True)])


def _put(work: _Work, index: int, change: Float[Tensor, "d_model"]) -> tuple[Edits, float]:
    """What puts a change into one reader alone, and what is predicted of it."""
    circuit, run, edge = work.circuit, work.run, work.circuit.edges[index]
    node = circuit.nodes[edge.receiver]
    if edge.side == "mlp":
        claim = work.claims[edge.receiver]
        left = claim.place.write(claim.place.x + change.to(claim.place.x))[0] @ claim.direction.to(claim.place.x)
        return Edits(mlps=(claim.edit(-change),)), float(left) / claim.value
    if edge.side == "dest" or edge.side == "src":
        assert node.layer is not None and node.head is not None
        signal = circuit.signal(edge)
        cut = Cut(node.layer, node.head, node.dest, node.src, (signal,), keys="source")
        delta = vector_delta(run, cut, change)
        return Edits(heads=(head_edit(run, cut, delta),)), predicted(run, cut, delta, 1.0)
    every = torch.zeros_like(run.layers[0].resid, dtype=change.dtype)
    every[circuit.nodes[edge.sender].dest] = change  # where it is written is where the answer is read
    return Edits(writers=(WriterEdit("mlp", len(run.layers) - 1, every),)), nan


def _causes_row(work: _Work, mlp: TracedMlp, gone: Sequence[_Gone]) -> Row:
    left, controls = gone[0].share, gone[1:]
    tolerance = work.claims[mlp.node].tolerance(mlp.left, work.claims[mlp.node].removed)
    return Row(
        node=mlp.node,
        side="mlp",
        edge=None,
        before=1.0,
        after=left,
        predicted=mlp.left,
        agrees=abs(left - mlp.left) <= tolerance,
        control_drops=tuple(1 - control.share for control in controls),
        what="causes",
        tolerance=tolerance,
        **_answers(work, [g.metric for g in gone]),
    )


def _tolerance(work: _Work, edge: Edge, predicted: float) -> float:
    """How far a reader may be from what was predicted of it; an MLP, by what rounding makes of its write."""
    if edge.side != "mlp":
        return left_tolerance(predicted, work.run.dtype)
    change = work.changes[edge.sender][0] if edge.sender in work.changes else torch.zeros_like(work.run.final_resid[0])
    return work.claims[edge.receiver].tolerance(predicted, -change)


def _row(work: _Work, index: int, effects: Sequence[_Effect], *, promised: bool = False) -> Row:
    edge = work.circuit.edges[index]
    before = {"mlp": 1.0, "target": work.metric.of(work.run.logits[work.metric.at])}.get(edge.side)
    weight = work.circuit.attention[edge.receiver] if before is None else before
    assert weight is not None
    agrees, tolerance = None, _tolerance(work, edge, effects[0].predicted)
    if promised and edge.side != "target":
        agrees = abs(effects[0].after - effects[0].predicted) <= tolerance
    return Row(
        node=edge.receiver,
        side=edge.side,
        edge=index,
        before=weight,
        after=effects[0].after,
        predicted=effects[0].predicted,
        agrees=agrees,
        control_drops=tuple(weight - effect.after for effect in effects[1:]),
        what="chain",
        tolerance=tolerance,
        **_answers(work, [effect.metric for effect in effects]),
    )


def _answers(work: _Work, metrics: Sequence[float]) -> dict[str, Any]:
    before = work.metric.of(work.run.logits[work.metric.at])
    return {
        "metric_before": before,
        "metric_after": metrics[0],
        "control_metrics": tuple(metrics[1:]),
        "norm_ratio": nan,
        "cosine": nan,
    }
