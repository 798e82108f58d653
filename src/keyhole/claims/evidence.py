"""What does one test of a claim say? A figure with its interval, what was asked of it, and whether it holds."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from keyhole.settings.claims import ClaimSettings
from keyhole.stats import Interval, difference, interval, p_of_draws


@dataclass(frozen=True)
class ClaimTest:
    """One test: its figure, between which bounds it lies, and what it had to reach."""

    name: str  # what is tested, in a few words
    asked: str  # what the figure, or the bound of its interval, has to be
    figure: float
    low: float  # of the interval; NaN where there is none
    high: float
    holds: bool
    n: int  # prompts, or texts, that it was measured on
    note: str = ""  # of controls: how many reached it, and the p-value

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def at_least(
    name: str, values: Sequence[float] | Float[np.ndarray, "n"], least: float, how: ClaimSettings, note: str = ""
) -> ClaimTest:
    """Is the mean over prompts at least so much, and is that beyond doubt? An interval that reaches below is not."""
    mean, low, high = spread(values, how)
    needed = f"lower bound at least {least:.3g}"
    return ClaimTest(name, needed, mean, low, high, not math.isnan(low) and low >= least, len(values), note)


def above(name: str, values: Sequence[float] | Float[np.ndarray, "n"], how: ClaimSettings, note: str = "") -> ClaimTest:
    """Is the mean of paired differences above 0 beyond doubt?"""
    mean, low, high = spread(values, how)
    return ClaimTest(name, "lower bound above 0", mean, low, high, not math.isnan(low) and low > 0, len(values), note)


def more_than_random(
    name: str,
    effects: Float[np.ndarray, "case"],
    random: Float[np.ndarray, "draw case"],
    how: ClaimSettings,
    *,
    least: float = 0.0,
) -> ClaimTest:
    """Is the mean effect beyond that of nearly all random controls, and beyond their mean in most prompts?"""
    means = random.mean(1)
    reached, draws = int((means >= effects.mean()).sum()), len(means)
    beyond, low, high = spread(effects - random.mean(0), how)
    holds = reached <= how.reached * draws and not math.isnan(low) and low > least
    needed = f"lower bound above {least:.3g}; reached by at most {how.reached:.0%} of the controls"
    p = p_of_draws(means.tolist(), float(effects.mean()))
    note = f"controls: mean {means.mean():.3f}, most {means.max():.3f}; reached by {reached} of {draws}, p = {p:.2g}"
    return ClaimTest(name, needed, beyond, low, high, holds, len(effects), note)


def half_on_negatives(
    effects: Float[np.ndarray, "case"],
    negatives: Float[np.ndarray, "negative"],
    pairs: Sequence[int | None],
    name: str,
    how: ClaimSettings,
) -> ClaimTest:
    """Is the effect, where it should not happen, less than half of that on the claim's prompts, beyond doubt?

    `pairs`: the prompt that each negative was made from, as an index into `effects`; None: of none of them.
    """
    halves = [(float(effects[i]) / 2, float(other)) for i, other in zip(pairs, negatives, strict=True) if i is not None]
    if len(halves) == len(negatives):
        mean, low, high = spread([half - other for half, other in halves], how)
    else:
        mean, low, high = difference((effects / 2).tolist(), negatives.tolist())
    note = f"{negatives.mean():.3f} on negatives, {effects.mean():.3f} otherwise; half of that, less this"
    title = f"on negatives less than half: {name}"
    return ClaimTest(
        title, "lower bound above 0", mean, low, high, not math.isnan(low) and low > 0, len(negatives), note
    )


def enough(n: int, of: int, how: ClaimSettings) -> ClaimTest:
    """Are there enough prompts that the model answers rightly?"""
    note = f"{n} of {of} answered rightly"
    needed = f"at least {how.prompts}"
    return ClaimTest("enough prompts", needed, float(n), math.nan, math.nan, n >= how.prompts, of, note)


def damage(kl: float, texts: int, tokens: int, how: ClaimSettings) -> ClaimTest:
    """Is text that the claim says nothing of left as it is?"""
    note = f"{tokens:,} tokens of {texts} texts; nats a token"
    needed = f"at most {how.damage:.3g}"
    return ClaimTest("unrelated text stays", needed, kl, math.nan, math.nan, kl <= how.damage, texts, note)


def spread(values: Sequence[float] | Float[np.ndarray, "n"], how: ClaimSettings) -> Interval:
    """The mean over prompts with its interval, NaN where there are too few."""
    observed = [float(value) for value in values]
    return interval(observed, how.confidence) if observed else Interval(math.nan, math.nan, math.nan)
