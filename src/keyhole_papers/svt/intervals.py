"""By how much does a number change? Means with their intervals, as they are judged, told and kept."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from keyhole.stats import as_text, interval
from keyhole_papers.job import Numbers


class Interval(NamedTuple):
    """A mean (or another number), and where it lies with 95 %: NaN where that cannot be said.

    >>> print(Interval(0.5, 0.25, 0.75), Interval(2.0, math.nan, math.nan))
    0.500 [0.250, 0.750] 2.000
    """

    mean: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> "Interval":
        """Of independent observations."""
        return cls(*interval(list(values)))

    @property
    def beyond_doubt(self) -> bool:
        """Does it exclude 0?"""
        return self.low * self.high > 0

    def __str__(self) -> str:
        return as_text(self)


def numbered(parts: Mapping[Any, Mapping[str, Any]]) -> Numbers:
    """As numbers of an outcome, each with the name of its part; without an interval where there is none.

    >>> numbered({"END": {"removed": Interval(0.5, math.nan, math.nan), "prompts": 1}, "": {"paths": 2}})
    {'END: removed': [0.5], 'END: prompts': 1, 'paths': 2}
    """
    return {
        f"{part}: {name}" if part else name: [one for one in value if not math.isnan(one)]
        if isinstance(value, Interval)
        else value
        for part, own in parts.items()
        for name, value in own.items()
    }
