"""An event loop in a thread of its own, which serves sync callers and every other event loop.

Calls in an event loop that other threads ask for, with one wake-up for all that come together.

`call_soon_threadsafe` writes to a socket each time, and the loop that wakes up contends for the interpreter with the
thread that is about to ask for more.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVar

from holdfast.backends.runtime.threads import WorkerThread

A = TypeVar("A")


class LoopInbox:
    """The calls that wait for an event loop. It does not keep the loop alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._calls: deque[Callable[[], None]] = deque()
        self._is_scheduled = False
        self._woken_later: list[LoopInbox] = []

    def add(self, call: Callable[[], None]) -> None:
        """Add a call, which raises nothing. It is made after `wake`, whoever calls that."""
        self._calls.append(call)

    def wake(self) -> None:
        """Have the loop make all calls, unless it is about to. A loop that was closed makes none."""
        if self._is_scheduled or not self._calls:
            return
        loop = self._loop()
        if loop is None:
            return
        try:
            self._is_scheduled = True
            loop.call_soon_threadsafe(self._run)
        except BaseException as error:
            self._is_scheduled = False  # a signal handler may have interrupted it: the next caller tries again
            if not (isinstance(error, RuntimeError) and loop.is_closed()):
                raise

    def wake_after_turn(self, other: LoopInbox) -> None:
        """In the loop of this inbox: wake another at the end of this turn of the loop, once for all that ask for it."""
        if other._is_scheduled or other in self._woken_later:
            return
        if not self._woken_later:
            asyncio.get_running_loop().call_soon(self._wake_others)
        self._woken_later.append(other)

    def _wake_others(self) -> None:
        others, self._woken_later = self._woken_later, []
        for other in others:
            other.wake()

    def _run(self) -> None:
        self._is_scheduled = False  # before the first call is taken: what comes from here on wakes the loop again
        for _ in range(len(self._calls)):
            self._calls.popleft()()


_inboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopInbox] = weakref.WeakKeyDictionary()


def inbox_of(loop: asyncio.AbstractEventLoop) -> LoopInbox:
    """Return the inbox of a loop."""
    inbox = _inboxes.get(loop)
    if inbox is None:
        inbox = _inboxes.setdefault(loop, LoopInbox(loop))
    return inbox


_CANCEL_SECONDS = 5.0
"""How long cancelled tasks may take to end."""


def notice_error(task: asyncio.Future[Any]) -> None:
    """Take notice of the error of a task, as a callback: whoever waited for it may have been cancelled or have given
    up, and asyncio would then log the error as one that got lost."""
    if not task.cancelled():
        task.exception()


class LoopThread:
    """A running event loop, in a daemon thread: what hangs in it does not keep the program from ending."""

    def __init__(self, name: str) -> None:
        # Without the caller's context, which the loop would keep alive.
        self.loop: asyncio.AbstractEventLoop = Context().run(asyncio.new_event_loop)
        self._thread = WorkerThread(name, _run_loop, self.loop)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout)

    def stop(self, timeout: float | None = None) -> None:
        """Cancel what is still running, end the loop, and wait for the thread, for some seconds or as long as it takes.

        May be called again, and in the loop itself, which then ends soon.
        """
        if self.loop.is_closed() or not self._thread.is_alive():
            return
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:
            if not self.loop.is_closed():  # it ended just now
                raise
        self._thread.join(timeout)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        deadline = loop.time() + _CANCEL_SECONDS
        # A cancelled task may start others.
        while (left := asyncio.all_tasks(loop)) and (seconds := deadline - loop.time()) > 0:
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=seconds))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
