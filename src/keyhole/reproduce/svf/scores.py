"""When does a toy count as aligned, and how many seeds must be for a claim to hold? The thresholds of all figures."""

import math
from collections.abc import Sequence

from jaxtyping import Bool
from torch import Tensor

from keyhole.lab.svf.alignment import Alignment, Matching, alignment
from keyhole.lab.svf.toy import SVF
from keyhole.reproduce.outcome import Verdict
from keyhole.stats import wilson

ALIGNED = 0.95  # |cos| from which a feature counts as a singular vector
SHARP = 0.998  # and from which it is one but for the noise of training
MOST, HALF = 0.9, 0.5  # shares of seeds, or of settings, that a claim needs

SEEDS_NOTE = "Brackets: smallest and largest of the seeds, or 95 % intervals of shares (Wilson)."


def worst(found: Alignment) -> float:
    """The smallest |cos| of any pair with its own singular vector; 0 if one has none or is shunned."""
    return _worst(found.by_assignment)


def worst_by_rank(found: Alignment) -> float:
    """The same with the k-th pair on the k-th singular vector, as the paper matches them."""
    return _worst(found.by_rank)


def _worst(matched: Matching) -> float:
    cosine = matched.worst
    return cosine if math.isfinite(cosine) and bool((matched.sign == 1).all()) else 0.0


def worsts(models: Sequence[SVF]) -> list[float]:
    """The smallest |cos| of every model."""
    return [worst(alignment(model)) for model in models]


def share(flags: Sequence[bool]) -> tuple[float, float, float]:
    """How many are true? Their share with Wilson's 95 % interval.

    >>> [round(x, 2) for x in share([True] * 10)]
    [1.0, 0.72, 1.0]
    """
    return wilson(sum(flags), len(flags))


def counted(flags: Sequence[bool]) -> str:
    """A share as text.

    >>> counted([True, False])
    '1 of 2 [0.09, 0.91]'
    """
    _, low, high = share(flags)
    return f"{sum(flags)} of {len(flags)} [{low:.2f}, {high:.2f}]"


def graded(shares: Sequence[float]) -> Verdict:
    """Reproduced if every share reaches MOST; partly if half of them do, or all reach HALF."""
    good = sum(one >= MOST for one in shares) / len(shares)
    if good == 1:
        return "reproduced"
    return "partly" if good >= HALF or min(shares) >= HALF else "not"


def settled(holds: Bool[Tensor, "*batch step"]) -> Tensor:
    """From which snapshot on does it always hold? Its index, or the number of snapshots if never.

    >>> import torch
    >>> settled(torch.tensor([[True, False, True, True], [True, True, True, False]])).tolist()
    [2, 4]
    """
    held = holds.flip(-1).int().cumprod(-1).sum(-1)
    return holds.shape[-1] - held
