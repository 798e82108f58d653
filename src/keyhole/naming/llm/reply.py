"""What did the model say? A server's answer read strictly: what is no answer is told as what it is."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    rows = [_row(one.get("top_logprobs")) if isinstance(one, dict) else None for one in content]
    return () if any(row is None for row in rows) else tuple(row for row in rows if row is not None)


def _row(top: Any) -> dict[str, float] | None:
    if not isinstance(top, list) or not top:
        return None
    found: dict[str, float] = {}
    for one in top:
        token, value = (one.get("token"), one.get("logprob")) if isinstance(one, dict) else (None, None)
        if not isinstance(token, str) or isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if math.isnan(value) or value > 1e-3:  # rounding may take a sure token a little over zero
            return None
        found[token] = max(found.get(token, -math.inf), min(float(value), 0.0))
    return found


def chance(likely: Sequence[Likely], word: str, other: str) -> float | None:
    """The probability of one word rather than the other, at the first token that is one of the two.

    However they are spelt: " Yes" and "yes" add up. None: neither word is among the likeliest.

    >>> chance([{"Yes": math.log(0.6), "no": math.log(0.2), "It": math.log(0.2)}], "yes", "no")
    0.75
    """
    for row in likely:
        yes, no = (sum(math.exp(v) for token, v in row.items() if _bare(token) == one) for one in (word, other))
        if yes + no > 0:
            return round(yes / (yes + no), 12)
    return None


def _bare(token: str) -> str:
    return token.strip(" \t\n*\"'.\u2581\u0120").lower()
