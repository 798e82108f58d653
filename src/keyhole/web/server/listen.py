"""How does the server begin and end? It tells its address once it really listens, and ends quietly."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from keyhole.errors import KeyholeError
from keyhole.web.server.app import create_app
from keyhole.web.server.bodies import KINDS
from keyhole.web.server.jobs import Limits
from keyhole.web.server.kept import Given
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
    found = socket.socket(family, kind, number)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(128)
    except OSError as error:
        found.close()
        raise KeyholeError(
            f"cannot listen on {host}:{port} ({error.strerror}): give another --port, or --port 0 for a free one."
        ) from error
    return found


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

    uvicorn waits for ever for the rest of a request's head: a few hundred connections, for which nobody needs a token,
    would keep everybody else out.
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
    """Tells when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            self._ready()


def make_server(
    given: Given,
    own: socket.socket,
    host: str,
    ready: Callable[[Door], None],
    limits: Limits | None = None,
) -> uvicorn.Server:
    """A server for a bound socket. `ready` is called once it listens; the first model is then loaded unasked."""
    door = Door(shown_host(host, own), own.getsockname()[1])
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
    own = bound_socket(host, port)
    try:
        make_server(given, own, host, ready).run(sockets=[own])
    except KeyboardInterrupt:  # which uvicorn raises again once all is closed
        pass
    finally:
        own.close()
