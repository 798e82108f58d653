"""Who may ask? Only the page that this server gave out, in a browser that opened the printed address.

A loopback address alone protects nothing: any web page may send requests to it, and a page whose name is pointed at
127.0.0.1 (DNS rebinding) may even read the answers. So the Host must be ours, the Origin too where a request changes
something, and every request needs a cookie that only the printed address gives.
"""

import hmac
import ipaddress
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keyhole.requests.bodies import spell

BODY = 64 << 10  # bytes of a request, at most
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # all addresses of the machine, and by which of them it is opened here
SAFE = ("GET", "HEAD")
_PORT = 5  # digits
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SIGN_IN = "open the address that `keyhole explore` printed, with its token: this browser has not been let in yet."


@dataclass(frozen=True)
class Door:
    """Where the server is, and the secrets that let a browser in."""

    host: str
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    @property
    def cookie_name(self) -> str:
        """One for each port: cookies do not know ports, and two servers would sign each other out."""
        return f"keyhole-{self.port}"

    @property
    def address(self) -> str:
        """What is printed."""
        shown = ANYWHERE.get(self.host, self.host)
        return f"http://{bracketed(shown)}:{self.port}/?token={self.token}"

    def knows_host(self, host: str) -> bool:
        """Is this host ours? Where all addresses are bound, any number is: only names can be pointed elsewhere."""
        name, given = _split_host(host)
        if (given or 80) != self.port:
            return False
        return name in (*LOOPBACK, self.host.lower()) or (self.host in ANYWHERE and _is_number(name))

    def knows_cookie(self, request: Request) -> bool:
        """Has this browser been let in?"""
        return _same(request.cookies.get(self.cookie_name, ""), self.cookie)


def bracketed(host: str) -> str:
    """A host as addresses have it: [::1]."""
    return f"[{host}]" if ":" in host else host


def refusal(status: int, sentence: str, request: Request | None = None) -> Response:
    """An error as JSON for the page's scripts; as a plain sentence where somebody opens an address in a browser."""
    if request is not None and not request.url.path.startswith("/api/"):
        return PlainTextResponse(f"Keyhole: {sentence}\n", status)
    return Response(spell({"error": sentence}), status, media_type="application/json")


class Guard:
    """Every request passes here first (an ASGI middleware, so that streams are not buffered)."""

    def __init__(self, app: ASGIApp, door: Door) -> None:
        self.app, self.door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, sign in, or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with_headers = _with_headers(send)
        request = Request(scope, receive)
        answer = self._refused(request) or self._signed_in(request) or await _body(request)  # a GET may have one, too
        if isinstance(answer, Response):
            await answer(scope, receive, with_headers)
        else:
            await self.app(scope, _again(answer, receive), with_headers)

    def _refused(self, request: Request) -> Response | None:
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self.door.knows_host(hosts[0]):
            return refusal(421, "this server does not answer to that name: open the address that it printed.", request)
        origin, fetched = request.headers.get("origin"), request.headers.get("sec-fetch-site", "same-origin")
        ours = origin == f"http://{hosts[0]}"
        if request.method not in SAFE and not ours:
            return refusal(403, "requests that do something come from this server's own page, and from nowhere else.")
        if request.url.path.startswith("/api/") and (
            (origin is not None and not ours) or fetched not in ("same-origin", "none")
        ):
            return refusal(403, "answers are for this server's own page, and for no other.")
        return None

    def _signed_in(self, request: Request) -> Response | None:
        """None for a browser with the cookie. One with the token gets the cookie, and an address without the token."""
        query = parse_qsl(request.url.query, keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if request.method == "GET" and request.url.path == "/" and given:
            if not (_same(given[0], self.door.token) or self.door.knows_cookie(request)):
                return refusal(401, f"this token is of another server, or of an earlier one: {_SIGN_IN}", request)
            return self._welcome(request, [pair for pair in query if pair[0] != "token"])
        return None if self.door.knows_cookie(request) else refusal(401, _SIGN_IN, request)

    def _welcome(self, request: Request, rest: list[tuple[str, str]]) -> Response:
        address = "/" + (f"?{urlencode(rest)}" if rest else "")
        answer: Response = RedirectResponse(address, 303)
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A link on another page leads here: a redirect would go without the new cookie, which is same-site.
            escaped = address.replace("&", "&amp;").replace('"', "%22")
            answer = HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0;url={escaped}">')
        answer.set_cookie(self.door.cookie_name, self.door.cookie, httponly=True, samesite="strict", path="/")
        return answer


def _same(given: str, secret: str) -> bool:
    """Are they equal? The time it takes says nothing about where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def _split_host(host: str) -> tuple[str, int | None]:
    """The name and the port of a Host header.

    >>> _split_host("127.0.0.1:80"), _split_host("[::1]:8000"), _split_host("localhost"), _split_host("a:b")
    (('127.0.0.1', 80), ('::1', 8000), ('localhost', None), ('', None))
    """
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, ""
    elif not (port.isascii() and port.isdecimal() and len(port) <= _PORT):
        return "", None
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    return name.lower(), int(port) if port else None


def _is_number(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


async def _body(request: Request) -> bytes | Response:
    """What was sent, if it is JSON and not too much."""
    if request.method in ("POST", "PUT", "PATCH") and request.headers.get("content-type", "").split(";")[0].strip() != (
        "application/json"
    ):
        return refusal(415, "send JSON: Content-Type: application/json.")
    too_large = refusal(413, f"a request is {BODY // 1024} kB at most: this one is larger. Give a shorter prompt.")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > BODY:
        return too_large
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY:
            return too_large
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes (that the client is gone)."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            always: dict[bytes, Any] = {name.encode(): value.encode() for name, value in HEADERS.items()}
            others = [(name, value) for name, value in message.get("headers", []) if name.lower() not in always]
            message = {**message, "headers": [*others, *always.items()]}
        await send(message)

    return with_headers
