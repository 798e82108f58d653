"""What is known while a corpus goes by, and how does a pass go on where it was stopped?

What is known of all subjects while a corpus goes by? Four tables, two counts, and the texts that they speak of.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int, UInt64
from torch import Tensor

from keyhole.errors import KeyholeError
from keyhole.files import write_at_once
from keyhole.models.model import Model
from keyhole.naming.corpus.corpus import Ids
from keyhole.naming.corpus.kept import NEVER, ROW, Kept, mixed, salt, uniform
from keyhole.naming.subjects.subject import Subject

OTHERS = 4  # other srcs that are looked at beside a top pair
POOL = 2048  # texts that are looked at a second time
_SPARE = 10  # times as many positive and attended pairs are kept as are shown: shares of them are then told well
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
                raise KeyholeError(f"{getattr(self, name)} examples ({name}) were asked for: give 0 or more.")


@dataclass(frozen=True)
class Batch:
    """Texts that are read together."""

    numbers: Int[np.ndarray, "batch"]  # in the corpus
    ids: tuple[Ids, ...]
    lengths: Int[Tensor, "batch"]
    prefixes: UInt64[np.ndarray, "batch pos"]  # a number for each text up to each of its tokens

    @property
    def tokens(self) -> int:
        """In all texts."""
        return sum(map(len, self.ids))


@dataclass(eq=False)
class State:
    """All that a pass keeps."""

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
    corpus: str = ""  # stands for everything that was read so far
    texts: dict[int, Ids] = field(default_factory=dict)
    pool: list[tuple[int, int]] = field(default_factory=list)  # (key, chunk), smallest first
    _room: int = _FEW_TEXTS

    @classmethod
    def empty(cls, subjects: Sequence[Subject], amounts: Amounts, seed: int) -> "State":
        """Nothing read yet."""
        n = len(subjects)
        beside = {"text": np.uint64, "others": (np.int16, OTHERS)}
        beside |= {"other_values": (np.float32, OTHERS), "other_attention": (np.float32, OTHERS)}
        return cls(
            amounts,
            seed,
            np.array([salt(seed, one.id) for one in subjects], np.uint64),
            Kept.empty(n, amounts.top, ROW | beside),
            Kept.empty(n, _SPARE * 10 * amounts.per_decile, ROW),
            Kept.empty(n, amounts.random, ROW),
            Kept.empty(n, _SPARE * amounts.hard, ROW),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
        )

    @property
    def tables(self) -> dict[str, Kept]:
        """By name."""
        return {"top": self.top, "positive": self.positive, "random": self.random, "attended": self.attended}

    def start(self, ids: Sequence[Ids]) -> Batch:
        """The next texts, numbered."""
        return batch_of(np.arange(self.chunks, self.chunks + len(ids)), ids)

    def finish(self, batch: Batch) -> None:
        """Count what was read, and let go of texts that no table speaks of."""
        self.chunks += len(batch.ids)
        self.tokens += batch.tokens
        self.corpus = told(self.corpus, batch.ids)
        self.texts.update(zip(batch.numbers.tolist(), batch.ids, strict=True))
        if self.amounts.hard:
            keys = mixed(batch.numbers.astype(np.uint64)) ^ salt(self.seed, "pool")
            new = zip((uniform(keys) * 2**52).astype(np.int64).tolist(), batch.numbers.tolist(), strict=True)
            self.pool = sorted([*self.pool, *new])[:POOL]
        if len(self.texts) > self._room:
            self.let_go()
            self._room = max(_FEW_TEXTS, 2 * len(self.texts))

    def let_go(self) -> None:
        """Keep only texts that are in a table or in the pool."""
        used = {chunk for _, chunk in self.pool}
        for table in self.tables.values():
            table.settle()
            used |= set(np.unique(table.columns["chunk"][table.key != NEVER]).tolist())
        self.texts = {chunk: ids for chunk, ids in self.texts.items() if chunk in used}


def batch_of(numbers: Int[np.ndarray, "batch"], ids: Sequence[Ids]) -> Batch:
    """Texts with their numbers, made ready to be read together."""
    if len(numbers) and numbers[-1] >= 1 << _CHUNK:
        raise KeyholeError("a corpus is read up to two billion chunks: ask for fewer tokens.")
    padded = np.zeros((len(ids), max(map(len, ids))), np.uint64)
    for row, one in enumerate(ids):
        padded[row, : len(one)] = np.array(one, np.uint64) + np.uint64(1)
    prefixes = np.zeros_like(padded)
    so_far = np.zeros(len(ids), np.uint64)
    for t in range(padded.shape[1]):
        prefixes[:, t] = so_far = mixed(so_far ^ padded[:, t])
    return Batch(numbers, tuple(ids), torch.tensor([len(one) for one in ids]), prefixes)


def told(before: str, ids: Sequence[Ids]) -> str:
    """A number that stands for these texts after what was read before; the same however they are read together."""
    for one in ids:
        before = hashlib.sha256(f"{before}{one}".encode()).hexdigest()[:32]
    return before


def rounded(values: Float32[Tensor, "*any"]) -> Int[Tensor, "*any"]:
    """Values that are not negative as whole numbers in their order, to one part in 8192.

    Values that differ by less are equal: else rounding, which depends on what is read together, would order them.
    """
    return (values.contiguous().view(torch.int32) + 512) >> 10


def top_keys(
    value: Int[np.ndarray, "*any"], chunk: Int[np.ndarray, "*#any"], dest: Int[np.ndarray, "*any"] | int
) -> UInt64[np.ndarray, "*any"]:
    """Keys in the order of the largest rounded values, then of texts and dests."""
    last = np.asarray((1 << _BITS) - 1 - value, np.uint64) << np.uint64(_CHUNK + _DEST)
    return np.asarray(last | np.asarray(chunk, np.uint64) << np.uint64(_DEST) | np.asarray(dest, np.uint64))


# How does a pass go on where it was stopped? Its state in one file, written now and then, and read strictly.

NAME = "examples.npz"
_SCHEMA = 1


def about(model: Model, subjects: Sequence[Subject], amounts: Amounts, *, length: int, seed: int) -> dict[str, Any]:
    """What a pass is of; two that differ in anything here have nothing to do with one another."""
    directions = [(one.id, one.head, one.query.tolist(), one.key.tolist()) for one in subjects]
    offsets = [(one.query_offset, one.key_offset) for one in subjects]
    return {
        "schema": _SCHEMA,
        "model": f"{model.name} {model.fingerprint()[:16]}",
        "subjects": f"{len(subjects)} ({int(salt(directions, offsets)):016x})",
        **{name: getattr(amounts, name) for name in ("top", "per_decile", "random", "hard")},
        "length": length,
        "seed": seed,
    }


def save(state: State, what: dict[str, Any], folder: Path) -> None:
    """Write everything, at once."""
    state.let_go()
    arrays = {"positives": state.positives, "pairs": state.pairs}
    for name, table in state.tables.items():
        arrays |= {f"{name}.key": table.key, **{f"{name}.{column}": x for column, x in table.columns.items()}}
    chunks = sorted(state.texts)
    arrays["texts"] = np.array([i for chunk in chunks for i in state.texts[chunk]], np.int64)
    arrays["text_lengths"] = np.array([len(state.texts[chunk]) for chunk in chunks], np.int64)
    arrays["text_numbers"] = np.array(chunks, np.int64)
    arrays["pool"] = np.array(state.pool, np.int64).reshape(-1, 2)
    far = {"chunks": state.chunks, "tokens": state.tokens, "corpus": state.corpus}
    arrays["about"] = np.frombuffer(json.dumps({"what": what, "far": far}).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    write_at_once(folder / NAME, out.getvalue())


def restore(state: State, what: dict[str, Any], folder: Path) -> bool:
    """Fill an empty state from a folder, if there is one; that of something else is refused, each difference named."""
    path = folder / NAME
    if not path.exists():
        return False
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        record = json.loads(arrays["about"].tobytes())
        there, far = record["what"], record["far"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise KeyholeError(
            f"{path} is damaged and cannot be gone on with ({error}): delete it, or give another folder."
        ) from error
    differ = [
        f"{name} was {there.get(name)!r}, now {what.get(name)!r}" for name in what if there.get(name) != what[name]
    ]
    if differ:
        raise KeyholeError(f"{folder} has examples of something else: {'; '.join(differ)}. Give another folder.")
    _fill(state, arrays, path)
    state.chunks, state.tokens, state.corpus = int(far["chunks"]), int(far["tokens"]), str(far["corpus"])
    return True


def _fill(state: State, arrays: dict[str, np.ndarray], path: Path) -> None:
    empty = {"positives": state.positives, "pairs": state.pairs}
    for name, table in state.tables.items():
        empty |= {f"{name}.key": table.key, **{f"{name}.{column}": x for column, x in table.columns.items()}}
    for name, x in empty.items():
        if name not in arrays or arrays[name].shape != x.shape or arrays[name].dtype != x.dtype:
            raise KeyholeError(
                f"{path} is damaged: {name} is not as it was written. Delete it, or give another folder."
            )
        x[...] = arrays[name]
    ends = np.cumsum(arrays["text_lengths"])
    texts = np.split(arrays["texts"], ends[:-1]) if len(ends) else []
    state.texts = {int(n): tuple(ids.tolist()) for n, ids in zip(arrays["text_numbers"], texts, strict=True)}
    state.pool = [(int(key), int(chunk)) for key, chunk in arrays["pool"]]


def skipped(chunks: Iterator[Ids], state: State, folder: Path) -> Iterator[Ids]:
    """The chunks that were not read yet, once those that were turn out to be the same."""
    so_far = ""
    for number in range(state.chunks):
        ids = next(chunks, None)
        if ids is None:
            raise KeyholeError(
                f"{folder} has examples of another corpus: it had {state.chunks} chunks so far, this one has {number}. "
                "Give another folder."
            )
        so_far = told(so_far, [ids])
    if so_far != state.corpus:
        raise KeyholeError(
            f"{folder} has examples of another corpus: its first {state.chunks} chunks are not those of this one. Give "
            "another folder."
        )
    return chunks
