"""Calls in an event loop that other threads ask for, with one wake-up for all that come together.

`call_soon_threadsafe` writes to a socket each time, and the loop that wakes up contends for the interpreter with the
thread that is about to ask for more.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from typing import TypeVar

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
