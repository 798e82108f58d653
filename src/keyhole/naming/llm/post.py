"""How are requests answered? They are sent a few at a time and tried again; a stop loses no answer.

A request is a POST with a deadline, whose outcome is an answer, a reason to try again, or an error:

200                          an answer, if it is JSON; else something on the way broke: try again
429, 408, 409, 425, 5xx      try again, when the server says
no connection, time-out      try again
400 about logprobs           try again without them
400 of a content filter      a refusal, which is an answer
anything else                the user must do something: an error
"""

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from socket import gaierror
from typing import TYPE_CHECKING, Any

from keyhole.errors import KeyholeError
from keyhole.naming.llm.endpoint import Endpoint, Reply, Request, StoppedError, key
from keyhole.naming.llm.transcript import Talk
from keyhole.progress import Progress, duration, silent

if TYPE_CHECKING:
    import httpx

_MOST = 8_000_000  # bytes of an answer
_AGAIN = (408, 409, 425, 429)
_SHORT = 200  # characters of what a server says, in a message


@dataclass(frozen=True)
class Answered:
    """The server's JSON document."""

    answer: Any


@dataclass(frozen=True)
class Again:
    """No answer came, and one may later."""

    why: str
    after: float | None = None  # seconds, if the server says
    busy: bool = False  # other requests should wait, too
    garbled: str | None = None  # an answer that is no JSON: perhaps paid for, and worth another try


@dataclass(frozen=True)
class NoLogprobs:
    """The endpoint takes no log-probabilities."""


Outcome = Answered | Again | NoLogprobs


@cache
def client() -> "httpx.Client":
    """The client of all requests, in any thread. It follows no redirect, so that no other server gets a key."""
    try:
        import httpx
    except ImportError as error:
        raise KeyholeError("asking a model needs one more package: pip install 'keyhole[naming]'.") from error
    return httpx.Client(headers={"User-Agent": "keyhole", "Content-Type": "application/json"})


def post(endpoint: Endpoint, body: dict[str, Any]) -> Outcome:
    """Send a request once; raises KeyholeError where trying again would not help."""
    sender, secret, limit = client(), key(endpoint.keys), endpoint.patience.timeout
    from httpx import ConnectError, ConnectTimeout, RequestError, TimeoutException

    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    deadline, content = time.monotonic() + limit, b""
    try:
        options: Any = {"content": json.dumps(body), "headers": headers, "timeout": limit}
        with sender.stream("POST", endpoint.url, **options) as response:
            for part in response.iter_bytes():
                content += part
                if time.monotonic() > deadline or len(content) > _MOST:  # a slow trickle never ends
                    return Again(f"no whole answer within {limit:g} s and {_MOST:,} bytes")
    except TimeoutException as error:
        return Again(f"no {'connection' if isinstance(error, ConnectTimeout) else 'answer'} within {limit:g} s")
    except ConnectError as error:
        if _caused_by(error, gaierror):
            raise KeyholeError(
                f"{endpoint.base_url} is at no known host: check the base URL and the network."
            ) from None
        return Again(f"no connection ({str(error).partition('] ')[2] or error})")
    except RequestError as error:
        return Again(f"the connection broke ({type(error).__name__})")
    if response.status_code != 200:
        return _refused(response, endpoint, body, said=content.decode(errors="replace"), secret=secret)
    try:
        return Answered(json.loads(content.decode(), parse_constant=lambda _: None))
    except (ValueError, RecursionError):
        return Again("an answer that is no JSON", garbled=content.decode(errors="replace"))


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    return error is not None and (isinstance(error, kind) or _caused_by(error.__cause__ or error.__context__, kind))


def _refused(
    answer: "httpx.Response", endpoint: Endpoint, body: dict[str, Any], *, said: str, secret: str | None
) -> Outcome:
    """What a status other than 200 means."""
    status, (message, kind) = answer.status_code, _message(said, secret)
    about = f" It says: {message}" if message else ""
    if kind == "insufficient_quota":
        raise KeyholeError(f"{endpoint.base_url} has no more credit for this key: top it up, and go on.{about}")
    if status in (400, 422, 500, 501) and "logprobs" in body and "logprob" in said.lower():
        return NoLogprobs()
    if status in _AGAIN or status >= 500:
        return Again(f"status {status}.{about}".rstrip("."), _seconds(answer.headers), busy=status == 429)
    if status == 400 and kind == "content_filter":
        return Answered({"choices": [{"message": {"refusal": message}, "finish_reason": "content_filter"}]})
    if status in (401, 403):
        problem = "refuses the key" if secret else "needs a key"
        raise KeyholeError(f"{endpoint.base_url} {problem}: set {endpoint.keys[0]} in the environment.{about}")
    if status == 404:
        problem = f"knows no model {endpoint.model!r}, or is no base URL: it should end before /chat/completions"
        raise KeyholeError(f"{endpoint.base_url} {problem}.{about}")
    problem = "redirects" if 300 <= status < 400 else "does not take the request"
    raise KeyholeError(f"{endpoint.base_url} {problem} (status {status}): check base URL and model.{about}")


def _message(said: str, secret: str | None) -> tuple[str, str | None]:
    """The server's message, on one line and without the key; and its error code."""
    kind: Any = None
    try:
        document = json.loads(said)
        inner = document.get("error", document)
        if isinstance(inner, dict):
            kind, inner = inner.get("code"), inner.get("message", inner.get("detail", ""))
        said = str(inner)
    except (ValueError, AttributeError, RecursionError):
        said = "" if "<" in said else said  # an HTML page is no message
    if secret:
        said = said.replace(secret, "***")
    line = " ".join(said.split())
    return (line if len(line) <= _SHORT else line[:_SHORT] + "..."), kind if isinstance(kind, str) else None


def _seconds(headers: Mapping[str, str]) -> float | None:
    """How long the server asks to wait: a number of seconds, or a date."""
    wait = headers.get("Retry-After", "").strip()
    try:
        return max(0.0, float(wait)) if float(wait) < float("inf") else None
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(wait).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


# How is one request answered? It is tried again with growing waits, until the tries are used up.


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
            talk.logprobs, tried = False, tried - 1  # happens once: the next body has none
            continue
        if isinstance(outcome, Answered):
            return _keep(talk, request, outcome.answer, sent=body, began=began, tries=tried)
        why, garbled = outcome.why, garbled if outcome.garbled is None else outcome.garbled
        if tried < patience.tries:
            _pause(talk, outcome, tried)
    if garbled is not None:  # kept as malformed, so that it is not paid for again
        return _keep(talk, request, garbled, sent=body, began=began, tries=tried)
    raise GaveUpError(f"{talk.endpoint.base_url} gave no answer in {tried} tries: {why}.")


def _keep(talk: Talk, request: Request, answer: Any, *, sent: dict[str, Any], began: float, tries: int) -> Reply:
    talk.answered.add(request.digest)
    seconds, place = time.monotonic() - began, talk.endpoint.base_url
    return talk.transcript.add(request, answer, sent=sent, endpoint=place, seconds=seconds, tries=tries)


def _pause(talk: Talk, outcome: Again, tried: int) -> None:
    """Wait as the server says, or twice as long as before, give or take a quarter so that threads do not coincide."""
    patience, after = talk.endpoint.patience, outcome.after
    if after is not None and after > patience.longest:
        message = f"{talk.endpoint.base_url} asks to wait for {duration(after)}"
        raise KeyholeError(f"{message}: run this again then, all answers are kept in {talk.transcript.path}.")
    grown = min(patience.longest, patience.wait * 2 ** (tried - 1)) * random.uniform(0.75, 1.25)
    seconds = grown if after is None else after
    if outcome.busy:
        talk.gate.close(seconds)
    talk.gate.wait(seconds)


# How are many requests answered? A few at a time; a stop loses nothing that was paid for.


def missing(talk: Talk, requests: Iterable[Request]) -> list[Request]:
    """Those that are not answered yet, each once."""
    different = {request.digest: request for request in requests}
    return [request for request in different.values() if talk.known(request) is None]


def send_all(talk: Talk, requests: Sequence[Request], *, progress: Progress = silent) -> None:
    """Answer all of them into the transcript; raises KeyholeError if some could not be.

    The first goes alone. It shows what is wrong with URL, key or model, and whether there are log-probabilities. After
    a stop (Ctrl-C, too) nothing new is sent; answers that are on the way are waited for and kept.
    """
    left = missing(talk, requests)
    lost, row, done, stopped = list[GaveUpError](), 0, 0, False  # row: failures since the last answer
    try:
        with ThreadPoolExecutor(talk.endpoint.patience.workers) as pool, _stopping(talk):
            for outcome in _answers(pool, talk, left):
                row = row + 1 if isinstance(outcome, GaveUpError) else 0
                lost += [outcome] if isinstance(outcome, GaveUpError) else []
                if row >= talk.endpoint.patience.failures or len(lost) > done:  # the server is gone, or never answered
                    break
                done += not row
                progress(done, len(left))
    except StoppedError:
        stopped = True
    finally:
        talk.gate.stop.clear()
    if lost or stopped:
        kept = len(left) - len(missing(talk, left))
        message = f"{kept} of {len(left)} requests were answered and are kept in {talk.transcript.path}: go on later."
        raise KeyholeError(f"{lost[-1] if lost else 'stopped:'} {message}")


@contextmanager
def _stopping(talk: Talk) -> Iterator[None]:
    """However it ends, the workers stop."""
    try:
        yield
    finally:
        talk.gate.stop.set()


def _answers(pool: ThreadPoolExecutor, talk: Talk, requests: Sequence[Request]) -> Iterable[Reply | GaveUpError]:
    """Answers as they come; no more requests are on the way than there are workers."""
    running = set[Future[Reply]]()
    for request in requests:
        running.add(pool.submit(send, talk, request))
        first = len(running) == 1 and request is requests[0]
        if first or len(running) == talk.endpoint.patience.workers:
            ready, running = wait(running, return_when=FIRST_COMPLETED)
            yield from map(_outcome, ready)
    while running:
        ready, running = wait(running, return_when=FIRST_COMPLETED)
        yield from map(_outcome, ready)


def _outcome(future: Future[Reply]) -> Reply | GaveUpError:
    error = future.exception()
    if isinstance(error, GaveUpError):
        return error
    return future.result()
