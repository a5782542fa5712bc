"""A TCP proxy in front of a server, which can cut, stall, delay and count what passes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tests.servers.processes import HOST, Port
from tests.support.kills import Moment

_CHUNK = 1 << 18


class Proxy:
    """Passes everything on to a port, until told otherwise. A context manager."""

    def __init__(self, port: int) -> None:
        self._behind = port
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._open = threading.Event()
        self._open.set()
        self._traps: list[_Trap] = []
        self._listener: socket.socket | None = None
        self.latency = 0.0
        """How many seconds each piece takes, in each direction."""
        self.round_trips = 0
        """How often a client sent something after it had got an answer, or at first."""
        self.uncounted: tuple[bytes, ...] = ()
        """What marks messages that are no business of a caller's, as those that ask how the server is."""
        self.sent = 0
        """How many bytes came from clients."""
        # Nobody may take it while it is refused: the ports that the system gives go to whoever connects.
        self._claim = Port()
        self.port = self._claim.number
        self.accept()

    def cut(self) -> None:
        """Break off all connections."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.cut()

    def refuse(self) -> None:
        """Take no new connections."""
        if self._listener is not None:
            # Closing alone does not wake the thread that waits for a connection.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._acceptor.join()
            self._listener = None

    def accept(self) -> None:
        """Take new connections again."""
        listener = self._listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, self.port))
        listener.listen(256)
        self._acceptor = threading.Thread(target=self._serve, args=(listener,), daemon=True)
        self._acceptor.start()

    def switch(self, port: int) -> None:
        """Pass new connections on to another port, and break off all others."""
        self._behind = port
        self.cut()

    def stall(self) -> None:
        """Let nothing through, and keep all connections open."""
        self._open.clear()

    def flow(self) -> None:
        """Let everything through again, also what came meanwhile."""
        self._open.set()

    def cut_before(self, marker: bytes, times: int = 1) -> None:
        """Break off a connection when its client sends this, in place of passing it on."""
        self._traps.append(_Trap(marker, times, "before"))

    def cut_after(self, marker: bytes, times: int = 1) -> None:
        """Break off a connection when its client sends this, after the server has answered: the client won't know."""
        self._traps.append(_Trap(marker, times, "after"))

    def strike(self, marker: bytes, moment: Moment, action: Callable[[], object]) -> None:
        """Do something once, when a client sends this, and break off the connection then: before it is passed on, when
        it was and nothing was answered, or when the server has answered and the client does not know."""
        self._traps.append(_Trap(marker, 1, moment, action))

    @property
    def sprung(self) -> int:
        """How many connections were cut for what was sent over them."""
        return sum(trap.sprung for trap in self._traps)

    def wait_for_cuts(self, count: int) -> None:
        """Until so many were."""
        deadline = time.monotonic() + 200
        while self.sprung < count:
            assert time.monotonic() < deadline, f"{self.sprung} of {count} connections were cut"
            time.sleep(0.002)

    def mend(self) -> None:
        """Pass everything on again."""
        self._traps.clear()
        self.latency = 0.0
        self.flow()
        if self._listener is None:
            self.accept()

    def close(self) -> None:
        """Break off everything."""
        self.refuse()
        self.flow()
        self.cut()
        self._claim.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed
                return
            try:
                server = socket.create_connection((HOST, self._behind), timeout=5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.start()

    def _wait(self) -> None:
        if self.latency:
            time.sleep(self.latency)
        self._open.wait()

    def _count(self, data: bytes, anew: bool) -> None:
        with self._lock:
            self.sent += len(data)
            self.round_trips += anew and not any(mark in data for mark in self.uncounted)

    def _caught(self, data: bytes) -> _Trap | None:
        with self._lock:
            for trap in self._traps:
                if trap.sprung < trap.times and trap.marker in data:
                    trap.sprung += 1
                    return trap
        return None

    def _gone(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Trap:
    def __init__(self, marker: bytes, times: int, moment: Moment, action: Callable[[], object] = lambda: None) -> None:
        self.marker = marker
        self.times = times
        self.moment = moment
        self.action = action
        self.sprung = 0


class _Link:
    """One connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._answered = True
        """The server was the last to send."""
        self._doomed: _Trap | None = None
        """What is done at the next answer, before it is cut."""

    def start(self) -> None:
        for pump in (self._up, self._down):
            threading.Thread(target=pump, daemon=True).start()

    def cut(self) -> None:
        self._proxy._gone(self)
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)  # wakes whoever reads from it, and tells the other end nothing
            _reset(end)

    def _up(self) -> None:
        before = b""
        with contextlib.suppress(OSError):
            while data := self._client.recv(_CHUNK):
                self._proxy._count(data, self._answered)
                self._answered = False
                self._proxy._wait()
                trap = self._proxy._caught(before + data)
                before = b"" if trap else data[-64:]  # a marker may come in two pieces
                if trap is not None and trap.moment == "before":
                    trap.action()
                    break
                if trap is not None and trap.moment == "after":
                    self._doomed = trap
                self._server.sendall(data)
                if trap is not None and trap.moment == "during":
                    trap.action()
                    break
        self.cut()

    def _down(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(_CHUNK):
                if self._doomed is not None:
                    self._doomed.action()
                    break
                self._answered = True
                self._proxy._wait()
                self._client.sendall(data)
        self.cut()


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
