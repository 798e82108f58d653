"""The explorer's server in a thread of its own, and clients that were let in."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn

from keyhole.requests.jobs import Jobs, Limits
from keyhole.requests.kept import Given, Kept
from keyhole.web.server.listen import bound_socket, make_server
from keyhole.web.server.security import Door

PROMPT = "When Mary and John went to the store, John gave a drink to"
FIRING = {"prompt": PROMPT, "layer": 3, "head": 6, "dest": 14, "src": 11}


@dataclass(frozen=True)
class Served:
    """A server that listens."""

    door: Door
    server: uvicorn.Server

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.door.port}"

    @property
    def jobs(self) -> Jobs:
        found: Jobs = self.app.state.jobs
        return found

    @property
    def kept(self) -> Kept:
        found: Kept = self.app.state.kept
        return found

    @property
    def app(self) -> Any:
        return self.server.config.app

    @contextlib.contextmanager
    def client(self) -> Iterator[httpx.Client]:
        """A browser that opened the printed address."""
        own = {"Origin": self.base}
        with httpx.Client(base_url=self.base, headers=own, timeout=60, follow_redirects=True) as made:
            assert made.get(self.door.address).status_code == 200
            yield made


@contextlib.contextmanager
def serving(given: Given | None = None, limits: Limits | None = None, host: str = "127.0.0.1") -> Iterator[Served]:
    own, ready, found = bound_socket(host, 0), threading.Event(), list[Door]()

    def tell(door: Door) -> None:
        found.append(door)
        ready.set()

    server = make_server(given or Given(), own, host, tell, limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [own]}, daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield Served(found[0], server)
    finally:
        server.should_exit = True
        thread.join(20)
        own.close()
        assert not thread.is_alive(), "the server does not end"


def events(client: httpx.Client, number: str) -> Iterator[tuple[str, Any]]:
    """What is told of a job, to its end."""
    with client.stream("GET", f"/api/jobs/{number}/events", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def until(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
