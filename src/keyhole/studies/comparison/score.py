"""How much of a published circuit is in ours? Precision, recall and F1; and pruning by what edges do to the answer."""

import random
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING

from keyhole.circuits.exports import MibEdge
from keyhole.circuits.records import Component
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import edge_cut, metric_of, run_of
from keyhole.intervene.removal import Cut, CutMode, intervene
from keyhole.progress import Progress, silent
from keyhole.stats import Interval, interval
from keyhole.studies.comparison.exclusive import signal_edges
from keyhole.studies.comparison.signals import Member
from keyhole.studies.comparison.unified import Link, Published, Unified, part, prune, term_of
from keyhole.studies.families.sets import Term

if TYPE_CHECKING:
    from keyhole.models.model import Model

THRESHOLDS = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Score:
    """How many elements were found, how many the reference has (`there`), and how many are in both."""

    found: int
    there: int
    both: int

    @property
    def precision(self) -> float:
        """The share of what was found that the reference has; of nothing, 0."""
        return self.both / self.found if self.found else 0.0

    @property
    def recall(self) -> float:
        """The share of the reference that was found."""
        return self.both / self.there if self.there else 0.0

    @property
    def f1(self) -> float:
        """Their harmonic mean.

        >>> round(Score(found=33, there=26, both=19).f1, 3)  # ACC on GPT-2's indirect objects, as it was published
        0.644
        """
        return 2 * self.both / (self.found + self.there) if self.found + self.there else 0.0


@dataclass(frozen=True)
class Against:
    """A unified circuit at one threshold against a published one, compared with random circuits of the same size."""

    threshold: float
    score: Score
    classes: tuple[tuple[str, Score], ...]  # their recall alone means something: other classes are no errors
    missed: tuple[Component, ...]
    random_f1: float  # mean F1 of random circuits of as many components
    edges: Score | None = None  # the same edge by edge, where the reference knows them
    random_edges_f1: float = 0.0  # expected of as many random edges


def overlap(ours: Set[Hashable], reference: Set[Hashable]) -> Score:
    """Two sets against each other.

    >>> score = overlap({"9.9", "9.6"}, {"9.9", "10.0", "10.7", "11.10"})
    >>> score.precision, score.recall
    (0.5, 0.25)
    """
    return Score(len(ours), len(reference), len(ours & reference))


def score(
    unified: Unified,
    reference: Published,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    draws: int = 200,
    seed: int = 0,
) -> tuple[Against, ...]:
    """A unified circuit, pruned at each threshold of frequency, against a published one.

    Only kinds that the published study could have named are scored: never biases and embeddings, and MLPs only if it
    looked at them. Random circuits have as many components, drawn from all components of these kinds.
    """
    components, pool = reference.components, list(reference.universe)
    if not components:
        raise KeyholeError(f"{reference.name} has no components, and cannot be compared with.")
    generator = random.Random(seed)
    results = []
    for threshold in thresholds:
        pruned = prune(unified, threshold)
        ours = frozenset(component for component in pruned.named if component.kind in reference.kinds)
        size = min(len(ours), len(pool))
        chance = mean(overlap(set(generator.sample(pool, size)), components).f1 for _ in range(draws)) if draws else 0.0
        classes = tuple((name, overlap(ours & members, members)) for name, members in reference.classes.items())
        missed = tuple(sorted(components - ours, key=lambda component: component.key))
        edges = _edges(pruned, reference)
        results.append(Against(threshold, overlap(ours, components), classes, missed, chance, *edges))
    return tuple(results)


def _edges(pruned: Unified, reference: Published) -> tuple[Score | None, float]:
    """The score of edges against edges, and the expected F1 of as many random ones."""
    if not reference.edges:
        return None, 0.0
    named = {*reference.kinds, "target"}
    ours = {edge for edge in map(_edge, pruned.edges) if {edge.source.kind, edge.target.kind} <= named}
    edge_score = overlap(ours, reference.edges)
    hits = edge_score.found * edge_score.there / reference.possible_edges
    return edge_score, 2 * hits / (edge_score.found + edge_score.there)


def _edge(link: Link) -> MibEdge:
    source, target, side = link.term.source, link.term.target, link.term.side
    assert target is not None and side is not None, "an edge leads somewhere"
    return MibEdge(source, target, side)  # type: ignore[arg-type]


# Which edges of a unified circuit matter? Each is removed in every prompt that has it, and the answer is measured.
#
# An edge here has no tokens: where a prompt has it at several places, all are removed at once, from one head alone
# (`local`). Pruning drops signals that few prompts have or whose mean effect is small. Other edges stay: those into the
# answer, and those into MLPs and values, which cannot be removed this way.

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
    tell, by_term = progress or silent, dict[Term, list[float]]()
    for done, member in enumerate(members):
        circuit, cuts = member.circuit, dict[Term, list[Cut]]()
        for edge in signal_edges(circuit):
            cuts.setdefault(term_of(circuit, edge), []).append(edge_cut(circuit, edge))
        outcomes = intervene(run_of(circuit, model), list(cuts.values()), metric_of(circuit), mode=mode)
        for term, outcome in zip(cuts, outcomes, strict=True):
            by_term.setdefault(term, []).append(outcome.metric_after - outcome.metric_before)
        tell(done + 1, len(members))
    effects = [EdgeEffect(term, tuple(changes)) for term, changes in by_term.items()]
    return tuple(sorted(effects, key=lambda effect: -abs(effect.spread[0])))


def prune_by_effect(
    unified: Unified, effects: Sequence[EdgeEffect], threshold: float, *, least: int = PROMPTS
) -> Unified:
    """A unified circuit without the signals whose mean effect is below a threshold, or that few prompts have."""
    if threshold < 0:
        raise KeyholeError(f"an effect is at least 0 in size: {threshold} asks for everything.")
    kept = {effect.term for effect in effects if len(effect.changes) >= least and abs(effect.spread[0]) >= threshold}
    return part(unified, lambda edge: edge.term.side not in ("dest", "src") or edge.term in kept)
