"""How is something drawn from a stream, the same whatever is read together? By numbers made of what they are for.

Of every text each subject has one ticket: an exponential time whose rate is the number of its pairs that may be drawn.
The texts with the earliest times are kept, so each pair is as likely as another, but for one thing: no text gives two.
"""

import hashlib
from typing import Any

import numpy as np
import torch  # noqa: F401 - of the doctest
from jaxtyping import Float, Int, UInt64
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


def nth(counts: Int[Tensor, "rows pos"], n: Int[Tensor, "rows"]) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
    """At which place does the n-th thing stand, where each place has so many; and the how-manieth is it there?

    >>> nth(torch.tensor([[1, 0, 2]]), torch.tensor([2]))
    (tensor([2]), tensor([1]))
    """
    ends = counts.cumsum(-1)
    place = (ends <= n[:, None]).sum(-1)
    return place, n - (ends - counts).gather(1, place[:, None])[:, 0]
