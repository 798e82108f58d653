"""How is something drawn from a stream, the same whatever is read together? By numbers made of what they are for.

Of every text each subject has one ticket: an exponential time whose rate is the number of its pairs that may be drawn.
The texts with the earliest times are kept, so each pair is as likely as another, but for one thing: no text gives two.
"""

import hashlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt64
from torch import Tensor

NEVER = np.uint64(np.iinfo(np.uint64).max)
_GOLDEN, _ONE, _TWO = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def salt(*parts: Any) -> np.uint64:
    """A number that stands for all of these, and for nothing else."""
    return np.uint64(int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little"))


def mixed(x: UInt64[np.ndarray, "*any"]) -> UInt64[np.ndarray, "*any"]:
    """Well-stirred bits of every number (splitmix64)."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _ONE
        x = (x ^ (x >> np.uint64(27))) * _TWO
        return np.asarray(x ^ (x >> np.uint64(31)))


def uniform(x: UInt64[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """A number between 0 and 1, neither of them, for each of these."""
    return ((mixed(x) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def tickets(
    salts: UInt64[np.ndarray, "readers"], chunks: Int[np.ndarray, "batch"], counts: Int[np.ndarray, "batch readers"]
) -> UInt64[np.ndarray, "batch readers"]:
    """When is each subject's turn in each text? Earlier where it has more pairs there, and never where it has none."""
    u = uniform(mixed(chunks.astype(np.uint64))[:, None] ^ salts)
    with np.errstate(divide="ignore"):
        times = -np.log(u) / counts
    return np.where(counts > 0, times.view(np.uint64), NEVER)  # of positive floats, bits are in their order


def which(salts: UInt64[np.ndarray, "rows"], chunks: Int[np.ndarray, "rows"], n: Int[np.ndarray, "rows"]) -> Any:
    """One of n things, for each subject and text."""
    drawn = uniform(mixed(chunks.astype(np.uint64) ^ _ONE) ^ salts)
    return np.minimum((drawn * n).astype(np.int64), n - 1)


def nth_true(
    mask: Bool[Tensor, "rows pos pos"], n: Int[Tensor, "rows"]
) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
    """Where is the n-th true pair of each table, row by row? As (dest, src).

    >>> nth_true(torch.tensor([[[True, False], [True, True]]]), torch.tensor([2]))
    (tensor([1]), tensor([1]))
    """
    rows, ends = torch.arange(len(mask), device=mask.device), mask.sum(-1).cumsum(-1)
    dest = (ends <= n[:, None]).sum(-1)
    before = torch.where(dest > 0, ends[rows, (dest - 1).clamp_min(0)], 0)
    return dest, (mask[rows, dest].cumsum(-1) <= (n - before)[:, None]).sum(-1)
