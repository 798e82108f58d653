"""What is read? Texts of a file, a data set or a task, cut into pieces of tokens.

Where does text come from? Files, JSON Lines, a dataset of the hub, and what is at hand; one piece at a time.

    novel.txt          running text: a paragraph a line, or all in one line
    prompts.jsonl      one text a line, in "text" or "prompt" (as files of tasks' examples have it)
    hf:NAME[#SPLIT]    the column "text" of a dataset, streamed from the Hugging Face hub
    nothing            text of the tasks for the organism, and prose for models that read English

Running text goes on from one piece to the next; of the others every piece is a text of its own.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.files import is_file
from keyhole.models.tokens import text_ids
from keyhole.strict import parse_json
from keyhole.tasks.corpus import documents, knows_tasks_alone, read_prose

if TYPE_CHECKING:
    from keyhole.models.model import Model

Text = str | Sequence[int]  # or its token ids
Source = str | Path | Iterable[Text]
HUB = "hf:"
_FIELDS = ("text", "prompt")
_BLOCK = 1 << 16  # characters of a line that are held at once
_DOCUMENTS = 256  # of the tasks that are made at once
_NEIGHBOURS = 64  # paragraphs of prose that stay together when it is shuffled


@dataclass(frozen=True)
class Texts:
    """Pieces of text, each with where it stands, for messages; `running`: one goes on where the last one ended."""

    pieces: Iterable[tuple[str, Text]]
    running: bool


def texts_of(model: "Model", source: Source | None, *, seed: int = 0) -> Texts:
    """The texts of a source, or of what is at hand for the model; `seed` is of the latter."""
    if source is None:
        if model.tokenizer is None:
            raise KeyholeError(f"{model.name} has no tokenizer: give a corpus of token ids, a list of numbers each.")
        return Texts(_tasks(seed), False) if knows_tasks_alone(model) else Texts(_prose(seed), True)
    if isinstance(source, str) and source.startswith(HUB):
        return Texts(_dataset(source), True)
    if isinstance(source, str | Path):
        path = Path(source)
        if not is_file(path):
            raise KeyholeError(
                f"there is no file {path}: give a text with a paragraph a line, a .jsonl with a text a line, or "
                f"{HUB}NAME for a dataset of the Hugging Face hub."
            )
        records = path.suffix.lower() == ".jsonl"
        return Texts(_records(path) if records else _lines(path), not records)
    return Texts(((f"text {number}", text) for number, text in enumerate(source)), False)


def _tasks(seed: int) -> Iterator[tuple[str, Text]]:
    """Documents of the kind that the organism was trained on, without end."""
    rng = random.Random(seed)
    while True:
        yield from (("a document of the tasks", text) for text in documents(_DOCUMENTS, rng.getrandbits(48)))


def _prose(seed: int) -> Iterator[tuple[str, Text]]:
    """Stretches of the novels in an order drawn at random, so that the first ones are not all of one book."""
    paragraphs = read_prose()
    starts = list(range(0, len(paragraphs), _NEIGHBOURS))
    random.Random(seed).shuffle(starts)
    for start in starts:
        yield from (("the prose", text) for text in paragraphs[start : start + _NEIGHBOURS])


def _lines(path: Path) -> Iterator[tuple[str, Text]]:
    """A file's lines; one of any length is cut at its spaces, and never held as a whole."""
    left = ""
    for number, part in _read(path):
        text = left + part
        whole = text.endswith("\n") or len(part) < _BLOCK
        cut = len(text) if whole else text.rfind(" ") + 1 or len(text)
        text, left = text[:cut].strip(), text[cut:]
        if text:
            yield f"{path}, line {number}", text
    if left.strip():
        yield f"{path}, at its end", left.strip()


def _read(path: Path) -> Iterator[tuple[int, str]]:
    number = 1
    try:
        with path.open(encoding="utf-8") as file:
            while part := file.readline(_BLOCK):
                yield number, part
                number += part.endswith("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise KeyholeError(f"cannot read {path} as text, at line {number}: {reason}.") from error


def _records(path: Path) -> Iterator[tuple[str, Text]]:
    line = ""
    for number, part in _read(path):
        line += part
        if not part.endswith("\n") and len(part) == _BLOCK:
            continue  # a long line goes on
        if line.strip():
            yield f"{path}, line {number}", _text_of(line, f"{path}, line {number}")
        line = ""
    if line.strip():
        yield f"{path}, last line", _text_of(line, f"{path}, last line")


def _text_of(line: str, where: str) -> str:
    try:
        record = parse_json(line)
    except KeyholeError as error:
        raise KeyholeError(f"{where}: {error}") from error
    found = [record[name] for name in _FIELDS if name in record] if isinstance(record, dict) else []
    if not (found and isinstance(found[0], str) and found[0].strip()):
        raise KeyholeError(f'{where}: a line is an object with text in "text" or "prompt", such as {{"text": "..."}}.')
    return str(found[0])


def _dataset(name: str) -> Iterator[tuple[str, Text]]:
    """The texts of a dataset, streamed; `datasets` is asked for only here."""
    what, _, split = name.removeprefix(HUB).partition("#")
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise KeyholeError(f"{name} needs the package datasets: pip install datasets, or give a file.") from error
    try:
        rows: Iterable[Any] = load_dataset(what, split=split or "train", streaming=True)
        for number, row in enumerate(rows):
            if not isinstance(row.get("text"), str):
                raise KeyholeError(f'{name} has no column "text", but {", ".join(row)}: give another dataset.')
            yield f"{name}, row {number}", row["text"]
    except KeyholeError:
        raise
    except Exception as error:  # the hub, the network and the dataset's own code fail in any way
        short = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise KeyholeError(f"cannot read {name} from the hub ({short}): check its name, or give a file.") from error


# What does a model read while examples are sought? Chunks of so many tokens, one after the other and none kept.
#
# Every chunk begins as the model expects a text to begin: with what its tokenizer puts first by itself (for the
# organism <bos>; for many models nothing, and then the first word of a chunk is where heads rest). Running text is
# cut wherever a chunk is full; a text of its own begins a chunk, and goes on in further ones if it is longer. What is
# left of it, if it is shorter than four tokens, is not read.

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
