"""Which of the kept examples are shown? With a second pass over the kept texts, for pairs of the same tokens."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt64

from keyhole.models.model import Model
from keyhole.models.stacks import Seen, visit
from keyhole.models.tokens import Encoded, token_texts
from keyhole.naming.corpus.corpus import Ids
from keyhole.naming.corpus.layer import Readers, visible
from keyhole.naming.corpus.state import NEVER, Kept, State, mixed, salt
from keyhole.naming.subjects.subject import Examples, Pick, Shown, Subject

BATCH = 64  # texts
_SAME = salt("same pair")


@dataclass(frozen=True)
class Pairs:
    """Pairs of tokens, each for one subject."""

    subject: Int[np.ndarray, "pairs"]
    chunk: Int[np.ndarray, "pairs"]
    dest: Int[np.ndarray, "pairs"]
    src: Int[np.ndarray, "pairs"]

    def some(self, which: np.ndarray) -> "Pairs":
        """The pairs at these indices."""
        return Pairs(self.subject[which], self.chunk[which], self.dest[which], self.src[which])


@dataclass(frozen=True)
class PairValues:
    """The value of each pair, and the attention of the subject's head there."""

    value: Float[np.ndarray, "pairs"]  # infinite where dest cannot see src, so that the pair is never picked
    attention: Float[np.ndarray, "pairs"]


def values_at(model: Model, readers: Mapping[int, Readers], texts: Mapping[int, Ids], pairs: Pairs) -> PairValues:
    """The values of some pairs; their texts are run again."""
    values = PairValues(np.zeros(len(pairs.chunk), np.float32), np.zeros(len(pairs.chunk), np.float32))
    lengths: dict[int, list[int]] = {}
    for chunk in np.unique(pairs.chunk).tolist():
        lengths.setdefault(len(texts[chunk]), []).append(
            chunk
        )  # only equal lengths together, since RoPE may depend on the length
    for same in lengths.values():
        for start in range(0, len(same), BATCH):
            batch = same[start : start + BATCH]
            places = np.isin(pairs.chunk, batch).nonzero()[0]
            visitor = _Visitor(readers, pairs.some(places), np.array(batch), places, values)
            visit(model, [Encoded(texts[chunk], (), False) for chunk in batch], visitor.see)
    return values


@dataclass(frozen=True)
class _Visitor:
    readers: Mapping[int, Readers]
    pairs: Pairs
    batch: Int[np.ndarray, "batch"]
    places: Int[np.ndarray, "pairs"]
    values: PairValues = field(repr=False)

    def see(self, layer: int, stack: Seen) -> None:
        if layer not in self.readers:
            return
        reader_of_layer = self.readers[layer]
        here = np.isin(self.pairs.subject, reader_of_layer.numbers).nonzero()[0]
        if not len(here):
            return
        some, order = self.pairs.some(here), np.argsort(reader_of_layer.numbers)
        reader = order[np.searchsorted(reader_of_layer.numbers, some.subject, sorter=order)]
        text = np.searchsorted(self.batch, some.chunk)
        columns = (torch.from_numpy(x.astype(np.int64)).to(stack.q.device) for x in (text, some.dest, some.src, reader))
        at, dest, src, who = columns
        ask, offer = reader_of_layer.read(stack)
        value = ask[at, dest, who].relu() * offer[at, src, who].relu()
        value = value.masked_fill(~visible(stack)[dest, src], torch.inf)
        self.values.value[self.places[here]] = value.float().cpu().numpy()
        weights = reader_of_layer.weights(stack)[at, reader_of_layer.of_head[who], dest, src]
        self.values.attention[self.places[here]] = weights.float().cpu().numpy()


def same_tokens(
    wanted: Mapping[int, Sequence[tuple[int, int]]],
    texts: Mapping[int, Ids],
    salts: UInt64[np.ndarray, "subjects"],
    most: int,
) -> Pairs:
    """Places of given pairs of tokens in the texts, at most `most` for each subject, drawn at random.

    `wanted`: for each subject, the token ids at dest and at src.
    """
    places = _all_pairs(texts)
    order = np.argsort(places[:, 0], kind="stable")
    codes, tables = places[order, 0], []
    for subject, tokens in wanted.items():
        sought = np.array(sorted({_code(dest, src) for dest, src in tokens}), np.int64)
        starts, ends = np.searchsorted(codes, sought), np.searchsorted(codes, sought, side="right")
        rows = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)] or [np.zeros(0, np.int64)])
        rows = order[rows.astype(np.int64)]
        drawn = mixed(rows.astype(np.uint64) ^ salts[subject] ^ _SAME)
        rows = rows[np.argsort(drawn, kind="stable")[:most]]
        tables.append(np.column_stack([np.full(len(rows), subject), places[rows, 1:]]))
    every = np.concatenate(tables) if tables else np.zeros((0, 4), np.int64)
    return Pairs(*every.T.copy())


def _all_pairs(texts: Mapping[int, Ids]) -> Int[np.ndarray, "pairs 4"]:
    """(code of the two tokens, chunk, dest, src) of every causal pair of positions."""
    tables = []
    for chunk, ids in sorted(texts.items()):
        dest, src = np.tril_indices(len(ids))
        tokens = np.array(ids, np.int64)
        tables.append(np.column_stack([_code(tokens[dest], tokens[src]), np.full(len(dest), chunk), dest, src]))
    return np.concatenate(tables) if tables else np.zeros((0, 4), np.int64)


def _code(dest: "int | np.ndarray", src: "int | np.ndarray") -> "int | np.ndarray":
    return dest << 32 | src


# Which of the kept pairs are shown?
#
# A pair does not fire if its value is at most a tenth of the smallest top value, and at most the median positive value.
# Deciles are those of a sample: with 400 positive pairs (the default) a boundary is within 5 % of its rank, 19 times in
# 20. No example is shown twice: neither a pair nor the same text up to dest with the same src.

QUIET = 0.1  # of the smallest top value
_TRIED = 4  # places of the same tokens that are evaluated, for each one that is shown


@dataclass(frozen=True)
class Row:
    """One pair of a table."""

    chunk: int
    dest: int
    src: int
    value: float
    attention: float


@dataclass(eq=False)
class Showing:
    """Examples of one subject as they are picked."""

    texts: Mapping[int, Ids]
    words: "Words"
    shown: list[Shown] = field(default_factory=list)
    used: set[tuple[Ids, int]] = field(default_factory=set)

    def add(self, row: Row, pick: Pick, decile: int | None = None) -> bool:
        """Show this pair, unless it is already shown; returns whether it was added."""
        ids = self.texts[row.chunk]
        key = ids[: row.dest + 1], row.src
        if key in self.used:
            return False
        self.used.add(key)
        words = self.words.of(row.chunk, ids)
        self.shown.append(Shown(row.chunk, words, row.dest, row.src, row.value, row.attention, pick, decile))
        return True

    def fill(self, rows: Iterable[Row], pick: Pick, most: int, decile: int | None = None) -> None:
        """Show the first pairs that are new, at most `most`."""
        for row in rows:
            if most <= 0:
                return
            most -= self.add(row, pick, decile)


@dataclass(eq=False)
class Words:
    """The tokens of texts; each text and each token is decoded once."""

    tokenizer: Any
    _token: dict[int, str] = field(default_factory=dict)
    _text: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def of(self, chunk: int, ids: Ids) -> tuple[str, ...]:
        """The tokens of a text."""
        if chunk not in self._text:
            new = [i for i in set(ids) if i not in self._token]
            self._token |= zip(new, token_texts(self.tokenizer, new), strict=True)
            self._text[chunk] = tuple(self._token[i] for i in ids)
        return self._text[chunk]


def picked(model: Model, subjects: Sequence[Subject], readers: Mapping[int, Readers], state: State) -> list[Examples]:
    """The examples of every subject."""
    state.let_go()
    top = [list(rows_of(state.top, number)) for number in range(len(subjects))]
    same = _same_pairs(model, readers, state, top)
    words, every, amounts = Words(model.tokenizer), [], state.amounts
    for number, subject in enumerate(subjects):
        showing = Showing(state.texts, words)
        quiet = _quiet(state.top, state.positive, number)
        showing.fill(top[number], "top", amounts.top)
        for decile, which in enumerate(_deciles(state.positive, number)):
            showing.fill(rows_of(state.positive, number, which), "decile", amounts.per_decile, decile)
        showing.fill([row for row in same[number] if row.value <= quiet], "same pair", amounts.hard)
        showing.fill(
            rows_of(state.attended, number, _below(state.attended, number, quiet)), "other channels", amounts.hard
        )
        showing.fill(_wrong(state.top, number, quiet), "wrong src", amounts.hard)
        showing.fill(rows_of(state.random, number), "random", amounts.random)
        share = float(state.positives[number] / max(state.pairs[number], 1))
        every.append(Examples(subject, tuple(showing.shown), state.chunks, state.tokens, share))
    return every


def _count(kept: Kept, number: int) -> int:
    return int((kept.key[number] != NEVER).sum())


def rows_of(kept: Kept, number: int, which: np.ndarray | None = None) -> Iterator[Row]:
    """The pairs that a table has of a subject, or those at the indices `which`; smallest keys first."""
    at = np.arange(_count(kept, number)) if which is None else which
    columns = (kept.columns[name][number, at].tolist() for name in ("chunk", "dest", "src", "value", "attention"))
    return (Row(*row) for row in zip(*columns, strict=True))


def _below(kept: Kept, number: int, quiet: float) -> np.ndarray:
    return np.flatnonzero(kept.columns["value"][number, : _count(kept, number)] <= quiet)


def _quiet(top: Kept, positive: Kept, number: int) -> float:
    """Up to this value a pair does not fire. Without any positive pair it is 0."""
    best, sample = (table.columns["value"][number, : _count(table, number)] for table in (top, positive))
    bounds = [QUIET * float(best.min())] if len(best) else []
    return min([*bounds, float(np.median(sample))] if len(sample) else bounds, default=0.0)


def _deciles(positive: Kept, number: int) -> list[np.ndarray]:
    """The indices of the sample in tenths, smallest values first; within a tenth in the order of the draw."""
    n = _count(positive, number)
    rank = np.argsort(np.argsort(positive.columns["value"][number, :n], kind="stable"), kind="stable")
    return [np.flatnonzero(rank * 10 // max(n, 1) == decile) for decile in range(10)]


def _wrong(kept: Kept, number: int, quiet: float) -> list[Row]:
    """Top dests with other srcs where nothing fires: one src of every dest before the second of any."""
    n = _count(kept, number)
    others, values, attention = (
        kept.columns[name][number, :n].T for name in ("others", "other_values", "other_attention")
    )
    turn, row = ((others >= 0) & (values <= quiet)).nonzero()
    chunk, dest = (kept.columns[name][number, row].tolist() for name in ("chunk", "dest"))
    columns = (x[turn, row].tolist() for x in (others, values, attention))
    return [Row(*row) for row in zip(chunk, dest, *columns, strict=True)]


def _same_pairs(
    model: Model, readers: Mapping[int, Readers], state: State, top: Sequence[Sequence[Row]]
) -> list[list[Row]]:
    """For every subject, places in the pool with the same two tokens as one of its top pairs."""
    rows_of_subject: list[list[Row]] = [[] for _ in top]
    if not state.amounts.hard:
        return rows_of_subject
    wanted = {
        number: [(state.texts[row.chunk][row.dest], state.texts[row.chunk][row.src]) for row in rows]
        for number, rows in enumerate(top)
        if rows
    }
    pool = {chunk: state.texts[chunk] for _, chunk in state.pool}
    pairs = same_tokens(wanted, pool, state.salts, _TRIED * state.amounts.hard)
    looked = values_at(model, readers, state.texts, pairs)
    for row in _as_rows(pairs, looked):
        rows_of_subject[row[0]].append(row[1])
    return rows_of_subject


def _as_rows(pairs: Pairs, looked: PairValues) -> Iterator[tuple[int, Row]]:
    columns = (pairs.chunk, pairs.dest, pairs.src, looked.value, looked.attention)
    for subject, *row in zip(pairs.subject.tolist(), *(column.tolist() for column in columns), strict=True):
        yield subject, Row(*row)
