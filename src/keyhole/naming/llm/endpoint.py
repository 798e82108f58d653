"""Whom do we ask, how often, and what? An endpoint, its gate, a request, and a reply read strictly.

Whom do we ask? Any server that speaks OpenAI's chat completions; its key stays in the environment.

The key is read when a request is sent. It is in no record, no file and no message.
"""

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Event, Lock
from typing import Any, Literal
from urllib.parse import urlsplit

from keyhole.errors import KeyholeError

KEYS = ("KEYHOLE_API_KEY", "OPENAI_API_KEY")  # of the environment, the first that is set


@dataclass(frozen=True)
class Patience:
    """How long to wait, how often to try again, and how many requests are sent at once."""

    timeout: float = 120.0  # seconds for one answer, from the first byte sent to the last received
    tries: int = 6
    wait: float = 1.0  # seconds before the second try; doubled for each further one
    longest: float = 300.0  # seconds between two tries, at most: a server that asks for more is left alone
    per_minute: float | None = None  # requests, tries included; None: no limit
    workers: int = 4  # requests on the way at the same time
    failures: int = 3  # requests in a row that used up their tries: the server is gone

    def __post_init__(self) -> None:
        rate = 1.0 if self.per_minute is None else self.per_minute
        if min(self.timeout, self.longest, rate) <= 0 or self.wait < 0:
            raise KeyholeError("time-outs, the longest wait and requests per minute are positive numbers.")
        if min(self.tries, self.workers, self.failures) < 1:
            raise KeyholeError("tries, workers and failures are at least 1.")


USUAL = Patience()


@dataclass(frozen=True)
class Endpoint:
    """A model behind a server: `Endpoint("http://localhost:8000/v1", "qwen")`."""

    base_url: str  # up to and without /chat/completions
    model: str
    patience: Patience = USUAL
    keys: tuple[str, ...] = KEYS  # variables of the environment that may hold the key

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            raise KeyholeError(_BAD_URL) from None
        if not good or any(c.isspace() or not c.isascii() for c in self.base_url):
            raise KeyholeError(_BAD_URL)
        if parts.username or parts.query or parts.fragment:  # it stands in the transcript
            raise KeyholeError(f"a base URL holds no key, user or query: set {KEYS[0]} in the environment instead.")
        if not self.model:
            raise KeyholeError("no model was given: name one that the endpoint serves.")

    @property
    def url(self) -> str:
        """Where questions are sent."""
        return self.base_url.rstrip("/") + "/chat/completions"


def key(names: tuple[str, ...] = KEYS) -> str | None:
    """The key of the environment; None: there is none, and local servers need none."""
    secret = next((value for name in names if (value := os.environ.get(name, "").strip())), None)
    if secret is not None and not (secret.isascii() and secret.isprintable()):
        raise KeyholeError(f"the key in {' or '.join(names)} has characters that no key has: copy it again.")
    return secret


_BAD_URL = "the base URL should look like https://host/v1, in plain letters."


# Whose turn is it? Requests begin so far apart as the user or the server wants, until somebody says stop.


class StoppedError(KeyholeError):
    """The work was stopped before this request was sent."""


@dataclass
class Gate:
    """Requests begin at least so far apart, and nobody begins while the server is busy."""

    apart: float = 0.0
    stop: Event = field(default_factory=Event)
    _next: float = 0.0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def enter(self) -> None:
        """Wait for one's turn."""
        while True:
            with self._lock:
                now = time.monotonic()
                if now >= self._next:
                    self._next = now + self.apart
                    break
                left = self._next - now
            self.wait(left)
        self.wait(0)

    def close(self, seconds: float) -> None:
        """Let nobody begin for so long."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)

    def wait(self, seconds: float) -> None:
        """Sleep, unless the work is stopped."""
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise StoppedError("stopped.")


# What does a request hold? One chat request, and the digest by which its answer is found again.

_PIECE = re.compile(r"[^\W\d_]{1,6}|\d{1,3}|[^\w\s]|_")
_FRAME = 5  # tokens around each message
TOP = 20  # likeliest tokens that a request wants with the answer


@dataclass(frozen=True)
class Request:
    """One question to a model, complete except for the address of its server."""

    model: str
    system: str
    user: str
    max_tokens: int
    logprobs: bool = False  # of the answer's tokens, where the endpoint gives them
    seed: int = 0

    def body(self, *, logprobs: bool = True) -> dict[str, Any]:
        """As the endpoint reads it; some take no log-probabilities."""
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]
        likely = {"logprobs": True, "top_logprobs": TOP} if self.logprobs and logprobs else {}
        plain = {"temperature": 0, "seed": self.seed, "max_tokens": self.max_tokens}
        return {"model": self.model, "messages": messages, **plain, **likely}

    @property
    def digest(self) -> str:
        """The same for the same question to the same model, wherever it is served."""
        return sha256(json.dumps(self.body(), sort_keys=True).encode()).hexdigest()

    @property
    def tokens(self) -> int:
        """About how many tokens it has."""
        return about_tokens(self.system) + about_tokens(self.user) + 2 * _FRAME


def about_tokens(text: str) -> int:
    """About how many tokens a text has, without the model's tokenizer: pieces of words, digits and marks.

    >>> about_tokens("When Mary went to the store, John")
    8
    """
    return len(_PIECE.findall(text))


# What did the model say? A server's answer is read strictly, and what is no answer gets its own status.

Status = Literal["answered", "unfinished", "refused", "malformed"]
STATUSES: tuple[Status, ...] = ("answered", "unfinished", "refused", "malformed")
Likely = Mapping[str, float]  # token -> log-probability

_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_SORRY = re.compile(
    r"\A\W*(i['\u2019]?m (very |so )?sorry|sorry|i (can(no|['\u2019]?)t|am unable|['\u2019]m unable|won['\u2019]t))\b",
    re.I,
)


@dataclass(frozen=True)
class Reply:
    """An answer, or why there is none."""

    status: Status
    text: str = ""
    likely: tuple[Likely, ...] = ()  # per token of the answer, the likeliest; () where they are not given


def read_reply(answer: Any) -> Reply:
    """From the server's JSON document; anything else than a completion with a text is malformed or a refusal.

    >>> read_reply({"choices": [{"message": {"content": "Yes"}, "finish_reason": "stop"}]})
    Reply(status='answered', text='Yes', likely=())
    >>> read_reply({"choices": []}).status
    'malformed'
    """
    choice = _first(answer.get("choices")) if isinstance(answer, dict) else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return Reply("malformed")
    text, why = message.get("content"), choice.get("finish_reason")
    if message.get("refusal") or why == "content_filter":
        return Reply("refused", text if isinstance(text, str) else "")
    if not isinstance(text, str):
        return Reply("malformed")
    said = _THOUGHT.sub("", text)
    if said.lstrip().startswith("<think>"):  # thinking that was cut off is no answer
        return Reply("unfinished", text)
    if not said.strip():
        return Reply("unfinished" if why == "length" else "malformed", text)
    if _SORRY.match(said):
        return Reply("refused", said)
    likely = () if said != text else _likely(choice.get("logprobs"))
    return Reply("unfinished" if why == "length" else "answered", said, likely)


def _first(values: Any) -> Any:
    return values[0] if isinstance(values, list) and values else None


def _likely(logprobs: Any) -> tuple[Likely, ...]:
    """Per token, the likeliest; () if any of it is not as it should be, since half of it would mislead."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list):
        return ()
    rows = [_row(token.get("top_logprobs")) if isinstance(token, dict) else None for token in content]
    return () if any(row is None for row in rows) else tuple(row for row in rows if row is not None)


def _row(top: Any) -> dict[str, float] | None:
    if not isinstance(top, list) or not top:
        return None
    likely: dict[str, float] = {}
    for entry in top:
        token, value = (entry.get("token"), entry.get("logprob")) if isinstance(entry, dict) else (None, None)
        if not isinstance(token, str) or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if math.isnan(value) or value > 1e-3:  # rounding may take a sure token a little over zero
            return None
        likely[token] = max(likely.get(token, -math.inf), min(float(value), 0.0))
    return likely


def chance(likely: Sequence[Likely], word: str, other: str) -> float | None:
    """The probability of one word rather than the other, at the first token that is one of the two.

    However they are spelt: " Yes" and "yes" add up. None: neither word is among the likeliest.

    >>> chance([{"Yes": math.log(0.6), "no": math.log(0.2), "It": math.log(0.2)}], "yes", "no")
    0.75
    """
    for row in likely:
        yes, no = (sum(math.exp(v) for token, v in row.items() if _bare(token) == form) for form in (word, other))
        if yes + no > 0:
            return round(yes / (yes + no), 12)
    return None


def _bare(token: str) -> str:
    return token.strip(" \t\n*\"'.\u2581\u0120").lower()
