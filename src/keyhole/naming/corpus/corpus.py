"""Which text is searched for examples? That of a file, a dataset or a task, cut into chunks of tokens.

    novel.txt          running text: a paragraph per line, or all in one line
    prompts.jsonl      one text per line, in "text" or "prompt" (as the files of tasks have it)
    hf:NAME[#SPLIT]    the column "text" of a dataset, streamed from the Hugging Face hub
    None               text of the tasks for the organism, and prose for models that read English

Running text continues from one piece to the next; in other sources every piece is a separate text.
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
_DOCUMENTS = 256  # of the tasks that are generated at once
_NEIGHBOURS = 64  # paragraphs of prose that stay together when it is shuffled


@dataclass(frozen=True)
class Texts:
    """Pieces of text, each with its place for messages; `running`: each continues the one before."""

    pieces: Iterable[tuple[str, Text]]
    running: bool


def texts_of(model: "Model", source: Source | None, *, seed: int = 0) -> Texts:
    """The texts of a source.

    Args:
        model: The model.
        source: A file, `hf:NAME` of a dataset, or texts (a sequence of texts or of lists of token ids). None: text that
            suits the model.
        seed: Seed of the order of the text that suits the model.

    >>> import keyhole
    >>> next(iter(texts_of(keyhole.load(), ["Mary went to the store"]).pieces))
    ('text 0', 'Mary went to the store')
    """
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
                f"there is no file {path}: give a text with a paragraph per line, a .jsonl with a text per line, or "
                f"{HUB}NAME for a dataset of the Hugging Face hub."
            )
        records = path.suffix.lower() == ".jsonl"
        return Texts(_records(path) if records else _lines(path), not records)
    return Texts(((f"text {number}", text) for number, text in enumerate(source)), False)


def _tasks(seed: int) -> Iterator[tuple[str, Text]]:
    """Endless documents of the kind that the organism was trained on."""
    rng = random.Random(seed)
    while True:
        yield from (("a document of the tasks", text) for text in documents(_DOCUMENTS, rng.getrandbits(48)))


def _prose(seed: int) -> Iterator[tuple[str, Text]]:
    """Stretches of the novels in random order, so that the first ones are not all from one book."""
    paragraphs = read_prose()
    starts = list(range(0, len(paragraphs), _NEIGHBOURS))
    random.Random(seed).shuffle(starts)
    for start in starts:
        yield from (("the prose", text) for text in paragraphs[start : start + _NEIGHBOURS])


def _lines(path: Path) -> Iterator[tuple[str, Text]]:
    """The lines of a file. A long line is cut at spaces, so that no line needs to fit into memory."""
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
            continue  # the line is longer than a block
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
    texts = [record[name] for name in _FIELDS if name in record] if isinstance(record, dict) else []
    if not (texts and isinstance(texts[0], str) and texts[0].strip()):
        raise KeyholeError(f'{where}: a line is an object with text in "text" or "prompt", such as {{"text": "..."}}.')
    return str(texts[0])


def _dataset(name: str) -> Iterator[tuple[str, Text]]:
    """The texts of a dataset, streamed; only this needs the package datasets."""
    dataset, _, split = name.removeprefix(HUB).partition("#")
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise KeyholeError(f"{name} needs the package datasets: pip install datasets, or give a file.") from error
    try:
        rows: Iterable[Any] = load_dataset(dataset, split=split or "train", streaming=True)
        for number, row in enumerate(rows):
            if not isinstance(row.get("text"), str):
                raise KeyholeError(f'{name} has no column "text", but {", ".join(row)}: give another dataset.')
            yield f"{name}, row {number}", row["text"]
    except KeyholeError:
        raise
    except Exception as error:  # the hub, the network and the dataset's own code fail in any way
        short = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise KeyholeError(f"cannot read {name} from the hub ({short}): check its name, or give a file.") from error


# How is text cut into chunks? A model reads one after another, and none is kept.
#
# Every chunk begins as the model expects a text to begin: with what its tokenizer puts first (for the organism <bos>;
# for many models nothing, and then heads rest on the first word of a chunk). Running text is cut wherever a chunk is
# full. A separate text begins a new chunk and continues in further ones. A rest of fewer than four tokens is not read.

Ids = tuple[int, ...]
LONGEST = 2048  # tokens of a chunk
_FEWEST = 4
_JOINED = 2000  # characters of running text that are tokenized together


def chunks(
    model: "Model", source: Source | None = None, *, length: int = 32, limit: int | None = None, seed: int = 0
) -> Iterator[Ids]:
    """Chunks of token ids from a source.

    Args:
        model: The model.
        source: A file, a dataset or texts (see `texts_of`). Default: text that suits the model.
        length: How many tokens a chunk has, at most.
        limit: How many chunks, at most. Default: all.
        seed: Seed of the choice of text, if no source is given.

    >>> import keyhole
    >>> model = keyhole.load()
    >>> [len(ids) for ids in chunks(model, ["Mary went to the store"], length=32)]
    [6]
    """
    most = min(LONGEST, model.dims.positions or LONGEST)
    if not _FEWEST <= length <= most:
        raise KeyholeError(f"length is {length} tokens: {model.name} takes chunks of {_FEWEST} to {most}.")
    if limit is not None and limit < 1:
        raise KeyholeError(f"limit is {limit} chunks: give a positive number.")
    return islice(_chunks(model, texts_of(model, source, seed=seed), length), limit)


def _chunks(model: "Model", texts: Texts, length: int) -> Iterator[Ids]:
    any_chunk = False
    for ids in _running(model, texts, length) if texts.running else _apart(model, texts, length):
        any_chunk = True
        yield ids
    if not any_chunk:
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
        if not isinstance(text, str):  # token ids already begin as their author wants
            yield from _cut(_given(model, where, text), length)
            continue
        first = _before_text(model, where, text) if first is None else first
        for piece in _cut(_ids(model, where, text), length - len(first)):
            yield first + piece


def _cut(ids: Ids, length: int) -> Iterator[Ids]:
    pieces = (ids[start : start + length] for start in range(0, len(ids), length))
    return (piece for piece in pieces if len(piece) >= _FEWEST)


def _joined(pieces: Iterable[tuple[str, Text]]) -> Iterator[tuple[str, str]]:
    """Paragraphs joined by spaces, many at a time: few calls of the tokenizer are faster than many."""
    waiting: list[str] = []
    size, begins = 0, ""
    for where, text in pieces:
        begins = begins if waiting else where
        waiting.append(str(text))
        size += len(waiting[-1])
        if size >= _JOINED:
            yield begins, " ".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield begins, " ".join(waiting)


def _before_text(model: "Model", where: str, text: str) -> Ids:
    """What the tokenizer puts before a text; what it puts behind one would stand in the middle of running text."""
    plain, special = _ids(model, where, text), text_ids(model, text, special=True)
    starts = range(len(special) - len(plain) + 1)
    return next((special[:start] for start in starts if special[start : start + len(plain)] == plain), ())


def _ids(model: "Model", where: str, text: Text) -> Ids:
    """The token ids of a text; an error names the place of a text that cannot be read."""
    try:
        return text_ids(model, str(text))
    except KeyholeError as error:
        raise KeyholeError(f"{where}: {error}") from error


def _given(model: "Model", where: str, ids: Sequence[int]) -> Ids:
    """Given token ids, refused unless the model has them."""
    known = range(model.dims.vocab)
    if not all(isinstance(i, int) and i in known for i in ids):
        raise KeyholeError(f"{where}: {model.name} has token ids from 0 to {known[-1]}, and not {ids!r:.60}.")
    return tuple(ids)
