"""A server that speaks OpenAI's chat completions, and misbehaves as it is told: over real HTTP, in a thread."""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """What the server does with one request."""

    status: int = 200
    content: bytes | None = None  # None: no answer at all, the connection is closed
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    missing: int = 0  # bytes that are promised and never sent
    drip: float = 0.0  # seconds between two bytes


def completion(
    text: str | None, *, finish: str = "stop", likely: dict[str, float] | None = None, **message: Any
) -> Said:
    choice: Body = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    if likely is not None:
        top = [{"token": token, "logprob": math.log(p)} for token, p in likely.items()]
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
    return document({"object": "chat.completion", "choices": [choice]})


def document(value: Any, status: int = 200, *headers: tuple[str, str]) -> Said:
    return Said(status, json.dumps(value).encode(), headers)


def failure(status: int, message: str, code: str | None = None, *headers: tuple[str, str]) -> Said:
    return document({"error": {"message": message, "code": code}}, status, *headers)


@dataclass
class Server:
    """How it behaves, and what it was asked."""

    behaviour: Callable[[int, Body], Said]  # the number of the request, from 0, and its body
    url: str = ""
    bodies: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(behaviour: Callable[[int, Body], Said], port: int = 0) -> Iterator[Server]:
    server = Server(behaviour)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with server.lock:
                number = len(server.bodies)
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
                server.paths.append(self.path)
                server.times.append(time.monotonic())
                server.busy += 1
                server.busiest = max(server.busiest, server.busy)
            said = server.behaviour(number, body)
            time.sleep(said.delay)
            with server.lock:  # before the answer, which brings the next request
                server.busy -= 1
            with suppress(OSError):  # whoever asked has gone
                self._say(said)

        def _say(self, said: Said) -> None:
            if said.content is None:
                self.close_connection = True
                return
            self.send_response(said.status)
            for name, value in said.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said.content) + said.missing))
            self.end_headers()
            for at in range(len(said.content) if said.drip else 0):
                self.wfile.write(said.content[at : at + 1])
                self.wfile.flush()
                time.sleep(said.drip)
            if not said.drip:
                self.wfile.write(said.content)

        def log_message(self, *args: Any) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    httpd.daemon_threads = True
    server.url = f"http://127.0.0.1:{httpd.server_address[1]}/v1"
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


RULE = 'dest is "to", and src is a name'


def knows_the_rule(number: int, body: Body) -> Said:
    """A model that names every signal by the rule, and judges a text by looking whether its marks obey it."""
    asked = body["messages"][1]["content"]
    if "The signal fires" in asked:
        return completion(f"Names precede.\nPATTERN: {RULE}")
    if "Which text does not belong" in asked:
        lines = [line for line in asked.splitlines() if re.match(r"\d\. ", line)]
        odd = [number for number, line in enumerate(lines, start=1) if not obeys(line)]
        return completion(str(odd[0]) if odd else "none")
    text = next(line for line in asked.splitlines() if line.startswith("Text: "))
    yes = obeys(text) and f"Rule: {RULE}" in asked
    return completion("Yes" if yes else "No", likely={"Yes": 0.8, " no": 0.2} if yes else {"No": 0.9, "Yes": 0.1})


def obeys(text: str) -> bool:
    return "[[to]]" in text and bool(re.search(r"\{\{(Mary|John|Anna|Tom)\}\}", text))
