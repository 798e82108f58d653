"""What is asked? One chat request, and the digest by which its answer is found again."""

import json
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

_PIECE = re.compile(r"[^\W\d_]{1,6}|\d{1,3}|[^\w\s]|_")
_FRAME = 5  # tokens around each message
TOP = 20  # likeliest tokens that are asked for with the answer


@dataclass(frozen=True)
class Request:
    """One question to a model, complete but for the place where it is asked."""

    model: str
    system: str
    user: str
    max_tokens: int
    logprobs: bool = False  # of the answer's tokens, where the endpoint gives them
    seed: int = 0

    def body(self, *, logprobs: bool = True) -> dict[str, Any]:
        """As the endpoint reads it; some take no log-probabilities."""
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]
        asked = {"logprobs": True, "top_logprobs": TOP} if self.logprobs and logprobs else {}
        plain = {"temperature": 0, "seed": self.seed, "max_tokens": self.max_tokens}
        return {"model": self.model, "messages": messages, **plain, **asked}

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
