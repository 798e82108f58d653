"""Where do signals fire? Examples of thousands of them from one pass over a corpus, or of one at once.

Where do signals fire? Examples of thousands of them from one pass over a corpus, and nothing else is stored.

    found = gather(model, signal_subjects(circuit), "novel.txt")
    for one in found[0].of("top"): print(one.value, one.tokens[one.dest], one.tokens[one.src])

Which examples are found depends on the seed, the corpus and each subject alone: not on what is read together, nor on
who else is asked about. Values that differ by less than one part in 8192 count as equal, and the earlier text stands;
only where a projection is zero to rounding can its sign, and with it what is drawn of that text, be another.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from keyhole.brief import Head, head_name
from keyhole.errors import KeyholeError
from keyhole.files import require_folder
from keyhole.models.stacks import Seen, visit
from keyhole.models.tokens import Encoded
from keyhole.naming.corpus.corpus import Ids, Source, chunks
from keyhole.naming.corpus.kept import ROW, Kept
from keyhole.naming.corpus.layer import best_pairs, head_weights, look_at, readers_of, visible
from keyhole.naming.corpus.picks import Showing, Words, picked, rows_of
from keyhole.naming.corpus.state import Amounts, Batch, State, about, restore, rounded, save, skipped, top_keys
from keyhole.naming.subjects.subject import Examples, Shown, Subject, require_head
from keyhole.progress import Progress, silent

if TYPE_CHECKING:
    from keyhole.models.model import Model

TOKENS = 250_000
USUAL = Amounts()
_BATCH = 64  # texts that are read together
_EVERY = 60.0  # seconds between two writes of the state


def gather(
    model: "Model",
    subjects: Sequence[Subject],
    corpus: Source | None = None,
    *,
    amounts: Amounts = USUAL,
    length: int = 32,
    tokens: int = TOKENS,
    seed: int = 0,
    folder: Path | str | None = None,
    progress: Progress = silent,
) -> list[Examples]:
    """Examples of every subject, from at most so many tokens of a corpus (see `texts`), in chunks of `length`.

    With a `folder` the state is written there now and then, and a second call goes on from it: with more `tokens`, too.
    """
    if tokens < 1:
        raise KeyholeError(f"{tokens} tokens were asked for: give a positive number.")
    readers, state = readers_of(model, subjects), State.empty(subjects, amounts, seed)
    source = chunks(model, corpus, length=length, seed=seed)
    place = None if folder is None else require_folder(folder)
    what = {} if place is None else about(model, subjects, amounts, length=length, seed=seed)
    if place is not None and restore(state, what, place):
        source = skipped(source, state, place)

    def see(batch: Batch, layer: int, seen: Seen) -> None:
        if layer in readers:
            look_at(state, readers[layer], seen, batch)

    written = time.monotonic()
    for _ in reading(model, source, state, tokens, see=see, progress=progress):
        if place is not None and time.monotonic() - written > _EVERY:
            save(state, what, place)
            written = time.monotonic()
    if place is not None:
        save(state, what, place)
    return picked(model, subjects, readers, state)


def reading(
    model: "Model",
    source: Iterator[Ids],
    state: State,
    tokens: int,
    *,
    see: Callable[[Batch, int, Seen], None],
    progress: Progress,
) -> Iterator[None]:
    """Run texts until so many tokens were read, and let every layer be looked at as it happens."""
    for ids in batches_of(model, source, state, tokens):
        batch = state.start(ids)
        visit(model, [Encoded(one, (), False) for one in ids], partial(see, batch))
        state.finish(batch)
        progress(min(state.tokens, tokens), tokens)
        yield


def batches_of(model: "Model", source: Iterator[Ids], state: State, tokens: int) -> Iterator[list[Ids]]:
    """The next chunks, until so many tokens were read; where RoPE depends on the length, only equal ones together."""
    alike = len(model._batches([2, 3], 6)) > 1
    batch: list[Ids] = []
    read = state.tokens
    while read < tokens and (ids := next(source, None)) is not None:
        if len(batch) == _BATCH or (alike and batch and len(ids) != len(batch[0])):
            yield batch
            batch = []
        batch.append(ids)
        read += len(ids)
    if batch:
        yield batch


# Where else does this fire? The strongest places of a signal, a channel or a whole head, in any corpus.
#
# A subject is worth what `gather` says. A head fires through any of its channels and is ranked as `keyhole heads`
# ranks firings, by attention x number of visible keys; the first token, where heads rest, is no src of it. Either way
# a text has two places at most, and the same text up to dest is told once.


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
    state, source = State.empty([], Amounts(0, 0, 0, 0), seed), chunks(model, corpus, length=length, seed=seed)
    state.top = Kept.empty(1, top, ROW | {"text": np.uint64})
    for _ in reading(model, source, state, tokens, see=partial(_look_at_head, what, state.top), progress=progress):
        pass
    state.let_go()
    showing = Showing(state.texts, Words(model.tokenizer))
    showing.fill(rows_of(state.top, 0), "top", top)
    return Fires(head_name(what), tuple(showing.shown), state.chunks, state.tokens)


def _look_at_head(head: Head, kept: Kept, batch: Batch, layer: int, seen: Seen) -> None:
    """Keep the best places of one batch."""
    if layer != head[0]:
        return
    sight, weights = visible(seen), head_weights(seen, [head[1]])[:, 0]
    inside = torch.arange(len(sight), device=sight.device) < batch.lengths.to(sight.device)[:, None]
    times = (weights * sight.sum(-1)[:, None] * inside[:, :, None]).float()
    times[..., 0] = 0
    for best, dest, src in (tuple(x.cpu().numpy() for x in found) for found in best_pairs(rounded(times))):
        key = top_keys(best, batch.numbers, dest)
        good = ((best > 0) & (key < kept.worst(np.zeros(len(key), np.int64)))).nonzero()[0]
        d, s = dest[good], src[good]
        row = {"chunk": batch.numbers[good], "dest": d, "src": s, "text": batch.prefixes[good, d]}
        row |= {"value": times.cpu().numpy()[good, d, s], "attention": weights.float().cpu().numpy()[good, d, s]}
        kept.add(np.zeros(len(good), np.int64), key[good], row)
