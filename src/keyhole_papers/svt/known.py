"""Are traced heads those that are known to do the task, beyond chance? Who writes to name movers, and in a lattice.

Upstream heads write to a name mover in the slices of its firing, and in all slices. Name movers and S-inhibition heads
should cross. The control of this keeps how many edges leave and reach every head, and changes who is joined with whom:
two edges a -> b and c -> d become a -> d and c -> b, again and again, as long as each still leads to a later layer.
Movers, where tracing starts, are reached by many edges; so they are in every control.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from matplotlib.figure import Figure
from torch import Tensor

from keyhole.brief import Head, head_name
from keyhole.figures.style import panels
from keyhole.stats import Interval
from keyhole.tracing.settings import ChannelChoice
from keyhole.tracing.svt import contributions, significant
from keyhole_papers.experiment import Attempt, Experiment, Job
from keyhole_papers.finding import Finding, Findings, Provenance, holds_of, of_part, rows_of
from keyhole_papers.svt import LEAST, Subject, is_gpt2, listed, subject

_KNOWN: frozenset[Head] = frozenset(  # of Wang et al. (2023), those that can lie below the three name movers
    [
        *((9, 6), (9, 9), (10, 0), (7, 3), (7, 9), (8, 6), (8, 10), (5, 5), (5, 8), (5, 9), (6, 9)),
        *((0, 1), (0, 10), (3, 0), (2, 2), (4, 11)),
    ]
)


@dataclass(frozen=True)
class Agreement:
    """How well traced heads are the known ones."""

    precision: float
    recall: float
    chance: float  # precision of random heads
    p: float  # how often random heads are as many known ones

    @property
    def beyond_chance(self) -> bool:
        """Are there known heads among them, more than chance would give?"""
        return self.recall > 0 and self.p < 0.05

    @property
    def agrees(self) -> bool:
        """Widely, as published?"""
        return self.beyond_chance and self.precision >= 0.4 and self.recall >= 0.5

    @property
    def rows(self) -> list[Finding]:
        """As numbers of a result."""
        return rows_of(
            {
                "precision": self.precision,
                "recall": self.recall,
                "precision of random heads": self.chance,
                "p of random heads": self.p,
            }
        )


def known_here(of: Provenance) -> str:
    """Which heads count as known, and what is not counted?"""
    if of.real:
        return "Starts are not counted: without them the published precision is .44 and the recall .62."
    return (
        "Known heads are here those with a role, and a firing is a weight of a quarter, since name movers give "
        "less than half; heads where tracing starts are not counted."
    )


def known_heads(of_job: Subject) -> frozenset[Head]:
    """The published ones of GPT-2; of any other model, those with a role."""
    return _KNOWN if is_gpt2(of_job.source) else frozenset(head for heads in of_job.roles.values() for head in heads)


def agreement(of_job: Subject, heads: set[Head], starts: Sequence[Head]) -> Agreement:
    """Of known heads below the starts, which are given and do not count."""
    from scipy.stats import hypergeom

    top = max(layer for layer, _ in starts)
    known, upstream = {head for head in known_heads(of_job) if head[0] < top} - set(starts), heads - set(starts)
    given = sum(layer < top for layer, _ in starts)
    exist = sum(layer < top for layer in of_job.model.attention_layers) * of_job.model.dims.heads - given
    right = len(upstream & known)
    p = float(hypergeom.sf(right - 1, exist, len(known), len(upstream)))
    return Agreement(right / max(len(upstream), 1), right / max(len(known), 1), len(known) / max(exist, 1), p)


Joint = tuple[Head, Head]  # writer and reader
_DRAWS = 500  # rewired networks
_SWAPS = 10  # tried for each edge
_CHANCE = 0.05
REWIRED = (
    f"all but {_CHANCE:.0%} of {_DRAWS} networks with the same heads, rewired so that each keeps how many it hears and "
    "is heard by"
)


@dataclass(frozen=True)
class Lattice:
    """Edges between the heads of the two top roles, in the layers from the lowest of them on."""

    movers: frozenset[Head]
    inhibitors: frozenset[Head]
    pairs: frozenset[Joint]  # all edges there

    @property
    def lowest(self) -> int:
        """The lowest of its layers."""
        return min(layer for layer, _ in self.movers | self.inhibitors)

    @property
    def among(self) -> set[Joint]:
        """Joined heads of both roles."""
        both = self.movers | self.inhibitors
        return {pair for pair in self.pairs if both.issuperset(pair)}

    @property
    def crossing(self) -> set[Joint]:
        """S-inhibition heads that name movers hear."""
        return self._crossing(self.pairs)

    @property
    def several(self) -> int:
        """Name movers that hear several S-inhibition heads."""
        return sum(len({a for a, b in self.crossing if b == mover}) > 1 for mover in self.movers)

    @cached_property
    def p(self) -> float:
        """How often rewired networks have as many crossing pairs."""
        rng, most = random.Random(0), len(self.crossing)
        as_many = sum(len(self._crossing(rewired(sorted(self.pairs), rng))) >= most for _ in range(_DRAWS))
        return (1 + as_many) / (1 + _DRAWS)

    @property
    def beyond_chance(self) -> bool:
        """Are there crossing pairs, and more than in rewired networks?"""
        return bool(self.crossing) and self.p < _CHANCE

    @property
    def holds(self) -> list[bool]:
        """Claim by claim."""
        return holds_of(self.rows)

    @property
    def rows(self) -> list[Finding]:
        """How many are joined, and what is claimed of that."""
        joined = f"more than name movers, and of S-inhibition heads with name movers more than in {REWIRED}"
        woven = self.beyond_chance and len(self.among) > len(self.movers)
        hear = self.beyond_chance and self.several >= 2
        return [
            Finding("pairs among both roles", len(self.among), joined, woven),
            Finding("S-inhibition to name mover", len(self.crossing)),
            Finding("S-inhibition to name mover, p of rewired networks", self.p),
            Finding("name movers with several S-inhibition heads", self.several, "two or more, and the same", hear),
        ]

    def _crossing(self, pairs: Collection[Joint]) -> set[Joint]:
        return {(a, b) for a, b in pairs if a in self.inhibitors and b in self.movers}


def lattice(of_job: Subject, starts: Sequence[Head], pairs: Collection[Joint]) -> Lattice:
    """Do name movers (where tracing starts) and S-inhibition heads cross in the network of frequent edges?"""
    movers = frozenset(starts)
    inhibitors = frozenset(of_job.roles.get("S-inhibition", ())) - movers
    if is_gpt2(of_job.source):
        inhibitors |= {(7, 3), (7, 9)}  # the others that the published figure names
    lowest = min(layer for layer, _ in movers | inhibitors)
    return Lattice(movers, inhibitors, frozenset(pair for pair in pairs if pair[0][0] >= lowest))


def rewired(pairs: Sequence[Joint], rng: random.Random) -> list[Joint]:
    """Another network in which every head hears as many heads as before, and is heard by as many.

    >>> before = [((0, 0), (1, 0)), ((0, 1), (1, 1)), ((0, 2), (1, 2))]
    >>> sorted(rewired(before, random.Random(2)))
    [((0, 0), (1, 2)), ((0, 1), (1, 0)), ((0, 2), (1, 1))]
    """
    edges, present = list(pairs), set(pairs)
    for _ in range(_SWAPS * len(edges) if len(edges) > 1 else 0):
        i, j = rng.sample(range(len(edges)), 2)
        (a, b), (c, d) = edges[i], edges[j]
        swapped = (a, d), (c, b)
        if all(writer[0] < reader[0] for writer, reader in swapped) and present.isdisjoint(swapped):
            present.difference_update((edges[i], edges[j]))
            present.update(swapped)
            edges[i], edges[j] = swapped
    return edges


_KINDS: tuple[ChannelChoice, ChannelChoice] = ("singular", "all")
_OTHERS: dict[Head, tuple[Head, ...]] = {(9, 9): ((7, 3), (7, 9))}  # published beside 8.6


@dataclass(frozen=True)
class Heard:
    """What upstream heads contribute to a name mover at END."""

    head: Head
    singular: Tensor  # layer x head, in the slices of the firing, mean over prompts
    whole: Tensor  # in all slices
    some: tuple[int, ...]  # heads that matter in each prompt, in the slices of the firing
    every: tuple[int, ...]  # in all slices
    largest: tuple[Head, ...]  # three, in the slices of the firing

    @property
    def fewer(self) -> Interval:
        """How many more heads matter in the slices of the firing than in all?"""
        return Interval.over(float(a - b) for a, b in zip(self.some, self.every, strict=True))


@dataclass(frozen=True)
class Filtered:
    """Two name movers."""

    of: Provenance
    prompts: int
    inhibits: tuple[Head, ...]
    movers: tuple[Heard, ...]


def measure(job: Job) -> Filtered:
    """What upstream heads contribute, with and without the choice of slices."""
    of_job = subject(job)
    movers, inhibits = of_job.role("name mover")[:2], of_job.role("S-inhibition")
    heard = list[Heard]()
    for head in movers:
        (values, some), (whole, every) = (_contributed(of_job, head, kind) for kind in _KINDS)
        top = [divmod(int(i), values.shape[1]) for i in values.flatten().argsort(descending=True)[:3]]
        largest = tuple((of_job.model.attention_layers[row], column) for row, column in top)
        heard.append(Heard(head, values, whole, some, every, largest))
    return Filtered(of_job.of, len(of_job.examples), inhibits, tuple(heard))


def _contributed(of_job: Subject, head: Head, kind: ChannelChoice) -> tuple[Tensor, tuple[int, ...]]:
    """Mean contribution of every upstream head at END, each prompt's scaled to its largest, and how many matter."""
    total, chosen = [], []
    for example, run in of_job.runs():
        written = contributions(run, head, example.position(run, "END"), example.position(run, "IO"), channels=kind)
        values = written.at_dest.double().cpu()
        total.append(values / values.abs().max().clamp_min(1e-30))
        chosen.append(int(significant(values).sum()))
    return torch.stack(total).mean(0), tuple(chosen)


def findings(record: Filtered) -> Findings:
    """Do the slices of a firing single out the heads that matter, where the whole residual shows many?"""
    rows, stands_out = list[Finding](), list[bool]()
    for mover in record.movers:
        wanted = _OTHERS.get(mover.head, ()) if record.of.real else ()
        stands_out.append(mover.largest[0] in record.inhibits and set(wanted) <= set(mover.largest))
        some, every = (sum(counts) / len(counts) for counts in (mover.some, mover.every))
        beside = f", with {listed(wanted)} next to it" if wanted else ""
        rows += of_part(
            f"{head_name(mover.head)} at END",
            Finding("heads, singular", some, digits=1),
            Finding("heads, all", every, digits=1),
            Finding("fewer", mover.fewer, "an interval below 0", mover.fewer.high < 0, digits=1),
            Finding("largest", listed(mover.largest), f"an S-inhibition head first{beside}", stands_out[-1]),
        )
    remark = (
        "Heads: those that 70 % of all contributions come from, in the slices of the firing (singular) and in all "
        f"slices; means over {record.prompts} prompts. S-inhibition heads: {listed(record.inhibits)}. "
        f"{known_here(record.of)}"
    )
    first = any(stands_out) and record.prompts >= LEAST
    unless = "an S-inhibition head is the largest of one of them"
    return Findings(rows, record.of, first=first, unless=unless, remark=remark)


def _draw(record: Filtered) -> Mapping[str, Figure]:
    maps: dict[str, Tensor] = {}
    for mover in record.movers:
        name = head_name(mover.head)
        maps |= {f"{name}, all slices": mover.whole, f"{name}, slices of the firing": mover.singular}
    layers, heads = record.movers[0].whole.shape
    size = 0.9 + len(maps) * (0.28 * heads + 1.0), 1.8 + 0.3 * layers
    title = "What upstream heads contribute at END, mean over prompts"
    figure, axes = panels(maps, title, size, x="head", y="layer", sharey=False)
    for axis, values in zip(axes, maps.values(), strict=True):
        axis.imshow(values.tolist(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", origin="lower")
        axis.set_yticks(range(values.shape[0]))
    return {"contributions": figure}


RUNS: dict[str, Attempt] = {"svt-fig4": Experiment(measure, findings, _draw)}
