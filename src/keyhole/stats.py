"""Means, shares and ranges with intervals; exact tests; corrections for many tests."""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Interval(NamedTuple):
    """A mean or another estimate with its 95 % interval, which is NaN where it is not known.

    >>> print(Interval(0.5, 0.25, 0.75), Interval(2.0, math.nan, math.nan))
    0.500 [0.250, 0.750] 2.000
    """

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> "Interval":
        """The mean of independent observations with its interval; without observations, unknown."""
        observed = list(values)
        return interval(observed) if observed else UNKNOWN

    @classmethod
    def of(cls, spread: "Spread") -> "Interval":
        """The mean and interval of a study's record."""
        return cls(spread.mean, spread.low, spread.high)

    @property
    def beyond_doubt(self) -> bool:
        """Does the interval exclude 0?"""
        return self.low * self.high > 0

    def __str__(self) -> str:
        return as_text(self)


UNKNOWN = Interval(math.nan, math.nan, math.nan)


class Spread(Protocol):
    """Any record with a mean and its interval."""

    @property
    def mean(self) -> float:
        """The mean."""

    @property
    def low(self) -> float:
        """Where its interval begins."""

    @property
    def high(self) -> float:
        """Where it ends."""


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean and its interval, of 95 % unless said otherwise; a single value has none (NaN).

    >>> [round(x, 2) for x in interval([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    from scipy.special import stdtrit  # the quantile alone; scipy.stats takes a second to import

    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return Interval(mean, math.nan, math.nan)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, (1 + confidence) / 2)) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


def median_interval(values: Sequence[float]) -> Interval:
    """Median and its 95 % interval, between two of the values, for any distribution; fewer than 6 values have none.

    >>> print(median_interval([5.0, 1.0, 2.0, 3.0, 4.0, 100.0, 6.0]))
    4.000 [1.000, 100.000]
    """
    from scipy.special import bdtr

    ordered, n = sorted(values), len(values)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    rank = sum(float(bdtr(k, n, 0.5)) <= 0.025 for k in range(n // 2))  # values that lie outside on each side
    low, high = (ordered[rank - 1], ordered[n - rank]) if rank else (math.nan, math.nan)
    return Interval(middle, low, high)


def difference(mine: Sequence[float], its: Sequence[float]) -> Interval:
    """The difference of two means with Welch's 95 % interval; NaN with fewer than two values on a side.

    >>> [round(x, 2) for x in difference([1.0, 2.0, 3.0], [0.0, 0.1, 0.2])]
    [1.9, -0.55, 4.35]
    """
    if min(len(mine), len(its)) < 2:
        return Interval(math.nan, math.nan, math.nan)
    from scipy.special import stdtrit

    parts = [statistics.variance(values) / len(values) for values in (mine, its)]
    shift, error = statistics.mean(mine) - statistics.mean(its), math.sqrt(sum(parts))
    if not error:
        return Interval(shift, shift, shift)
    freedom = sum(parts) ** 2 / sum(p**2 / (len(v) - 1) for p, v in zip(parts, (mine, its), strict=True))
    half = float(stdtrit(freedom, 0.975)) * error
    return Interval(shift, shift - half, shift + half)


def with_range(values: Sequence[float], digits: int = 3) -> str:
    """A mean with the smallest and the largest value: of three seeds, a range says more than an interval.

    >>> with_range([0.5, 0.7]), with_range([0.25])
    ('0.600 [0.500, 0.700]', '0.250')
    """
    mean = f"{sum(values) / len(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def with_interval(values: Sequence[float], digits: int = 3, least: float = -math.inf, most: float = math.inf) -> str:
    """A mean with its 95 % interval, clipped to the range from `least` to `most`.

    >>> with_interval([0.0, 0.2, 0.1], 2, least=0.0)
    '0.10 [0.00, 0.35]'
    """
    mean, low, high = interval(values)
    return f"{mean:.{digits}f} [{max(low, least):.{digits}f}, {min(high, most):.{digits}f}]"


def as_text(value: tuple[float, float, float], digits: int = 3) -> str:
    """A mean with its interval, if that is known.

    >>> as_text(Interval(0.5, 0.25, 0.75)), as_text(interval([2.0]), 1)
    ('0.500 [0.250, 0.750]', '2.0')
    """
    mean, low, high = (f"{number:.{digits}f}" for number in value)
    return mean if math.isnan(value[1]) else f"{mean} [{low}, {high}]"


def cell_text(cell: str | float | int | None, missing: str = "-") -> str:
    """A cell of a table: numbers to three digits, `missing` for None and NaN.

    >>> [cell_text(cell) for cell in (0.12345, 3000, None, math.nan, "<bos>")]
    ['0.123', '3,000', '-', '-', '<bos>']
    """
    if cell is None or cell != cell:
        return missing
    if isinstance(cell, float):
        return f"{cell:.3f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def wilson(right: int, of: int) -> Interval:
    """A share with Wilson's 95 % interval, which is 0 to 1 where `of` is 0.

    >>> print(wilson(10, 10), wilson(0, 0))
    1.000 [0.722, 1.000] 0.000 [0.000, 1.000]
    """
    if of == 0:
        return Interval(0.0, 0.0, 1.0)
    from scipy.stats import binomtest

    bounds = binomtest(right, of).proportion_ci(confidence_level=0.95, method="wilson")
    return Interval(right / of, float(bounds.low), float(bounds.high))


def fisher(some: int, of: int, others: int, of_others: int) -> float:
    """Fisher's exact test, one-sided: the probability that the first group has so many hits, or more, by chance.

    >>> fisher(10, 10, 0, 10) == 1 / 184756, fisher(0, 10, 3, 10)
    (True, 1.0)
    """
    drawn, total = some + others, math.comb(of + of_others, some + others)
    reach = sum(math.comb(of, k) * math.comb(of_others, drawn - k) for k in range(some, min(of, drawn) + 1))
    return reach / total  # whole numbers until here: nothing is rounded


def at_least(some: int, of: int, chance: float) -> float:
    """The probability of so many hits or more, if each has the probability `chance`.

    >>> at_least(2, 2, 0.2), at_least(0, 3, 0.2)
    (0.04000000000000001, 1.0)
    """
    return min(1.0, sum(math.comb(of, k) * chance**k * (1 - chance) ** (of - k) for k in range(some, of + 1)))


def p_of_draws(drawn: Iterable[float], value: float) -> float:
    """The p-value of a number, if draws without an effect give so much or more; one in draws + 1 at least.

    >>> p_of_draws([0.1, 0.3, 0.2], 0.3)
    0.5
    """
    reached = [draw >= value for draw in drawn]
    return (1 + sum(map(bool, reached))) / (1 + len(reached))


def benjamini_hochberg(values: Sequence[float]) -> list[float]:
    """Corrected p-values, in the same order: those up to 5 % have a false discovery rate of 5 %.

    >>> [round(p, 3) for p in benjamini_hochberg([0.01, 0.5, 0.02])]
    [0.03, 0.5, 0.03]
    """
    if not len(values):
        return []
    from scipy.stats import false_discovery_control

    corrected: list[float] = false_discovery_control(values).tolist()
    return corrected
