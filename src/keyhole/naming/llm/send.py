"""How does one request come to an answer? Tried again with growing waits, until the tries are used up."""

import random
import time
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.naming.llm.post import Again, Answered, Garbled, NoLogprobs, post
from keyhole.naming.llm.reply import Reply
from keyhole.naming.llm.request import Request
from keyhole.naming.llm.talk import Talk
from keyhole.progress import duration


class GaveUpError(KeyholeError):
    """All tries of one request failed; others may do better."""


def send(talk: Talk, request: Request) -> Reply:
    """The answer: the transcript's, or else the endpoint's, which is in the transcript before it is returned."""
    reply = talk.known(request)
    if reply is not None:
        return reply
    patience, garbled, tried, why = talk.endpoint.patience, None, 0, ""
    while tried < patience.tries:
        body = request.body(logprobs=talk.logprobs)
        talk.gate.enter()
        began = time.monotonic()
        outcome = post(talk.endpoint, body)
        tried += 1
        if isinstance(outcome, NoLogprobs):
            talk.logprobs, tried = False, tried - 1  # a body without them is never answered so
            continue
        if isinstance(outcome, Answered):
            return _keep(talk, request, outcome.answer, sent=body, began=began, tries=tried)
        if isinstance(outcome, Garbled):
            garbled, why = outcome.text, "an answer that is no JSON"
        else:
            why = outcome.why
        if tried < patience.tries:
            _pause(talk, outcome, tried)
    if garbled is not None:  # told as what it is, and not paid for again
        return _keep(talk, request, garbled, sent=body, began=began, tries=tried)
    raise GaveUpError(f"{talk.endpoint.base_url} gave no answer in {tried} tries: {why}.")


def _keep(talk: Talk, request: Request, answer: Any, *, sent: dict[str, Any], began: float, tries: int) -> Reply:
    talk.asked.add(request.digest)
    seconds, place = time.monotonic() - began, talk.endpoint.base_url
    return talk.transcript.add(request, answer, sent=sent, endpoint=place, seconds=seconds, tries=tries)


def _pause(talk: Talk, outcome: Again | Garbled, tried: int) -> None:
    """Until the server says, or twice as long as before; by chance a quarter more or less, so that threads part."""
    patience, after = talk.endpoint.patience, outcome.after if isinstance(outcome, Again) else None
    if after is not None and after > patience.longest:
        told = f"{talk.endpoint.base_url} asks to wait for {duration(after)}"
        raise KeyholeError(f"{told}: go on then, what was answered is kept in {talk.transcript.path}.")
    grown = min(patience.longest, patience.wait * 2 ** (tried - 1)) * random.uniform(0.75, 1.25)
    seconds = grown if after is None else after
    if isinstance(outcome, Again) and outcome.busy:
        talk.gate.close(seconds)
    talk.gate.wait(seconds)
