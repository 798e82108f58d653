"""To which keys does the softmax hand the attention that a firing loses? Predicted exactly, and measured.

A firing whose keys lose some signals has lower scores, by d_j at key j. Weights add up to one, so other keys gain:

    A'_j = A_j exp(-d_j) / (sum_k A_k exp(-d_k) + sink),      sink = 1 - sum_k A_k, or 0 where there is none

A key that gains is a backup inside one head: it needs no second one. With a softcap, d is what the capped score loses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import side_cut
from keyhole.intervene.deltas import Cut, head_delta
from keyhole.intervene.remove import Metric, head_edit, intervene
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul

if TYPE_CHECKING:
    from keyhole.models.run import Run

FIRINGS = 32  # whose keys are changed, those of the largest influence


@dataclass(frozen=True)
class Handover:
    """One firing without the signals on its keys."""

    head: Head
    dest: int
    src: int
    before: float  # attention weight of src
    after: float  # the same without the signals, measured
    key: int  # that gains most
    gained: float  # by it, measured
    predicted: float  # by it
    error: float  # largest difference between measured and predicted weights, over all keys


def handed_on(
    weights: Float[Tensor, "*row key"], lost: Float[Tensor, "*row key"], *, sink: bool = False
) -> Float[Tensor, "*row key"]:
    """Attention weights once (capped) scores are lower by `lost`; with a `sink`, what a row lacks to 1 is its own.

    >>> handed_on(torch.tensor([0.5, 0.25, 0.25]), torch.tensor([50.0, 0, 0])).round(decimals=3).tolist()
    [0.0, 0.5, 0.5]
    """
    least = lost.masked_fill(weights == 0, torch.inf).amin(-1, keepdim=True)  # exponents of at most 0: none overflows
    least = least.clamp_max(0.0) if sink else least
    left = torch.where(weights == 0, 0.0, weights * (least - lost).exp())
    rest = (1 - weights.sum(-1, keepdim=True)) * least.exp() if sink else 0.0
    return left / (left.sum(-1, keepdim=True) + rest)


def predicted_row(run: "Run", cut: Cut) -> Float[Tensor, "pos"]:
    """All weights of a firing's row without some signals, from its weights and scores alone."""
    record = run.layer(cut.layer)
    with exact_matmul():
        edit = head_edit(run, cut, head_delta(run, cut), "exact").row
        assert edit is not None
        scores = record.scores([cut.head], [cut.dest])[0, 0].double()
        weights = record.weights([cut.head], [cut.dest])[0, 0].double()
        lost = record.rule.cap(scores) - record.rule.cap(scores - edit[1].double())
        return handed_on(weights, lost, sink=record.rule.sinks is not None)


def handovers(
    circuit: Circuit, run: "Run", metric: Metric, heads: Sequence[Head] | None = None
) -> tuple[Handover, ...]:
    """What other keys gain in the circuit's firings, of some heads alone if `heads` are given; the largest first."""
    cuts = []
    by = circuit.influence or [weight or 0.0 for weight in circuit.attention]
    for traced in sorted(circuit.firings, key=lambda firing: -by[firing.node]):
        node = circuit.nodes[traced.node]
        if heads is not None and (node.layer, node.head) not in heads:
            continue
        try:
            cuts.append(side_cut(circuit, traced, "src"))
        except KeyholeError:  # no signal was removed on this side
            continue
    cuts = cuts[:FIRINGS]
    outcomes = intervene(run, cuts, metric, mode="local", keep=True) if cuts else []
    found = []
    for cut, outcome in zip(cuts, outcomes, strict=True):
        record = run.layer(cut.layer)
        assert outcome.row is not None
        measured, row = outcome.row.double(), predicted_row(run, cut)
        before = record.weights([cut.head], [cut.dest])[0, 0].double()
        gains = measured - before
        gains[cut.src] = -torch.inf
        key = int(gains.argmax()) if len(run) > 1 else cut.src
        found.append(
            Handover(
                head=(cut.layer, cut.head),
                dest=cut.dest,
                src=cut.src,
                before=float(before[cut.src]),
                after=float(measured[cut.src]),
                key=key,
                gained=float(measured[key] - before[key]),
                predicted=float(row[key] - before[key]),
                error=float((measured - row).abs().max()),
            )
        )
    return tuple(found)
