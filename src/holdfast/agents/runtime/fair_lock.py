"""Turns: of several who want to save one agent, one does at a time, in the order in which they came."""

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
        self._taken = False
        self._holder: object = None
        self._waiting: deque[Future[None]] = deque()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Have it for the length of a block. `InvalidError` for who has it already, and would wait for itself: such as
        an agent's own code that saves it while it is being saved."""
        me = _me()
        with self._mutex:
            if self._taken and self._holder == me:
                raise InvalidError(
                    "the agent is being saved by who called this",
                    hint="Do not save an agent in its persist, restore or validate, nor in what resolves its conflicts",
                )
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
        self._holder = me
        try:
            yield
        finally:
            self._holder = None
            self._give()

    def _give(self) -> None:
        with self._mutex:
            while self._waiting:
                waiting = self._waiting.popleft()
                if waiting.set_running_or_notify_cancel():
                    waiting.set_result(None)
                    return
            self._taken = False


def _me() -> tuple[int, object]:
    """Whoever runs this: a thread, or a task in it."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:
        return threading.get_ident(), None


class _Turn(Suspension[None]):
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    def watch(self) -> asyncio.Future[None]:
        return asyncio.wrap_future(self._future)
