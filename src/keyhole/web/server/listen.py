"""How does the server begin and end? It prints its address once it listens, and ends without a traceback."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keyhole.errors import KeyholeError
from keyhole.requests.jobs import Limits
from keyhole.requests.kept import Given
from keyhole.web.server.app import create_app
from keyhole.web.server.kinds import KINDS
from keyhole.web.server.security import Door

_GRACE = 2  # seconds for open answers at the end
_CONNECTIONS = 256  # at once
HEADERS_S = 5.0  # seconds within which a connection has sent the whole head of a request


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at this address, or why there is none."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, OverflowError) as error:
        raise KeyholeError(
            f"{host} port {port} is no address of this machine: give another --host or --port."
        ) from error
    bound = socket.socket(family, kind, number)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise KeyholeError(
            f"cannot listen on {host}:{port} ({error.strerror}): give another --port, or --port 0 for a free one."
        ) from error
    return bound


def shown_host(host: str, bound: socket.socket) -> str:
    """The host by which browsers know this socket: a name as it was given, a number as the socket has it.

    `0`, `127.1` and others are numbers that browsers spell out before they send them as the Host.
    """
    try:
        socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICHOST)
    except socket.gaierror:
        return host
    return str(bound.getsockname()[0])


class _HeadersInTime(H11Protocol):
    """HTTP in which a connection that sends no whole request in time is closed.

    uvicorn waits without a limit for the rest of a request's head. A few hundred half-open connections, which need no
    token, would keep everybody else out.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._forget()

    def _watch(self) -> None:
        """The time runs from the end of the last answer, however many bytes of the next request trickle in."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADERS_S, self.transport.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _Server(uvicorn.Server):
    """Calls `ready` once it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._ready()


def make_server(
    given: Given,
    bound: socket.socket,
    host: str,
    ready: Callable[[Door], None],
    limits: Limits | None = None,
) -> uvicorn.Server:
    """A server for a bound socket. `ready` is called once it listens; then the first model is loaded."""
    door = Door(shown_host(host, bound), bound.getsockname()[1])
    app = create_app(door, given, limits)

    def began() -> None:
        ready(door)
        app.state.jobs.add("load", KINDS["load"].work(app.state.kept, {"model": given.first}), quick=True)

    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        http=_HeadersInTime,
        ws="none",
        limit_concurrency=_CONNECTIONS,
        lifespan="on",
        timeout_graceful_shutdown=_GRACE,
    )
    return _Server(config, began)


def serve(given: Given, *, host: str, port: int, ready: Callable[[Door], None]) -> None:
    """Serve until Ctrl-C."""
    bound = bound_socket(host, port)
    try:
        make_server(given, bound, host, ready).run(sockets=[bound])
    except KeyboardInterrupt:  # which uvicorn raises again once all is closed
        pass
    finally:
        bound.close()
