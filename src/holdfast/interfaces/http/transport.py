"""The connection of the client: requests with a token, and errors of the server as those that a store raises."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Self, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from holdfast.errors import ERRORS_BY_CODE, FINER_CODES, ConfigError, HoldfastError, UnavailableError
from holdfast.interfaces.http.inputs import Input
from holdfast.interfaces.http.models import Problem, StoreChangesModel
from holdfast.interfaces.http.problems import StaleError
from holdfast.interfaces.http.routes import API

_TIMEOUT = 60.0

_ATTEMPTS = 4
"""How often a request is sent that may be repeated."""

_PAUSE = 0.1
"""How many seconds pass before the second attempt; four times as many before each further one."""

SERVER_HEADER = "Holdfast-Server"
"""The run of the server that answers, which has a name of its own."""

EXPECTED_SERVER_HEADER = "Holdfast-Expected-Server"
"""The run of the server that a change was sent to before. Another does not know whether it was made."""


class HttpTransport:
    """Sends requests to a server. Each thread of the program has a connection of its own."""

    def __init__(self, url: str, token: str, *, timeout: float = _TIMEOUT) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("the address of a server is http:// or https://", where=url[:80])
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._local = threading.local()
        self._opened: list[HTTPConnection] = []
        self._server = ""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._host}:{self._port or ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        while self._opened:
            self._opened.pop().close()

    def send(
        self,
        method: str,
        path: str,
        params: Input,
        body: Input | None,
        result: Any,
        *,
        if_match: str = "",
        key: str = "",
        repeat: bool = False,
    ) -> Any:
        """Send a request, and return its result. Errors of the server are raised as they were there.

        With `repeat`, a request that was not answered is sent again: one that reads, or a change with a `key`.
        """
        given = {name: value for name, value in msgspec.to_builtins(params).items() if value is not None}
        address = self._base + API + path
        for name in list(given):
            if f"{{{name}}}" in address:
                address = address.replace(f"{{{name}}}", quote(str(given.pop(name)), safe=""))
        if given:
            address = f"{address}?{urlencode({name: _text(value) for name, value in given.items()})}"
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        headers |= {"If-Match": f'"{if_match}"'} if if_match else {}
        headers |= {"Idempotency-Key": key} if key else {}
        content = None
        if body is not None:
            content, headers["Content-Type"] = msgspec.json.encode(body), "application/json"
        status, data = self._exchange(method, address, content, headers, _ATTEMPTS if repeat else 1)
        if status >= 400:
            raise _error(data, status)
        return msgspec.json.decode(data, type=result)

    def _exchange(
        self, method: str, address: str, body: bytes | None, headers: dict[str, str], attempts: int
    ) -> tuple[int, bytes]:
        if method == "GET" and getattr(self._local, "connection", None) is not None:
            attempts = max(2, attempts)  # the server closes idle connections
        for attempt in range(attempts):
            last = attempt == attempts - 1
            try:
                connection = self._connect()
                connection.request(method, address, body, headers)
                response: HTTPResponse = connection.getresponse()
                data = response.read()
            except (OSError, HTTPException) as error:
                self._drop()
                # A server that was never reached is not waited for.
                if last or not self._server:
                    raise UnavailableError(
                        f"the server does not answer: {error}",
                        where=f"{self._host}:{self._port or ''}",
                        code="unreachable",
                    ) from error
            else:
                waits = response.status == 429 or (attempt > 0 and _is_under_way(response.status, data))
                if last or not waits:
                    self._server = response.headers.get(SERVER_HEADER) or self._server
                    return response.status, data
            if "Idempotency-Key" in headers:
                # Only the server that may have made the change knows whether it did.
                headers = {**headers, EXPECTED_SERVER_HEADER: self._server}
            time.sleep(_PAUSE * 4**attempt)
        raise AssertionError("unreachable")

    def open_events(self, since: str = "") -> EventConnection:
        """Open a stream of events, on a connection of its own: what changed since an event, and what changes now."""
        connection = self._new_connection()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "text/event-stream"}
        headers |= {"Last-Event-ID": since} if since else {}
        try:
            connection.request("GET", f"{self._base}{API}/events", headers=headers)
            own = cast(socket.socket, connection.sock)
            response = connection.getresponse()
            if response.status >= 400:
                raise _error(response.read(), response.status)
        except BaseException:
            connection.close()
            raise
        return EventConnection(connection, response, own)

    def _new_connection(self) -> HTTPConnection:
        if self._secure:
            context = ssl.create_default_context()
            return HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        return HTTPConnection(self._host, self._port, timeout=self._timeout)

    def _connect(self) -> HTTPConnection:
        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._new_connection()
            self._opened.append(connection)
        return connection

    def _drop(self) -> None:
        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None
            if connection in self._opened:
                self._opened.remove(connection)


class EventConnection:
    """A stream of events."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse, own: socket.socket) -> None:
        self._connection = connection
        self._response = response
        self.socket = own
        """To end the stream from another thread."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._response.close()
        self._connection.close()

    def events(self) -> Iterator[tuple[str, StoreChangesModel]]:
        """Yield events with their ids."""
        id = ""
        for line in self._response:
            name, _, value = line.strip().partition(b": ")
            if name == b"id":
                id = value.decode()
            elif name == b"data":
                yield id, msgspec.json.decode(value, type=StoreChangesModel)


def _is_under_way(status: int, data: bytes) -> bool:
    """Whether the answer is that the same change is being made."""
    return status == 409 and b'"under-way"' in data


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(data: bytes, status: int) -> HoldfastError:
    """Return the error that a response reports."""
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except msgspec.MsgspecError:
        return UnavailableError(f"the server answered with status {status}, and no reason", code="unreachable")
    if problem.current is not None:
        return StaleError(problem.current, problem.diff)
    kind = FINER_CODES.get(problem.code) or ERRORS_BY_CODE.get(problem.code, HoldfastError)
    return kind(problem.detail, where=problem.where, hint=problem.hint, code=problem.code)
