"""Which requests were answered so far, and what do the explainer and the judge of a model share?

Answers are kept in a file of JSON Lines, one line each, flushed to the disk before the answer counts. The key is a
digest of the request, so that nothing is paid for twice. A line that a crash left unfinished is removed when the file
is next opened.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from keyhole.errors import KeyholeError, UnwritableError
from keyhole.files import require_file
from keyhole.naming.llm.endpoint import Endpoint, Gate, Reply, Request, Status, read_reply
from keyhole.strict import is_index, parse_json, require, require_fields

FIELDS = ("digest", "endpoint", "at", "seconds", "tries", "status", "request", "answer")


class Transcript:
    """Answers by their requests; safe to share among threads. Made by `open_transcript`."""

    def __init__(self, path: Path, out: BinaryIO, replies: dict[str, Reply]) -> None:
        self.path = path
        self._out, self._replies, self._lock = out, replies, Lock()

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, request: Request) -> Reply | None:
        """The answer; None: the request was not sent, or without success.

        Args:
            request: The request.
        """
        return self._replies.get(request.digest)

    def add(
        self, request: Request, answer: Any, *, sent: Mapping[str, Any], endpoint: str, seconds: float, tries: int
    ) -> Reply:
        """Keep a request and the server's answer as it came: its JSON document, or a text that is no JSON.

        Args:
            request: The request.
            answer: The server's answer.
            sent: What was sent.
            endpoint: Where it was sent.
            seconds: How long the answer took.
            tries: How often it was sent.
        """
        reply = read_reply(answer)
        line = {
            "digest": request.digest,
            "endpoint": endpoint,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "tries": tries,
            "status": reply.status,
            "request": sent,
            "answer": answer,
        }
        text = json.dumps(line) + "\n"  # escaped: what a server sends may be no valid Unicode
        with self._lock:
            try:
                self._out.write(text.encode())
                self._out.flush()
                os.fsync(self._out.fileno())
            except OSError as error:
                raise UnwritableError(f"cannot write {self.path} ({error.strerror}): make room, and go on.") from error
            self._replies[request.digest] = reply
        return reply

    def tally(self) -> Mapping[Status, int]:
        """How many answers are of each kind."""
        with self._lock:
            return Counter(reply.status for reply in self._replies.values())


@contextmanager
def open_transcript(path: Path | str) -> Iterator[Transcript]:
    """The transcript in a file; one process at a time.

    Args:
        path: The file (.jsonl), which is made if it does not exist.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, open_transcript(f"{folder}/names.jsonl") as transcript:
    ...     len(transcript)
    0
    """
    place = require_file(path, (".jsonl",))
    lock = FileLock(place.with_name(place.name + ".lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UnwritableError(f"another process writes to {place}: wait for it, or choose another file.") from error
    except OSError as error:
        raise UnwritableError(f"cannot write {place} ({error.strerror}): choose another place.") from error
    with lock:
        try:
            out = place.open("a+b")
        except OSError as error:
            raise UnwritableError(f"cannot write {place} ({error.strerror}): choose another place.") from error
        with out:
            yield Transcript(place, out, _read(place, out))


def _read(place: Path, out: BinaryIO) -> dict[str, Reply]:
    """All answers; of two to the same request the later one. What follows the last line's end is cut off."""
    out.seek(0)
    content = out.read()
    whole = content.rfind(b"\n") + 1
    replies: dict[str, Reply] = {}
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        try:
            digest, answer = _line(line)
        except (KeyholeError, UnicodeDecodeError) as error:
            message = f"line {number} of {place} is no answer ({error}): is it a transcript?"
            raise KeyholeError(f"{message} Mend the line, or choose another file.") from error
        replies[digest] = read_reply(answer)
    if whole < len(content):  # cut nothing off a file that is no transcript
        require(whole > 0 or content.startswith(b'{"digest": "'[: len(content)]), f"{place} is no transcript.")
        out.truncate(whole)
    return replies


def _line(line: bytes) -> tuple[str, Any]:
    record = parse_json(line.decode())
    require_fields(record, FIELDS, "it")
    require(isinstance(record["digest"], str) and is_index(record["tries"]), "its digest or tries are none.")
    return record["digest"], record["answer"]


# Which model answers, how much does it see, and what did it answer so far? Explainer and judge share this.


@dataclass(frozen=True)
class Prompting:
    """How much a model sees, and how much it may say."""

    examples: int = 20  # that an explainer sees, at most
    negatives: int = 10  # beside them, where the signal does not fire
    name_tokens: int = 400  # of an explanation, reasons included
    judge_tokens: int = 5  # of a judge's answer; a model that thinks aloud needs more

    def __post_init__(self) -> None:
        if min(self.examples, self.name_tokens, self.judge_tokens) < 1 or self.negatives < 0:
            raise KeyholeError("show at least one example, and leave at least one token for an answer.")


@dataclass
class Talk:
    """A conversation with an endpoint that is written down.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, open_transcript(f"{folder}/names.jsonl") as transcript:
    ...     Talk(Endpoint("http://localhost:8000/v1", "qwen"), transcript).prompting.examples
    20
    """

    endpoint: Endpoint
    transcript: Transcript
    prompting: Prompting = field(default_factory=Prompting)
    seed: int = 0  # of the order of negatives, and of the model's draws
    again: bool = False  # send a request once more if its answer was malformed
    logprobs: bool = field(default=True, init=False)  # until the endpoint says that it gives none
    gate: Gate = field(init=False, repr=False)
    answered: set[str] = field(default_factory=set, init=False, repr=False)  # digests of requests of this talk

    def __post_init__(self) -> None:
        rate = self.endpoint.patience.per_minute
        self.gate = Gate(60 / rate if rate else 0.0)

    def known(self, request: Request) -> Reply | None:
        """The answer that is known; None: the request is to be sent.

        Args:
            request: The request.
        """
        reply = self.transcript.get(request)
        once_more = self.again and request.digest not in self.answered
        return None if reply is not None and once_more and reply.status == "malformed" else reply
