"""Where else does this fire? The strongest places of a signal, a channel or a whole head, in any corpus.

A subject is worth what `gather` says. A head fires through any of its channels and is ranked as `keyhole heads` ranks
firings, by attention x number of visible keys; the first token, where heads rest, is no src of it. Either way a text
has two places at most, and the same text up to dest is told once.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from keyhole.errors import KeyholeError
from keyhole.models.heads import Head
from keyhole.models.recording.visit import Seen, visit
from keyhole.models.tokens.prompts import Encoded
from keyhole.naming.gathering.gather import TOKENS, batches_of, gather
from keyhole.naming.gathering.kept import ROW, Kept
from keyhole.naming.gathering.layer import best_pairs
from keyhole.naming.gathering.picks import Words, rows_of
from keyhole.naming.gathering.readers import head_weights, visible
from keyhole.naming.gathering.state import Amounts, Batch, State, rounded, top_keys
from keyhole.naming.reading.corpus import chunks
from keyhole.naming.reading.texts import Source
from keyhole.naming.shown import Shown
from keyhole.naming.subject import Subject
from keyhole.naming.subjects.pairs import require_head
from keyhole.progress import Progress, silent

if TYPE_CHECKING:
    from keyhole.models.model import Model


@dataclass(frozen=True)
class Fires:
    """Where something fires, strongest first."""

    what: str  # a subject's id, or a head such as 3.1
    shown: tuple[Shown, ...]  # a head's values are how many times more than uniform it attends
    chunks: int  # that were read
    tokens: int


def where(
    model: "Model",
    what: Subject | Head,
    corpus: Source | None = None,
    *,
    top: int = 12,
    length: int = 32,
    tokens: int = TOKENS,
    seed: int = 0,
    progress: Progress = silent,
) -> Fires:
    """The strongest places of a subject or of a head, in at most so many tokens of a corpus (see `texts`)."""
    if top < 1:
        raise KeyholeError(f"{top} places were asked for: give a positive number.")
    if isinstance(what, Subject):
        amounts = Amounts(top, 0, 0, 0)
        options = {"length": length, "tokens": tokens, "seed": seed}
        [found] = gather(model, [what], corpus, amounts=amounts, progress=progress, **options)  # type: ignore[arg-type]
        return Fires(what.id, found.of("top"), found.chunks, found.tokens)
    require_head(model, what)
    state, kept = State.empty([], Amounts(0, 0, 0, 0), seed), Kept.empty(1, top, ROW | {"text": np.uint64})
    for ids in batches_of(model, chunks(model, corpus, length=length, seed=seed), state, tokens):
        batch = state.start(ids)
        _read(model, what, kept, batch)
        state.finish(batch, also=kept)
        progress(min(state.tokens, tokens), tokens)
    kept.settle()
    words = Words(model.tokenizer)
    shown = tuple(
        Shown(
            row.chunk, words.of(row.chunk, state.texts[row.chunk]), row.dest, row.src, row.value, row.attention, "top"
        )
        for row in rows_of(kept, 0)
    )
    return Fires(f"{what[0]}.{what[1]}", shown, state.chunks, state.tokens)


def _read(model: "Model", head: Head, kept: Kept, batch: Batch) -> None:
    """Keep the best places of one batch."""

    def see(layer: int, seen: Seen) -> None:
        if layer != head[0]:
            return
        sight, weights = visible(seen), head_weights(seen, [head[1]])[:, 0]
        inside = torch.arange(len(sight), device=sight.device) < batch.lengths.to(sight.device)[:, None]
        times = (weights * sight.sum(-1)[:, None] * inside[:, :, None]).float()
        times[..., 0] = 0
        for best, dest, src in best_pairs(rounded(times)):
            key = top_keys(best.cpu().numpy(), batch.numbers, dest.cpu().numpy())
            good = ((best.cpu().numpy() > 0) & (key < kept.worst(np.zeros(len(key), np.int64)))).nonzero()[0]
            d, s = dest.cpu().numpy()[good], src.cpu().numpy()[good]
            row = {"chunk": batch.numbers[good], "dest": d, "src": s, "text": batch.prefixes[good, d]}
            row |= {"value": times.cpu().numpy()[good, d, s], "attention": weights.float().cpu().numpy()[good, d, s]}
            kept.add(np.zeros(len(good), np.int64), key[good], row)

    visit(model, [Encoded(ids, (), False) for ids in batch.ids], see)
