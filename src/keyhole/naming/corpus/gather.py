"""Where do signals fire? Examples of thousands of signals from one pass over a corpus.

    examples = gather(model, signal_subjects(circuit), "novel.txt")
    for shown in examples[0].of("top"): print(shown.value, shown.tokens[shown.dest], shown.tokens[shown.src])

The examples of a subject depend on the seed, the corpus and that subject alone, not on the batches or on other
subjects. Values that differ by less than one part in 8192 count as equal, and the earlier text wins. Only a projection
that is zero up to rounding may have another sign in another batch, which changes what is drawn from that text.
"""

import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch

from keyhole.brief import Head, head_name
from keyhole.errors import KeyholeError
from keyhole.files import require_folder, write_at_once
from keyhole.models.stacks import Seen, visit
from keyhole.models.tokens import Encoded
from keyhole.naming.corpus.corpus import Ids, Source, chunks
from keyhole.naming.corpus.layer import best_pairs, head_weights, look_at, readers_of, visible
from keyhole.naming.corpus.picks import Showing, Words, picked, rows_of
from keyhole.naming.corpus.state import ROW, Amounts, Batch, Kept, State, digest_after, rounded, salt, top_keys
from keyhole.naming.subjects.subject import Examples, Shown, Subject, require_head
from keyhole.progress import Progress, silent
from keyhole.settings.fields import chosen
from keyhole.settings.naming import ReadOptions, ReadSettings, WhereOptions, WhereSettings

if TYPE_CHECKING:
    from keyhole.models.model import Model

USUAL = Amounts()
_BATCH = 64  # chunks that are read together
_EVERY = 60.0  # seconds between two writes of the state


def gather(
    model: "Model",
    subjects: Sequence[Subject],
    corpus: Source | None = None,
    *,
    amounts: Amounts = USUAL,
    settings: ReadSettings | None = None,
    progress: Progress = silent,
    **options: Unpack[ReadOptions],
) -> list[Examples]:
    """Examples of every subject from one pass over a corpus, in the order of the subjects.

    Args:
        model: The model.
        subjects: What is looked for; see `keyhole.naming.subjects`.
        corpus: A file, a dataset or texts (see `texts_of`). Default: text that suits the model.
        amounts: How many examples of each kind.
        settings: A `ReadSettings`, whose fields are the choices below.
        progress: Called with the number of tokens read and their total.
        **options: Choices by name; beside a record they change it:
            - `length`: How many tokens a chunk of text has.
            - `tokens`: How many tokens are read, at most.
            - `seed`: Seed of the text, if no corpus is given, and of the examples that are drawn.
            - `folder`: The state of the pass is written there every minute, and a second call continues from it, also
              with more `tokens`.

    >>> import keyhole
    >>> from keyhole.naming.subjects import channel_subjects
    >>> model = keyhole.load()
    >>> [examples, _] = gather(model, channel_subjects(model, (3, 1), [4]), tokens=3000)
    >>> len(examples.of("top"))
    40
    """
    reads = chosen(settings, ReadSettings, options)
    readers, state = readers_of(model, subjects), State.empty(subjects, amounts, reads.seed)
    source = chunks(model, corpus, length=reads.length, seed=reads.seed)
    place = None if reads.folder is None else require_folder(reads.folder)
    pass_record = {} if place is None else about(model, subjects, amounts, length=reads.length, seed=reads.seed)
    if place is not None and restore(state, pass_record, place):
        source = skipped(source, state, place)

    def see(batch: Batch, layer: int, stack: Seen) -> None:
        if layer in readers:
            look_at(state, readers[layer], stack, batch)

    written = time.monotonic()
    for _ in reading(model, source, state, reads.tokens, see=see, progress=progress):
        if place is not None and time.monotonic() - written > _EVERY:
            save(state, pass_record, place)
            written = time.monotonic()
    if place is not None:
        save(state, pass_record, place)
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
    """Run chunks until so many tokens were read; `see` is called with every layer as it is run."""
    for ids in batches_of(model, source, state, tokens):
        batch = state.start(ids)
        visit(model, [Encoded(chunk, (), False) for chunk in ids], partial(see, batch))
        state.finish(batch)
        progress(min(state.tokens, tokens), tokens)
        yield


def batches_of(model: "Model", source: Iterator[Ids], state: State, tokens: int) -> Iterator[list[Ids]]:
    """The next chunks, until so many tokens were read; of equal length where RoPE depends on the length."""
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


# How does a stopped pass continue? From its state in one file, written every minute and read strictly.

NAME = "examples.npz"
_SCHEMA = 1


def about(model: "Model", subjects: Sequence[Subject], amounts: Amounts, *, length: int, seed: int) -> dict[str, Any]:
    """What identifies a pass: a state with any other value here belongs to another one."""
    directions = [(subject.id, subject.head, subject.query.tolist(), subject.key.tolist()) for subject in subjects]
    offsets = [(subject.query_offset, subject.key_offset) for subject in subjects]
    return {
        "schema": _SCHEMA,
        "model": f"{model.name} {model.fingerprint()[:16]}",
        "subjects": f"{len(subjects)} ({int(salt(directions, offsets)):016x})",
        **{name: getattr(amounts, name) for name in ("top", "per_decile", "random", "hard")},
        "length": length,
        "seed": seed,
    }


def save(state: State, pass_record: dict[str, Any], folder: Path) -> None:
    """Write the state; the file appears whole or not at all."""
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
    arrays["about"] = np.frombuffer(json.dumps({"what": pass_record, "far": far}).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    write_at_once(folder / NAME, out.getvalue())


def restore(state: State, pass_record: dict[str, Any], folder: Path) -> bool:
    """Fill an empty state from a folder, if it has one; another pass is refused with every difference named."""
    path = folder / NAME
    if not path.exists():
        return False
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        record = json.loads(arrays["about"].tobytes())
        stored_record, far = record["what"], record["far"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise KeyholeError(
            f"{path} is damaged, so that the pass cannot continue ({error}): delete it, or give another folder."
        ) from error
    differ = [
        f"{name} was {stored_record.get(name)!r}, now {pass_record.get(name)!r}"
        for name in pass_record
        if stored_record.get(name) != pass_record[name]
    ]
    if differ:
        raise KeyholeError(f"{folder} has examples of another pass: {'; '.join(differ)}. Give another folder.")
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
    """The chunks that are not read yet; refused unless those that are read are the same as before."""
    so_far = ""
    for number in range(state.chunks):
        ids = next(chunks, None)
        if ids is None:
            raise KeyholeError(
                f"{folder} has examples of another corpus: it had {state.chunks} chunks so far, this one has {number}. "
                "Give another folder."
            )
        so_far = digest_after(so_far, [ids])
    if so_far != state.corpus:
        raise KeyholeError(
            f"{folder} has examples of another corpus: its first {state.chunks} chunks are not those of this one. Give "
            "another folder."
        )
    return chunks


# Where else does this fire? The strongest places of a signal, a channel or a whole head, in any corpus.
#
# A subject has the values of `gather`. A head fires through any of its channels and is ranked as `keyhole heads` ranks
# firings, by attention x number of visible keys; the first token, where heads rest, does not count as a src. Either
# way a text has at most two places, and the same text up to dest appears once.


@dataclass(frozen=True)
class Fires:
    """Where a subject or head fires, strongest first."""

    id: str  # a subject's id, or a head such as 3.1
    shown: tuple[Shown, ...]  # values of a head: attention as a multiple of uniform attention
    chunks: int  # that were read
    tokens: int


def where(
    model: "Model",
    subject: Subject | Head,
    corpus: Source | None = None,
    *,
    settings: WhereSettings | None = None,
    progress: Progress = silent,
    **options: Unpack[WhereOptions],
) -> Fires:
    """The strongest places of a subject or of a whole head in a corpus.

    Args:
        model: The model.
        subject: A subject (see `keyhole.naming.subjects`), or a head (layer, head).
        corpus: A file, a dataset or texts (see `texts_of`). Default: text that suits the model.
        settings: A `WhereSettings`, whose fields are the choices below.
        progress: Called with the number of tokens read and their total.
        **options: Choices by name; beside a record they change it:
            - `top`: How many places are returned.
            - `tokens`: How many tokens are read, at most.
            - `length`: How many tokens a chunk of text has.
            - `seed`: Seed of the choice of text, if no corpus is given.

    >>> import keyhole
    >>> places = where(keyhole.load(), (3, 1), tokens=3000, top=2)
    >>> places.id, len(places.shown)
    ('3.1', 2)
    """
    how = chosen(settings, WhereSettings, options)
    if isinstance(subject, Subject):
        reads = ReadSettings(how.length, how.tokens, how.seed)
        [examples] = gather(
            model, [subject], corpus, amounts=Amounts(how.top, 0, 0, 0), settings=reads, progress=progress
        )
        return Fires(subject.id, examples.of("top"), examples.chunks, examples.tokens)
    require_head(model, subject)
    state = State.empty([], Amounts(0, 0, 0, 0), how.seed)
    source = chunks(model, corpus, length=how.length, seed=how.seed)
    state.top = Kept.empty(1, how.top, ROW | {"text": np.uint64})
    see = partial(_look_at_head, subject, state.top)
    for _ in reading(model, source, state, how.tokens, see=see, progress=progress):
        pass
    state.let_go()
    showing = Showing(state.texts, Words(model.tokenizer))
    showing.fill(rows_of(state.top, 0), "top", how.top)
    return Fires(head_name(subject), tuple(showing.shown), state.chunks, state.tokens)


def _look_at_head(head: Head, kept: Kept, batch: Batch, layer: int, stack: Seen) -> None:
    """Keep the best places of one batch."""
    if layer != head[0]:
        return
    sight, weights = visible(stack), head_weights(stack, [head[1]])[:, 0]
    inside = torch.arange(len(sight), device=sight.device) < batch.lengths.to(sight.device)[:, None]
    times = (weights * sight.sum(-1)[:, None] * inside[:, :, None]).float()
    times[..., 0] = 0
    for best, dest, src in (tuple(x.cpu().numpy() for x in columns) for columns in best_pairs(rounded(times))):
        key = top_keys(best, batch.numbers, dest)
        good = ((best > 0) & (key < kept.worst(np.zeros(len(key), np.int64)))).nonzero()[0]
        d, s = dest[good], src[good]
        row = {"chunk": batch.numbers[good], "dest": d, "src": s, "text": batch.prefixes[good, d]}
        row |= {"value": times.cpu().numpy()[good, d, s], "attention": weights.float().cpu().numpy()[good, d, s]}
        kept.add(np.zeros(len(good), np.int64), key[good], row)
