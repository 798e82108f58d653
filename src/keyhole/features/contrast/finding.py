"""Which subspace does a contrast live in, and how many of its dimensions are real? For every head at once.

dC = U S V^T: columns of U are directions in query space, those of V in key space. There are three ranks:

    energy  singular values that hold 99 % of |dC|^2 (the paper's; noise counts too)
    null    singular values above the 95 % quantile of the largest one under permuted labels, with the range of ranks
            that so many permutations leave open
    halves  leading directions of one half whose value in the other, u^T dC' v, exceeds what permuted labels give there,
            in both directions
"""

import math
from dataclasses import dataclass, field
from typing import Literal, TypedDict, Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, head_name
from keyhole.circuits.records import SideName
from keyhole.edits.making import feature_edit
from keyhole.edits.records import FeatureEdit
from keyhole.errors import KeyholeError
from keyhole.features.contrast.collect import Collected
from keyhole.features.contrast.places import Slots, split_groups
from keyhole.features.contrast.subspace import (
    coefficients,
    contrasts,
    decompose,
    energy_rank,
    permuted_signs,
    quantile_range,
)
from keyhole.features.contrast.sums import (
    Balance,
    Centre,
    Frame,
    LayerSamples,
    check_choices,
    contrast_matrix,
    mean_shift_share,
    product_size,
    tally,
)
from keyhole.models.numbers import exact_matmul
from keyhole.progress import Progress
from keyhole.settings.fields import chosen as settings_with
from keyhole.settings.fields import option

RankRule = Literal["energy", "null", "halves"]
FEWEST = 20  # samples below which no rank is claimed
_ROUNDING = 1e-5  # of `product_size`: a smaller contrast is the rounding of equal queries and keys


@dataclass(frozen=True)
class Feature:
    """A query-key subspace of one head, with orthonormal columns."""

    __repr__ = brief

    name: str
    head: Head
    U: Float[Tensor, "d_head rank"]
    V: Float[Tensor, "d_head rank"]
    S: Float[Tensor, "rank"]

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return self.U.shape[1]

    def edit(self, *, side: SideName = "src", factor: float = 0.0, frame: Frame = "post_rope") -> FeatureEdit:
        """The feature as an edit of its head, at every token (`edit.at(dest, src)` for others).

        Args:
            side: Are the queries (dest) or the keys (src) edited?
            factor: What its coordinates are multiplied with.
            frame: Of the `Features` that it is of. A relative one cannot be edited.

        >>> feature = Feature("one", (1, 6), torch.eye(16)[:, :1], torch.eye(16)[:, :1], torch.ones(1))
        >>> feature.edit(factor=2.0).factor
        2.0
        """
        return feature_edit(self, side=side, factor=factor, frame=frame)


@dataclass(frozen=True)
class Features:
    """A contrast's decomposition in every head."""

    __repr__ = brief

    name: str
    frame: Frame
    layers: tuple[int, ...]
    samples: int
    U: Float[Tensor, "layers heads d_head rank"] = field(repr=False)
    S: Float[Tensor, "layers heads rank"] = field(repr=False)
    V: Float[Tensor, "layers heads d_head rank"] = field(repr=False)
    mean_shift: Float[Tensor, "layers heads"] = field(repr=False)  # share of dC that is a difference of mean keys
    energy: Int[Tensor, "layers heads"] = field(repr=False)
    null: Int[Tensor, "layers heads"] | None = field(repr=False, default=None)  # None: no permutations
    null_range: Int[Tensor, "layers heads 2"] | None = field(repr=False, default=None)  # of more permutations (95 %)
    halves: Int[Tensor, "layers heads"] | None = field(repr=False, default=None)
    threshold: Float[Tensor, "layers heads"] | None = field(repr=False, default=None)  # of the null rank
    p: Float[Tensor, "layers heads"] | None = field(repr=False, default=None)  # of the largest singular value

    def rank(self, head: Head, rule: RankRule | int = "null") -> int:
        """The number of dimensions of the feature in one head, by a rule or as given.

        Args:
            head: Layer and head.
            rule: "energy", "null" or "halves" (see `find_features`), or a number of dimensions.

        >>> import keyhole
        >>> from keyhole.features.contrast import collect, order_contrast
        >>> model = keyhole.load()
        >>> features = find_features(collect(model, order_contrast(model, 20, n_boxes=3)))
        >>> features.rank((1, 6), 2)
        2
        """
        at = self.at(head)
        if isinstance(rule, int):
            if not 0 <= rule <= self.S.shape[-1]:
                raise KeyholeError(f"a rank is 0 to {self.S.shape[-1]} here, not {rule}.")
            return rule
        ranks = {"energy": self.energy, "null": self.null, "halves": self.halves}
        if rule not in ranks:
            raise KeyholeError(f"there is no rank rule {rule!r}: choose energy, null, halves, or a number.")
        chosen = ranks[rule]
        if chosen is None:
            raise KeyholeError(
                f"there is no {rule} rank: it needs permutations, and equal sides or balance='pairs'. Use energy."
            )
        return int(chosen[at])

    def of(self, head: Head, rule: RankRule | int = "null") -> Feature:
        """The feature's subspace in one head.

        Args:
            head: Layer and head.
            rule: As `rank` takes it.

        >>> import keyhole
        >>> from keyhole.features.contrast import collect, order_contrast
        >>> model = keyhole.load()
        >>> features = find_features(collect(model, order_contrast(model, 20, n_boxes=3)))
        >>> features.of((1, 6), 2).rank
        2
        """
        layer, index = self.at(head)
        r = self.rank(head, rule)
        U, S, V = self.U[layer, index, :, :r], self.S[layer, index, :r], self.V[layer, index, :, :r]
        return Feature(self.name, head, U, V, S)

    def at(self, head: Head) -> tuple[int, int]:
        """Row and column of a head in the tensors.

        Args:
            head: Layer and head.

        >>> import keyhole
        >>> from keyhole.features.contrast import collect, order_contrast
        >>> model = keyhole.load()
        >>> features = find_features(collect(model, order_contrast(model, 20, n_boxes=3)))
        >>> features.at((1, 6))
        (1, 6)
        """
        if head[0] not in self.layers or not 0 <= head[1] < self.S.shape[1]:
            raise KeyholeError(f"there is no head {head_name(head)} among these features.")
        return self.layers.index(head[0]), head[1]


@dataclass(frozen=True)
class FeatureSettings:
    """How contrasts are decomposed, and how their ranks are tested."""

    centre: Centre = option("each", "Means removed from the contrast; none: the paper's, in which means count.")
    balance: Balance = option("pairs", "pairs: each side is a mean over its pairs; prompts: both are sums per sample.")
    permutations: int = option(200, "Permutations of labels, for the null; 0: the energy rank alone, from sums.")
    level: float = option(0.95, "Quantile of the null that a singular value must exceed.")
    energy: float = option(0.99, "Share of the squared norm that the energy rank holds.")
    seed: int = option(0, "Seed of the permutations.")

    def __post_init__(self) -> None:
        check_choices(self.centre, self.balance)
        fewest = math.ceil(1 / (1 - self.level)) - 1
        if 0 < self.permutations < fewest:
            raise KeyholeError(
                f"{self.permutations} permutations cannot show a level of {self.level}: ask for at least {fewest}."
            )


class FeatureOptions(TypedDict, total=False):
    """The fields of `FeatureSettings`, as keywords."""

    centre: Centre
    balance: Balance
    permutations: int
    level: float
    energy: float
    seed: int


def find_features(
    collected: Collected,
    *,
    label: str | None = None,
    half: int | None = None,
    settings: FeatureSettings | None = None,
    progress: Progress | None = None,
    **options: Unpack[FeatureOptions],
) -> Features:
    """Decompose the contrast of every head, over all samples, those of one `label`, or those of one `half` (0 or 1).

    Args:
        collected: Samples of a contrast.
        label: Samples of one label alone. Default: of all.
        half: Samples of one half alone, 0 or 1. Default: of both.
        settings: How a contrast is decomposed. Default: those of `FeatureSettings`.
        progress: Called with how many layers are done, and of how many.
        **options: Fields of `FeatureSettings`, such as `centre` or `permutations`.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, order_contrast
    >>> model = keyhole.load()
    >>> features = find_features(collect(model, order_contrast(model, 40, n_boxes=4)), permutations=40)
    >>> features.rank((1, 6)) == features.of((1, 6)).rank
    True
    """
    how = settings_with(settings, FeatureSettings, options)
    centre, balance = how.centre, how.balance
    chosen = choose(collected, label=label, half=half)
    slots = collected.slots.of(chosen)
    samples = len(torch.unique(slots.sample))
    _require_samples(collected, samples)
    # Divided by prompts, sides of different sizes do not cancel under permuted labels, so there is no null.
    has_null = how.permutations > 0 and (balance == "pairs" or _equal_sides(slots))
    signs = permuted_signs(slots, how.permutations, how.seed) if has_null else None
    by_layer = []
    for done, layer in enumerate(collected.sums):
        with exact_matmul():
            if label is None:
                sums = collected.sums[layer] if half is None else collected.sums[layer].of_half(half)
            else:
                kept = collected.layer(layer).of(chosen)
                sums = tally(kept.queries, kept.keys, slots.sign, slots.weight, slots.half)
            dC = contrast_matrix(sums, centre=centre, balance=balance)
            U, S, V = decompose(dC)
            real = S[:, 0] > _ROUNDING * product_size(sums, centre=centre, balance=balance)
            S = S * real[:, None]
            shift = torch.where(real, mean_shift_share(sums, balance=balance), float("nan"))
            parts = {"U": U, "S": S, "V": V, "mean_shift": shift, "energy": energy_rank(S, how.energy)}
            if signs is not None:
                kept = collected.layer(layer).of(chosen)
                parts |= _ranks(kept, slots, signs, S=S, centre=centre, balance=balance, level=how.level)
        by_layer.append({name: value.cpu() for name, value in parts.items()})
        if progress is not None:
            progress(done + 1, len(collected.sums))
    stacked = {name: torch.stack([parts_of_layer[name] for parts_of_layer in by_layer]) for name in by_layer[0]}
    name = collected.name if label is None else label
    return Features(name, collected.frame, tuple(collected.sums), samples, **stacked)


def choose(collected: Collected, *, label: str | None = None, half: int | None = None) -> Int[Tensor, "slots"]:
    """The slots of one label and one half (None: all)."""
    slots = collected.slots
    mask = torch.ones(len(slots), dtype=torch.bool)
    if label is not None:
        mask &= torch.tensor([name == label for name in collected.resolved.labels])
        if not mask.any():
            known = ", ".join(collected.resolved.contrast.labels) or "none"
            raise KeyholeError(f"no sample has the label {label!r}: there is {known}.")
    if half is not None:
        mask &= slots.half == half
        if not mask.any():
            raise KeyholeError(
                f"half {half} of {collected.name!r} is empty: all its samples share prompts or a group, which is never "
                "split. Give prompts that differ, or separate test samples."
            )
    return mask.nonzero()[:, 0]


def _ranks(
    kept: LayerSamples,
    slots: Slots,
    signs: Int[Tensor, "draws slots keys"],
    *,
    S: Float[Tensor, "heads rank"],
    centre: Centre,
    balance: Balance,
    level: float,
) -> dict[str, Tensor]:
    """Ranks by the permutation null and by split halves, for every head of a layer."""
    q, k = kept.queries, kept.keys
    largest = _largest(contrasts(q, k, coefficients(signs, slots.weight, balance), centre))
    threshold = largest.quantile(level, dim=0, interpolation="higher")
    p = torch.where(S[:, 0] > 0, (1 + (largest >= S[:, 0]).sum(0)) / (1 + len(largest)), 1.0)
    half = slots.half if len(torch.unique(slots.half)) == 2 else split_groups(slots.group, seed=0)
    confirmed = []
    for part in (0, 1):
        mine, other = (half == part).nonzero()[:, 0], (half != part).nonzero()[:, 0]
        if not len(mine) or not len(other):
            confirmed.append(torch.zeros_like(S[:, 0], dtype=torch.long))
            continue
        half_contrast = _half(q, k, slots, slots.sign[None], mine, centre=centre, balance=balance)[0]
        U, _, V = decompose(half_contrast)
        all_signs = torch.cat([slots.sign[None], signs])
        elsewhere = _half(q, k, slots, all_signs, other, centre=centre, balance=balance)
        cross = torch.einsum("hik,phij,hjk->phk", U.to(elsewhere), elsewhere, V.to(elsewhere)).double()
        bar = cross[1:].amax(-1).quantile(level, dim=0, interpolation="higher")
        confirmed.append((cross[0] > bar[:, None]).long().cumprod(-1).sum(-1))
    # The two directions are not independent, so they are not averaged: both must confirm a direction.
    halves = torch.minimum(*confirmed) * (S[:, 0] > 0)
    null, most, fewest = ((bar[:, None] < S).sum(-1) for bar in (threshold, *quantile_range(largest, level)))
    spread = torch.stack([fewest, most], dim=-1)
    return {"null": null, "null_range": spread, "halves": halves, "threshold": threshold, "p": p}


def _half(
    q: Tensor, k: Tensor, slots: Slots, signs: Tensor, chosen: Tensor, *, centre: Centre, balance: Balance
) -> Float[Tensor, "draws heads d_query d_key"]:
    return contrasts(q[chosen], k[chosen], coefficients(signs[:, chosen], slots.weight[chosen], balance), centre)


def _largest(dC: Float[Tensor, "draws heads d_query d_key"]) -> Float[Tensor, "draws heads"]:
    """Largest singular values, by way of dC dC^T: several times faster than an SVD, and exact enough for a quantile.

    In float64, for the square of a contrast that is all but zero is too small for LAPACK otherwise.
    """
    each = dC.unbind(1)  # one head at a time, to save memory
    squared = (contrast.double() @ contrast.double().transpose(-1, -2) for contrast in each)
    return torch.stack([torch.linalg.eigvalsh(S2)[..., -1] for S2 in squared], dim=1).clamp_min(0).sqrt()


def _equal_sides(slots: Slots) -> bool:
    n = int(slots.sample.max()) + 1
    sides = [torch.zeros(n, dtype=torch.long).index_add(0, slots.sample, (slots.sign == s).sum(1)) for s in (1, -1)]
    return torch.equal(*sides)


def _require_samples(collected: Collected, samples: int) -> None:
    d_head = next(iter(collected.sums.values())).qk.shape[-1]
    needed = max(FEWEST, d_head)
    if samples < needed:
        raise KeyholeError(
            f"{samples} samples are too few for a rank claim in {d_head} dimensions: {collected.name!r} needs at least "
            f"{needed}. Give more prompts."
        )
