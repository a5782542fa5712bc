"""Watching a scope of a served store: server-sent events tell when to read, and the server reads what changed."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from typing import Any

from holdfast.engine.model.scopes import Scope
from holdfast.errors import HoldfastError
from holdfast.interfaces.http.models import StoreChangesModel
from holdfast.interfaces.http.remote_calls import Caller
from holdfast.interfaces.http.transport import HttpTransport
from holdfast.state.watcher import Watch, WatchedChange
from holdfast.time_parser import Duration, parse_seconds

_LONGEST = 2.0
"""After so many seconds it is read again without an event: no event tells that a key has expired."""

_PAUSE = 1.0
"""How many seconds pass before a stream that ended is opened again."""


class RemoteWatch(Watch):
    """The changes of a scope of a served store. Ends when it is closed."""

    def __init__(
        self, caller: Caller, client: HttpTransport, scope: Scope, pattern: str, cursor: str | None, nested: bool
    ) -> None:
        self._caller = caller
        self._scope = scope
        self._pattern, self._is_nested = pattern, nested
        self._position = cursor
        self._read_so_far: str | None = None
        self._found: deque[WatchedChange] = deque()
        self._signal = ChangeSignal(client, scope, nested=nested)

    @property
    def cursor(self) -> str:
        """The position after what was reported so far; empty before the watch has begun."""
        return self._read_so_far if self._read_so_far is not None else self._position or ""

    def start(self) -> None:
        """Begin here, unless the watch has begun: changes from now on are reported."""
        if self._position is None:
            self._read()

    def poll(self, timeout: Duration = 0) -> list[WatchedChange]:
        """Return the changes since the last call, in order; waits for the first one, at most until the timeout."""
        found = list(self._found) or self._wait_for(parse_seconds(timeout, "timeout"))
        self._found.clear()
        self._read_so_far = None
        return found

    def close(self) -> None:
        """End the watch, and all iterations over it, in any thread."""
        self._signal.close()

    def __next__(self) -> WatchedChange:
        if not self._found and not self._signal.closed:
            self._found += self._wait_for(None)
        if self._signal.closed:
            raise StopIteration
        found = self._found.popleft()
        self._read_so_far = found.cursor if self._found else None
        return found

    def _wait_for(self, timeout: float | None) -> list[WatchedChange]:
        end = None if timeout is None else time.monotonic() + timeout
        self.start()
        while not self._signal.closed:
            left = _LONGEST if end is None else min(_LONGEST, end - time.monotonic())
            if left > 0:
                self._signal.open()  # before the read: what changes after it is not missed
            found = self._read()
            if found or left <= 0:
                return found
            self._signal.wait(left)
        return []

    def _read(self) -> list[WatchedChange]:
        changes, self._position = self._caller.call("read_watch", self._pattern, self._position, self._is_nested)
        return list(_changes(changes))


def _changes(found: list[tuple[dict[str, Any], str]]) -> Iterator[WatchedChange]:
    for fields, cursor in found:
        yield WatchedChange(**{**fields, "scope": Scope.parse(fields["scope"])}, _cursor=partial(str, cursor))


class ChangeSignal:
    """Tells when something in a scope may have changed, by the stream of events of a server."""

    def __init__(self, client: HttpTransport, scope: Scope, *, nested: bool) -> None:
        self._client = client
        self._scope, self._nested = scope, nested
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def open(self) -> None:
        """Follow the stream, unless that is done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name="holdfast-watch", daemon=True)
            self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait until something may have changed, or the time has passed."""
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self) -> None:
        """End the stream, and all waiting."""
        self._closed.set()
        self._changed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _follow(self) -> None:
        last = ""
        while not self._closed.is_set():
            with contextlib.suppress(OSError, HTTPException, HoldfastError), self._client.open_events(last) as stream:
                self._socket = stream.socket
                for id, changes in stream.events():
                    last = id
                    if self._concerns(changes):
                        self._changed.set()
            self._changed.set()  # what changed meanwhile is read, or why it cannot be
            self._closed.wait(_PAUSE)

    def _concerns(self, changes: StoreChangesModel) -> bool:
        if not changes.complete:
            return True
        scopes = map(Scope.parse, changes.scopes)
        return any(self._scope.contains(each) if self._nested else each == self._scope for each in scopes)
