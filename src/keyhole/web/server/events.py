"""How does a client hear of its job? As server-sent events; whoever leaves is noticed at once."""

import asyncio
from contextlib import suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from keyhole.web.server.jobs import ENDS, Event, Job, Jobs

_AGAIN = b"retry: 1000\n\n"  # ms after which a browser that lost the connection listens again: within a job's grace
_SILENCE = 15.0  # seconds after which a comment keeps the connection open


class EventStream(Response):
    """The events of one job, to its end."""

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
            both = [asyncio.create_task(disconnected(receive)), asyncio.create_task(_tell(queue, send))]
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


async def _tell(queue: asyncio.Queue[Event], send: Send) -> None:
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
