"""How much attention moves between two keys, and between which two?

How much attention moves when a feature's coordinates are swapped between two keys?

With P = V V^T on orthonormal columns, k_o' = k_o + P (k_t - k_o) and k_t' = k_t + P (k_o - k_t) change only two scores
of the query's row:

    l_o' = l_o + d,   l_t' = l_t - d,   d = scaling q^T P (k_t - k_o)

so the new weights follow from the row's logits without another forward pass, for every head at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.features.contrast.collect import Collected
from keyhole.features.contrast.finding import choose
from keyhole.features.contrast.sums import LayerSamples
from keyhole.models.attention import AttentionRule

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
    random_shift, random_orig, random_target = (_over_draws([getattr(draw, of) for draw in draws]) for of in _OF_DRAWS)
    shift, ceiling = move.shift.double(), full.shift.double()
    floor = torch.zeros_like(shift) if random_shift is None else random_shift
    table = torch.stack([shift, ceiling, floor], dim=1).cpu()
    mean = table.mean(0)
    resampled = _bootstrap(len(table), seed) @ table
    quantiles = torch.tensor([0.025, 0.975], dtype=torch.float64)
    room, moved = resampled[:, 1] - resampled[:, 2], resampled[:, 0] - resampled[:, 2]
    meaningful = float(room.quantile(0.025)) > NOTHING  # otherwise the ratio is noise over noise
    low, high = (moved / room).quantile(quantiles).tolist() if meaningful else (float("nan"), float("nan"))
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
        normalised=float((mean[0] - mean[2]) / (mean[1] - mean[2])) if meaningful else float("nan"),
        interval=(low, high),
        shift_interval=(low_shift, high_shift),
    )


def _over_draws(values: Sequence[Float[Tensor, "*draws samples"]]) -> Float[Tensor, "samples"] | None:
    """The mean over draws, which stand in front of the samples or are several; None: there are none."""
    if not values:
        return None
    return torch.cat([draws.reshape(-1, draws.shape[-1]) for draws in values]).double().mean(0)


@lru_cache(maxsize=4)
def _bootstrap(n: int, seed: int) -> Float[Tensor, "draws samples"]:
    """Weights of resampled means; shared, because every head and condition has the same samples."""
    draws = max(100, min(1000, _BOOTSTRAP_ENTRIES // n))
    generator = torch.Generator().manual_seed(seed)
    picks = torch.randint(n, (draws, n), generator=generator)
    return torch.zeros(draws, n, dtype=torch.float64).scatter_add_(1, picks, torch.ones(draws, n).double()) / n


# Between which two keys is attention moved? One head's original and target key, for every sample.
#
# The original is the positive key that the head attends most (or the first one, for all heads alike); the target is a
# random negative key, the same for every head and condition, so that conditions can be compared sample by sample.

Original = Literal["attended", "first"]


@dataclass(frozen=True)
class Pairing:
    """Which samples are edited, and towards which key."""

    slots: Int[Tensor, "samples"]  # into the collected slots
    positive: Bool[Tensor, "samples keys"]
    target: Int[Tensor, "samples"]
    orig: Int[Tensor, "samples"] | None = None  # None: the positive key that each head attends most

    def first(self, n: int) -> "Pairing":
        """The first samples only."""
        orig = None if self.orig is None else self.orig[:n]
        return Pairing(self.slots[:n], self.positive[:n], self.target[:n], orig)


def can_swap(collected: Collected) -> bool:
    """Is there a sample with a positive and a negative key in its query's own prompt?"""
    slots = collected.slots
    positive, negative = (slots.together & (slots.sign == side) for side in (1, -1))
    return bool((positive.any(1) & negative.any(1)).any())


def pair_keys(collected: Collected, *, half: int | None = None, orig: Original = "attended", seed: int = 0) -> Pairing:
    """A random negative key of the query's own prompt as every sample's target.

    Args:
        collected: Samples whose keys stand in the prompt of their query.
        half: The half of the samples that is taken, 0 or 1. Default: both.
        orig: The positive key that is moved: of each head the attended one, or of all the first.
        seed: Seed of the targets.

    >>> import keyhole
    >>> from keyhole.features.contrast import collect, order_contrast
    >>> model = keyhole.load()
    >>> len(pair_keys(collect(model, order_contrast(model, 10, n_boxes=3))).slots)
    10
    """
    if orig not in ("attended", "first"):
        raise KeyholeError(f"the original key is 'attended' or 'first', not {orig!r}.")
    slots = collected.slots
    positive, negative = (slots.together & (slots.sign == side) for side in (1, -1))
    chosen = choose(collected, half=half)
    chosen = chosen[(positive.any(1) & negative.any(1))[chosen]]
    if not len(chosen):
        raise KeyholeError(
            "no sample has a positive and a negative key in its query's own prompt, so there is nothing to swap."
        )
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(
        slots.sign.shape, generator=generator
    )  # for all slots, so that a half draws what the whole draws
    target = drawn.masked_fill(~negative, -1.0).argmax(1)
    at = slots.keys[..., 1].masked_fill(~positive, 1 << 30).argmin(1) if orig == "first" else None
    return Pairing(chosen, positive[chosen], target[chosen], None if at is None else at[chosen])


@dataclass(frozen=True)
class TwoKeys:
    """All heads of a layer at the two keys of every sample. Pairs are (original, target)."""

    q: Float[Tensor, "samples heads d_head"]
    k: tuple[Float[Tensor, "samples heads d_head"], Float[Tensor, "samples heads d_head"]]
    query: tuple[
        Float[Tensor, "samples heads d_head"], Float[Tensor, "samples heads d_head"]
    ]  # q, turned as each key is
    framed: tuple[Float[Tensor, "samples heads d_head"], Float[Tensor, "samples heads d_head"]]  # k in the frame
    scores: tuple[Float[Tensor, "samples heads"], Float[Tensor, "samples heads"]]
    bias: tuple[Float[Tensor, "samples heads"], Float[Tensor, "samples heads"]] | None
    visible: tuple[
        Bool[Tensor, "samples heads"], Bool[Tensor, "samples heads"]
    ]  # a window may hide a key in some layers
    rest: Float[Tensor, "samples heads"]  # logsumexp of all other logits of the row
    rule: AttentionRule

    def of(self, chosen: Tensor) -> "TwoKeys":
        """Some of the samples."""

        def both(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            return pair[0][chosen], pair[1][chosen]

        return TwoKeys(
            q=self.q[chosen],
            k=both(self.k),
            query=both(self.query),
            framed=both(self.framed),
            scores=both(self.scores),
            bias=None if self.bias is None else both(self.bias),
            visible=both(self.visible),
            rest=self.rest[chosen],
            rule=self.rule,
        )

    def move(self, head: int, new: tuple[Tensor, Tensor], *, pair_only: bool = False) -> Move:
        """The move of one head when its two scores become these (draws may stand in front)."""
        before = self._logits(head, (self.scores[0][:, head], self.scores[1][:, head]))
        after = self._logits(head, new)
        rest = torch.full_like(self.rest[:, head], float("-inf")) if pair_only else self.rest[:, head]
        shape = after[0].shape
        return move_of((before[0].expand(shape), before[1].expand(shape)), after, rest.expand(shape))

    def _logits(self, head: int, scores: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        orig, target = (self.rule.cap(score) for score in scores)
        if self.bias is not None:
            orig, target = orig + self.bias[0][:, head], target + self.bias[1][:, head]
        hidden = ~self.visible[0][:, head], ~self.visible[1][:, head]
        return orig.masked_fill(hidden[0], float("-inf")), target.masked_fill(hidden[1], float("-inf"))


def two_keys(samples: LayerSamples, pairing: Pairing) -> TwoKeys:
    """Read the two keys off a layer; `samples` are those of the pairing's slots."""
    logits, scores = samples.logits(), samples.scores()  # [samples, keys, heads]
    device = logits.device
    n, _, heads = logits.shape
    if pairing.orig is None:
        best = logits.masked_fill(~pairing.positive.to(device)[..., None], float("-inf")).argmax(1)
    else:
        best = pairing.orig.to(device)[:, None].expand(-1, heads)
    where = best, pairing.target.to(device)[:, None].expand(-1, heads)
    row, head = torch.arange(n, device=device)[:, None], torch.arange(heads, device=device)[None]
    framed, kv = samples.keys, head // samples.group
    visible_positive = samples.visible & pairing.positive.to(device)  # if none is, argmax has picked just any key
    others = logits.clone()
    for key in where:
        others[row, key, head] = float("-inf")

    def query_at(key: Tensor) -> Tensor:
        if samples.k_turns is None:
            return samples.q
        return samples.k_turns.of((row, key)).into(samples.q[:, :, None])[:, :, 0]

    def both(x: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        return x[row, where[0], column], x[row, where[1], column]

    return TwoKeys(
        q=samples.q,
        k=both(samples.k, kv),
        query=(query_at(where[0]), query_at(where[1])),
        framed=both(framed, kv),
        scores=both(scores, head),
        bias=None if samples.bias is None else both(samples.bias, head),
        visible=(visible_positive[row, where[0]], samples.visible[row, where[1]]),
        rest=torch.cat([others, samples.rest[:, None]], dim=1).logsumexp(1),
        rule=samples.rule,
    )
