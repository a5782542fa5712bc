"""The application that serves the API: routes from the table, authentication, caching, repeated changes, events."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, WebSocketRoute
from starlette.routing import Route as StarletteRoute

from holdfast.errors import ConflictError, DeniedError, HoldfastError, InvalidError, NotFoundError, OutcomeUnknownError
from holdfast.interfaces.http.admin_routes import ADMIN
from holdfast.interfaces.http.authentication import (
    CONFIRMATION_HEADER,
    CSRF_HEADER,
    Authenticator,
    cookie_value,
    unauthenticated,
)
from holdfast.interfaces.http.calls import CALLING
from holdfast.interfaces.http.events import EventHub
from holdfast.interfaces.http.forwards import forward_routes
from holdfast.interfaces.http.models import HealthModel, Problem
from holdfast.interfaces.http.openapi import encode_body, openapi_document
from holdfast.interfaces.http.problems import MEDIA_TYPE, api_problem, internal_problem, to_problem
from holdfast.interfaces.http.protection import CONNECTION, OWN_SITES, ProtectedApp, RateLimit, is_loopback, name_of
from holdfast.interfaces.http.recording_routes import RECORDINGS
from holdfast.interfaces.http.routes import API, FileContent, Route, decode_body, decode_params
from holdfast.interfaces.http.service import Call, Caller, Service
from holdfast.interfaces.http.state_routes import STATES
from holdfast.interfaces.http.thread_reads import THREADS
from holdfast.interfaces.http.transport import EXPECTED_SERVER_HEADER, SERVER_HEADER
from holdfast.interfaces.metrics.prometheus import CONTENT_TYPE, to_prometheus
from holdfast.store.store import Store

_log = logging.getLogger("holdfast.http")

ROUTES: tuple[Route, ...] = (
    *forward_routes(),
    *THREADS.routes,
    *STATES.routes,
    *ADMIN.routes,
    *RECORDINGS.routes,
    *CALLING.routes,
)
"""All operations of the API."""

_THREADS_AT_WORK = 16
"""How many requests are worked on at a time; the rest wait."""

_HEALTH_SECONDS = 1.0
_MAX_KEY = 200
_TAG = re.compile(r'(?:W/)?"([^"]*)"')
_MAX_SIGN_INS = 10
"""How many wrong tokens an address may send at once."""

_MAX_FORWARDED = 50
"""How many wrong tokens a proxy may pass on at once."""


class Server:
    """Serves the operations of a service. Pages of the web interface use it, too."""

    def __init__(self, service: Service, authenticator: Authenticator) -> None:
        self.service = service
        self.authenticator = authenticator
        self.hub: EventHub = EventHub(service, authenticator.ended)
        self._rate = RateLimit(service.options.rate, service.options.burst)
        self._wrong = RateLimit(0.2, _MAX_SIGN_INS)
        self._wrong_forwarded = RateLimit(2.0, _MAX_FORWARDED)
        self._answers = RepeatedChanges()
        self._run_id = secrets.token_hex(8)
        self._limiter: anyio.CapacityLimiter | None = None
        self.is_stopping = False

    def end_streams(self) -> None:
        """End what would go on for as long as clients like: the server is about to stop."""
        self.is_stopping = True
        self.hub.close()

    async def work(self, function: Callable[[], Any]) -> Any:
        """Run a function that blocks in a thread."""
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(_THREADS_AT_WORK)
        return await anyio.to_thread.run_sync(function, limiter=self._limiter)

    async def authenticate(self, request: Request) -> Caller:
        """Return who makes a request. Raises `DeniedError`, and `TransientError` after too many."""
        header = request.headers.get("authorization", "")
        if not header and (key := request.headers.get("x-api-key", "")):  # what LangGraph's clients send a token as
            header = f"Bearer {key}"
        if header:
            kind, _, text = header.partition(" ")
            if kind.lower() != "bearer":
                raise unauthenticated()
            caller: Caller = await self.checked(request, partial(self.authenticator.by_token, text.strip()))
        else:
            value = self.session_value(request)
            if not value:
                raise unauthenticated()
            caller = await self.checked(request, partial(self.authenticator.by_cookie, value))
        self._rate.take(caller.key)
        connection = request.scope.get("state", {}).get(CONNECTION)
        if connection is not None:
            connection.keep()
        return caller

    def takes_cookies(self, request: Request) -> bool:
        """Whether browsers sign in under the name that a request has."""
        return name_of(request.headers.get("host", "")) in self.service.options.cookie_hosts

    def session_value(self, request: Request) -> str:
        """Return the session in the cookie of a request, if it counts; otherwise an empty text."""
        host = request.headers.get("host", "")
        # Without TLS, a browser says where a request comes from only to servers on its own machine.
        site = request.headers.get("sec-fetch-site", "" if is_loopback(name_of(host)) else "none")
        if not self.takes_cookies(request) or site not in OWN_SITES:
            return ""
        return cookie_value(request.headers.get("cookie", ""), host)

    async def checked(self, request: Request, check: Callable[[], Any]) -> Any:
        """Check a token. An address that sends many wrong ones is told to wait; right ones always work."""
        try:
            return await self.work(check)
        except DeniedError:
            self._wrong.take(request.client.host if request.client else "")
            if "x-forwarded-for" in request.headers:  # the address is what somebody says it is: count them together
                self._wrong_forwarded.take("")
            raise

    async def respond(self, route: Route, request: Request) -> Response:
        """Run an operation for a request."""
        caller = await self.authenticate(request)
        confirm = partial(self.authenticator.confirm, caller, request.headers.get(CONFIRMATION_HEADER, ""))
        call = Call(self.service, caller, _if_match(request), confirm)
        if route.writes:
            call.require_write()
            self.authenticator.check_csrf(caller, request.headers.get(CSRF_HEADER, ""))
        params = decode_params(route.params, request.path_params, _query(request))
        given = msgspec.structs.asdict(params)
        body = b""
        if route.body is not None:
            kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
            if kind != "application/json":
                raise InvalidError("the body must be JSON", where=f"Content-Type {kind[:40]}")
            body = await request.body()
            given |= msgspec.structs.asdict(decode_body(route.body, body))
        run: Callable[[], Any] = partial(_run, route, call, given)
        key = request.headers.get("idempotency-key", "")
        if len(key) > _MAX_KEY:
            raise InvalidError(f"an Idempotency-Key has at most {_MAX_KEY} characters", hint="Use a UUID")
        if route.writes and key:
            self._check_run(request)
            address = f"{request.url.path}?{request.url.query}"
            digest = change_digest(request.method, address, _if_match(request), body)
            run = partial(self._answers.once, (caller.key, key), digest, run)
        found = await self.work(run)
        if isinstance(found, FileContent):
            response = _file_response(found.data, found.media, request)
        else:
            response = json_response(found, route.status, request)
        response.headers[SERVER_HEADER] = self._run_id
        if given.get("reveal") or route.path.startswith(("/reads/", "/changes/")):
            response.headers["cache-control"] = "no-store"
        return response

    def _check_run(self, request: Request) -> None:
        """Refuse a change that was sent to another run of the server before, which may have made it."""
        expected = request.headers.get(EXPECTED_SERVER_HEADER, self._run_id)
        if expected != self._run_id:
            raise OutcomeUnknownError(
                "the server was started again, and does not know whether the change was made",
                hint="Read what the change concerns, and repeat it if it was not made",
            )

    async def metrics(self, request: Request) -> Response:
        """Send the metrics of the store, as text for Prometheus."""
        call = Call(self.service, await self.authenticate(request))
        text: str = await self.work(lambda: to_prometheus(call.owned.maintenance.metrics()))
        return Response(text, media_type=CONTENT_TYPE, headers={"cache-control": "no-store"})

    async def events(self, request: Request) -> Response:
        """Send what changes in the store, as long as the connection lasts."""
        caller = await self.authenticate(request)
        since = request.headers.get("last-event-id") or request.query_params.get("since") or None
        stream = self.hub.events(caller, since)
        first = await anext(stream)

        async def all_events() -> AsyncIterator[bytes]:
            try:
                yield first
                async for event in stream:
                    yield event
            finally:
                await stream.aclose()  # type: ignore[attr-defined]

        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(all_events(), media_type="text/event-stream", headers=headers)


class Health:
    """Whether the server is alive and ready. Anybody may ask, so the answer says nothing else, and the store is asked
    at most once a second."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._checked = -_HEALTH_SECONDS
        self._ready = False

    async def live(self, request: Request) -> Response:  # noqa: ARG002
        """Say that the server answers."""
        return _health(True)

    async def ready(self, request: Request) -> Response:  # noqa: ARG002
        """Say whether the store answers, too."""
        return _health(await self._server.work(self._check))

    def _check(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if now - self._checked >= _HEALTH_SECONDS:
                try:
                    _read_a_little(self._server.service.store)
                    self._ready = True
                except HoldfastError:
                    self._ready = False
                self._checked = now
            return self._ready


def _read_a_little(store: Store) -> None:
    """Read a little of each kind: a file may be damaged in one place, and be read in another."""
    store.threads(limit=1)
    store.scopes(limit=1)
    store.agents.list(limit=1)
    store.jobs.list()


def _health(ready: bool) -> Response:
    body = msgspec.json.encode(HealthModel(status="ok" if ready else "unavailable"))
    headers = {"cache-control": "no-store"}
    return Response(body, 200 if ready else 503, headers, "application/json")


def _file_response(data: bytes, media: str, request: Request) -> Response:
    """Return bytes as a file, which no browser renders, or the range of it that a request asks for."""
    headers = {
        "content-disposition": "attachment",
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    bounds = parse_range(request.headers.get("range", ""), len(data))
    if bounds is None:
        return Response(data, media_type=media, headers=headers)
    start, stop = bounds
    if start >= stop:
        return Response(status_code=416, headers={**headers, "content-range": f"bytes */{len(data)}"})
    headers["content-range"] = f"bytes {start}-{stop - 1}/{len(data)}"
    return Response(data[start:stop], 206, media_type=media, headers=headers)


def _run(route: Route, call: Call, given: dict[str, Any]) -> bytes | FileContent:
    try:
        found = route.run(call, **given)
        return found if isinstance(found, FileContent) else encode_body(found, route.result)
    except RecursionError:
        if route.body is None:
            raise
        raise InvalidError("a value is nested too deeply", hint="Store it flat, as a list of nodes") from None


def _query(request: Request) -> dict[str, str]:
    items = request.query_params.multi_items()
    query = dict(items)
    if len(query) < len(items):
        raise InvalidError("a parameter is given twice")
    return query


def _if_match(request: Request) -> tuple[str, ...]:
    text = ",".join(request.headers.getlist("if-match")).strip()
    if text in ("", "*"):
        return ()
    return tuple(filter(None, _TAG.findall(text) or [text.removeprefix("W/").strip('"')]))


def json_response(body: bytes, status: int, request: Request) -> Response:
    """Return a response with an entity tag, or that the one that the caller has is current."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "private, no-cache", "vary": "cookie, authorization"}
    if request.method == "GET" and tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(body, status, media_type="application/json", headers=headers)


_MAX_RANGE = 100
"""The most characters of a range: a number of more digits than Python converts is no place in a file."""


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the range of bytes that a request asks for; None if it asks for all, or in a way that is not known."""
    unit, _, text = header.partition("=")
    first, dash, last = text.strip().partition("-")
    if unit.strip() != "bytes" or not dash or "," in text or len(text) > _MAX_RANGE:
        return None
    if not first:
        return (max(0, size - int(last)), size) if last.isdecimal() else None
    if not first.isdecimal() or (last and not last.isdecimal()):
        return None
    return int(first), min(size, int(last) + 1 if last else size)


def problem_response(problem: Problem) -> Response:
    """Return an error as a response."""
    headers = {"cache-control": "no-store"}
    if problem.status in (429, 503):
        headers["retry-after"] = "1"
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(encode_body(problem, Problem), problem.status, headers, MEDIA_TYPE)


Endpoint = Callable[[Request], Awaitable[Response]]


def reporting(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose errors are responses."""

    async def guarded(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HoldfastError as error:
            return problem_response(api_problem(error))
        except ClientDisconnect:
            _log.info("a client ended its request before it was complete: %s %s", request.method, request.url.path)
            return Response(status_code=400)  # which nobody gets
        except Exception:  # noqa: BLE001 - reported, not swallowed
            _log.exception("a request failed: %s %s", request.method, request.url.path)
            return problem_response(internal_problem())

    return guarded


def api_routes(server: Server) -> list[BaseRoute]:
    """Return the routes of the API."""

    async def send_document(request: Request) -> Response:
        await server.authenticate(request)
        return json_response(await server.work(_encode_document), 200, request)

    health = Health(server)
    routes: list[BaseRoute] = [
        StarletteRoute(f"{API}/openapi.json", reporting(send_document)),
        StarletteRoute(f"{API}/events", reporting(server.events)),
        StarletteRoute("/metrics", reporting(server.metrics)),
        StarletteRoute("/health/live", reporting(health.live)),
        StarletteRoute("/health/ready", reporting(health.ready)),
    ]
    for path in dict.fromkeys(route.path for route in ROUTES):
        # One endpoint for all methods of a path, so that another method is answered with 405.
        at_path = {route.method: route for route in ROUTES if route.path == path}
        routes.append(StarletteRoute(API + path, reporting(_endpoint(server, at_path)), methods=list(at_path)))
    return routes


@cache
def _encode_document() -> bytes:
    return msgspec.json.encode(openapi_document(ROUTES))


def _endpoint(server: Server, routes: dict[str, Route]) -> Endpoint:
    async def respond(request: Request) -> Response:
        return await server.respond(routes["GET" if request.method == "HEAD" else request.method], request)

    return respond


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    if status == 405:
        problem = to_problem(InvalidError(f"{request.method} is not possible here"))
        return problem_response(msgspec.structs.replace(problem, status=405, title="Not possible here"))
    return problem_response(to_problem(NotFoundError("there is nothing at this address", where=request.url.path)))


def build_app(
    service: Service, authenticator: Authenticator, further: Callable[[Server], Iterable[BaseRoute]] | None = None
) -> ProtectedApp:
    """Return the ASGI application that serves a store: the API, and further routes."""
    server = Server(service, authenticator)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001
        yield
        server.hub.close()

    routes = [*api_routes(server), *(further(server) if further is not None else ())]
    handlers: Any = {404: _not_found, 405: _not_found}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False
    has_sockets = any(isinstance(each, WebSocketRoute) for each in routes)
    return ProtectedApp(app, service.options, server.end_streams, has_sockets=has_sockets)


_MAX_CHANGES = 10_000
"""How many changes are known by their keys."""

_MAX_BYTES = 64 << 20
"""How many bytes of their results are kept."""

_MAX_RESULT = 16 << 20
"""The most bytes of a result that is kept."""


def change_digest(method: str, address: str, if_match: tuple[str, ...], body: bytes) -> bytes:
    """Return the digest of a change: two are the same if all of it is."""
    digest = hashlib.sha256(msgspec.json.encode([method, address, if_match]))
    digest.update(body)
    return digest.digest()


@dataclass(slots=True)
class _Change:
    digest: bytes
    made: bool = False
    result: bytes | None = None
    """None while the change is under way, and when its result is no longer kept."""


class RepeatedChanges:
    """The latest changes. Their bodies are kept as digests, and their results as long as there is room: that a change
    was made is known for longer than what it returned."""

    def __init__(self) -> None:
        self._changes: OrderedDict[tuple[str, str], _Change] = OrderedDict()
        self._kept: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """How many bytes of results are kept."""
        return self._size

    def once(self, key: tuple[str, str], digest: bytes, run: Callable[[], bytes]) -> bytes:
        """Make a change, unless it was made before. `ConflictError` if it is under way, or another had the key;
        `OutcomeUnknownError` if it was made, and its result is no longer kept."""
        with self._lock:
            found = self._changes.get(key)
            if found is not None:
                return _answer(found, digest)
            change = self._changes[key] = _Change(digest)
            self._forget_changes()
        try:
            result = run()
        except BaseException:
            with self._lock:
                self._changes.pop(key, None)
            raise
        with self._lock:
            change.made = True
            if len(result) <= _MAX_RESULT and key in self._changes:
                change.result = result
                self._kept[key] = len(result)
                self._size += len(result)
            while self._size > _MAX_BYTES:
                self._drop_result(next(iter(self._kept)))
        return result

    def _forget_changes(self) -> None:
        while len(self._changes) > _MAX_CHANGES:
            oldest = next((key for key, each in self._changes.items() if each.made), None)
            if oldest is None:  # all are under way, and each of them has a thread
                return
            self._drop_result(oldest)
            del self._changes[oldest]

    def _drop_result(self, key: tuple[str, str]) -> None:
        self._size -= self._kept.pop(key, 0)
        self._changes[key].result = None


def _answer(found: _Change, digest: bytes) -> bytes:
    if found.digest != digest:
        raise ConflictError(
            "this Idempotency-Key was already used for another change", hint="Use a new key for a new change"
        )
    if not found.made:
        raise ConflictError("this change is still in progress", hint="Wait, and send it again", code="under-way")
    if found.result is None:
        raise OutcomeUnknownError(
            "this change was made, and its result is no longer kept",
            hint="Read what the change concerns, and do not repeat it",
        )
    return found.result
