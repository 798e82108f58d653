"""What does a pass over a corpus keep? Tables of pairs, drawn in the same way whatever is read together.

Random draws are numbers computed from what they are for, so they do not depend on batches. In every text each subject
has one ticket: an exponential time whose rate is the number of its pairs that may be drawn. The texts with the earliest
times are kept, so every pair is equally likely, except that no text gives two.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, UInt64
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.naming.corpus.corpus import Ids
from keyhole.naming.subjects.subject import Subject

NEVER = np.uint64(np.iinfo(np.uint64).max)
_GOLDEN, _ONE, _TWO = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def salt(*parts: Any) -> np.uint64:
    """A number made of these values; other values give another number."""
    return np.uint64(int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "little"))


def mixed(x: UInt64[np.ndarray, "*any"]) -> UInt64[np.ndarray, "*any"]:
    """Every number hashed to 64 random-looking bits (splitmix64)."""
    with np.errstate(over="ignore"):
        x = x + _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _ONE
        x = (x ^ (x >> np.uint64(27))) * _TWO
        return np.asarray(x ^ (x >> np.uint64(31)))


def uniform(x: UInt64[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """For each number another one between 0 and 1, both excluded."""
    return ((mixed(x) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52


def tickets(
    salts: UInt64[np.ndarray, "readers"], chunks: Int[np.ndarray, "batch"], counts: Int[np.ndarray, "batch readers"]
) -> UInt64[np.ndarray, "batch readers"]:
    """The ticket of each subject in each text: earlier where it has more pairs, and never where it has none."""
    u = uniform(mixed(chunks.astype(np.uint64))[:, None] ^ salts)
    with np.errstate(divide="ignore"):
        times = -np.log(u) / counts
    return np.where(counts > 0, times.view(np.uint64), NEVER)  # the bits of positive floats are in their order


def which(salts: UInt64[np.ndarray, "rows"], chunks: Int[np.ndarray, "rows"], n: Int[np.ndarray, "rows"]) -> Any:
    """For each subject and text an index below n, drawn uniformly."""
    drawn = uniform(mixed(chunks.astype(np.uint64) ^ _ONE) ^ salts)
    return np.minimum((drawn * n).astype(np.int64), n - 1)


def nth(counts: Int[Tensor, "rows pos"], n: Int[Tensor, "rows"]) -> tuple[Int[Tensor, "rows"], Int[Tensor, "rows"]]:
    """The position of the n-th item where position i holds counts[i] items, and its index there.

    >>> nth(torch.tensor([[1, 0, 2]]), torch.tensor([2]))
    (tensor([2]), tensor([1]))
    """
    ends = counts.cumsum(-1)
    place = (ends <= n[:, None]).sum(-1)
    return place, n - (ends - counts).gather(1, place[:, None])[:, 0]


# Which rows does a table keep? For every subject those with the smallest keys, in whatever order they come.
#
# Rows wait until there are many, since sorting a few is as slow as sorting many. Rows are refused early by the last key
# that is kept. While rows wait this key may be too large, so that too many are accepted, and never too few.

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
        """An empty table; `columns`: a type each, or a type and how many values a row has."""
        tables = {}
        for name, kind in columns.items():
            dtype, *more = kind if isinstance(kind, tuple) else (kind,)
            tables[name] = np.zeros((subjects, most, *more), dtype)
        return cls(most, np.full((subjects, most), NEVER), tables)

    def worst(self, subjects: Int[np.ndarray, "some"]) -> UInt64[np.ndarray, "some"]:
        """The key from which on rows are refused, for each of these subjects."""
        if not self.most:
            return np.zeros(len(subjects), np.uint64)
        return np.asarray(self.key[subjects, -1])

    def add(self, subject: Int[np.ndarray, "rows"], key: UInt64[np.ndarray, "rows"], columns: Columns) -> None:
        """Offer rows; they are sorted in when enough are waiting."""
        if len(subject) and self.most:
            self._waiting.append((subject, key, columns))
            self._size += len(subject)
            if self._size >= _WAITING * len(self.key):
                self.settle()

    def settle(self) -> None:
        """Sort in the rows that wait."""
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


# What is known of all subjects during a pass? Four tables, two counts, and the texts that they refer to.

OTHERS = 4  # other srcs that are evaluated beside a top pair
POOL = 2048  # texts that are run a second time
_SPARE = 10  # positive and attended pairs that are kept for each one that is shown, so that deciles are precise
_FEW_TEXTS = 20_000
_BITS, _CHUNK, _DEST = 21, 31, 12  # of a top row's key: its value, text and dest


@dataclass(frozen=True)
class Amounts:
    """How many examples of each kind; hard negatives: of each of the three kinds."""

    top: int = 40
    per_decile: int = 4
    random: int = 40
    hard: int = 20

    def __post_init__(self) -> None:
        for name in ("top", "per_decile", "random", "hard"):
            if getattr(self, name) < 0:
                raise KeyholeError(f"{name} is {getattr(self, name)} examples: give 0 or more.")


@dataclass(frozen=True)
class Batch:
    """Chunks that are read together."""

    numbers: Int[np.ndarray, "batch"]  # in the corpus
    ids: tuple[Ids, ...]
    lengths: Int[Tensor, "batch"]
    prefixes: UInt64[np.ndarray, "batch pos"]  # a hash of each text up to each of its tokens

    @property
    def tokens(self) -> int:
        """The number of tokens in all chunks."""
        return sum(map(len, self.ids))


@dataclass(eq=False)
class State:
    """What a pass over a corpus keeps."""

    amounts: Amounts
    seed: int
    salts: UInt64[np.ndarray, "subjects"]
    top: Kept
    positive: Kept
    random: Kept
    attended: Kept
    positives: Int[np.ndarray, "subjects"]
    pairs: Int[np.ndarray, "subjects"]  # that were visible
    chunks: int = 0
    tokens: int = 0
    corpus: str = ""  # a hash of everything that was read so far
    texts: dict[int, Ids] = field(default_factory=dict)
    pool: list[tuple[int, int]] = field(default_factory=list)  # (key, chunk), smallest first
    _room: int = _FEW_TEXTS

    @classmethod
    def empty(cls, subjects: Sequence[Subject], amounts: Amounts, seed: int) -> "State":
        """The state before anything is read."""
        n = len(subjects)
        more = {"text": np.uint64, "others": (np.int16, OTHERS)}
        more |= {"other_values": (np.float32, OTHERS), "other_attention": (np.float32, OTHERS)}
        return cls(
            amounts,
            seed,
            np.array([salt(seed, subject.id) for subject in subjects], np.uint64),
            Kept.empty(n, amounts.top, ROW | more),
            Kept.empty(n, _SPARE * 10 * amounts.per_decile, ROW),
            Kept.empty(n, amounts.random, ROW),
            Kept.empty(n, _SPARE * amounts.hard, ROW),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
        )

    @property
    def tables(self) -> dict[str, Kept]:
        """The tables by name."""
        return {"top": self.top, "positive": self.positive, "random": self.random, "attended": self.attended}

    def start(self, ids: Sequence[Ids]) -> Batch:
        """The next chunks as a batch, numbered in the corpus."""
        return batch_of(np.arange(self.chunks, self.chunks + len(ids)), ids)

    def finish(self, batch: Batch) -> None:
        """Count what was read, and drop texts that no table refers to."""
        self.chunks += len(batch.ids)
        self.tokens += batch.tokens
        self.corpus = digest_after(self.corpus, batch.ids)
        self.texts.update(zip(batch.numbers.tolist(), batch.ids, strict=True))
        if self.amounts.hard:
            keys = mixed(batch.numbers.astype(np.uint64)) ^ salt(self.seed, "pool")
            new = zip((uniform(keys) * 2**52).astype(np.int64).tolist(), batch.numbers.tolist(), strict=True)
            self.pool = sorted([*self.pool, *new])[:POOL]
        if len(self.texts) > self._room:
            self.let_go()
            self._room = max(_FEW_TEXTS, 2 * len(self.texts))

    def let_go(self) -> None:
        """Drop texts that are neither in a table nor in the pool."""
        used = {chunk for _, chunk in self.pool}
        for table in self.tables.values():
            table.settle()
            used |= set(np.unique(table.columns["chunk"][table.key != NEVER]).tolist())
        self.texts = {chunk: ids for chunk, ids in self.texts.items() if chunk in used}


def batch_of(numbers: Int[np.ndarray, "batch"], ids: Sequence[Ids]) -> Batch:
    """Chunks with their numbers in the corpus, as a batch."""
    if len(numbers) and numbers[-1] >= 1 << _CHUNK:
        raise KeyholeError("a pass reads at most two billion chunks: give fewer tokens.")
    padded = np.zeros((len(ids), max(map(len, ids))), np.uint64)
    for row, chunk in enumerate(ids):
        padded[row, : len(chunk)] = np.array(chunk, np.uint64) + np.uint64(1)
    prefixes = np.zeros_like(padded)
    so_far = np.zeros(len(ids), np.uint64)
    for t in range(padded.shape[1]):
        prefixes[:, t] = so_far = mixed(so_far ^ padded[:, t])
    return Batch(numbers, tuple(ids), torch.tensor([len(chunk) for chunk in ids]), prefixes)


def digest_after(before: str, ids: Sequence[Ids]) -> str:
    """A hash of these chunks after that of all before; it does not depend on batches."""
    for chunk in ids:
        before = hashlib.sha256(f"{before}{chunk}".encode()).hexdigest()[:32]
    return before


def rounded(values: Float32[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """Values from 0 on as integers in the same order, to one part in 8192.

    Values that differ by less become equal. Otherwise rounding errors, which depend on the batch, would order them.
    """
    return (values.contiguous().view(torch.int32) + 512) >> 10


def top_keys(
    value: Int[np.ndarray, "*any"], chunk: Int[np.ndarray, "*#any"], dest: Int[np.ndarray, "*any"] | int
) -> UInt64[np.ndarray, "*any"]:
    """Keys that sort by the largest rounded values, then by texts and dests."""
    last = np.asarray((1 << _BITS) - 1 - value, np.uint64) << np.uint64(_CHUNK + _DEST)
    return np.asarray(last | np.asarray(chunk, np.uint64) << np.uint64(_DEST) | np.asarray(dest, np.uint64))
