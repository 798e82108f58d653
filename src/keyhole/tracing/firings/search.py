"""Which fewest signals cause a firing? The shortest prefix of the attribution order whose removal takes it below tau.

The order is fixed once, so the greedy search is a prefix rule: take the m best rows, subtract them cumulatively,
apply softmax to all prefixes at once, and stop at the first below tau. m grows until one is found or no candidate
with a positive attribution is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.models.recording.attention import AttentionRule
from keyhole.tracing.firings.candidates import Candidates

_FIRST_PICKS = 16
_COLUMNS = ("component", "channel", "ig", "after", "alone")
_NO_IG = 1e-12  # attributions at most this, or the rounding of their dtype, are none


@dataclass(frozen=True)
class Removed:
    """What was taken from some firings on one side: columns, firing by firing, in the order of removal."""

    firing: Int[np.ndarray, "removal"]
    component: Int[np.ndarray, "removal"]
    channel: Int[np.ndarray, "removal"]
    ig: Float[np.ndarray, "removal"]
    after: Float[np.ndarray, "removal"]  # the attention weight after each removal
    alone: Float[np.ndarray, "removal"]  # and when nothing goes but all that is removed of the same component
    reached: Bool[np.ndarray, "firing"]  # did the weight pass tau?


@dataclass(frozen=True)
class Rows:
    """Scores of some firings of a layer, and how they become weights."""

    scores: Float[Tensor, "firing key"]
    visible: Bool[Tensor, "firing key"]
    src: Int[Tensor, "firing"]
    tau: Float[Tensor, "firing"]
    rule: AttentionRule
    heads: Int[Tensor, "firing"]

    def weight_after(self, removed: Float[Tensor, "firing *step key"]) -> Float[Tensor, "firing *step"]:
        """The weight of each firing's source once rows are taken off its scores."""
        steps = removed.ndim - 2
        shape = (len(self.scores), *[1] * steps, self.scores.shape[1])
        left = self.scores.double().view(shape) - removed.double()
        weights = self.rule.of_heads(left, self.visible, self.heads)
        at = self.src.view(-1, *[1] * (steps + 1)).expand(*weights.shape[:-1], 1)
        return weights.gather(-1, at)[..., 0]

    def subset(self, firings: Tensor | slice) -> "Rows":
        """The same for some of the firings."""
        own = (self.scores[firings], self.visible[firings], self.src[firings], self.tau[firings])
        return Rows(*own, self.rule, self.heads[firings])


def search(candidates: Candidates, rows: Rows, picks: int = _FIRST_PICKS, *, lift: bool = False) -> Removed:
    """The shortest prefix for each firing whose removal takes it below tau or, with `lift`, up to it."""
    ig, components, channels = candidates.top(picks)
    removed = candidates.rows(components, channels).double()
    after = rows.weight_after(removed.cumsum(1))
    useful = ig > max(torch.finfo(ig.dtype).eps, _NO_IG)
    done = ((after >= rows.tau[:, None]) if lift else (after < rows.tau[:, None])) & useful
    reached = done.any(1)
    exhausted = ~useful.all(1) if ig.shape[1] < candidates.n else torch.ones_like(reached)
    length = torch.where(reached, done.int().argmax(1) + 1, useful.sum(1))
    taken = torch.arange(ig.shape[1], device=ig.device) < length[:, None]
    more = torch.nonzero(~reached & ~exhausted).flatten()
    taken[more] = False
    alone = _left_alone(components, removed, taken, rows)
    columns = dict(zip(_COLUMNS, (components, channels, ig, after, alone), strict=True))
    found = Removed(
        firing=torch.nonzero(taken)[:, 0].cpu().numpy(),
        reached=reached.cpu().numpy(),
        **{name: column[taken].cpu().numpy() for name, column in columns.items()},
    )
    if not len(more):
        return found
    longer = search(candidates.subset(more), rows.subset(more), 4 * picks, lift=lift)
    return _merged(found, longer, more.cpu().numpy())


def _left_alone(
    components: Int[Tensor, "firing pick"],
    removed: Float[Tensor, "firing pick key"],
    taken: Bool[Tensor, "firing pick"],
    rows: Rows,
) -> Float[Tensor, "firing pick"]:
    """The weight left when one component alone goes, with all that was taken of it."""
    most = int(taken.sum(1).max()) if len(taken) else 0
    if not most:
        return torch.zeros_like(removed[..., 0])
    named, gone = components[:, :most], removed[:, :most] * taken[:, :most, None]
    first = (named[:, :, None] == named[:, None]).int().argmax(-1)  # where the component was taken first
    sums = torch.zeros_like(gone).scatter_add_(1, first[..., None].expand_as(gone), gone)
    left = rows.weight_after(sums).gather(1, first)
    return torch.nn.functional.pad(left, (0, components.shape[1] - most))


def _merged(short: Removed, longer: Removed, of: Int[np.ndarray, "more"]) -> Removed:
    """Firings that ended early, and those that needed more, in their own order."""
    firing = np.concatenate([short.firing, of[longer.firing]])
    order = np.argsort(firing, kind="stable")
    columns = {name: np.concatenate([getattr(short, name), getattr(longer, name)])[order] for name in _COLUMNS}
    reached = short.reached.copy()
    reached[of] = longer.reached
    return Removed(firing=firing[order], reached=reached, **columns)


def joined(parts: Sequence[tuple[Int[np.ndarray, "own"], Removed]], n: int) -> Removed:
    """What was removed from batches of firings, each with the numbers that its firings have among all n."""
    reached = np.zeros(n, dtype=bool)
    if not parts:
        whole, number = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Removed(whole, whole, whole, number, number, number, reached)
    for own, part in parts:
        reached[own] = part.reached
    columns = {name: np.concatenate([getattr(part, name) for _, part in parts]) for name in _COLUMNS}
    return Removed(firing=np.concatenate([own[part.firing] for own, part in parts]), reached=reached, **columns)
