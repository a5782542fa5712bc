"""The connection of a remote store: requests with a token, and errors of the server as those that a store raises."""

from __future__ import annotations

import io
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ipaddress import ip_address
from typing import Any, Self, cast
from urllib.parse import urlsplit, urlunsplit

import msgspec

from holdfast._structs import decode_json
from holdfast.backends.interface import closed_error
from holdfast.codec import Codec
from holdfast.engine.pages import Page
from holdfast.errors import (
    ERRORS_BY_CODE,
    FINER_CODES,
    ConfigError,
    HoldfastError,
    TooLargeError,
    UnavailableError,
    UnsupportedError,
)
from holdfast.interfaces.http import models
from holdfast.interfaces.http.calls import is_read, sent_state, sent_value
from holdfast.interfaces.http.models import StoreChangesModel
from holdfast.interfaces.http.routes import API
from holdfast.state.scope_state import State
from holdfast.state.sessions.api import Session
from holdfast.store.call_values import CallCodec


class _AnswerTooLarge(Exception):
    """Raised while an answer is read. Not a ValueError, which `http.client` takes for a wrong size of a part."""


class _LimitedStream(io.RawIOBase):
    """The bytes of a connection up to a number of them, and to a time."""

    def __init__(self, connection: socket.socket, max_bytes: int, seconds: float) -> None:
        self._socket = connection
        self._file = connection.makefile("rb", buffering=0)  # which keeps the socket open as long as it is read
        self._left = max_bytes
        self._timeout = connection.gettimeout()
        self._end = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("it took too long to answer")
        if self._left <= 0:
            raise _AnswerTooLarge
        self._socket.settimeout(seconds if self._timeout is None else min(seconds, self._timeout))
        count: int | None = self._file.readinto(buffer)
        self._left -= count or 0
        return count

    def close(self) -> None:
        if not self.closed:
            self._socket.settimeout(self._timeout)  # for the next response on the connection
        self._file.close()
        super().close()


class LimitedResponse(HTTPResponse):
    """A response of at most so many bytes, within so many seconds from when it is waited for: headers, too."""

    def __init__(self, sock: socket.socket, *args: Any, max_bytes: int, seconds: float, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_LimitedStream(sock, max_bytes, seconds))
        self._max_bytes = max_bytes

    def begin(self) -> None:
        """Read the headers. They may say that the answer is too large."""
        super().begin()
        if self.length is not None and self.length > self._max_bytes:  # memory would be taken for it
            raise _AnswerTooLarge


_TIMEOUT = 60.0

_LONGEST = 10
"""How many times the timeout, which is that of waiting for the next bytes, the whole answer may take."""

MAX_ANSWER = 256 << 20
"""The most bytes that an answer has, unless more are allowed."""

_MAX_EVENT = 1 << 20
"""The most bytes of an event, which has names."""

_MAX_TEXT = 10_000
"""The most characters of a server's text that an error has."""

_ATTEMPTS = 4
"""How often a request is sent."""

_PAUSE = 0.1
"""How many seconds pass before the second attempt; four times as many before each further one."""

SERVER_HEADER = "Holdfast-Server"
"""The run of the server that answers, which has a name of its own."""

EXPECTED_SERVER_HEADER = "Holdfast-Expected-Server"
"""The run of the server that a change was sent to before. Another does not know whether it was made."""


class HttpTransport:
    """Sends requests to a server. Each thread of the program has a connection of its own."""

    def __init__(self, url: str, token: str, *, timeout: float = _TIMEOUT, max_answer: int = MAX_ANSWER) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("the address of a server must start with http:// or https://", where=url[:80])
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._token = token
        self._timeout = timeout
        self._max_answer = max_answer
        self._local = threading.local()
        self._opened: list[HTTPConnection] = []
        self._server = ""
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._host}:{self._port or ''}>"

    def close(self) -> None:
        """Close the connections. Requests are refused from now on."""
        self._closed = True
        while self._opened:
            self._opened.pop().close()

    def send(self, method: str, path: str, result: Any, body: Mapping[str, Any] | None = None, *, key: str = "") -> Any:
        """Send a request that reads, or a change with a `key`, and return its result. It is sent again if it was not
        answered. Errors of the server are raised as they were there."""
        if self._closed:
            raise closed_error(self._where)
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        content = None
        if body is not None:
            content, headers["Content-Type"] = msgspec.json.encode(body), "application/json"
        status, data = self._exchange(method, self._base + API + path, content, headers)
        if status >= 400:
            raise _error(data, status)
        return decode_answer(data, result, self._where)

    @property
    def _where(self) -> str:
        return f"{self._host}:{self._port or ''}"

    def _exchange(self, method: str, address: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        for attempt in range(_ATTEMPTS):
            last = attempt == _ATTEMPTS - 1
            try:
                connection = self._connect()
                connection.request(method, address, body, headers)
                response: HTTPResponse = connection.getresponse()
                data = response.read()
            except _AnswerTooLarge:
                self._drop()
                raise TooLargeError(
                    f"the answer of the server has more than {self._max_answer} bytes",
                    where=self._where,
                    hint="Ask for less at once, or allow more with the option max_answer",
                ) from None
            except (OSError, HTTPException, ValueError) as error:  # a wrong length of a part is a ValueError
                self._drop()
                # A server that was never reached is not waited for.
                if last or not self._server:
                    raise UnavailableError(
                        f"the server does not answer: {_visible(error)}",
                        where=self._where,
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
                raise _error(response.read(_MAX_EVENT), response.status)
        except BaseException:
            connection.close()
            raise
        return EventConnection(connection, response, own)

    def _new_connection(self, *, limited: bool = False) -> HTTPConnection:
        """Return a new connection, of which each response is `limited`, or is an endless stream of events."""
        if self._secure:
            context = ssl.create_default_context()
            connection: HTTPConnection = HTTPSConnection(self._host, self._port, timeout=self._timeout, context=context)
        else:
            connection = HTTPConnection(self._host, self._port, timeout=self._timeout)
        if limited:
            kind = partial(LimitedResponse, max_bytes=self._max_answer, seconds=self._timeout * _LONGEST)
            connection.response_class = kind  # type: ignore[assignment]
        return connection

    def _connect(self) -> HTTPConnection:
        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._new_connection(limited=True)
            self._opened.append(connection)
        return connection

    def _drop(self) -> None:
        connection: HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None
            if connection in self._opened:
                self._opened.remove(connection)


class _ReportedProblem(msgspec.Struct):
    """An error as a server reports it, without what only its title and status say."""

    detail: str
    code: str
    where: str = ""
    hint: str = ""


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
        while line := self._response.readline(_MAX_EVENT):
            name, _, value = line.strip().partition(b": ")
            if name == b"id":
                id = value.decode(errors="replace")
            elif name == b"data":
                yield id, decode_answer(value, StoreChangesModel, "the stream of events")


def _visible(text: object) -> str:
    """Return a text of a server with its control characters visible: it goes to terminals and logs."""
    return "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in str(text)[:_MAX_TEXT])


def _is_under_way(status: int, data: bytes) -> bool:
    """Whether the answer is that the same change is being made."""
    return status == 409 and b'"under-way"' in data


def decode_answer(data: bytes, kind: Any, where: str) -> Any:
    """Return what a server answered. `UnavailableError` if it makes no sense."""
    try:
        return decode_json(data, kind)
    except (ValueError, RecursionError) as error:
        raise no_answer(error, where) from None


def no_answer(error: Exception, where: str) -> UnavailableError:
    """Return the error to raise where an answer makes no sense."""
    return UnavailableError(
        f"the response is not that of a Holdfast server: {_visible(error)}",
        where=where,
        hint="Check that this is the address of a Holdfast server of the same version",
        code="unreachable",
    )


def _error(data: bytes, status: int) -> HoldfastError:
    """Return the error that a response reports."""
    try:
        problem = decode_json(data, _ReportedProblem)
    except (ValueError, RecursionError):
        return UnavailableError(f"the server answered with status {status} and gave no reason", code="unreachable")
    kind = FINER_CODES.get(problem.code) or ERRORS_BY_CODE.get(problem.code, HoldfastError)
    detail, where, hint = (_visible(each) for each in (problem.detail, problem.where, problem.hint))
    return kind(detail, where=where, hint=hint, code=problem.code)


class Connection:
    """A connection to a server, for the calls of a remote store."""

    def __init__(
        self,
        url: str,
        token: str,
        codec: Codec,
        timeout: float,
        *,
        insecure: bool = False,
        max_answer: int = MAX_ANSWER,
        session: Callable[..., Session],
    ) -> None:
        parts = urlsplit(url)
        self.address: str = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                "the address of a served store has no user, password or query",
                where=self.address,
                hint="Give the token as HOLDFAST_TOKEN, with --token, or as the option token",
            )
        if not token:
            raise ConfigError(
                "a served store needs a token",
                where=self.address,
                hint="Set HOLDFAST_TOKEN, or give --token; `holdfast token issue` makes one where the store is",
            )
        if parts.scheme == "http" and not insecure and not _is_local(parts.hostname or ""):
            raise ConfigError(
                "http:// would send the token unencrypted",
                where=self.address,
                hint="Use https://, or the option insecure=True on a network that you trust",
            )
        self.client: HttpTransport = HttpTransport(url, token, timeout=timeout, max_answer=max_answer)
        self.identity = ""
        """The identity to act as, if the token is the owner's; empty for who the token is for."""
        self._codec, self._session = codec, session
        self.codec: CallCodec = CallCodec(codec, session=lambda *parts: session(self, *parts))

    def as_identity(self, identity: str) -> Connection:
        """Return the same connection for calls as an identity."""
        other = copy(self)
        other.identity = identity
        other.codec = CallCodec(self._codec, session=lambda *parts: self._session(other, *parts))
        return other

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def call(self, part: str, names: tuple[str, ...], operation: str, arguments: Any, options: Any) -> Any:
        """Call an operation on the server. A change that may have been lost on the way is sent again, and made once."""
        request = {
            "names": list(names),
            "arguments": self.codec.to_json([_sent(each) for each in arguments]),
            "options": self.codec.to_json({name: _sent(value) for name, value in options.items()}),
            "identity": self.identity,
        }
        reads = is_read(part, operation, options)
        path = f"/{'reads' if reads else 'changes'}/{part}/{operation}"
        key = "" if reads else secrets.token_hex(16)
        found = self.client.send("POST", path, models.CallResultModel, request, key=key)
        try:
            return self.codec.from_json(found.result)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise no_answer(error, self.address) from None


class Caller:
    """Calls the operations of a part of a served store."""

    def __init__(self, connection: Connection, part: str, names: tuple[str, ...]) -> None:
        self._connection = connection
        self._part = part
        self.names = names

    def call(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call an operation, and return its result."""
        found = self._connection.call(self._part, self.names, operation, arguments, options)
        if isinstance(found, Page) and found.next is not None:

            async def read(cursor: str) -> Page[Any]:
                page: Page[Any] = self.call(operation, *arguments, **{**options, "cursor": cursor})
                return page

            found._read = read
        return found


def _sent(value: Any) -> Any:
    """Return an argument as it is sent."""
    if isinstance(value, State):
        return sent_state(str(value.scope))
    if isinstance(value, set | frozenset | tuple | list | dict | str | bytes) or not callable(value):
        return sent_value(value)
    raise UnsupportedError("a function cannot be sent to a served store", where=repr(value)[:80])


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
