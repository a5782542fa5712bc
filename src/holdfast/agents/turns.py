"""Turns: of several who want to save one agent, one does at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from holdfast.backends.port import Suspension


class Turns:
    """A lock that threads and tasks of event loops can wait for alike."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have it for the length of a block."""
        with self._mutex:
            waiting = None
            if self._taken:
                waiting = Future[None]()
                self._waiting.append(waiting)
            self._taken = True
        if waiting is not None:
            try:
                await _Turn(waiting)
            except BaseException:
                # Whoever gave up waiting may have been given the turn just then.
                if not waiting.cancel() and waiting.done() and not waiting.cancelled():
                    self._give()
                raise
        try:
            yield
        finally:
            self._give()

    def _give(self) -> None:
        with self._mutex:
            while self._waiting:
                waiting = self._waiting.popleft()
                if waiting.set_running_or_notify_cancel():
                    waiting.set_result(None)
                    return
            self._taken = False


class _Turn(Suspension[None]):
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    def watch(self) -> asyncio.Future[None]:
        return asyncio.wrap_future(self._future)
