"""Which fewest signals cause a firing? The shortest prefix of the attribution order whose removal takes it below tau.

The order is fixed once, so the greedy search is a prefix rule: take the m best rows, subtract them cumulatively,
apply softmax to all prefixes at once, and stop at the first below tau. m grows until one is found or no candidate
with a positive attribution is left. A row has an entry per key, and a small tau takes thousands of rows: they are built
some at a time, so that memory does not grow with their number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.models.attention import AttentionRule
from keyhole.progress import Between, nothing
from keyhole.tracing.candidates import Candidates, no_attribution

_FIRST_PICKS = 16
_ROW_FLOATS = 4_000_000  # floats of candidates' rows held at once: a copy takes 32 MB in float64
_COLUMNS = ("component", "channel", "ig", "after", "alone")


@dataclass(frozen=True)
class Removed:
    """What the search removed from some firings on one side: columns, firing by firing, in the order of removal."""

    firing: Int[np.ndarray, "removal"]
    component: Int[np.ndarray, "removal"]
    channel: Int[np.ndarray, "removal"]
    ig: Float[np.ndarray, "removal"]
    after: Float[np.ndarray, "removal"]  # the attention weight after each removal
    alone: Float[np.ndarray, "removal"]  # the weight if only this component's removed channels go
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
        columns = (self.scores[firings], self.visible[firings], self.src[firings], self.tau[firings])
        return Rows(*columns, self.rule, self.heads[firings])


def search(
    candidates: Candidates,
    rows: Rows,
    picks: int = _FIRST_PICKS,
    *,
    lift: bool = False,
    between: Between = nothing,
) -> Removed:
    """The shortest prefix for each firing whose removal takes it below tau or, with `lift`, up to it.

    `between` is called between blocks of rows, and may raise to stop.
    """
    ig, components, channels = candidates.top(picks)
    after = _weights_after(candidates, rows, components, channels, between=between)
    useful = ig > no_attribution(ig.dtype)
    done = ((after >= rows.tau[:, None]) if lift else (after < rows.tau[:, None])) & useful
    reached = done.any(1)
    exhausted = ~useful.all(1) if ig.shape[1] < candidates.n else torch.ones_like(reached)
    length = torch.where(reached, done.int().argmax(1) + 1, useful.sum(1))
    taken = torch.arange(ig.shape[1], device=ig.device) < length[:, None]
    more = torch.nonzero(~reached & ~exhausted).flatten()
    taken[more] = False
    firing, columns = torch.nonzero(taken)[:, 0], [column[taken] for column in (components, channels, ig, after)]
    alone = _left_alone(candidates, rows, firing, *columns[:2], between=between)
    removed = Removed(
        firing=firing.cpu().numpy(),
        reached=reached.cpu().numpy(),
        **{name: column.cpu().numpy() for name, column in zip(_COLUMNS, (*columns, alone), strict=True)},
    )
    if not len(more):
        return removed
    longer = search(candidates.subset(more), rows.subset(more), 4 * picks, lift=lift, between=between)
    return _merged(removed, longer, more.cpu().numpy())


def _weights_after(
    candidates: Candidates,
    rows: Rows,
    components: Int[Tensor, "firing pick"],
    channels: Int[Tensor, "firing pick"],
    *,
    between: Between,
) -> Float[Tensor, "firing pick"]:
    """The weight of each firing after each of its removals, one after another."""
    weights, total = [], torch.zeros_like(rows.scores, dtype=torch.float64)
    for part in _parts(components.shape[1], len(rows.scores) * candidates.row_floats(rows.scores.shape[1])):
        between()
        removed = candidates.rows(components[:, part], channels[:, part]).double()
        removed[:, 0] += total
        removed = removed.cumsum(1)
        weights.append(rows.weight_after(removed))
        total = removed[:, -1]
    return torch.cat(weights, dim=1)


def _left_alone(
    candidates: Candidates,
    rows: Rows,
    firing: Int[Tensor, "removal"],
    component: Int[Tensor, "removal"],
    channel: Int[Tensor, "removal"],
    *,
    between: Between,
) -> Float[Tensor, "removal"]:
    """The weight left when one component alone is removed, in all of its channels that the search removed."""
    n, most = candidates.components, candidates.gain.shape[1]  # a component has a row per channel
    pairs, pair = torch.unique(firing * n + component, return_inverse=True)
    order = pair.argsort(stable=True)
    start = torch.searchsorted(pair[order], torch.arange(len(pairs) + 1, device=pair.device)).tolist()
    left = rows.tau.new_empty(len(pairs))
    for part in _parts(len(pairs), most * candidates.row_floats(rows.scores.shape[1])):
        between()
        at, whose = order[start[part.start] : start[part.stop]], rows.subset(pairs[part] // n)
        removed = candidates.single_rows(firing[at], component[at], channel[at]).double()
        sums = torch.zeros_like(whose.scores, dtype=torch.float64).index_add_(0, pair[at] - part.start, removed)
        left[part] = whose.weight_after(sums)
    return left[pair]


def _parts(n: int, floats: int) -> Iterator[slice]:
    """Some of n rows, or groups of them, at a time: as many as fit into memory together."""
    size = max(1, _ROW_FLOATS // max(1, floats))
    return (slice(i, min(i + size, n)) for i in range(0, n, size))


def _merged(short: Removed, longer: Removed, of: Int[np.ndarray, "more"]) -> Removed:
    """The firings of both searches in one order; `of`: which firings needed the longer search."""
    firing = np.concatenate([short.firing, of[longer.firing]])
    order = np.argsort(firing, kind="stable")
    columns = {name: np.concatenate([getattr(short, name), getattr(longer, name)])[order] for name in _COLUMNS}
    reached = short.reached.copy()
    reached[of] = longer.reached
    return Removed(firing=firing[order], reached=reached, **columns)


def joined(parts: Sequence[tuple[Int[np.ndarray, "own"], Removed]], n: int) -> Removed:
    """One record of several batches, each with the indices of its firings among all n."""
    reached = np.zeros(n, dtype=bool)
    if not parts:
        whole, number = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Removed(whole, whole, whole, number, number, number, reached)
    for numbers, part in parts:
        reached[numbers] = part.reached
    columns = {name: np.concatenate([getattr(part, name) for _, part in parts]) for name in _COLUMNS}
    return Removed(firing=np.concatenate([numbers[part.firing] for numbers, part in parts]), reached=reached, **columns)
