"""A lock for threads and tasks alike, which is acquired in the order of requests."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager

from holdfast.backends.interface import Suspension
from holdfast.errors import InvalidError


class FairLock:
    """A lock that threads and tasks of event loops can wait for alike."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locked = False
        self._owner: object = None
        self._queue: deque[Future[None]] = deque()

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[None]:
        """Own the lock for the length of a block. Raises `InvalidError` for the current owner, which would wait for
        itself: such as an agent's own code that saves it while it is being saved."""
        owner = _current_owner()
        with self._mutex:
            if self._locked and self._owner == owner:
                raise InvalidError(
                    "the agent is already being saved by the caller",
                    hint="Do not save an agent in its persist, restore or validate, nor in its conflict resolver",
                )
            future = None
            if self._locked:
                future = Future[None]()
                self._queue.append(future)
            self._locked = True
        if future is not None:
            try:
                await _LockWait(future)
            except BaseException:
                # The lock may have been passed on to a waiter just when it gave up.
                if not future.cancel() and future.done() and not future.cancelled():
                    self._release()
                raise
        self._owner = owner
        try:
            yield
        finally:
            self._owner = None
            self._release()

    def _release(self) -> None:
        with self._mutex:
            while self._queue:
                future = self._queue.popleft()
                if future.set_running_or_notify_cancel():
                    future.set_result(None)
                    return
            self._locked = False


def _current_owner() -> tuple[int, object]:
    """Return the running thread, and the task that runs in it."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


class _LockWait(Suspension[None]):
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    def watch(self) -> asyncio.Future[None]:
        return asyncio.wrap_future(self._future)
