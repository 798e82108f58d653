"""What do edges do that one circuit has alone? Placed in both families' prompts and removed there.

Where in another prompt would an edge be? A signal with the roles of its tokens, and the cut that removes it there.

Whether two circuits share an edge is asked without tokens, per channel (writer, head, side, channel), so that an edge
that merely stands elsewhere is not one circuit's own. Where it is removed in another prompt is asked by roles.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Literal

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit
from keyhole.circuits.records import Accpp, Component, Kind, SideName, Signal
from keyhole.errors import KeyholeError, require_choice
from keyhole.intervene.cuts import distinct_edges, metric_of, run_of
from keyhole.intervene.removal import Cut, CutMode, intervene, random_cut
from keyhole.progress import Progress, silent
from keyhole.qk.omega import Basis
from keyhole.stats import Interval, difference, interval, median_interval
from keyhole.studies.comparison.signals import Member
from keyhole.studies.families.sets import Term
from keyhole.tasks.example import place_of
from keyhole.tracing.candidates import Keys

if TYPE_CHECKING:
    import torch

    from keyhole.models.model import Model
    from keyhole.models.run import Run

WRITERS: tuple[Kind, ...] = ("head", "mlp", "mixer")  # whose signals count, as in families


@dataclass(frozen=True)
class PlacedEdge:
    """A signal of one firing, its tokens called by their roles."""

    writer: Component
    writer_dest: str
    writer_src: str
    head: Head
    dest: str
    src: str
    side: SideName
    channels: tuple[int, ...]
    keys: Keys = "all"
    basis: Basis = "linear"

    @property
    def terms(self) -> tuple[Term, ...]:
        """What it counts as, a channel at a time."""
        target = Component("head", *self.head)
        return tuple(Term(self.writer, target, self.side, channel) for channel in self.channels)

    def __str__(self) -> str:
        moved = f"{self.writer_dest} <- {self.writer_src}" if self.writer.kind == "head" else self.writer_dest
        channels = ",".join(map(str, self.channels))
        return f"{self.writer} ({moved}) -> {head_name(self.head)} ({self.dest} <- {self.src}) {self.side} [{channels}]"


def placed_edges(member: Member) -> tuple[PlacedEdge, ...]:
    """The signals of a circuit that can be looked for in other prompts."""
    if member.names is None:
        raise KeyholeError("edges are placed in other prompts by roles, and this prompt has none.")
    circuit, names, found = member.circuit, member.names, []
    basis = circuit.parameters.basis
    keys: Keys = circuit.parameters.keys if isinstance(circuit.parameters, Accpp) else "source"
    for edge in distinct_edges(circuit, (edge for edge in circuit.edges if edge.side in ("dest", "src"))):
        source, into = circuit.nodes[edge.sender], circuit.nodes[edge.receiver]
        if source.kind not in WRITERS:
            continue
        who, layer, head = source.writer, into.layer, into.head
        assert layer is not None and head is not None and (edge.side == "dest" or edge.side == "src")
        tokens = (names[who.dest], names[who.src]), (names[into.dest], names[into.src])
        ends = (*tokens[0], (layer, head), *tokens[1])
        found.append(PlacedEdge(Component.of(who), *ends, edge.side, edge.channels, keys, basis))
    return tuple(found)


def of_one_alone(mine: Sequence[PlacedEdge], its: Sequence[PlacedEdge]) -> tuple[PlacedEdge, ...]:
    """The edges of one circuit with the channels that the other has nowhere."""
    return _with_channels(mine, {term for edge in its for term in edge.terms}, inside=False)


def of_both(mine: Sequence[PlacedEdge], its: Sequence[PlacedEdge]) -> tuple[PlacedEdge, ...]:
    """The edges of one circuit with the channels that the other has somewhere, too."""
    return _with_channels(mine, {term for edge in its for term in edge.terms}, inside=True)


def _with_channels(edges: Sequence[PlacedEdge], known: set[Term], *, inside: bool) -> tuple[PlacedEdge, ...]:
    found = []
    for edge in edges:
        kept = tuple(term.channel for term in edge.terms if (term in known) == inside and term.channel is not None)
        if kept:
            found.append(replace(edge, channels=kept))
    return tuple(found)


def cut_in(edge: PlacedEdge, names: tuple[str, ...]) -> Cut | None:
    """The removal of an edge in a prompt whose tokens have these names; None: it has no place there.

    A token may be missing, or the other way round: nothing is moved from a token to an earlier one.
    """
    asked = (edge.writer_dest, edge.writer_src, edge.dest, edge.src)
    found = [place_of(name, names) for name in asked]
    at = [place for place in found if place is not None]
    if len(at) < len(found):
        return None
    writer_dest, writer_src, dest, src = at
    if writer_src > writer_dest or src > dest or writer_dest != (dest if edge.side == "dest" else src):
        return None
    writer = edge.writer.at(writer_dest, writer_src)
    return Cut(*edge.head, dest, src, (Signal(writer, edge.side, edge.channels, basis=edge.basis),), edge.keys)


def not_signals(circuit: Circuit) -> int:
    """Edges of counted writers that are no signals of a firing: into the answer, an MLP or a value. None can be cut."""
    return sum(
        edge.side not in ("dest", "src") and circuit.nodes[edge.sender].kind in WRITERS for edge in circuit.edges
    )


# Do edges that one family's representative has alone act on that family? Removed in both families, beside controls.
#
# The effect is the change of the answer's metric over its size, (F' - F) / |F|: -1 takes all of it away. Per prompt,
# all edges that have a place there are removed at once. Beside them: as many edges that both representatives have,
# and as many random channels of the same writers and heads. Prompts that the model gets wrong (F <= 0) say nothing of
# what is lost; the representatives themselves, on which the edges were chosen, are left out.

Which = Literal["a", "b"]
What = Literal["exclusive", "shared", "random"]
WHATS: tuple[What, ...] = ("exclusive", "shared", "random")
PLACEABLE = 0.5  # of the edges, on the mean prompt of the other family: with fewer there, nothing is compared
LEAST = 5  # prompts of a family


@dataclass(frozen=True)
class Cell:
    """What some edges of one representative do to the prompts of one family."""

    edges: Which
    prompts: Which
    what: What
    effects: tuple[float, ...]  # of each prompt that the model gets right; NaN: no edge has a place there
    placed: float  # mean share of the edges that have a place in a prompt

    @property
    def measured(self) -> tuple[float, ...]:
        """The effects that there are."""
        return tuple(effect for effect in self.effects if not math.isnan(effect))

    @property
    def spread(self) -> Interval:
        """Mean effect with its 95 % interval over prompts; NaN if there is nothing."""
        return interval(self.measured) if self.measured else Interval(math.nan, math.nan, math.nan)

    @property
    def median(self) -> Interval:
        """The same for the median, which a prompt whose answer was hardly there to begin with does not move."""
        return median_interval(self.measured) if self.measured else Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Exclusive:
    """The two by two: edges of each representative, on prompts of each family, beside controls."""

    a: tuple[PlacedEdge, ...]  # that one representative has alone
    b: tuple[PlacedEdge, ...]
    shared: tuple[int, int]  # edges that both have, removed as a control beside those of each
    uncut: tuple[int, int]  # edges of each that are no signals of a firing, and cannot be removed
    wrong: tuple[int, int]  # prompts of each family that the model gets wrong
    mode: CutMode
    cells: tuple[Cell, ...]

    def cell(self, edges: Which, prompts: Which, what: What = "exclusive") -> Cell:
        """One of them."""
        return next(c for c in self.cells if (c.edges, c.prompts, c.what) == (edges, prompts, what))

    def verdict(self, which: Which) -> tuple[bool | None, str]:
        """Do a representative's own edges act on its own family? None: it cannot be told; with the reason."""
        other: Which = "b" if which == "a" else "a"
        return judge(self.cell(which, which), self.cell(which, other), self.cell(which, which, "random"))

    @property
    def interaction(self) -> Interval:
        """Mean effect on the own family less that on the other, with its 95 % interval. Below 0: each hurts its own.

        Per prompt, the effect of a's edges less that of b's; the mean over a's prompts less that over b's, halved. So
        neither prompts that lose more to anything, nor a set of edges that hurts all prompts more, counts.
        """
        found, low, high = difference(self._differences("a"), self._differences("b"))
        return Interval(found / 2, low / 2, high / 2)

    def _differences(self, prompts: Which) -> list[float]:
        mine, its = self.cell("a", prompts).effects, self.cell("b", prompts).effects
        return [one - other for one, other in zip(mine, its, strict=True) if not math.isnan(one - other)]


def judge(own: Cell, other: Cell, control: Cell) -> tuple[bool | None, str]:
    """Own edges act on their own family if they hurt it more than the other, and more than random channels do.

    Intervals must be apart both times.
    """
    if not own.measured or not control.measured:
        return None, "there is nothing to remove"
    if not other.measured:
        return None, "no edge has a place in the other family's prompts"
    if min(len(own.measured), len(other.measured)) < LEAST:
        return None, f"fewer than {LEAST} prompts"
    if other.placed < PLACEABLE:
        return None, f"only {other.placed:.0%} of the edges have a place in the other family's prompts"
    if own.spread[2] >= control.spread[1]:
        return False, "no more effect than random channels"
    if own.spread[2] >= other.spread[1]:
        return False, "no more effect on its own family than on the other"
    return True, "acts on its own family"


def remove_exclusive(
    pair: tuple[Member, Member],
    families: tuple[Sequence[Member], Sequence[Member]],
    model: "Model | None" = None,
    *,
    mode: CutMode = "local",
    draws: int = 3,
    seed: int = 0,
    progress: Progress | None = None,
) -> Exclusive:
    """Remove the edges that each of two representatives has alone on prompts of both families."""
    require_choice("mode", mode, CutMode)
    mine, its = (placed_edges(one) for one in pair)
    alone: dict[Which, tuple[PlacedEdge, ...]] = {"a": of_one_alone(mine, its), "b": of_one_alone(its, mine)}
    both: dict[Which, tuple[PlacedEdge, ...]] = {"a": of_both(mine, its), "b": of_both(its, mine)}
    rng = random.Random(seed)
    chosen = {which: tuple(rng.sample(both[which], min(len(alone[which]), len(both[which])))) for which in alone}
    plan = _Plan((("a", alone["a"], chosen["a"]), ("b", alone["b"], chosen["b"])), mode, draws, seed)
    everyone, tell, found = [*families[0], *families[1]], progress or silent, list[_Found | None]()
    for done, one in enumerate(everyone):
        found.append(_effects(one, plan, model))
        tell(done + 1, len(everyone))
    first, second = found[: len(families[0])], found[len(families[0]) :]
    return Exclusive(
        a=alone["a"],
        b=alone["b"],
        shared=(len(chosen["a"]), len(chosen["b"])),
        uncut=(not_signals(pair[0].circuit), not_signals(pair[1].circuit)),
        wrong=(first.count(None), second.count(None)),
        mode=mode,
        cells=(*_cells("a", first), *_cells("b", second)),
    )


@dataclass(frozen=True)
class _Plan:
    """What is removed in every prompt."""

    edges: tuple[tuple[Which, tuple[PlacedEdge, ...], tuple[PlacedEdge, ...]], ...]  # whose, alone, of both
    mode: CutMode
    draws: int
    seed: int

    def removals(self) -> Iterator[tuple[tuple[Which, What], tuple[PlacedEdge, ...]]]:
        """Edges by whose they are and what they are; random channels are drawn in those of one alone."""
        for which, alone, both in self.edges:
            yield (which, "exclusive"), alone
            yield (which, "shared"), both
            yield (which, "random"), alone


_Found = dict[tuple[Which, What], tuple[float, float]]  # effect (NaN: nothing to remove), share placed


def _effects(one: Member, plan: _Plan, model: "Model | None") -> _Found | None:
    """What each removal does to one prompt; None if the model gets it wrong."""
    import torch

    metric, run = metric_of(one.circuit), run_of(one.circuit, model)
    if not metric.targets:
        raise KeyholeError("these circuits have no answer to measure by: trace with a target.")
    clean = metric.of(run.logits[metric.at])
    if metric.against and clean <= 0:
        return None
    generator = torch.Generator().manual_seed(plan.seed + (one.prompt or 0))
    sets: list[list[Cut]] = []
    owners: list[tuple[Which, What]] = []
    shares: dict[tuple[Which, What], float] = {}
    for (which, what), edges in plan.removals():
        cuts = _cuts(edges, one)
        shares[which, what] = len(cuts) / len(edges) if edges else 0.0
        made = _random(run, cuts, plan.draws, generator) if what == "random" else [cuts]
        sets += [cut for cut in made if cut]
        owners += [(which, what) for cut in made if cut]
    changes: dict[tuple[Which, What], list[float]] = {owner: [] for owner in shares}
    for owner, outcome in zip(owners, intervene(run, sets, metric, mode=plan.mode), strict=True):
        changes[owner].append((outcome.metric_after - clean) / abs(clean))
    return {owner: (mean(own) if own else math.nan, shares[owner]) for owner, own in changes.items()}


def _cuts(edges: Sequence[PlacedEdge], one: Member) -> list[Cut]:
    if one.names is None:
        raise KeyholeError("edges are placed in other prompts by roles, and one of these has none.")
    made = [cut_in(edge, one.names) for edge in edges]
    return [cut for cut in made if cut is not None]


def _random(run: "Run", cuts: Sequence[Cut], draws: int, generator: "torch.Generator") -> list[list[Cut]]:
    return [[random_cut(run, cut, generator) for cut in cuts] for _ in range(draws)]


def _cells(prompts: Which, every: Sequence[_Found | None]) -> list[Cell]:
    found, cells = [one for one in every if one is not None], []
    whose: tuple[Which, Which] = ("a", "b")
    for which in whose:
        for what in WHATS:
            own = [one[which, what] for one in found]
            effects = tuple(effect for effect, _ in own)
            cells.append(Cell(which, prompts, what, effects, mean(share for _, share in own) if own else 0.0))
    return cells
