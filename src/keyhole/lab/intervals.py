"""How do a few seeds differ? Their mean with Student's interval, and with its range as text."""

import math
from collections.abc import Sequence


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95 % interval; a single value has none (NaN).

    >>> [round(x, 2) for x in interval([1.0, 2.0, 3.0])]
    [2.0, -0.48, 4.48]
    """
    from scipy.special import stdtrit  # the quantile alone; scipy.stats takes a second to import

    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, math.nan, math.nan
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = float(stdtrit(n - 1, 0.975)) * deviation / math.sqrt(n)
    return mean, mean - half, mean + half


def told(values: Sequence[float], digits: int = 3) -> str:
    """A mean with the smallest and largest value: of three seeds, a range says more than an interval.

    >>> told([0.5, 0.7]), told([0.25])
    ('0.600 [0.500, 0.700]', '0.250')
    """
    mean = f"{sum(values) / len(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} [{min(values):.{digits}f}, {max(values):.{digits}f}]"
