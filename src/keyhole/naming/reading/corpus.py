"""What does a model read while examples are sought? Chunks of so many tokens, one after the other and none kept.

Every chunk begins as the model expects a text to begin: with what its tokenizer puts first by itself (for the organism
<bos>; for many models nothing, and then the first word of a chunk is where heads rest). Running text is cut wherever a
chunk is full; a text of its own begins a chunk, and goes on in further ones if it is longer. What is left of it, if it
is shorter than four tokens, is not read.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from keyhole.errors import KeyholeError
from keyhole.models.tokens.prompts import text_ids
from keyhole.naming.reading.texts import Source, Text, Texts, texts_of

if TYPE_CHECKING:
    from keyhole.models.model import Model

Ids = tuple[int, ...]
LONGEST = 2048  # tokens of a chunk
_FEWEST = 4
_JOINED = 2000  # characters of running text that are made tokens together


def chunks(
    model: "Model", source: Source | None = None, *, length: int = 32, limit: int | None = None, seed: int = 0
) -> Iterator[Ids]:
    """Token ids of at most `length` tokens each, from a source (see `texts`) or what is at hand; at most `limit`.

    >>> import keyhole
    >>> model = keyhole.load()
    >>> [len(ids) for ids in chunks(model, ["Mary went to the store"], length=32)]
    [6]
    """
    most = min(LONGEST, model.dims.positions or LONGEST)
    if not _FEWEST <= length <= most:
        raise KeyholeError(f"chunks of {length} tokens were asked for: {model.name} takes {_FEWEST} to {most}.")
    if limit is not None and limit < 1:
        raise KeyholeError(f"{limit} chunks were asked for: give a positive number.")
    return islice(_chunks(model, texts_of(model, source, seed=seed), length), limit)


def _chunks(model: "Model", texts: Texts, length: int) -> Iterator[Ids]:
    found = False
    for ids in _running(model, texts, length) if texts.running else _apart(model, texts, length):
        found = True
        yield ids
    if not found:
        raise KeyholeError(
            f"the corpus has no text of {length if texts.running else _FEWEST} tokens: give a longer one."
        )


def _running(model: "Model", texts: Texts, length: int) -> Iterator[Ids]:
    first: Ids | None = None
    waiting: list[int] = []
    for where, text in _joined(texts.pieces):
        first = _before_text(model, where, text) if first is None else first
        waiting += _ids(model, where, text)
        room, start = length - len(first), 0
        while len(waiting) - start >= room:
            yield (*first, *waiting[start : start + room])
            start += room
        del waiting[:start]


def _apart(model: "Model", texts: Texts, length: int) -> Iterator[Ids]:
    first: Ids | None = None
    for where, text in texts.pieces:
        if not isinstance(text, str):  # ids say themselves how they begin
            yield from _cut(_given(model, where, text), length)
            continue
        first = _before_text(model, where, text) if first is None else first
        for piece in _cut(_ids(model, where, text), length - len(first)):
            yield first + piece


def _cut(ids: Ids, length: int) -> Iterator[Ids]:
    pieces = (ids[start : start + length] for start in range(0, len(ids), length))
    return (piece for piece in pieces if len(piece) >= _FEWEST)


def _joined(pieces: Iterable[tuple[str, Text]]) -> Iterator[tuple[str, str]]:
    """Paragraphs with a space between them, many at a time: a tokenizer is slow to be asked."""
    held: list[str] = []
    size, begins = 0, ""
    for where, text in pieces:
        begins = begins if held else where
        held.append(str(text))
        size += len(held[-1])
        if size >= _JOINED:
            yield begins, " ".join(held)
            held, size = [], 0
    if held:
        yield begins, " ".join(held)


def _before_text(model: "Model", where: str, text: str) -> Ids:
    """What the tokenizer puts before text by itself; what it puts after it is not wanted in the middle of one."""
    plain, special = _ids(model, where, text), text_ids(model, text, special=True)
    starts = range(len(special) - len(plain) + 1)
    return next((special[:start] for start in starts if special[start : start + len(plain)] == plain), ())


def _ids(model: "Model", where: str, text: Text) -> Ids:
    """The tokens of a text, or where the one stands that cannot be read."""
    try:
        return text_ids(model, str(text))
    except KeyholeError as error:
        raise KeyholeError(f"{where}: {error}") from error


def _given(model: "Model", where: str, ids: Sequence[int]) -> Ids:
    """Token ids as they are, if they are some."""
    known = range(model.dims.vocab)
    if not all(isinstance(i, int) and i in known for i in ids):
        raise KeyholeError(f"{where}: {model.name} has token ids from 0 to {known[-1]}, and not {ids!r:.60}.")
    return tuple(ids)
