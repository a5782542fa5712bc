"""A lock for threads and tasks alike, which is acquired in the order of requests.

A wait for the result of another thread or task.

It is apart from the drivers, which every command loads: `concurrent.futures` takes longer to import than they do.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TypeVar

from holdfast.backends.interface import Suspension
from holdfast.errors import InvalidError


class FairLock:
    """A lock that threads and tasks of event loops can wait for alike.

    The owner does not acquire it again, and would wait for itself: that raises `InvalidError` with a message and hint.
    """

    def __init__(self, message: str, hint: str) -> None:
        self._message, self._hint = message, hint
        self._mutex = threading.Lock()
        self._locked = False
        self._owner: object = None
        self._queue: deque[FutureWait[None]] = deque()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Own the lock for the length of a block."""
        owner = _current_owner()
        with self._mutex:
            if self._locked and self._owner == owner:
                raise InvalidError(self._message, hint=self._hint)
            wait = FutureWait[None]() if self._locked else None
            if wait is not None:
                self._queue.append(wait)
            self._locked = True
        if wait is not None:
            try:
                await wait
            except BaseException:
                self._give_up(wait)
                raise
        self._owner = owner
        try:
            yield
        finally:
            self._owner = None
            with self._mutex:
                self._pass_on()

    def _give_up(self, wait: FutureWait[None]) -> None:
        with self._mutex:
            if wait in self._queue:
                self._queue.remove(wait)
            else:  # the lock was passed on just then
                self._pass_on()

    def _pass_on(self) -> None:
        """Give the lock to who waits next. Called under the mutex."""
        if self._queue:
            self._queue.popleft().future.set_result(None)
        else:
            self._locked = False


def _current_owner() -> tuple[int, object]:
    """Return the running thread, and the task that runs in it."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


T = TypeVar("T")


class FutureWait(Suspension[T]):
    """A wait for a result that another thread or task sets in the future. Cancelling the wait cancels nothing."""

    def __init__(self) -> None:
        self.future: Future[T] = Future()
        self.future.set_running_or_notify_cancel()

    def begin(self) -> None:
        """Start what is waited for. Called once, when the wait begins."""

    def wait(self) -> T:
        self.begin()
        return self.future.result()

    def watch(self) -> asyncio.Future[T]:
        import asyncio

        self.begin()
        return asyncio.wrap_future(self.future)
