"""The checks that every request passes first: names of the server, origins, sizes, rates and times; response headers.

A page of another site can make a browser send requests here, under our name or under one of its own that it lets point
here. Cookies are not sent along (`SameSite=Strict`); the checks of `Host` and `Origin` do not depend on that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from holdfast.errors import DeniedError, HoldfastError, InvalidError, RequestTimeoutError, TooLargeError, TransientError
from holdfast.interfaces.http.problems import MEDIA_TYPE, to_problem
from holdfast.interfaces.http.service import ServiceOptions

_log = logging.getLogger("holdfast.http")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types holdfast",
    )
)
"""The Content-Security-Policy: nothing from elsewhere, no script or style in a page, and no text that becomes HTML but
through the one place of ours."""

HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
_SHOWN = b"content-location, location, retry-after, x-pagination-next, x-pagination-total"
"""The headers of a response that a page of another site may read."""

_MOST_SECONDS = b"600"
"""For how long a browser remembers what a page of another site may do."""

SIGN_IN = "/login"
"""The address that starts the session of a browser."""

FILE_ORIGIN = "null"
"""The Origin of a file, and of a page that hides its own."""

OWN_SITES = ("same-origin", "none")
"""Where a browser says that a request of ours comes from: a page of ours, or its user, by a bookmark."""

CONNECTION = "connection"
"""Where the state of a request has its connection, if the server limits connections of strangers."""

_SAFE = frozenset({"GET", "HEAD"})
_MAX_BUCKETS = 10_000
_PIECE = 64 << 10
_SLOWEST = 10 << 10
"""How many bytes of a body a client must send in a second, after the first seconds."""

_BODIES = 4
"""So many of the largest bodies are received or worked on at a time."""


class RateLimit:
    """Limits how often something is done, for each key: `rate` times a second, and `burst` times at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str) -> None:
        """Count one. Raises `TransientError` if there were too many."""
        with self._lock:
            now = time.monotonic()
            level, then = self._levels.pop(key, (float(self._burst), now))
            level = min(float(self._burst), level + (now - then) * self._rate)
            enough = level >= 1
            self._levels[key] = (level - 1 if enough else level, now)
            while len(self._levels) > _MAX_BUCKETS:
                self._levels.popitem(last=False)
        if not enough:
            raise TransientError(
                "there were too many requests", hint=f"Wait {max(1, round(1 / self._rate))} s", code="rate-limited"
            )


_MAX_DIGITS = 15
"""The most digits of a number in a header: Python refuses to convert thousands of them."""


class ProtectedApp:
    """An ASGI application behind the checks."""

    def __init__(
        self,
        app: App,
        options: ServiceOptions,
        end_streams: Callable[[], None] | None = None,
        *,
        has_sockets: bool = False,
    ) -> None:
        self.has_sockets = has_sockets
        """Whether it serves WebSockets."""
        self._app = app
        self._end_streams = end_streams
        self._stops = False
        self._options = options
        self._rate = RateLimit(options.rate * 2, options.burst * 2)
        self._bodies = _BodyBudget(_BODIES * options.max_body)

    @property
    def max_message(self) -> int:
        """The largest message of a WebSocket, in bytes."""
        return self._options.max_body

    def prepare_stop(self) -> None:
        """End what would go on for as long as the client likes: the server is about to stop."""
        self._stops = True
        if self._end_streams is not None:
            self._end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # Parts of paths are matched as they were sent: a quoted slash is part of a name.
        raw = scope.get("raw_path")
        scope = {**scope, "path": raw.decode("ascii", "replace") if raw else scope["path"]}
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        page = self._page_of(scope)
        limits = _Transfer(self._options, self._bodies, receive, send, page)
        try:
            self._check(scope)
            if page:
                if scope["method"] == "OPTIONS":
                    await limits.send(_preflight(scope))
                    await limits.send({"type": "http.response.body", "body": b""})
                    return
                scope = _without_cookies(scope)
            await self._app(scope, limits.receive, limits.send)
        except HoldfastError as error:
            if not limits.started:
                await send_problem(limits.send, error, close=isinstance(error, _FramingError))
        except asyncio.CancelledError:
            if not self._stops:
                raise
            _log.info("a request had not ended when the server stopped")
        except TimeoutError:
            _log.info("a client did not take its response in time")  # and the server closes the connection
        finally:
            limits.release()

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a WebSocket on."""
        try:
            self._check({**scope, "method": "GET"})
            await self._app(_without_cookies(scope) if self._page_of(scope) else scope, receive, send)
        except HoldfastError:
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the answer is a 403
        except asyncio.CancelledError:
            if not self._stops:
                raise

    def _page_of(self, scope: Scope) -> str:
        """Return the origin of a page of another site that may use the server; empty for any other request."""
        origin = _headers(scope).get("origin", "")
        return origin if origin in self._options.origins else ""

    def _check(self, scope: Scope) -> None:
        headers = _headers(scope)
        host, options = headers.get("host", ""), self._options
        names = (*options.hosts, *options.cookie_hosts)
        if len([name for name, _ in scope["headers"] if name == b"host"]) != 1 or name_of(host) not in names:
            raise DeniedError(
                "the server does not serve that host name",
                where=host[:80],
                hint="Start it with --allowed-host NAME to reach it by another name",
                code="wrong-host",
            )
        self._rate.take(_client(scope))
        if not scope.get("query_string", b"").isascii():
            raise InvalidError("the query is not percent-encoded")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
        foreign = origin is not None and origin.partition("://")[2] != host
        # A link from elsewhere may lead to a page; nothing else of another site gets here, but the code of a file.
        navigates = headers.get("sec-fetch-mode") == "navigate" and scope["method"] in _SAFE
        by_file = origin == FILE_ORIGIN and scope["method"] == "POST" and scope["path"] == SIGN_IN
        known = by_file or self._page_of(scope)
        if not known and (foreign or (site not in OWN_SITES and not navigates)):
            raise DeniedError(
                "the request comes from another site",
                where=(origin or "")[:80],
                hint="Start the server with --allow-origin ORIGIN to let its pages use it with a token",
                code="cross-site",
            )
        if scope["method"] not in _SAFE and "cookie" in headers and "authorization" not in headers and origin is None:
            raise DeniedError("a change by a browser must say which site it comes from", code="cross-site")
        if "content-length" in headers and "transfer-encoding" in headers:
            raise _FramingError("a request cannot have both a Content-Length and a Transfer-Encoding")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > _MAX_DIGITS or int(length) > options.max_body:
            raise _body_too_large(options.max_body)


class _FramingError(InvalidError):
    """A proxy may see another end of the request than this server: nothing more is read from the connection."""


def _body_too_large(limit: int) -> TooLargeError:
    return TooLargeError(
        f"the body of a request has at most {limit:,} bytes",
        hint="Send it in parts: one path at a time by update, or a file as an artifact; or start the server with"
        " --max-body",
    )


class _BodyBudget:
    """How many bytes of bodies the server has at a time."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def take(self, count: int) -> None:
        """Count some bytes. Raises `TransientError` if there are too many."""
        if count > self._left:
            raise TransientError(
                "the server is busy with too many large requests", hint="Send it again", code="rate-limited"
            )
        self._left -= count

    def give_back(self, count: int) -> None:
        """Count some bytes no longer."""
        self._left += count


def name_of(host: str) -> str:
    """Return the name in a Host header, without the port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


def is_loopback(host: str) -> bool:
    """Whether a name or an address can be reached from this machine only."""
    try:
        return host == "localhost" or host.endswith(".localhost") or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


class _Transfer:
    """The parts of a request and its response: limited in size and time, with headers added."""

    def __init__(
        self, options: ServiceOptions, bodies: _BodyBudget, receive: Receive, send: Send, page: str = ""
    ) -> None:
        self._options = options
        self._page = page
        """The origin of the page of another site that gets the response."""
        self._bodies = bodies
        self._receive = receive
        self._send = send
        self._size = 0
        self._began = 0.0
        self._ended = False
        self.started = False
        """Whether the response has begun."""

    async def receive(self) -> MutableMapping[str, Any]:
        if self._ended:  # what follows is the end of the connection, for which one waits as long as it takes
            return await self._receive()
        now = time.monotonic()
        self._began = self._began or now
        allowed = self._began + self._options.timeout + self._size / _SLOWEST - now
        try:
            message = await asyncio.wait_for(self._receive(), min(self._options.timeout, allowed))
        except TimeoutError:
            raise RequestTimeoutError("the body of the request did not arrive in time") from None
        count = len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._size + count > self._options.max_body:
            raise _body_too_large(self._options.max_body)
        self._bodies.take(count)
        self._size += count
        return message

    def release(self) -> None:
        """Count the body no longer."""
        self._bodies.give_back(self._size)
        self._size = 0

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            given = list(message.get("headers", ()))
            names = {name.lower() for name, _ in given}
            if self._page:
                given += [
                    (b"access-control-allow-origin", self._page.encode("latin-1")),
                    (b"access-control-expose-headers", _SHOWN),
                    (b"vary", b"Origin"),
                ]
            message = {**message, "headers": [*given, *(each for each in HEADERS if each[0] not in names)]}
        body = message.get("body", b"")
        # In pieces: the server waits for a client that does not take them before it accepts the next one.
        if len(body) <= _PIECE:
            await self._pass_on(message)
            return
        view = memoryview(body)  # a slice of bytes would copy the rest for every piece
        last = (len(view) - 1) // _PIECE * _PIECE
        for start in range(0, last, _PIECE):
            piece = bytes(view[start : start + _PIECE])
            await self._pass_on({"type": message["type"], "body": piece, "more_body": True})
        await self._pass_on({**message, "body": bytes(view[last:])})

    async def _pass_on(self, message: MutableMapping[str, Any]) -> None:
        await asyncio.wait_for(self._send(message), self._options.timeout)


def _preflight(scope: Scope) -> MutableMapping[str, Any]:
    """Return the answer to a browser that asks what a page of another site may send: any header, but no cookie."""
    asked = _headers(scope).get("access-control-request-headers", "")
    headers = [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"access-control-allow-headers", asked.encode("latin-1")),
        (b"access-control-max-age", _MOST_SECONDS),
        (b"content-length", b"0"),
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _without_cookies(scope: Scope) -> Scope:
    return {**scope, "headers": [each for each in scope["headers"] if each[0] != b"cookie"]}


async def send_problem(send: Send, error: HoldfastError, *, close: bool = False) -> None:
    """Respond to a request with an error, and `close` the connection."""
    problem = to_problem(error)
    body = msgspec.json.encode(problem)
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *([(b"connection", b"close")] if close else []),
        *([(b"retry-after", b"1")] if problem.status in (429, 503) else []),
        *([(b"www-authenticate", b"Bearer")] if problem.status == 401 else []),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
