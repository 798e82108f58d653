"""How much attention moves when a feature's coordinates are swapped between two keys?

With P = V V^T on orthonormal columns, k_o' = k_o + P (k_t - k_o) and k_t' = k_t + P (k_o - k_t) change only two scores
of the query's row:

    l_o' = l_o + d,   l_t' = l_t - d,   d = scaling q^T P (k_t - k_o)

so the new weights follow from the row's logits without another forward pass, for every head at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float
from torch import Tensor

NOTHING = 1e-3  # of the attention: where whole keys move less (more than random subspaces), a share of it says nothing
_OF_DRAWS = ("shift", "orig_after", "target_after")
_BOOTSTRAP_ENTRIES = 5_000_000  # of resampling weights held at once


@dataclass(frozen=True)
class Move:
    """Attention on the original and the target key of every sample, before and after one edit (or several draws)."""

    orig: Float[Tensor, "*draws samples"]
    target: Float[Tensor, "*draws samples"]
    orig_after: Float[Tensor, "*draws samples"]
    target_after: Float[Tensor, "*draws samples"]

    @property
    def shift(self) -> Float[Tensor, "*draws samples"]:
        """Attention that left the original key and reached the target: the mean of loss and gain."""
        return ((self.orig - self.orig_after) + (self.target_after - self.target)) / 2

    @property
    def flipped(self) -> float:
        """Share of samples whose larger weight of the two went from the original to the target."""
        return float(((self.orig > self.target) & (self.target_after > self.orig_after)).double().mean())

    @property
    def pair_share(self) -> Float[Tensor, "*draws samples"]:
        """Change of target / (orig + target)."""
        return self.target_after / (self.orig_after + self.target_after) - self.target / (self.orig + self.target)


def move_of(
    logits: tuple[Float[Tensor, "*draws samples"], Float[Tensor, "*draws samples"]],
    after: tuple[Float[Tensor, "*draws samples"], Float[Tensor, "*draws samples"]],
    rest: Float[Tensor, "*draws samples"],
) -> Move:
    """The move when two logits (original, target) of a row change and the others, whose logsumexp is `rest`, do not."""
    weights = torch.stack([*logits, rest], dim=-1).softmax(-1)
    changed = torch.stack([*after, rest], dim=-1).softmax(-1)
    return Move(weights[..., 0], weights[..., 1], changed[..., 0], changed[..., 1])


@dataclass(frozen=True)
class Effect:
    """Mean shift of one condition beside its controls, with intervals over samples (95 %, bootstrap)."""

    name: str
    rank: int
    orig: float  # mean attention after the edit
    target: float
    shift: float
    random: float  # mean shift over random subspaces of the same rank; NaN without controls
    full: float  # shift when the two keys change places entirely: the ceiling
    normalised: float  # (shift - random) / (full - random); NaN unless full exceeds random surely by more than NOTHING
    interval: tuple[float, float]  # of `normalised`
    shift_interval: tuple[float, float]
    random_orig: float = float("nan")  # mean attention after the edits of random subspaces; NaN without controls
    random_target: float = float("nan")

    @property
    def still(self) -> bool:
        """Do not even whole keys move anything?"""
        return abs(self.full) < NOTHING


def effect(
    name: str, rank: int, move: Move, random: Move | Sequence[Move] | None, full: Move, *, seed: int = 0
) -> Effect:
    """Normalise a move between what random subspaces do (0) and the full swap (1).

    `random` has its draws in front of the samples, or is a list of moves.
    """
    draws = [random] if isinstance(random, Move) else list(random or ())
    random_shift, random_orig, random_target = (_over_draws([getattr(one, of) for one in draws]) for of in _OF_DRAWS)
    shift, ceiling = move.shift.double(), full.shift.double()
    floor = torch.zeros_like(shift) if random_shift is None else random_shift
    table = torch.stack([shift, ceiling, floor], dim=1).cpu()
    mean = table.mean(0)
    resampled = _bootstrap(len(table), seed) @ table
    quantiles = torch.tensor([0.025, 0.975], dtype=torch.float64)
    room, moved = resampled[:, 1] - resampled[:, 2], resampled[:, 0] - resampled[:, 2]
    told = float(room.quantile(0.025)) > NOTHING  # otherwise the ratio is noise over noise
    low, high = (moved / room).quantile(quantiles).tolist() if told else (float("nan"), float("nan"))
    low_shift, high_shift = resampled[:, 0].quantile(quantiles).tolist()
    return Effect(
        name=name,
        rank=rank,
        orig=float(move.orig_after.mean()),
        target=float(move.target_after.mean()),
        shift=float(mean[0]),
        random=float("nan") if random_shift is None else float(mean[2]),
        random_orig=float("nan") if random_orig is None else float(random_orig.mean()),
        random_target=float("nan") if random_target is None else float(random_target.mean()),
        full=float(mean[1]),
        normalised=float((mean[0] - mean[2]) / (mean[1] - mean[2])) if told else float("nan"),
        interval=(low, high),
        shift_interval=(low_shift, high_shift),
    )


def _over_draws(values: Sequence[Float[Tensor, "*draws samples"]]) -> Float[Tensor, "samples"] | None:
    """The mean over draws, which stand in front of the samples or are several; None: there are none."""
    if not values:
        return None
    return torch.cat([one.reshape(-1, one.shape[-1]) for one in values]).double().mean(0)


@lru_cache(maxsize=4)
def _bootstrap(n: int, seed: int) -> Float[Tensor, "draws samples"]:
    """Weights of resampled means; shared, because every head and condition has the same samples."""
    draws = max(100, min(1000, _BOOTSTRAP_ENTRIES // n))
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(n, (draws, n), generator=generator)
    return torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, picks, torch.ones(draws, n).double()) / n
