"""Whom do we ask? Any server that speaks OpenAI's chat completions; its key stays in the environment.

The key is read when a request is sent. It is in no record, no file and no message.
"""

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from keyhole.errors import KeyholeError

KEYS = ("KEYHOLE_API_KEY", "OPENAI_API_KEY")  # of the environment, the first that is set


@dataclass(frozen=True)
class Patience:
    """How long is waited, how often is tried again, and how much is asked at once."""

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
    found = next((value for name in names if (value := os.environ.get(name, "").strip())), None)
    if found is not None and not (found.isascii() and found.isprintable()):
        raise KeyholeError(f"the key in {' or '.join(names)} has characters that no key has: copy it again.")
    return found


_BAD_URL = "the base URL should look like https://host/v1, in plain letters."
