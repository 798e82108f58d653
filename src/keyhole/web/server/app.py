"""Which addresses answer, and how does a client hear of its job?"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from keyhole.errors import KeyholeError
from keyhole.requests.bodies import parse_body, spell
from keyhole.requests.jobs import ENDS, Event, FullError, Job, Jobs, Limits
from keyhole.requests.kept import Given, Kept
from keyhole.version import __version__
from keyhole.web.server.kinds import KINDS
from keyhole.web.server.security import BODY, Door, Guard, refusal

_AGAIN = b"retry: 1000\n\n"  # ms after which a browser that lost the connection listens again: within a job's grace
_SILENCE = 15.0  # seconds after which a comment keeps the connection open


class EventStream(Response):
    """The events of one job, to its end, as server-sent events."""

    media_type = "text/event-stream"

    def __init__(self, jobs: Jobs, job: Job) -> None:
        super().__init__()
        self.jobs, self.job = jobs, job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the job ends or the client is gone, whichever comes first."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        queue = self.jobs.listen(self.job)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": _AGAIN, "more_body": True})
            both = [asyncio.create_task(disconnected(receive)), asyncio.create_task(_send_events(queue, send))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                    with suppress(asyncio.CancelledError, OSError):
                        await task
        finally:
            self.jobs.leave(self.job, queue)


async def disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_events(queue: asyncio.Queue[Event], send: Send) -> None:
    while True:
        try:
            name, data = await asyncio.wait_for(queue.get(), _SILENCE)
        except TimeoutError:
            await send({"type": "http.response.body", "body": b": still here\n\n", "more_body": True})
            continue
        event = b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": name not in ENDS})
        if name in ENDS:
            return


# Which files are served? Those that are there when the server begins. No path is made from an address, so that no
# address leads out of the folder.

STATIC = Path(__file__).parents[1] / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}


@dataclass(frozen=True)
class File:
    """One file of the page."""

    path: Path
    type: str


def files(root: Path = STATIC) -> dict[str, File]:
    """Every file of the page by its address; the page itself is at /."""
    served = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.suffix in TYPES:
            served["/" + path.relative_to(root).as_posix()] = File(path, TYPES[path.suffix])
    if "/index.html" in served:
        served["/"] = served["/index.html"]
    return served


# Which addresses answer, and with what? Files of the page, lists of models and stores, direct questions, and jobs.

QUESTION = ("Mary", "John")  # of the example: why the first, and not the second?
EXAMPLE = "When Mary and John went to the store, John gave a drink to"


def create_app(door: Door, given: Given | None = None, limits: Limits | None = None) -> FastAPI:
    """The server; every request passes its guard first."""
    kept = Kept(given or Given())
    served = files()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.jobs = jobs = Jobs(limits or Limits(), spell)
        yield
        await asyncio.to_thread(jobs.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.kept = kept
    app.add_middleware(Guard, door=door)
    app.add_exception_handler(KeyholeError, _refused)
    app.add_exception_handler(HTTPException, _missing)
    app.add_api_route("/api/hello", _hello(kept), methods=["GET"])
    app.add_api_route("/api/stores", _stores, methods=["GET"])
    app.add_api_route("/api/jobs", _add_job, methods=["POST"], status_code=202)
    app.add_api_route("/api/jobs/{number}", _job, methods=["GET"])
    app.add_api_route("/api/jobs/{number}", _cancel, methods=["DELETE"])
    app.add_api_route("/api/jobs/{number}/events", _events, methods=["GET"])
    app.add_api_route("/api/{kind}", _ask, methods=["POST"])
    for address, file in served.items():
        app.add_api_route(address, _file(file), methods=["GET"])
    return app


def _hello(kept: Kept) -> Callable[[], Any]:
    async def hello() -> Response:
        # A copy of the list: the worker's thread adds to it.
        models = [{"id": name, "name": name, "state": kept.state(name)} for name in list(kept.known)]
        stores = [{"id": name, "path": str(path)} for name, path in kept.stores.items()]
        return _json(
            {
                "version": __version__,
                "models": models,
                "first": kept.given.first,
                "stores": stores,
                "names": kept.given.names is not None,
                "limits": {"tokens": kept.given.tokens, "body": BODY},
                "example": EXAMPLE,
                "question": QUESTION,
            }
        )

    return hello


def _file(file: File) -> Callable[[], Any]:
    async def give() -> Response:
        return Response(file.path.read_bytes(), media_type=file.type)

    return give


async def _ask(request: Request, kind: str) -> Response:
    """Answer in this response: the job waits in the same queue, and is stopped when the client leaves."""
    job = await _new_job(request, kind)
    jobs: Jobs = request.app.state.jobs
    queue = jobs.listen(job)
    waits, gone = asyncio.create_task(_end_of(queue)), asyncio.create_task(disconnected(request.receive))
    try:
        await asyncio.wait([waits, gone], return_when=asyncio.FIRST_COMPLETED)
        if waits.done():
            return _ended(*waits.result())
        jobs.cancel(job)
        return refusal(499, "the client is gone.")
    finally:
        waits.cancel()
        gone.cancel()
        jobs.leave(job, queue)


async def _end_of(queue: asyncio.Queue[Event]) -> Event:
    while True:
        event = await queue.get()
        if event[0] in ENDS:
            return event


def _ended(name: str, data: bytes) -> Response:
    if name == "cancelled":
        return refusal(409, "this was stopped before it was done.")
    status = 200 if name == "result" else 500 if b'"fault":true' in data else 400
    return Response(data, status, media_type="application/json")


async def _stores(request: Request) -> Response:
    return await _ask(request, "stores")


async def _new_job(request: Request, kind: str | None = None) -> Job:
    values = parse_body(await request.body())
    name = values.pop("kind", None) if kind is None else kind
    if not isinstance(name, str) or name not in KINDS:
        raise KeyholeError(f"there is no work of the kind {name!r}: there is {', '.join(KINDS)}.")
    kind_of_work = KINDS[name]
    jobs: Jobs = request.app.state.jobs
    return jobs.add(name, kind_of_work.work(request.app.state.kept, values), quick=kind_of_work.quick)


async def _add_job(request: Request) -> Response:
    return _json({"id": (await _new_job(request)).id}, 202)


async def _job(request: Request, number: str) -> Response:
    job = request.app.state.jobs.get(number)
    progress = job.progress if job.progress is not None else b"null"
    # Progress and result are JSON already: a result of megabytes is not read and written again.
    content = spell({"id": job.id, "kind": job.kind, "state": job.state})[:-1] + b',"progress":' + progress
    if job.last is not None and job.last[0] == "result":
        content += b',"result":' + job.last[1]
    elif job.last is not None and job.last[0] == "error":
        content += b"," + job.last[1][1:-1]
    return Response(content + b"}", media_type="application/json")


async def _cancel(request: Request, number: str) -> Response:
    jobs: Jobs = request.app.state.jobs
    job = jobs.get(number)
    jobs.cancel(job)
    return _json({"state": job.state if job.ended else "cancelled"})


async def _events(request: Request, number: str) -> Response:
    jobs: Jobs = request.app.state.jobs
    return EventStream(jobs, jobs.get(number))


def _json(value: Any, status: int = 200) -> Response:
    return Response(spell(value), status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    return refusal(503 if isinstance(error, FullError) else 400, str(error))


async def _missing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentences = {404: "there is nothing at this address.", 405: "this address does not take requests of this method."}
    return refusal(error.status_code, sentences.get(error.status_code, "this cannot be answered."), request)
