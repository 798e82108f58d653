"""What do edges do that one circuit has alone? They are removed in prompts of both families.

Two circuits share an edge if writer, head, side and channel agree, wherever it stands: tokens do not count, so that an
edge that merely joins other tokens is not exclusive. Where it is removed in another prompt is decided by the roles of
its tokens.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING, Literal

from keyhole.brief import Head, head_name
from keyhole.circuits.circuit import Circuit, Edge
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
    """A signal of one firing, with the roles of its tokens."""

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
        """The terms that it counts as, one for each channel."""
        target = Component("head", *self.head)
        return tuple(Term(self.writer, target, self.side, channel) for channel in self.channels)

    def __str__(self) -> str:
        moved = f"{self.writer_dest} <- {self.writer_src}" if self.writer.kind == "head" else self.writer_dest
        channels = ",".join(map(str, self.channels))
        return f"{self.writer} ({moved}) -> {head_name(self.head)} ({self.dest} <- {self.src}) {self.side} [{channels}]"


def signal_edges(circuit: Circuit) -> Iterator[Edge]:
    """The signals of heads and MLPs, each once."""
    signals = (edge for edge in circuit.edges if edge.side in ("dest", "src"))
    for edge in distinct_edges(circuit, signals):
        if circuit.nodes[edge.sender].kind in WRITERS:
            yield edge


def placed_edges(member: Member) -> tuple[PlacedEdge, ...]:
    """The signals of a circuit, which can be placed in other prompts."""
    if member.names is None:
        raise KeyholeError("edges are placed in other prompts by roles, and this prompt has none.")
    circuit, names, placed = member.circuit, member.names, []
    basis = circuit.parameters.basis
    keys: Keys = circuit.parameters.keys if isinstance(circuit.parameters, Accpp) else "source"
    for edge in signal_edges(circuit):
        into = circuit.nodes[edge.receiver]
        who, layer, head = circuit.nodes[edge.sender].writer, into.layer, into.head
        assert layer is not None and head is not None and (edge.side == "dest" or edge.side == "src")
        tokens = (names[who.dest], names[who.src]), (names[into.dest], names[into.src])
        ends = (*tokens[0], (layer, head), *tokens[1])
        placed.append(PlacedEdge(Component.of(who), *ends, edge.side, edge.channels, keys, basis))
    return tuple(placed)


def of_one_alone(edges: Sequence[PlacedEdge], others: Sequence[PlacedEdge]) -> tuple[PlacedEdge, ...]:
    """The edges of one circuit with the channels that the other has nowhere."""
    return _with_channels(edges, {term for edge in others for term in edge.terms}, inside=False)


def of_both(edges: Sequence[PlacedEdge], others: Sequence[PlacedEdge]) -> tuple[PlacedEdge, ...]:
    """The edges of one circuit with the channels that the other has somewhere, too."""
    return _with_channels(edges, {term for edge in others for term in edge.terms}, inside=True)


def _with_channels(edges: Sequence[PlacedEdge], known: set[Term], *, inside: bool) -> tuple[PlacedEdge, ...]:
    restricted = []
    for edge in edges:
        kept = tuple(term.channel for term in edge.terms if (term in known) == inside and term.channel is not None)
        if kept:
            restricted.append(replace(edge, channels=kept))
    return tuple(restricted)


def cut_in(edge: PlacedEdge, names: tuple[str, ...]) -> Cut | None:
    """The removal of an edge in a prompt whose tokens have these roles; None: it has no place there.

    A role may be missing, or the tokens may stand in the other order: attention moves nothing to an earlier token.
    """
    roles = (edge.writer_dest, edge.writer_src, edge.dest, edge.src)
    places = [place_of(name, names) for name in roles]
    at = [place for place in places if place is not None]
    if len(at) < len(places):
        return None
    writer_dest, writer_src, dest, src = at
    if writer_src > writer_dest or src > dest or writer_dest != (dest if edge.side == "dest" else src):
        return None
    writer = edge.writer.at(writer_dest, writer_src)
    return Cut(*edge.head, dest, src, (Signal(writer, edge.side, edge.channels, basis=edge.basis),), edge.keys)


def not_signals(circuit: Circuit) -> int:
    """How many edges of heads and MLPs lead into the answer, an MLP or a value: these are no signals, and not cut."""
    return sum(
        edge.side not in ("dest", "src") and circuit.nodes[edge.sender].kind in WRITERS for edge in circuit.edges
    )


# Do the edges that one family's representative has alone act on that family? They are removed in both families.
#
# The effect is the relative change of the answer's metric, (F' - F) / |F|: -1 takes all of it away. In each prompt, all
# edges that have a place there are removed at once. There are two controls: as many edges that both representatives
# have, and as many random channels of the same writers and heads. Prompts that the model gets wrong (F <= 0) are left
# out, since they have no answer to lose, and so are the representatives, on which the edges were chosen.

Which = Literal["a", "b"]
What = Literal["exclusive", "shared", "random"]
WHATS: tuple[What, ...] = ("exclusive", "shared", "random")
PLACEABLE = 0.5  # least share of the edges that have a place in prompts of the other family, on average
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
        """The effects on prompts where an edge has a place."""
        return tuple(effect for effect in self.effects if not math.isnan(effect))

    @property
    def spread(self) -> Interval:
        """Mean effect with its 95 % interval over prompts; NaN without effects."""
        return interval(self.measured) if self.measured else Interval(math.nan, math.nan, math.nan)

    @property
    def median(self) -> Interval:
        """The same for the median, which prompts with an answer near 0, and so a huge effect, do not move."""
        return median_interval(self.measured) if self.measured else Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Exclusive:
    """Edges of each representative, removed on prompts of each family: two by two cells, and their controls."""

    a: tuple[PlacedEdge, ...]  # that one representative has alone
    b: tuple[PlacedEdge, ...]
    shared: tuple[int, int]  # how many edges that both have were removed as a control for those of each
    uncut: tuple[int, int]  # edges of each that are no signals of a firing, and cannot be removed
    wrong: tuple[int, int]  # prompts of each family that the model gets wrong
    mode: CutMode
    cells: tuple[Cell, ...]

    def cell(self, edges: Which, prompts: Which, what: What = "exclusive") -> Cell:
        """The cell of whose edges, whose prompts, and which edges or control."""
        return next(c for c in self.cells if (c.edges, c.prompts, c.what) == (edges, prompts, what))

    def verdict(self, which: Which) -> tuple[bool | None, str]:
        """Do a representative's exclusive edges act on its own family? None: cannot be decided; with the reason."""
        other: Which = "b" if which == "a" else "a"
        return judge(self.cell(which, which), self.cell(which, other), self.cell(which, which, "random"))

    @property
    def interaction(self) -> Interval:
        """Mean effect on the own family minus that on the other, with its 95 % interval. Below 0: each hurts its own.

        For each prompt, the effect of a's edges minus that of b's; then the mean over a's prompts minus that over b's,
        halved. So it does not count if some prompts lose more to any removal, or if one set of edges hurts all prompts
        more.
        """
        estimate, low, high = difference(self._differences("a"), self._differences("b"))
        return Interval(estimate / 2, low / 2, high / 2)

    def _differences(self, prompts: Which) -> list[float]:
        of_a, of_b = self.cell("a", prompts).effects, self.cell("b", prompts).effects
        return [a - b for a, b in zip(of_a, of_b, strict=True) if not math.isnan(a - b)]


def judge(home: Cell, other: Cell, control: Cell) -> tuple[bool | None, str]:
    """Edges act on their own family (home) if they hurt it more than the other family, and more than random channels.

    Both times the intervals must not overlap.
    """
    if not home.measured or not control.measured:
        return None, "there is nothing to remove"
    if not other.measured:
        return None, "no edge has a place in the other family's prompts"
    if min(len(home.measured), len(other.measured)) < LEAST:
        return None, f"fewer than {LEAST} prompts"
    if other.placed < PLACEABLE:
        return None, f"only {other.placed:.0%} of the edges have a place in the other family's prompts"
    if home.spread[2] >= control.spread[1]:
        return False, "no more effect than random channels"
    if home.spread[2] >= other.spread[1]:
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
    """Remove, in prompts of both families, the edges that each of two representatives has alone."""
    require_choice("mode", mode, CutMode)
    edges_a, edges_b = (placed_edges(member) for member in pair)
    alone: dict[Which, tuple[PlacedEdge, ...]] = {
        "a": of_one_alone(edges_a, edges_b),
        "b": of_one_alone(edges_b, edges_a),
    }
    both: dict[Which, tuple[PlacedEdge, ...]] = {"a": of_both(edges_a, edges_b), "b": of_both(edges_b, edges_a)}
    rng = random.Random(seed)
    chosen = {which: tuple(rng.sample(both[which], min(len(alone[which]), len(both[which])))) for which in alone}
    plan = _Plan((("a", alone["a"], chosen["a"]), ("b", alone["b"], chosen["b"])), mode, draws, seed)
    members, tell, effects = [*families[0], *families[1]], progress or silent, list[_Found | None]()
    for done, member in enumerate(members):
        effects.append(_effects(member, plan, model))
        tell(done + 1, len(members))
    first, second = effects[: len(families[0])], effects[len(families[0]) :]
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
        """Edges, with whose they are and what they are; random channels are drawn in place of the exclusive ones."""
        for which, alone, both in self.edges:
            yield (which, "exclusive"), alone
            yield (which, "shared"), both
            yield (which, "random"), alone


_Found = dict[tuple[Which, What], tuple[float, float]]  # effect (NaN: nothing to remove), share placed


def _effects(member: Member, plan: _Plan, model: "Model | None") -> _Found | None:
    """What each removal does to one prompt; None if the model gets it wrong."""
    import torch

    metric, run = metric_of(member.circuit), run_of(member.circuit, model)
    if not metric.targets:
        raise KeyholeError("these circuits have no answer to measure by: trace with a target.")
    clean = metric.of(run.logits[metric.end])
    if metric.against and clean <= 0:
        return None
    generator = torch.Generator().manual_seed(plan.seed + (member.prompt or 0))
    sets: list[list[Cut]] = []
    owners: list[tuple[Which, What]] = []
    shares: dict[tuple[Which, What], float] = {}
    for (which, what), edges in plan.removals():
        cuts = _cuts(edges, member)
        shares[which, what] = len(cuts) / len(edges) if edges else 0.0
        drawn = _random(run, cuts, plan.draws, generator) if what == "random" else [cuts]
        sets += [cut for cut in drawn if cut]
        owners += [(which, what) for cut in drawn if cut]
    changes: dict[tuple[Which, What], list[float]] = {owner: [] for owner in shares}
    for owner, outcome in zip(owners, intervene(run, sets, metric, mode=plan.mode), strict=True):
        changes[owner].append((outcome.metric_after - clean) / abs(clean))
    return {owner: (mean(values) if values else math.nan, shares[owner]) for owner, values in changes.items()}


def _cuts(edges: Sequence[PlacedEdge], member: Member) -> list[Cut]:
    if member.names is None:
        raise KeyholeError("edges are placed in other prompts by roles, and one of these has none.")
    placed = [cut_in(edge, member.names) for edge in edges]
    return [cut for cut in placed if cut is not None]


def _random(run: "Run", cuts: Sequence[Cut], draws: int, generator: "torch.Generator") -> list[list[Cut]]:
    return [[random_cut(run, cut, generator) for cut in cuts] for _ in range(draws)]


def _cells(prompts: Which, every: Sequence[_Found | None]) -> list[Cell]:
    measured, cells = [of_prompt for of_prompt in every if of_prompt is not None], []
    whose: tuple[Which, Which] = ("a", "b")
    for which in whose:
        for what in WHATS:
            pairs = [of_prompt[which, what] for of_prompt in measured]
            effects = tuple(effect for effect, _ in pairs)
            cells.append(Cell(which, prompts, what, effects, mean(share for _, share in pairs) if pairs else 0.0))
    return cells
