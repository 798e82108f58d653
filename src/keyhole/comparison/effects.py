"""Which edges of a unified circuit matter? Each is removed in every prompt that has it, and the answer is measured.

An edge here has no tokens: where a prompt has it at several places, all of these are removed at once, from one head
alone (`local`). Pruning keeps edges into the answer, edges that are no signals (into MLPs and values: they cannot be
removed this way), and signals that enough prompts have and whose mean effect is large enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keyhole.circuits.writer import Component
from keyhole.comparison.members import Member
from keyhole.comparison.placed import WRITERS
from keyhole.comparison.unified import Unified, part
from keyhole.errors import KeyholeError
from keyhole.family.terms import Term
from keyhole.intervene import Cut, edge_cut, intervene
from keyhole.intervene.cuts import distinct_edges, metric_of, run_of
from keyhole.intervene.remove import CutMode
from keyhole.progress import Progress, silent
from keyhole.stats import Interval, interval

if TYPE_CHECKING:
    from keyhole.models.model import Model

PROMPTS = 15  # that must have an edge, as published (30 for GPT-2's indirect objects)


@dataclass(frozen=True)
class EdgeEffect:
    """What the removal of one edge does to the answer, F' - F, where the edge is."""

    term: Term
    changes: tuple[float, ...]  # a prompt each

    @property
    def spread(self) -> Interval:
        """Mean with its 95 % interval."""
        return interval(self.changes)


def edge_effects(
    members: Sequence[Member],
    model: "Model | None" = None,
    *,
    mode: CutMode = "local",
    progress: Progress | None = None,
) -> tuple[EdgeEffect, ...]:
    """The effect of every signal, without its tokens, over prompts; the largest first."""
    tell, found = progress or silent, dict[Term, list[float]]()
    for done, one in enumerate(members):
        circuit, cuts = one.circuit, dict[Term, list[Cut]]()
        signals = (edge for edge in circuit.edges if edge.side in ("dest", "src"))
        for edge in distinct_edges(circuit, signals):
            source, into = circuit.nodes[edge.source], circuit.nodes[edge.target]
            if source.kind in WRITERS:
                ends = [Component.of(node) for node in (source, into)]
                cuts.setdefault(Term(ends[0], ends[1], edge.side), []).append(edge_cut(circuit, edge))
        outcomes = intervene(run_of(circuit, model), list(cuts.values()), metric_of(circuit), mode=mode)
        for term, outcome in zip(cuts, outcomes, strict=True):
            found.setdefault(term, []).append(outcome.metric_after - outcome.metric_before)
        tell(done + 1, len(members))
    effects = [EdgeEffect(term, tuple(changes)) for term, changes in found.items()]
    return tuple(sorted(effects, key=lambda one: -abs(one.spread[0])))


def prune_by_effect(
    unified: Unified, effects: Sequence[EdgeEffect], threshold: float, *, least: int = PROMPTS
) -> Unified:
    """What is left when signals go whose mean effect is smaller than this, or that few prompts have."""
    if threshold < 0:
        raise KeyholeError(f"an effect is at least 0 in size: {threshold} asks for everything.")
    kept = {one.term for one in effects if len(one.changes) >= least and abs(one.spread[0]) >= threshold}
    return part(unified, lambda edge: edge.term.side not in ("dest", "src") or edge.term in kept)
