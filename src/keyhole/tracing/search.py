"""Which fewest signals cause a firing? The shortest prefix of the attribution order whose removal takes it below tau.

The order is fixed once, so the greedy search is a prefix rule: take the m best rows, subtract them cumulatively,
apply softmax to all prefixes at once, and stop at the first below tau. m grows until one is found or no candidate
with a positive attribution is left.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from keyhole.models.attention import AttentionRule
from keyhole.tracing.candidates import Candidates

_FIRST_PICKS = 16
_NO_IG = 1e-12  # attributions at most this, or the rounding of their dtype, are none


@dataclass(frozen=True)
class Prefix:
    """What was removed for one firing, in order."""

    components: tuple[int, ...]
    channels: tuple[int, ...]
    ig: tuple[float, ...]
    after: tuple[float, ...]  # the attention weight after each removal
    rows: Float[np.ndarray, "removed key"]
    reached: bool  # did the weight pass tau?


@dataclass(frozen=True)
class Rows:
    """Scores of some firings of one head, and how they become weights."""

    scores: Float[Tensor, "firing key"]
    visible: Bool[Tensor, "firing key"]
    src: Int[Tensor, "firing"]
    tau: Float[Tensor, "firing"]
    rule: AttentionRule
    head: int

    def weight_after(self, removed: Float[Tensor, "firing *step key"]) -> Float[Tensor, "firing *step"]:
        """The weight of each firing's source once rows are taken off its scores."""
        steps = removed.ndim - 2
        shape = (len(self.scores), *[1] * steps, self.scores.shape[1])
        left = self.scores.double().view(shape) - removed.double()
        weights = self.rule.of_head(left, self.visible.view(shape), self.head)
        at = self.src.view(-1, *[1] * (steps + 1)).expand(*weights.shape[:-1], 1)
        return weights.gather(-1, at)[..., 0]

    def subset(self, firings: Tensor) -> "Rows":
        """The same for some of the firings."""
        return Rows(
            self.scores[firings], self.visible[firings], self.src[firings], self.tau[firings], self.rule, self.head
        )


def search(candidates: Candidates, rows: Rows, picks: int = _FIRST_PICKS, *, lift: bool = False) -> list[Prefix]:
    """The shortest prefix for each firing whose removal takes it below tau or, with `lift`, up to it."""
    ig, components, channels = candidates.top(picks)
    removed = candidates.rows(components, channels)
    after = rows.weight_after(removed.double().cumsum(1))
    useful = ig > max(torch.finfo(ig.dtype).eps, _NO_IG)
    done = ((after >= rows.tau[:, None]) if lift else (after < rows.tau[:, None])) & useful
    reached = done.any(1)
    found: list[Prefix] = []
    exhausted = ~useful.all(1) if ig.shape[1] < candidates.n else torch.ones_like(reached)
    length = torch.where(reached, done.int().argmax(1) + 1, useful.sum(1))
    lengths, ended = length.tolist(), reached.tolist()
    more = torch.nonzero(~reached & ~exhausted).flatten()
    longer = iter(search(candidates.subset(more), rows.subset(more), 4 * picks, lift=lift) if len(more) else [])
    waiting, kept = set(more.tolist()), removed.double().cpu().numpy()
    picked, where, values, steps = (x.tolist() for x in (components, channels, ig, after))
    for f in range(len(ig)):
        if f in waiting:
            found.append(next(longer))
            continue
        n = lengths[f]
        found.append(
            Prefix(
                tuple(picked[f][:n]),
                tuple(where[f][:n]),
                tuple(values[f][:n]),
                tuple(steps[f][:n]),
                kept[f, :n],
                ended[f],
            )
        )
    return found
