"""What is kept of a stream? Drawn by numbers of their own, the same whatever is read together.

How is something drawn from a stream, the same whatever is read together? By numbers made of what they are for.

Of every text each subject has one ticket: an exponential time whose rate is the number of its pairs that may be drawn.
The texts with the earliest times are kept, so each pair is as likely as another, but for one thing: no text gives two.
"""

import hashlib
from dataclasses import dataclass, field
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


# What is kept of a stream? For every subject the rows with the smallest keys, whatever order they come in.
#
# Rows wait until there are many, since sorting a few is as dear as sorting many. The last key that is kept, by which
# rows are turned away before they are made, may therefore be an old one: then too many come, and never too few.

Columns = dict[str, np.ndarray]
ROW = {"chunk": np.int32, "dest": np.int16, "src": np.int16, "value": np.float32, "attention": np.float32}
_WAITING = 16  # rows per subject, on average, that are sorted together


@dataclass(eq=False)
class Kept:
    """At most `most` rows for each of some subjects; a row is new only if its `text` is, where it has one."""

    most: int
    key: UInt64[np.ndarray, "subjects most"]
    columns: Columns  # [subjects, most, ...]
    _waiting: list[tuple[np.ndarray, np.ndarray, Columns]] = field(default_factory=list, repr=False)
    _size: int = field(default=0, repr=False)

    @classmethod
    def empty(cls, subjects: int, most: int, columns: dict[str, Any]) -> "Kept":
        """Nothing yet; `columns`: a type each, or a type and how many of them a row has."""
        made = {}
        for name, kind in columns.items():
            dtype, *more = kind if isinstance(kind, tuple) else (kind,)
            made[name] = np.zeros((subjects, most, *more), dtype)
        return cls(most, np.full((subjects, most), NEVER), made)

    def worst(self, subjects: Int[np.ndarray, "some"]) -> UInt64[np.ndarray, "some"]:
        """Keys from this one on are not kept."""
        if not self.most:
            return np.zeros(len(subjects), np.uint64)
        return np.asarray(self.key[subjects, -1])

    def add(self, subject: Int[np.ndarray, "rows"], key: UInt64[np.ndarray, "rows"], columns: Columns) -> None:
        """Offer rows; they are sorted in when enough have come."""
        if len(subject) and self.most:
            self._waiting.append((subject, key, columns))
            self._size += len(subject)
            if self._size >= _WAITING * len(self.key):
                self.settle()

    def settle(self) -> None:
        """Sort in what waits."""
        if not self._waiting:
            return
        subjects, keys, parts = zip(*self._waiting, strict=True)
        self._waiting, self._size = [], 0
        subject, key = np.concatenate(subjects), np.concatenate(keys)
        new = {name: np.concatenate([part[name] for part in parts]) for name in self.columns}
        touched, group = np.unique(subject, return_inverse=True)
        order = np.argsort(group, kind="stable")
        counts = np.bincount(group)
        slot = np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts)
        at = (group[order], self.most + slot)
        wide = np.full((len(touched), self.most + counts.max()), NEVER)
        wide[:, : self.most], wide[at] = self.key[touched], key[order]
        joined = {}
        for name, column in self.columns.items():
            joined[name] = np.zeros((*wide.shape, *column.shape[2:]), column.dtype)
            joined[name][:, : self.most], joined[name][at] = column[touched], new[name][order]
        if "text" in joined:
            _drop_doubles(wide, joined["text"], joined["src"])
        best = np.argsort(wide, axis=1, kind="stable")[:, : self.most]
        self.key[touched] = np.take_along_axis(wide, best, 1)
        for name, column in self.columns.items():
            column[touched] = joined[name][np.arange(len(touched))[:, None], best]


def _drop_doubles(key: np.ndarray, text: np.ndarray, src: np.ndarray) -> None:
    """Of rows with the same text up to dest and the same src, only the first key stays."""
    same = mixed(text ^ mixed(src.astype(np.uint64)))
    order = np.lexsort((key, same), axis=1)
    same, sorted_key = np.take_along_axis(same, order, 1), np.take_along_axis(key, order, 1)
    double = np.zeros(key.shape, bool)
    double[:, 1:] = (same[:, 1:] == same[:, :-1]) & (sorted_key[:, 1:] != NEVER)
    rows, places = double.nonzero()
    key[rows, order[rows, places]] = NEVER
