"""When does a toy count as aligned, and how many seeds must be for a claim to hold? The thresholds of all figures."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from jaxtyping import Bool
from torch import Tensor

from keyhole.lab.svf.alignment import Matching
from keyhole.stats import wilson
from keyhole_papers.results import Verdict

ALIGNED = 0.95  # |cos| from which a feature counts as a singular vector
SHARP = 0.998  # and from which it is one but for the noise of training
MOST, HALF = 0.9, 0.5  # shares of seeds, or of settings, that a claim needs

SEEDS_NOTE = "Brackets: smallest and largest of the seeds, or 95 % intervals of shares (Wilson)."


def worst(matched: Matching) -> float:
    """The smallest |cos| of any pair with the singular vector matched with it; 0 if it has none or is shunned."""
    cosine = matched.worst
    return cosine if math.isfinite(cosine) and bool((matched.sign == 1).all()) else 0.0


def share(flags: Sequence[bool]) -> float:
    """How many are true?

    >>> share([True, False])
    0.5
    """
    return wilson(sum(flags), len(flags))[0]


def are_aligned(cosines: Sequence[float]) -> list[bool]:
    """Which of these count as aligned?"""
    return [one >= ALIGNED for one in cosines]


def counted(flags: Sequence[bool]) -> str:
    """A share as text.

    >>> counted([True, False])
    '1 of 2 [0.09, 0.91]'
    """
    _, low, high = wilson(sum(flags), len(flags))
    return f"{sum(flags)} of {len(flags)} [{low:.2f}, {high:.2f}]"


def graded(shares: Sequence[float]) -> Verdict:
    """Reproduced if every share reaches MOST; partly if half of them do, or all reach HALF."""
    good = sum(one >= MOST for one in shares) / len(shares)
    if good == 1:
        return "reproduced"
    return "partly" if good >= HALF or min(shares) >= HALF else "not"


def by_field(rows: Sequence[Any], *left_out: str) -> dict[str, list[float]]:
    """The numbers of dataclasses of one kind, each over all of them."""
    names = [field.name for field in fields(rows[0]) if field.name not in left_out]
    return {name: [float(getattr(row, name)) for row in rows] for name in names}


def settled(holds: Bool[Tensor, "*batch step"]) -> Tensor:
    """From which snapshot on does it always hold? Its index, or the number of snapshots if never.

    >>> import torch
    >>> settled(torch.tensor([[True, False, True, True], [True, True, True, False]])).tolist()
    [2, 4]
    """
    held = holds.flip(-1).int().cumprod(-1).sum(-1)
    return holds.shape[-1] - held
