"""Does the circuit hold? Every signal is removed in the model's own forward pass, and compared with random controls.

Per traced firing and side: all its removals at once, against the weight that the search predicted. Per edge: that
signal alone, against the drop predicted for it. Controls remove as many other channels of the same writers. MLPs: see
`keyhole.faithfulness.chains`.

Signals of SVT circuits are removed as that method defines them: what the whole head writes, in channels of the
homogeneous basis, at the one token where it is read. SVT searches nothing, so predictions are computed from the scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from keyhole.circuits.circuit import Circuit, Traced
from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError, require_choice
from keyhole.faithfulness.chains import mlp_removals
from keyhole.faithfulness.removals import Removal, Row, Verification, rows_of
from keyhole.intervene.cuts import edge_cut, metric_of, run_of, side_cut, side_signals
from keyhole.intervene.removal import AGREES, Cut, CutMode, Metric, Mode, Outcome, edits_of, outcome_of, random_cut
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.models.run import Run


def verify(
    circuit: Circuit,
    model: "Model | None" = None,
    *,
    mode: Mode = "exact",
    draws: int = 3,
    edges: bool | Sequence[int] = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Verification:
    """Remove every side and every signal of a circuit: is it as predicted, and does the answer need it?

    Of MLPs, all causes of each are removed: "exact" measures what is left of its write, "chain" and "global" what
    becomes of its readers. See `Row`. In the result, `arithmetic` says whether measured values equal predicted ones,
    `causes` what the answer loses without each part.

    The part with the largest influence is removed first. Ctrl-C ends the work, and the result has what was finished
    (`stopped`). The expected time is logged, after the first batch.

    Args:
        circuit: The circuit.
        model: The model that made the circuit, if it was read from a file.
        mode: Where a signal is removed: "exact", from the firing's scores alone; "local", from the head's query or
            keys; "global", from the residual stream, so that everything downstream changes; "chain", of MLPs alone.
        draws: How many random controls each removal has.
        edges: Whether every signal is removed by itself, too; or the indices of the edges that are.
        seed: Seed of the controls.
        progress: Called with the number of removals done and their total.

    >>> import keyhole
    >>> run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
    >>> circuit = run.trace("Mary", against="John", through="heads")
    >>> result = verify(circuit, draws=0, edges=False)
    >>> result.arithmetic.agree == result.arithmetic.of
    True
    """
    require_choice("mode", mode, Mode)
    run = run_of(circuit, model)
    run._require_fresh()
    metric = metric_of(circuit)
    some, note = not isinstance(edges, bool), ""
    if some and mode == "chain":
        raise KeyholeError('"chain" is of MLPs and their readers: remove single signals by another mode.')
    with exact_matmul(), run.model._steady():
        removals = []
        if mode != "chain":
            removals += _firing_removals(circuit, run, metric, mode=mode, draws=draws, edges=edges, seed=seed)
        known = circuit.probe is not None or circuit.directions or circuit.parameters.seeds != "probe"
        if not known and mode != "chain" and not some:
            note = "note: this file is of an older version, which kept no probe's direction: MLPs are not verified"
        elif not some:
            removals += mlp_removals(circuit, run, metric, mode=mode, draws=draws)
        rows, stopped = rows_of(run, removals, metric.at, progress)
    return Verification(mode, draws, tuple(rows), note, stopped, circuit)


def _firing_removals(
    circuit: Circuit,
    run: "Run",
    metric: Metric,
    *,
    mode: CutMode,
    draws: int,
    edges: bool | Sequence[int],
    seed: int,
) -> list[Removal]:
    generator = torch.Generator().manual_seed(seed)
    removals = []
    for label, cut in _cuts(circuit, edges):
        if mode == "global":
            written = tuple(signal for signal in cut.signals if signal.writer.kind != "offset")
            if not written:
                continue
            cut = replace(cut, signals=written)
        cuts = [cut, *(random_cut(run, cut, generator) for _ in range(draws))]
        removals.append(_removal(circuit, run, metric, label, cuts, mode))
    return removals


def _removal(
    circuit: Circuit, run: "Run", metric: Metric, label: "_Label", cuts: Sequence[Cut], mode: CutMode
) -> Removal:
    """One cut and its controls."""
    return Removal(
        influence=_influence(circuit, label),
        copies=lambda: [edits_of(run, [cut], mode) for cut in cuts],
        see=lambda k, result, copy: outcome_of(run, (cuts[k],), result, copy, metric=metric, mode=mode),
        rows=lambda outcomes: [_row(circuit, label, outcomes, mode)],
    )


def _influence(circuit: Circuit, label: "_Label") -> float:
    """How much of the answer passes here; where that is not accounted for, how much attention."""
    traced, _, number = label
    if number is None:
        return circuit.influence[traced.node] if circuit.influence else circuit.attention[traced.node] or 0.0
    edge = circuit.edges[number]
    return edge.influence if edge.influence is not None else abs(edge.weight)


_Label = tuple[Traced, SideName, int | None]


def _some_cuts(circuit: Circuit, edges: Sequence[int]) -> Iterator[tuple[_Label, Cut]]:
    """Single signals."""
    traced = {firing.node: firing for firing in circuit.firings}
    for number in edges:
        if not 0 <= number < len(circuit.edges):
            raise KeyholeError(f"there is no edge {number}: the circuit has edges 0 to {len(circuit.edges) - 1}.")
        edge = circuit.edges[number]
        cut = edge_cut(circuit, edge)
        yield (traced[edge.receiver], cut.side, number), cut


def _cuts(circuit: Circuit, edges: bool | Sequence[int]) -> Iterator[tuple[_Label, Cut]]:
    """Every side of every traced firing, and every edge into it; or some edges alone."""
    if not isinstance(edges, bool):
        yield from _some_cuts(circuit, edges)
        return
    for traced in circuit.firings:
        sides: tuple[SideName, SideName] = ("dest", "src")
        for side in sides:
            if side_signals(circuit, traced, side):
                yield (traced, side, None), side_cut(circuit, traced, side)
        if not edges:
            continue
        for index, edge in enumerate(circuit.edges):
            if edge.receiver == traced.node and (edge.side == "dest" or edge.side == "src"):
                yield (traced, edge.side, index), edge_cut(circuit, edge)


def _row(circuit: Circuit, label: _Label, outcomes: Sequence[Outcome], mode: CutMode) -> Row:
    traced, side, edge = label
    real, controls = outcomes[0], outcomes[1:]
    predicted = real.predicted
    if edge is None and getattr(traced, side):
        predicted = getattr(traced, side)[-1].after  # what the search said, when the circuit was traced
    agrees = None if mode == "global" else abs(real.after - predicted) <= AGREES
    return Row(
        node=traced.node,
        side=side,
        edge=edge,
        before=real.before,
        after=real.after,
        predicted=predicted,
        agrees=agrees,
        metric_before=real.metric_before,
        metric_after=real.metric_after,
        control_drops=tuple(c.drop for c in controls),
        control_metrics=tuple(c.metric_after for c in controls),
        norm_ratio=real.norm_ratio,
        cosine=real.cosine,
        what="side" if edge is None else "signal",
        same_size=all(_size(control) == _size(real) for control in controls),
    )


def _size(outcome: Outcome) -> int:
    """How many channels were removed."""
    return sum(len(signal.channels) for cut in outcome.cuts for signal in cut.signals)
