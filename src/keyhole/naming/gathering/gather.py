"""Where do signals fire? Examples of thousands of them from one pass over a corpus, and nothing else is stored.

    found = gather(model, signal_subjects(circuit), "novel.txt")
    for one in found[0].of("top"): print(one.value, one.tokens[one.dest], one.tokens[one.src])

Which examples are found depends on the seed, the corpus and each subject alone: not on what is read together, nor on
who else is asked about. Values that differ by less than one part in 8192 count as equal, and the earlier text stands;
only where a projection is zero to rounding can its sign, and with it what is drawn of that text, be another.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.files import require_folder
from keyhole.models.recording.visit import visit
from keyhole.models.tokens.prompts import Encoded
from keyhole.naming.gathering.layer import look_at
from keyhole.naming.gathering.picks import picked
from keyhole.naming.gathering.readers import Readers, readers_of
from keyhole.naming.gathering.resume import about, restore, save, skipped
from keyhole.naming.gathering.state import Amounts, Batch, State
from keyhole.naming.reading.corpus import Ids, chunks
from keyhole.naming.reading.texts import Source
from keyhole.naming.shown import Examples
from keyhole.naming.subject import Subject
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
    written = time.monotonic()
    for ids in batches_of(model, source, state, tokens):
        batch = state.start(ids)
        read_batch(model, readers, state, batch)
        state.finish(batch)
        progress(min(state.tokens, tokens), tokens)
        if place is not None and time.monotonic() - written > _EVERY:
            save(state, what, place)
            written = time.monotonic()
    if place is not None:
        save(state, what, place)
    return picked(model, subjects, readers, state)


def read_batch(model: "Model", readers: dict[int, Readers], state: State, batch: Batch) -> None:
    """Run some texts, and let every layer that has subjects be looked at as it happens."""
    encoded = [Encoded(ids, (), False) for ids in batch.ids]
    visit(model, encoded, lambda layer, seen: look_at(state, readers[layer], seen, batch) if layer in readers else None)


def batches_of(model: "Model", source: Iterator[Ids], state: State, tokens: int) -> Iterator[list[Ids]]:
    """The next chunks, until so many tokens were read; where RoPE depends on the length, only equal ones together."""
    alike = len(model.batches([2, 3], 6)) > 1
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
