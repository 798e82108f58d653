"""The record of a study of shared directions; and does a head use the same channels in two tasks?

For every prompt in whose circuit a head fires, the channels of its signals are a set. Over prompts, channel k has a
frequency f_k, and two groups of prompts overlap by

    sum over k of min(f_k, g_k) / sum over k of max(f_k, g_k)

which is 1 for equal frequencies and 0 without a common channel. Small groups overlap less, whatever their tasks. So the
overlap of two tasks is compared with that of two halves of one task, with the same number of prompts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from keyhole._moved import attributes_of
from keyhole.brief import Head, brief
from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.report import Report, Reported
from keyhole.stats import benjamini_hochberg, p_of_draws
from keyhole.store.store import Store
from keyhole.studies.directions.alike import Likeness
from keyhole.studies.directions.heard import SURE
from keyhole.studies.families.distances import in_common

Place = tuple[SideName, int, int]  # side, layer, head
LEAST = 10  # prompts of each task in which a head fires: heads with fewer are left out
_SAME, _OTHER = 0.8, 0.5  # of the overlap of two halves of one task
_SURE = 0.05  # a p-value, corrected over heads


@dataclass(frozen=True)
class Use:
    """The channels that one side of a head uses, a row per prompt."""

    prompts: Int[np.ndarray, "prompt"]
    used: Bool[np.ndarray, "prompt channel"]

    @property
    def often(self) -> Float[np.ndarray, "channel"]:
        """In which share of these prompts is each channel used?"""
        return np.asarray(self.used.mean(0))


@dataclass(frozen=True)
class HeadUse:
    """One side of a head in two tasks."""

    layer: int
    head: int
    side: SideName
    prompts: tuple[int, int]  # of each task
    overlap: float  # of the two tasks, over all prompts
    between: float  # the same over as many prompts as halves have, on average over draws
    within: tuple[float, float]  # overlap of two halves of each task
    chance: float  # overlap if the channels of one task are permuted
    p: float  # of so little overlap, if prompts were dealt to tasks at random
    q: float  # the same, corrected over heads (Benjamini and Hochberg)

    @property
    def share(self) -> float:
        """The overlap of two tasks, as a share of that of two halves of one."""
        return self.between / max(1e-12, sum(self.within) / 2)

    @property
    def verdict(self) -> Literal["same", "in part", "others"]:
        """Does it use the same channels in both tasks?"""
        if self.share >= _SAME:
            return "same"
        return "others" if self.share < _OTHER and self.q <= _SURE else "in part"

    if not TYPE_CHECKING:  # a type checker would take it for a promise that every attribute exists
        __getattr__ = attributes_of("HeadUse")


def channel_use(store: Store) -> dict[Place, Use]:
    """Which channels each head uses in which prompts, from a store's edges."""
    import pyarrow.compute as pc

    columns = ["prompt", "to_layer", "to_head", "side", "channels"]
    table = store.table("edges", columns=columns, where={"side": ["dest", "src"]})
    if not len(table):
        raise KeyholeError(f"{store.path} has no signals: its circuits use no channels.")
    parents = pc.list_parent_indices(table["channels"]).to_numpy()
    channel = pc.list_flatten(table["channels"]).to_numpy().astype(np.int64)
    prompt, layer, head = (table[name].to_numpy().astype(np.int64)[parents] for name in columns[:3])
    src = np.asarray(pc.equal(table["side"], "src"))[parents].astype(np.int64)
    places, which = np.unique(np.stack([src, layer, head], axis=1), axis=0, return_inverse=True)
    size = int(channel.max()) + 1
    uses: dict[Place, Use] = {}
    for number, (side, at, index) in enumerate(places.tolist()):
        of_place = which.ravel() == number
        prompts, row = np.unique(prompt[of_place], return_inverse=True)
        used = np.zeros((len(prompts), size), dtype=bool)
        used[row.ravel(), channel[of_place]] = True
        uses["src" if side else "dest", at, index] = Use(prompts, used)
    return uses


def compare_use(
    first: Mapping[Place, Use], second: Mapping[Place, Use], *, draws: int = 199, seed: int = 0
) -> tuple[HeadUse, ...]:
    """Every head that fires in enough prompts of both tasks."""
    both = sorted(
        place
        for place in first
        if place in second and min(len(first[place].prompts), len(second[place].prompts)) >= LEAST
    )
    rng = np.random.default_rng(seed)
    compared = [
        _compared(place, *_padded(first[place].used, second[place].used), draws=draws, rng=rng) for place in both
    ]
    corrected = benjamini_hochberg([use.p for use in compared])
    return tuple(HeadUse(**{**use.__dict__, "q": q}) for use, q in zip(compared, corrected, strict=True))


def _padded(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both with as many channels."""
    size = max(a.shape[1], b.shape[1])
    x, y = (np.pad(used, ((0, 0), (0, size - used.shape[1]))).astype(np.float64) for used in (a, b))
    return x, y


def _compared(place: Place, a: np.ndarray, b: np.ndarray, *, draws: int, rng: np.random.Generator) -> HeadUse:
    side, layer, head = place
    n = min(len(a), len(b)) // 2
    orders = [np.stack([rng.permutation(len(x)) for _ in range(draws)]) for x in (a, b)]
    halves = [
        (x[order[:, :n]].mean(1), x[order[:, n : 2 * n]].mean(1)) for x, order in zip((a, b), orders, strict=True)
    ]
    pooled, whole = np.concatenate([a, b]), float(in_common(a.mean(0), b.mean(0)))
    dealt = np.stack([rng.permutation(len(pooled)) for _ in range(draws)])
    null = in_common(pooled[dealt[:, : len(a)]].mean(1), pooled[dealt[:, len(a) :]].mean(1))
    turned = np.stack([rng.permutation(a.shape[1]) for _ in range(draws)])
    return HeadUse(
        layer=layer,
        head=head,
        side=side,
        prompts=(len(a), len(b)),
        overlap=whole,
        between=float(in_common(halves[0][0], halves[1][0]).mean()),
        within=(float(in_common(*halves[0]).mean()), float(in_common(*halves[1]).mean())),
        chance=float(in_common(np.broadcast_to(a.mean(0), turned.shape), b.mean(0)[turned]).mean()),
        p=p_of_draws(-null, -whole),
        q=1.0,
    )


@dataclass(frozen=True)
class SharedSide:
    """One side of all heads of a store's circuits."""

    __repr__ = brief

    side: SideName
    heads: tuple[Head, ...]  # with enough firings
    cosines: Float[np.ndarray, "heads heads"] = field(repr=False)  # of their mean signals
    clusters: tuple[tuple[Head, ...], ...]  # of near-equal heads, largest first, without single heads
    signals: tuple[Likeness, ...]  # near-equal pairs, with nothing taken out, then more and more
    used: int  # channels that are used often
    channels: tuple[Likeness, ...]  # near-parallel pairs of their vectors u_k or v_k

    @property
    def coordinate(self) -> bool:
        """Are there more near-equal pairs than with other channels, also without what all streams have in common?"""
        return bool(self.signals) and all(likeness.near[0] > 0 and likeness.p <= SURE for likeness in self.signals)


@dataclass(frozen=True)
class Shared(Reported):
    """Signals and channels of a store's heads; with another store, channels in both tasks."""

    __repr__ = brief

    model: str
    stores: tuple[str, ...]
    prompts: int  # whose signals were compared
    limit: float  # the cosine from which signals are near-equal
    sides: tuple[SharedSide, SharedSide]
    tasks: tuple[HeadUse, ...]  # empty without another store
    settings: dict[str, Any]

    def report(self) -> Report:
        """What each side of the heads shares and, with two stores, each head's channels in both."""
        from keyhole.studies.directions.report import report

        return report(self)

    def record(self) -> dict[str, Any]:
        """As plain data: what JSON has."""
        from keyhole.studies.directions.report import shared_data

        return shared_data(self)
