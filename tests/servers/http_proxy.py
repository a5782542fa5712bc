"""An HTTP proxy in front of an S3 server, which answers in its place as bad days have it."""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Literal, NamedTuple, Self

from tests.servers.processes import HOST


class Fault(NamedTuple):
    """What happens to a request."""

    status: int = 503
    """What is answered; 0 cuts the connection off."""
    when: Literal["before", "after"] = "before"
    """Whether the server never gets it, or has done it by then."""
    until: threading.Event | None = None
    """What the client waits for before that happens."""


Rule = Callable[[str, str], Fault | None]
"""Tells from the method and the path what is to happen to a request, if anything."""


class HttpProxy:
    """Passes requests on to a port, unless its rule says otherwise. A context manager."""

    def __init__(self, port: int) -> None:
        self.rule: Rule = lambda method, path: None
        self.requests: Counter[str] = Counter()
        """How many requests came, by method."""
        self.faults = 0
        """To how many something happened."""
        self._lock = threading.Lock()
        self._server = _Listening((HOST, 0), _handler(self, port))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        """Where to send requests."""
        return f"http://{HOST}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests[method] += 1
            fault = self.rule(method, path)
            self.faults += fault is not None
            return fault


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that went away are no news."""


def _handler(proxy: HttpProxy, port: int) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = proxy._fault(self.command, self.path)
            if fault is None:
                self._answer(*self._pass_on(body))
                return
            if fault.when == "after":
                self._pass_on(body)
            if fault.until is not None:
                fault.until.wait(60)
            if fault.status:
                code = {412: "PreconditionFailed", 503: "SlowDown"}.get(fault.status, "InternalError")
                said = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
                self._answer(fault.status, [("Content-Type", "application/xml")], said)
            else:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_one

        def _pass_on(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(HOST, port, timeout=30)
            try:
                # With the headers as they came, the signature still fits, which covers the host.
                connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    connection.putheader(name, value)
                connection.endheaders(body)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("connection", "transfer-encoding") and (
                    name.lower() != "content-length" or self.command == "HEAD"
                ):
                    self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            """Says nothing."""

    return Handler
