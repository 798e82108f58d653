"""Intervals that are called 95 % are: against quantiles known from elsewhere, and by counting how often they miss."""

import math
from dataclasses import fields
from statistics import NormalDist

import pytest
import torch

from keyhole.lab.head_summary import spread
from keyhole.lab.roles import _low
from keyhole.stats import interval, wilson, with_interval
from keyhole_papers.svt.effects import Effect, rank_correlation

Z = NormalDist().inv_cdf(0.975)


@pytest.mark.parametrize(("right", "of"), [(0, 7), (1, 3), (5, 10), (10, 10), (190, 400)])
def test_wilsons_ends_are_shares_from_which_the_count_is_just_possible(right: int, of: int) -> None:
    """At either end p the count lies z standard errors of p away; at 0 and 1 the end is the share itself."""
    share, low, high = wilson(right, of)
    assert share == right / of and 0 <= low <= share <= high + 1e-12 <= 1 + 1e-12
    for end in (low, high):
        if 0 < end < 1 - 1e-12:
            assert abs(share - end) == pytest.approx(Z * math.sqrt(end * (1 - end) / of), rel=1e-5)
        else:
            assert end == pytest.approx(share)
    assert wilson(0, 0) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(("n", "t"), [(2, 12.7062), (3, 4.3027), (5, 2.7764), (30, 2.0452)])
def test_means_have_students_interval(n: int, t: float) -> None:
    values = [math.sin(3 * i) for i in range(n)]
    mean, low, high = interval(values)
    error = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1) / n)
    assert mean == pytest.approx(sum(values) / n)
    assert (mean - low, high - mean) == (pytest.approx(t * error, rel=1e-4), pytest.approx(t * error, rel=1e-4))
    assert with_interval(values, 2, least=mean) == f"{mean:.2f} [{mean:.2f}, {high:.2f}]"
    table = torch.tensor(values).double()[:, None, None]
    assert float(_low(table)) == pytest.approx(low, rel=1e-5)
    assert all(math.isnan(x) for x in interval([1.0])[1:])


def test_bootstrap_intervals_over_prompts_are_95_percent() -> None:
    """As wide as the normal approximation over prompts; pairs of one prompt are no further evidence."""
    of_prompts = torch.randn(300, generator=torch.Generator().manual_seed(0)).double()
    values, prompts = of_prompts.repeat_interleave(4), torch.arange(300).repeat_interleave(4)
    told = spread(values, prompts)
    half = Z * float(of_prompts.std()) / math.sqrt(300)
    assert told.mean == pytest.approx(float(of_prompts.mean()))
    assert (told.high - told.low) / 2 == pytest.approx(half, rel=0.12)


def test_bootstrap_intervals_of_rank_correlations_are_95_percent() -> None:
    """Fisher: atanh of a correlation of n pairs varies by about 1 / sqrt(n - 3), by a little more of ranks."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(200, generator=g)
    y = 0.5 * x + torch.randn(200, generator=g)
    nothing = dict.fromkeys((field.name for field in fields(Effect)), 0.0)
    plain = nothing | {"side": "dest", "mode": "exact", "together": False, "channels": 1}
    own = [Effect(**plain | {"prompt": i, "weight": float(x[i]), "answer": float(y[i])}) for i in range(200)]  # type: ignore[arg-type]
    rho, low, high = rank_correlation(own, lambda e: e.weight, lambda e: e.answer)
    half = (math.atanh(high) - math.atanh(low)) / 2
    assert low < rho < high and half == pytest.approx(Z * math.sqrt(1.06 / 197), rel=0.2)
