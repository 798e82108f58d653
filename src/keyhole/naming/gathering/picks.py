"""Which examples are shown of what was kept?

A pair does not fire if its value is at most a tenth of the smallest top value, and no more than the median positive
one. Deciles are those of a sample: of 400 positive pairs (with the usual amounts) a boundary stands within 5 % of its
rank, 19 times in 20. No example is shown twice: neither a pair nor the same text up to dest with the same src.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keyhole.models.model import Model
from keyhole.models.prompts import token_texts
from keyhole.naming.gathering.draws import NEVER
from keyhole.naming.gathering.kept import Kept
from keyhole.naming.gathering.readers import Readers
from keyhole.naming.gathering.second import Pairs, Worth, same_tokens, worth
from keyhole.naming.gathering.state import Ids, State
from keyhole.naming.shown import Examples, Pick, Shown
from keyhole.naming.subject import Subject

QUIET = 0.1  # of the smallest top value
_TRIED = 4  # times as many places of the same tokens are looked at as are shown


@dataclass(frozen=True)
class Row:
    """One pair of a table."""

    chunk: int
    dest: int
    src: int
    value: float
    attention: float


@dataclass(eq=False)
class _Showing:
    """Examples of one subject as they are picked."""

    texts: Mapping[int, Ids]
    words: dict[int, tuple[str, ...]]
    tokenizer: Any
    shown: list[Shown] = field(default_factory=list)
    used: set[tuple[Ids, int]] = field(default_factory=set)

    def add(self, row: Row, pick: Pick, decile: int | None = None) -> bool:
        """Show this one, unless it was shown."""
        ids = self.texts[row.chunk]
        what = ids[: row.dest + 1], row.src
        if what in self.used:
            return False
        self.used.add(what)
        if row.chunk not in self.words:
            self.words[row.chunk] = token_texts(self.tokenizer, ids)
        words = self.words[row.chunk]
        self.shown.append(Shown(row.chunk, words, row.dest, row.src, row.value, row.attention, pick, decile))
        return True

    def fill(self, rows: Sequence[Row], pick: Pick, most: int, decile: int | None = None) -> None:
        """Show the first ones, up to so many."""
        for row in rows:
            most -= most > 0 and self.add(row, pick, decile)


def picked(model: Model, subjects: Sequence[Subject], readers: Mapping[int, Readers], state: State) -> list[Examples]:
    """The examples of every subject."""
    state.let_go()
    top = [list(_rows(state.top, number)) for number in range(len(subjects))]
    positive = [list(_rows(state.positive, number)) for number in range(len(subjects))]
    quiet = [_quiet(*rows) for rows in zip(top, positive, strict=True)]
    same = _same_pairs(model, readers, state, top)
    words: dict[int, tuple[str, ...]] = {}
    found = []
    for number, subject in enumerate(subjects):
        showing = _Showing(state.texts, words, model.tokenizer)
        amounts, below = state.amounts, quiet[number]
        showing.fill(top[number], "top", amounts.top)
        for decile, rows in enumerate(_deciles(positive[number])):
            showing.fill(rows, "decile", amounts.per_decile, decile)
        for pick, rows in (
            ("same pair", same[number]),
            ("other channels", list(_rows(state.attended, number))),
            ("wrong src", _wrong(state.top, number)),
        ):
            showing.fill([row for row in rows if row.value <= below], pick, amounts.hard)  # type: ignore[arg-type]
        showing.fill(list(_rows(state.random, number)), "random", amounts.random)
        share = float(state.positives[number] / max(state.pairs[number], 1))
        found.append(Examples(subject, tuple(showing.shown), state.chunks, state.tokens, share))
    return found


def _rows(kept: Kept, number: int) -> Iterator[Row]:
    """What a table has of a subject, first keys first."""
    n = int((kept.key[number] != NEVER).sum())
    columns = (kept.columns[name][number, :n].tolist() for name in ("chunk", "dest", "src", "value", "attention"))
    return (Row(*row) for row in zip(*columns, strict=True))


def _quiet(top: list[Row], positive: list[Row]) -> float:
    """At most this value is no firing. Without a positive pair anything (which then is 0) is none."""
    bounds = [QUIET * min(row.value for row in top)] if top else []
    if positive:
        bounds.append(float(np.median([row.value for row in positive])))
    return min(bounds, default=0.0)


def _deciles(positive: list[Row]) -> list[list[Row]]:
    """The sample in tenths, smallest values first; in each as they were drawn."""
    order = sorted(range(len(positive)), key=lambda i: (positive[i].value, i))
    tenth = {i: rank * 10 // len(order) for rank, i in enumerate(order)}
    return [[row for i, row in enumerate(positive) if tenth[i] == decile] for decile in range(10)]


def _wrong(kept: Kept, number: int) -> list[Row]:
    """Top dests with other srcs: one of every dest before the second of any."""
    n = int((kept.key[number] != NEVER).sum())
    columns = {name: column[number, :n] for name, column in kept.columns.items()}
    rows = []
    for other in range(columns["others"].shape[1]):
        for i in range(n):
            src = int(columns["others"][i, other])
            if src >= 0:
                values = (float(columns[name][i, other]) for name in ("other_values", "other_attention"))
                rows.append(Row(int(columns["chunk"][i]), int(columns["dest"][i]), src, *values))
    return rows


def _same_pairs(
    model: Model, readers: Mapping[int, Readers], state: State, top: Sequence[Sequence[Row]]
) -> list[list[Row]]:
    """For every subject, places of the pool with the same two tokens as one of its top pairs."""
    found: list[list[Row]] = [[] for _ in top]
    if not state.amounts.hard:
        return found
    wanted = {
        number: [(state.texts[row.chunk][row.dest], state.texts[row.chunk][row.src]) for row in rows]
        for number, rows in enumerate(top)
        if rows
    }
    pool = {chunk: state.texts[chunk] for _, chunk in state.pool}
    pairs = same_tokens(wanted, pool, most=_TRIED * state.amounts.hard, seed=state.seed)
    looked = worth(model, readers, state.texts, pairs)
    for row in _as_rows(pairs, looked):
        found[row[0]].append(row[1])
    return found


def _as_rows(pairs: Pairs, looked: Worth) -> Iterator[tuple[int, Row]]:
    columns = (pairs.chunk, pairs.dest, pairs.src, looked.value, looked.attention)
    for subject, *row in zip(pairs.subject.tolist(), *(column.tolist() for column in columns), strict=True):
        yield subject, Row(*row)
