"""Which heads look at the right keys? Attention on positive and negative keys, for every head of the one pass."""

from dataclasses import dataclass
from typing import Literal

import torch

from keyhole.contrast.features.finding import choose
from keyhole.contrast.onepass.collect import Collected
from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.numbers.precision import exact_matmul

Rule = Literal["accuracy", "attention", "ratio"]


@dataclass(frozen=True)
class HeadAttention:
    """Where one head looks, averaged over the samples whose keys stand in their query's prompt."""

    head: Head
    accuracy: float  # share of queries whose most attended token, of all they see, is a positive key
    among: float  # the same among the sample's own keys; NaN where no negative stands in a query's prompt
    positive: float  # mean attention on all positive keys together
    negative: float

    @property
    def ratio(self) -> float:
        """Attention on positive against attention on negative keys; NaN where none stands in the query's prompt."""
        return self.positive / self.negative if self.negative > 0 else float("nan")


def head_attention(collected: Collected, *, half: int | None = None) -> tuple[HeadAttention, ...]:
    """Every head's attention on the contrast's keys."""
    chosen = choose(collected, half=half)
    usable = (collected.slots.together & (collected.slots.sign == 1)).any(1)[chosen]
    chosen = chosen[usable]
    if not len(chosen):
        raise KeyholeError("no query has its positive keys in its own prompt, so there is no attention to measure.")
    sign = collected.slots.sign[chosen]
    has_negatives = bool((collected.slots.together[chosen] & (sign == -1)).any())
    found = []
    for layer in collected.sums:
        with exact_matmul():
            kept = collected.layer(layer).of(chosen)
            logits = kept.logits()
            weights = kept.weights(logits)
            right = (sign == 1).to(logits.device)[..., None]
            wrong = (sign == -1).to(logits.device)[..., None]
            best = logits.masked_fill(~right, float("-inf")).amax(1)
            other = logits.masked_fill(~wrong, float("-inf")).amax(1)
            columns = (
                (best > torch.maximum(other, kept.top)).double().mean(0),
                (best > other).double().mean(0) if has_negatives else torch.full_like(best[0].double(), float("nan")),
                (weights * right).sum(1).double().mean(0),
                (weights * wrong).sum(1).double().mean(0),
            )
        for head, values in enumerate(torch.stack(columns, dim=1).tolist()):
            found.append(HeadAttention((layer, head), *values))
    return tuple(found)


def select_heads(
    table: tuple[HeadAttention, ...], *, by: Rule = "accuracy", at_least: float = 0.3, top: int | None = None
) -> tuple[HeadAttention, ...]:
    """The heads that pass, best first.

    `accuracy` (the paper's binding heads, at 30 %) and `attention` (mean attention on positives) take a threshold;
    `ratio` (its filter heads) ranks those whose attention reaches the keys at all.
    """
    if by == "accuracy":
        passed = sorted((row for row in table if row.accuracy >= at_least), key=lambda row: -row.accuracy)
    elif by == "attention":
        passed = sorted((row for row in table if row.positive >= at_least), key=lambda row: -row.positive)
    elif by == "ratio":
        awake = [row for row in table if row.positive + row.negative >= at_least and row.negative > 0]
        passed = sorted(awake, key=lambda row: -row.ratio)
    else:
        raise KeyholeError(f"heads are selected by accuracy, attention or ratio, not by {by!r}.")
    return tuple(passed[:top])
