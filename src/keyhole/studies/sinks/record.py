"""What drives firings on the first token? The record of a study, and the first token's massive coordinates.

A coordinate is massive if it is more than a hundred times the median magnitude of its layer's streams. Many models have
a few such coordinates, at the first token alone. The record names them, their layers, and who writes them.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from keyhole._moved import attributes_of
from keyhole.brief import Head, brief
from keyhole.circuits.records import Component, SideName
from keyhole.errors import KeyholeError
from keyhole.models.run import Run
from keyhole.report import Report, Reported
from keyhole.stats import Interval
from keyhole.studies.directions.alike import Likeness
from keyhole.studies.directions.heard import SURE
from keyhole.tracing.writers import split

MASSIVE = 100.0  # times the median magnitude


@dataclass(frozen=True)
class Massive:
    """One coordinate that is massive at the first token."""

    coordinate: int
    first: int  # the layers whose input has it so large
    last: int
    peak: int  # the layer where it is largest, as a multiple of the median
    times: float  # that multiple
    elsewhere: float  # the same for the largest other token
    value: float  # the coordinate at that layer, on average over prompts
    maker: Component  # who writes the largest share of it where it is massive first
    maker_share: float
    writer: Component  # who writes the largest share of it at its peak
    share: float


def massive(runs: Sequence[Run], times: float = MASSIVE) -> tuple[Massive, ...]:
    """The massive coordinates of these runs' first tokens, largest first; medians over runs."""
    layers = len(runs[0].layers)
    first = np.stack([np.median([_times(run, layer)[0] for run in runs], axis=0) for layer in range(layers)])
    results = []
    for coordinate in np.nonzero((first > times).any(0))[0].tolist():
        at = np.nonzero(first[:, coordinate] > times)[0]
        peak = int(first[:, coordinate].argmax())
        other = np.median([_times(run, peak)[1:, coordinate].max(initial=0.0) for run in runs])
        value = float(np.mean([float(run.layers[peak].resid[0, coordinate]) for run in runs]))
        top = float(first[peak, coordinate])
        authors = (*_author(runs, int(at[0]), coordinate), *_author(runs, peak, coordinate))
        results.append(Massive(coordinate, int(at[0]), int(at[-1]), peak, top, float(other), value, *authors))
    return tuple(sorted(results, key=lambda each: -each.times))


def _times(run: Run, layer: int) -> Float[np.ndarray, "pos d_model"]:
    """Magnitudes of a layer's streams, in units of their median."""
    x = run.layers[layer].resid.double().abs().cpu().numpy()
    middle = float(np.median(x))
    return np.asarray(x / middle if middle > 0 else np.zeros_like(x))


def _author(runs: Sequence[Run], layer: int, coordinate: int) -> tuple[Component, float]:
    """Who writes most of a coordinate at the first token, and its share of it, on average over runs."""
    shares: dict[Component, float] = defaultdict(float)
    for run in runs:
        parts = split(run, layer, 0)
        values: list[float] = parts.vectors[:, coordinate].double().tolist()
        whole = sum(values)
        for writer, value in zip(parts.writers, values, strict=True):
            shares[Component.of(writer)] += value / whole / len(runs)
    author = max(shares, key=lambda component: shares[component])
    return author, shares[author]


def along(vectors: Float[Tensor, "heads d_model"], coordinates: Sequence[Massive]) -> float:
    """Which share of directions (of length 1) lies along the massive coordinates?"""
    if not coordinates or not len(vectors):
        return 0.0
    at = torch.tensor([each.coordinate for each in coordinates])
    return float(vectors[:, at].square().sum(1).mean())


# The record of a study: heads, how alike their signals are, and what removals do.

Verdict = Literal["shared", "a shared part", "not shared"]
MANY = 4  # least number of heads that share a signal
LAYERS = 2  # least number of layers of these heads
NEAR = 0.25  # least share of pairs that are alike: about four groups of heads, or fewer
HALF = 0.5  # least share of the firings on the first token that a removal takes


class NoSinksError(KeyholeError):
    """No head rests on the first token."""


@dataclass(frozen=True)
class SinkHead:
    """A head that fires on the first token, on one side of its scores."""

    layer: int
    head: int
    firings: int  # that were explained
    spread: float  # mean cosine distance of its signals from each other
    controlled: bool  # are they alike?
    cluster: int | None  # of controlled heads, the largest cluster first
    channels: float  # of a signal, on average
    writers: tuple[tuple[str, float], ...]  # the largest shares of its signals


@dataclass(frozen=True)
class Others:
    """How alike the same heads are when they fire on other tokens."""

    taken: int | None
    heads: int
    near: float  # NaN where fewer than two layers have such heads
    cosine: float


@dataclass(frozen=True)
class Removal:
    """What is left without the directions that control signals share most, compared with subspaces of the same rank."""

    taken: int | None  # out of the signals before their directions were found
    rank: int
    energy: float  # share of the stream that lies in the subspace, at the tokens where it is taken out
    random_energy: float  # the same for random subspaces, on average
    explained: Interval  # share of held-out firings that are below tau without the subspace, over prompts
    random_explained: tuple[float, ...]  # the same for subspaces drawn from the streams' own covariance
    shuffled_explained: tuple[float, ...]  # and for what the same writers put into other channels of the heads
    sinks: Interval | None = None  # mean weight on the first token in passes without it; None: no pass was made
    answer: Interval | None = None
    random_sinks: tuple[float, ...] = ()
    random_answers: tuple[float, ...] = ()
    shuffled_sinks: tuple[float, ...] = ()
    shuffled_answers: tuple[float, ...] = ()

    @property
    def acts(self) -> bool:
        """Does it take half of the firings, more than any random subspace, and more weight in the model's own pass?

        Other channels of the same writers are shown, but decide nothing: where all heads receive one vector, the parts
        of that vector in any channels add up to it.
        """
        if self.sinks is None or self.explained[0] < HALF:
            return False
        more = self.explained[0] > max(self.random_explained, default=0.0)
        return more and self.sinks[0] < min(self.random_sinks, default=1.0)


@dataclass(frozen=True)
class SinkSide:
    """One side of all firings on the first token."""

    __repr__ = brief

    side: SideName
    heads: tuple[SinkHead, ...]
    cosines: Float[np.ndarray, "controlled controlled"] = field(repr=False)  # of controlled heads, in their order
    shuffled: Float[np.ndarray, "controlled controlled"] = field(repr=False)  # one draw of the control
    likeness: tuple[Likeness, ...]  # with nothing taken out, then more and more; empty of too few heads
    others: tuple[Others, ...]
    removals: tuple[Removal, ...]
    along: float  # share of the control signals along the first token's massive coordinates

    @property
    def controlled(self) -> tuple[SinkHead, ...]:
        """The heads whose signals are alike over firings."""
        return tuple(head for head in self.heads if head.controlled)

    @property
    def clusters(self) -> tuple[tuple[Head, ...], ...]:
        """Controlled heads that belong together, the largest cluster first."""
        groups: dict[int, list[Head]] = {}
        for head in self.controlled:
            assert head.cluster is not None
            groups.setdefault(head.cluster, []).append((head.layer, head.head))
        return tuple(tuple(groups[number]) for number in sorted(groups))

    @property
    def verdict(self) -> Verdict:
        """Is there a shared control signal, or a shared part, also without what all streams have in common?"""
        heads = self.controlled
        if not self.likeness or len(heads) < MANY or len({head.layer for head in heads}) < LAYERS or not self.acts:
            return "not shared"
        pairs = list(zip(self.likeness, self.others, strict=True))
        if all(
            likeness.near[0] >= NEAR and likeness.p <= SURE and not likeness.near[0] <= other.near
            for likeness, other in pairs
        ):
            return "shared"
        part = all(
            likeness.p_cosine <= SURE
            and likeness.cosine[1] > likeness.shuffled_cosine[2]
            and not likeness.cosine[0] <= other.cosine
            for likeness, other in pairs
        )
        return "a shared part" if part else "not shared"

    @property
    def acts(self) -> bool:
        """Do few directions drive the firings, also if what all streams have in common is taken out first?"""
        ways = {removal.taken for removal in self.removals}
        return bool(ways) and all(
            any(removal.acts for removal in self.removals if removal.taken == taken) for taken in ways
        )

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("SinkSide")


@dataclass(frozen=True)
class Sinks(Reported):
    """Firings on the first token, over some prompts of a model."""

    __repr__ = brief

    model: str
    prompts: int  # explained
    held_out: int  # others, on which removals were tried
    share: float  # of heads and tokens after the first, that fire on the first token
    before: float  # mean weight on the first token, in held-out prompts
    answer: float  # mean metric of these prompts
    layer: int  # from which on subspaces were taken out
    sides: tuple[SinkSide, SinkSide]  # dest and src
    massive: tuple[Massive, ...]  # coordinates of the first token's stream
    settings: dict[str, Any]

    def side(self, name: SideName) -> SinkSide:
        """The dest or the src side.

        Args:
            name: "dest" or "src".
        """
        return self.sides[0] if name == "dest" else self.sides[1]

    def report(self) -> Report:
        """The heads of each side and what removals do, compared with controls."""
        from keyhole.studies.sinks.report import report

        return report(self)

    def record(self) -> dict[str, Any]:
        """As plain data: what JSON has."""
        from keyhole.studies.sinks.report import sinks_record

        return sinks_record(self)


def middle(values: tuple[float, ...]) -> float:
    """The mean of some; NaN of none."""
    return fmean(values) if values else float("nan")
