"""Which subspace does a contrast live in, and which do those of single labels span together?

Which subspace does a contrast live in, and how many of its dimensions are real? For every head at once.

dC = U S V^T: columns of U are directions in query space, those of V in key space. Three ranks are told:

    energy  singular values that hold 99 % of |dC|^2 (the paper's; noise counts too)
    null    singular values above the 95 % quantile of the largest one under permuted labels, with the range of ranks
            that so many permutations leave open
    halves  leading directions of one half whose value in the other, u^T dC' v, exceeds what permuted labels give there,
            in both directions
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from keyhole.brief import Head, brief, head_name
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

RankRule = Literal["energy", "null", "halves"]
FEWEST = 20  # samples below which no rank is told
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
        """Dimensions."""
        return self.U.shape[1]


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
        """How many dimensions has the feature in this head?"""
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
        """The feature's subspace in one head."""
        layer, index = self.at(head)
        r = self.rank(head, rule)
        U, S, V = self.U[layer, index, :, :r], self.S[layer, index, :r], self.V[layer, index, :, :r]
        return Feature(self.name, head, U, V, S)

    def at(self, head: Head) -> tuple[int, int]:
        """Row and column of a head in the tensors."""
        if head[0] not in self.layers or not 0 <= head[1] < self.S.shape[1]:
            raise KeyholeError(f"there is no head {head_name(head)} among these features.")
        return self.layers.index(head[0]), head[1]


def find_features(
    collected: Collected,
    *,
    label: str | None = None,
    half: int | None = None,
    centre: Centre = "each",
    balance: Balance = "pairs",
    permutations: int = 200,
    level: float = 0.95,
    energy: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> Features:
    """Decompose the contrast of every head; of one label's samples, or of one half, if asked.

    `centre="none"` is the paper's contrast, in which means, and with them biases of queries and keys, have a part.
    Without `permutations` only the energy rank is told, and sums are enough (`keep=False`).
    """
    check_choices(centre, balance)
    chosen = choose(collected, label=label, half=half)
    slots = collected.slots.of(chosen)
    samples = len(torch.unique(slots.sample))
    _require_samples(collected, samples)
    _require_permutations(permutations, level)
    # Divided by prompts, sides of different sizes do not cancel under permuted labels, so there is no null.
    has_null = permutations > 0 and (balance == "pairs" or _equal_sides(slots))
    signs = permuted_signs(slots, permutations, seed) if has_null else None
    found = []
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
            parts = {"U": U, "S": S, "V": V, "mean_shift": shift, "energy": energy_rank(S, energy)}
            if signs is not None:
                kept = collected.layer(layer).of(chosen)
                parts |= _ranks(kept, slots, signs, S=S, centre=centre, balance=balance, level=level)
        found.append({name: value.cpu() for name, value in parts.items()})
        if progress is not None:
            progress(done + 1, len(collected.sums))
    stacked = {name: torch.stack([one[name] for one in found]) for name in found[0]}
    name = collected.name if label is None else label
    return Features(name, collected.frame, tuple(collected.sums), samples, **stacked)


def choose(collected: Collected, *, label: str | None = None, half: int | None = None) -> Int[Tensor, "slots"]:
    """The slots of one label and one half (None: all)."""
    slots = collected.slots
    mask = torch.ones(len(slots), dtype=torch.bool)
    if label is not None:
        mask &= torch.tensor([own == label for own in collected.resolved.labels])
        if not mask.any():
            known = ", ".join(collected.resolved.contrast.labels) or "none"
            raise KeyholeError(f"no sample has the label {label!r}: there is {known}.")
    if half is not None:
        mask &= slots.half == half
        if not mask.any():
            raise KeyholeError(
                f"half {half} of {collected.name!r} is empty: all its samples share prompts or a group, which are not "
                "parted. Give prompts that differ, or test samples of their own."
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
        own = _half(q, k, slots, slots.sign[None], mine, centre=centre, balance=balance)[0]
        U, _, V = decompose(own)
        seen = torch.cat([slots.sign[None], signs])
        elsewhere = _half(q, k, slots, seen, other, centre=centre, balance=balance)
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
    squared = (one.double() @ one.double().transpose(-1, -2) for one in dC.unbind(1))  # a head at a time, for memory
    return torch.stack([torch.linalg.eigvalsh(S2)[..., -1] for S2 in squared], dim=1).clamp_min(0).sqrt()


def _equal_sides(slots: Slots) -> bool:
    n = int(slots.sample.max()) + 1
    sides = [torch.zeros(n, dtype=torch.long).index_add(0, slots.sample, (slots.sign == s).sum(1)) for s in (1, -1)]
    return torch.equal(*sides)


def _require_permutations(permutations: int, level: float) -> None:
    fewest = math.ceil(1 / (1 - level)) - 1
    if 0 < permutations < fewest:
        raise KeyholeError(f"{permutations} permutations cannot show a level of {level}: ask for at least {fewest}.")


def _require_samples(collected: Collected, samples: int) -> None:
    d_head = next(iter(collected.sums.values())).qk.shape[-1]
    needed = max(FEWEST, d_head)
    if samples < needed:
        raise KeyholeError(
            f"{samples} samples are too few for a rank claim in {d_head} dimensions: {collected.name!r} needs at least "
            f"{needed}. Give more prompts."
        )


# Which subspace do the contrasts of single labels span together? The paper's features of filter heads.
#
# Within one category the query hardly varies, so that its contrast has one direction in queries and one in keys; the
# feature is the span of all of them, which has a dimension more than the contrast of all categories together. Columns
# of both sides are orthonormalised in the same order, so that the k-th of one still belongs to the k-th of the other.

_DEPENDENT = 1e-6  # of a unit column, what is left of it outside the columns before: less belongs to these
_Column = tuple[Tensor, Tensor, float]  # directions in queries and in keys, and their singular value


def find_spans(collected: Collected, **how: Any) -> Features:
    """The span of every label's contrast, in every head; `how` is that of `find_features`, with the energy rank alone.

    Its share of a difference of means is that of the contrast of all labels together: a single label's is one by
    nature. Labels with too few samples for a rank are left out.
    """
    whole = find_features(collected, **how)
    labels = sorted({name for name in collected.resolved.labels if name})
    least = max(FEWEST, whole.U.shape[-2])
    enough = [name for name in labels if collected.resolved.labels.count(name) >= least]
    if not enough:
        raise KeyholeError(
            f"no label of {collected.name!r} has the {least} samples that its own contrast needs: give more prompts."
        )
    single = [find_features(collected, label=name, **{**how, "permutations": 0}) for name in enough]
    U, S, V = (torch.zeros_like(part) for part in (whole.U, whole.S, whole.V))
    energy = torch.zeros_like(whole.energy)
    for layer, head in torch.cartesian_prod(*(torch.arange(n) for n in whole.energy.shape)).tolist():
        columns = [column for one in single for column in _columns(one, layer, head)]
        if not columns:
            continue
        u, v, s = paired_span(columns)
        rank = len(s)
        U[layer, head, :, :rank], V[layer, head, :, :rank], S[layer, head, :rank] = u, v, s
        energy[layer, head] = rank
    return replace(whole, U=U, S=S, V=V, energy=energy, null=None, null_range=None, halves=None, threshold=None)


def _columns(features: Features, layer: int, head: int) -> Iterable[_Column]:
    """The directions that hold 99 % of a contrast, strongest first."""
    for i in range(int(features.energy[layer, head])):
        yield features.U[layer, head, :, i], features.V[layer, head, :, i], float(features.S[layer, head, i])


def paired_span(
    columns: Sequence[_Column],
) -> tuple[Float[Tensor, "d_query rank"], Float[Tensor, "d_key rank"], Float[Tensor, "rank"]]:
    """Orthonormal bases of both sides by Gram-Schmidt, in the order given; a pair must be new to both of them.

    >>> x, y = torch.eye(2, dtype=torch.float64)
    >>> U, V, S = paired_span([(x, y, 3.0), ((x + y) / 2**0.5, x, 2.0), (x, x, 1.0)])
    >>> U.tolist(), V.tolist(), S.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]], [3.0, 2.0])
    """
    d_query, d_key = len(columns[0][0]), len(columns[0][1])
    U, V = columns[0][0].new_zeros(d_query, 0), columns[0][1].new_zeros(d_key, 0)
    kept: list[float] = []
    for u, v, s in columns:
        new = [_outside(u, U), _outside(v, V)]
        if min(float(one.norm()) for one in new) > _DEPENDENT:
            U, V = (torch.cat([basis, (one / one.norm())[:, None]], 1) for basis, one in zip((U, V), new, strict=True))
            kept.append(s)
    return U, V, torch.tensor(kept, dtype=U.dtype)


def _outside(x: Float[Tensor, "d"], basis: Float[Tensor, "d rank"]) -> Float[Tensor, "d"]:
    for _ in range(2):  # once more, for what rounding has left
        x = x - basis @ (basis.T @ x)
    return x
