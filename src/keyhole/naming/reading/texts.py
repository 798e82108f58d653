"""Where does text come from? Files, JSON Lines, a dataset of the hub, and what is at hand; one piece at a time.

    novel.txt          running text: a paragraph a line, or all in one line
    prompts.jsonl      one text a line, in "text" or "prompt" (as files of tasks' examples have it)
    hf:NAME[#SPLIT]    the column "text" of a dataset, streamed from the Hugging Face hub
    nothing            text of the tasks for the organism, and prose for models that read English

Running text goes on from one piece to the next; of the others every piece is a text of its own.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.files import is_file
from keyhole.strict import parse_json
from keyhole.tasks.text.corpus import documents
from keyhole.tasks.text.prose import knows_tasks_alone
from keyhole.tasks.text.prose import read as read_prose

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
