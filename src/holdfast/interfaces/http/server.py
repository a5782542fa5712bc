"""The server: binds an address, and serves an application until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections import Counter
from collections.abc import Callable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.errors import ConfigError
from holdfast.interfaces.http.protection import CONNECTION, ProtectedApp

_HEADER_SECONDS = 10.0
"""How long a client may take to send the head of a request."""

_UNTAKEN_SECONDS = 30
"""How long a client may leave what was sent to it."""

_STRANGERS_EACH = 256
"""How many connections of one address may be open over which no token was shown."""

_PORT_ATTEMPTS = 20

_STOP_SECONDS = 2
"""How long open connections may take to end when the server stops."""


class Strangers:
    """The connections over which nobody has shown a token yet: so many of an address, and so many in all. The oldest
    one makes room, so that whoever has a token gets in while others hold connections open."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._all: dict[TimedProtocol, str] = {}
        self._counts: Counter[str] = Counter()

    def add(self, connection: TimedProtocol, address: str) -> None:
        """Count a new connection."""
        if self._counts[address] >= _STRANGERS_EACH:
            self._close(next(each for each, known in self._all.items() if known == address))
        elif len(self._all) >= self._limit:
            self._close(next(iter(self._all)))
        self._all[connection] = address
        self._counts[address] += 1

    def remove(self, connection: TimedProtocol) -> None:
        """Count a connection no longer: it has ended, or somebody is known."""
        address = self._all.pop(connection, None)
        if address is not None:
            self._counts[address] -= 1
            if not self._counts[address]:
                del self._counts[address]

    def _close(self, connection: TimedProtocol) -> None:
        self.remove(connection)
        connection.transport.abort()


class TimedProtocol(H11Protocol):
    """HTTP/1.1 with a limit on how long the head of a request may take, for which uvicorn itself waits as long as it
    takes, and on how many connections strangers have."""

    strangers: Strangers
    _deadline: asyncio.TimerHandle | None = None
    _is_upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.strangers.add(self, str((transport.get_extra_info("peername") or ("",))[0]))
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # What a client never takes would be held for it when the connection is closed.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_SECONDS * 1000)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if getattr(self.cycle, "response_complete", True):  # there is no request, or it was answered
            self._wait()
        else:
            self._stop_waiting()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over, to whoever checks at once who opens it."""
        self._stop_waiting()
        self._is_upgraded = True
        self.strangers.remove(self)
        super().handle_websocket_upgrade(event)

    def keep(self) -> None:
        """Let the connection stay: a token was shown."""
        self.strangers.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.strangers.remove(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._deadline is None and not self._is_upgraded:
            self._deadline = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def bind(host: str, port: int) -> socket.socket:
    """Bind an address. Port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = None
    try:
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        if bound is not None:
            bound.close()
        raise ConfigError(
            f"the server cannot use port {port}: {error.strerror or error}",
            where=f"{host}:{port}",
            hint="Choose another with --port, or --port 0 for any",
        ) from error
    return bound


def bind_loopback(port: int) -> list[socket.socket]:
    """Bind a port of both addresses of this machine, IPv4 first: for a name of it browsers try both, and would send to
    whoever has the other one what is meant for this server."""
    for _ in range(_PORT_ATTEMPTS):
        first = bind("127.0.0.1", port)
        try:
            return [first, bind("::1", first.getsockname()[1])]
        except ConfigError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                return [first]  # this machine has no IPv6
            first.close()
            if port:
                raise
    raise ConfigError("no port is free on both 127.0.0.1 and ::1", hint="Choose one with --port")


def address_of(bound: socket.socket) -> str:
    """Return the address of a bound socket as in a URL: `127.0.0.1:8765`."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class HttpServer(uvicorn.Server):
    """Serves an application on bound sockets. `run_bound` returns when it was stopped: by a signal, or by `stop`."""

    def __init__(self, app: ProtectedApp, max_connections: int, started: Callable[[], None] | None = None) -> None:
        protocol = type("ServedProtocol", (TimedProtocol,), {"strangers": Strangers(max_connections // 2)})
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                ws="websockets-sansio" if app.has_sockets else "none",
                ws_max_size=app.max_message,
                lifespan="on",
                log_level="warning",
                access_log=False,
                server_header=False,
                limit_concurrency=max_connections,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_STOP_SECONDS,
                h11_max_incomplete_event_size=32 << 10,
            )
        )
        self._app = app
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and report it."""
        await super().startup(sockets=sockets)
        if self.started and self._on_start is not None:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop. The signal that asked for it is not raised again: the store is yet to be closed."""
        self._app.prepare_stop()
        await super().shutdown(sockets=sockets)
        self._captured_signals.clear()

    def run_bound(self, *bound: socket.socket) -> None:
        """Serve until the server is stopped."""
        raise_file_limit()
        self.run(sockets=list(bound))

    def stop(self) -> None:
        """Stop, from another thread."""
        self.should_exit = True


def raise_file_limit() -> None:
    """Allow as many open connections as the system does: each is a file, and the usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
