"""How are prompts with answers written down? JSON Lines: one example a line, read strictly.

    {"prompt": "When Mary and John went to the store, John gave a drink to", "target": "Mary", "against": "John",
     "labels": {"order": "ABBA"}, "roles": {"IO": "Mary", "S2": [39, 43]}}

(on one line). "prompt" and "target" are needed. "target" and "against" are a word or a list of words, "labels" texts or
whole numbers, and a role is a word that occurs once in the prompt or [start, end] in its characters; END, the last
character, is added. Others need not be there: "task" (default: the file's name), "answer" (the first target),
"template" (none) and "continuation" (a space and the answer): how the text goes on, to the character.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keyhole.brief import Span
from keyhole.errors import KeyholeError
from keyhole.files import write_at_once
from keyhole.strict import is_index, is_list, is_whole, parse_json, quoted, read_text, require
from keyhole.tasks.example import Example

_TEXTS = ("task", "answer", "template", "continuation")
_KEYS = {"prompt", "target", "against", "labels", "roles", *_TEXTS}


def read_examples(path: str | Path) -> list[Example]:
    """Read examples from a JSON Lines file.

    A line that is wrong is refused, with its number and the reason.

    Args:
        path: The file.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.tasks import ioi
    >>> with TemporaryDirectory() as folder:
    ...     write_examples(ioi(2), f"{folder}/prompts.jsonl")
    ...     read_examples(f"{folder}/prompts.jsonl") == ioi(2)
    True
    """
    path, examples = Path(path), []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            examples.append(example_of(parse_json(line), task=path.stem))
        except KeyholeError as error:
            raise KeyholeError(f"{path}, line {number}: {error}") from error
    if not examples:
        raise KeyholeError(f'{path} has no prompts: write a line such as {{"prompt": "1+1=", "target": "2"}} for each.')
    return examples


def read_prompts(path: str | Path) -> list[Example] | list[str]:
    """Prompts of a file: JSON Lines, whose answers are known, or plain text with a prompt a line."""
    prompts = [line.removesuffix("\r") for line in _lines(path) if line.strip()]
    if not prompts:
        raise KeyholeError(f"{path} has no prompts: write one a line, as plain text or as JSON Lines.")
    if Path(path).suffix.lower() == ".jsonl" or all(line.lstrip().startswith("{") for line in prompts):
        return read_examples(path)
    return prompts


def _lines(path: str | Path) -> list[str]:
    """Lines of a file; other breaks may stand inside a prompt."""
    return read_text(path).split("\n")


def write_examples(examples: Sequence[Example], path: str | Path) -> None:
    """Write examples as JSON Lines that `read_examples` reads back without loss.

    Args:
        examples: The examples.
        path: The file.

    >>> from tempfile import TemporaryDirectory
    >>> from keyhole.tasks import ioi
    >>> with TemporaryDirectory() as folder:
    ...     write_examples(ioi(2), f"{folder}/prompts.jsonl")
    ...     read_examples(f"{folder}/prompts.jsonl") == ioi(2)
    True
    """
    lines = [json.dumps(as_record(example), ensure_ascii=False) for example in examples]
    write_at_once(path, "".join(f"{line}\n" for line in lines))


def as_record(example: Example) -> dict[str, Any]:
    """An example as a line of a file has it.

    >>> as_record(Example("sums", "1+1=", "2", ("3",), ("2",), {"END": (3, 4)}, "", " 2"))["target"]
    '2'
    """
    require(bool(example.answers), "an example without an answer cannot be written down.")
    record: dict[str, Any] = {"prompt": example.text, "target": _short(example.answers)}
    if example.against:
        record["against"] = _short(example.against)
    if example.labels:
        record["labels"] = dict(example.labels)
    record |= {"roles": {role: list(span) for role, span in example.roles.items()}, "task": example.task}
    texts = {"answer": example.answer, "template": example.template, "continuation": example.continuation}
    usual = _usual(example.answers, example.answer)
    return record | {key: text for key, text in texts.items() if text != usual[key]}


def _short(words: tuple[str, ...]) -> str | list[str]:
    return words[0] if len(words) == 1 else list(words)


def _usual(answers: tuple[str, ...], answer: str) -> dict[str, str]:
    """What the optional texts are where a line does not say."""
    return {"answer": answers[0] if answers else "", "template": "", "continuation": f" {answer}"}


def example_of(record: Any, *, task: str) -> Example:
    """An example from plain data, as a line of a file has it; `task`: what it belongs to unless it says so.

    >>> example_of({"prompt": "1+1=", "target": "2"}, task="sums").answers
    ('2',)
    """
    require(isinstance(record, dict), "a line is one JSON object.")
    if unknown := set(record) - _KEYS:
        raise KeyholeError(f"unknown keys: {', '.join(sorted(unknown))}; known are {', '.join(sorted(_KEYS))}.")
    for key in ("prompt", "target"):
        require(key in record, f'there is no "{key}".')
    text, answers = _text(record["prompt"], "prompt"), _words(record["target"], "target")
    require(bool(text.strip()), '"prompt" is empty.')
    require(bool(answers), '"target" names no word.')
    against = _words(record.get("against", []), "against")
    both = sorted(set(answers) & set(against))
    require(not both, f'{", ".join(map(repr, both))} cannot be a "target" and "against" it.')
    texts = {key: _text(record[key], key) for key in _TEXTS if key in record}
    answer = texts.get("answer", answers[0])
    require(answer in answers, f'"answer", {quoted(answer)}, is none of "target".')
    texts = {"task": task, **_usual(answers, answer), **texts}
    return Example(
        task=texts["task"],
        text=text,
        answer=answer,
        against=against,
        answers=answers,
        roles=_roles(record.get("roles", {}), text),
        template=texts["template"],
        continuation=texts["continuation"],
        labels=_labels(record.get("labels", {})),
    )


def _text(value: Any, key: str) -> str:
    require(isinstance(value, str), f'"{key}" is text, not {quoted(value)}.')
    return str(value)


def _words(value: Any, key: str) -> tuple[str, ...]:
    """One word or several. Space around them says nothing: "continuation" says whether one stands before the answer."""
    require(
        isinstance(value, str) or is_list(value, str), f'"{key}" is a word or a list of words, not {quoted(value)}.'
    )
    words = [_text(word, key).strip() for word in ([value] if isinstance(value, str) else value)]
    require(all(words), f'"{key}" has an empty word.')
    twice = sorted({word for word in words if words.count(word) > 1})
    require(not twice, f'"{key}" names {", ".join(map(repr, twice))} twice.')
    return tuple(words)


def _labels(labels: Any) -> dict[str, str]:
    require(isinstance(labels, dict), f'"labels" is an object such as {{"order": "ABBA"}}, not {quoted(labels)}.')
    for key, value in labels.items():
        require(isinstance(value, str) or is_whole(value), f"the label {quoted(key)} is text, not {quoted(value)}.")
    return {_text(key, "labels"): _text(str(value), "labels") for key, value in labels.items()}


def _roles(roles: Any, text: str) -> dict[str, Span]:
    require(isinstance(roles, dict), f'"roles" is an object such as {{"IO": "Mary"}}, not {quoted(roles)}.')
    spans = {_text(role, "roles"): _span(role, place, text) for role, place in roles.items()}
    return spans if "END" in spans else {**spans, "END": (len(text) - 1, len(text))}


def _span(role: str, place: Any, text: str) -> Span:
    if isinstance(place, str) and place:
        spans = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(place)}(?!\w)", text)]
        problem = f"the role {quoted(role)}, {quoted(place)}, occurs {len(spans)} times in the prompt"
        require(len(spans) == 1, f"{problem}: give its [start, end] in characters.")
        return spans[0]
    if is_list(place, int) and len(place) == 2 and is_index(place[0]) and place[0] < place[1] <= len(text):
        return place[0], place[1]
    raise KeyholeError(
        f"the role {quoted(role)} is a word of the prompt or [start, end] in its {len(text)} characters, not "
        f"{quoted(place)}."
    )
