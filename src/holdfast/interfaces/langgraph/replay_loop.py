"""The event loop of a replay: it knows how to wait for a recorded cancellation.

A call that was cancelled is answered by whatever cancels it here, such as a timeout. The time until then is not waited:
while only that is left to do, the clock of the loop goes on to its next timer.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

_GRACE = 0.1
"""Seconds in which nothing happens before the clock goes on: threads may be at work."""

_MAX_IDLE = 20
"""How many such times without a timer it takes until nobody is expected to cancel."""


class ReplayLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock skips the time that would only be waited for a cancellation."""

    def __init__(self) -> None:
        self._skipped = 0.0
        self._idle = 0
        self.waiting: dict[asyncio.Future[None], str] = {}
        """The calls that wait to be cancelled."""
        self.on_idle: Callable[[list[str]], None] = lambda _: None
        """Called with those that nobody cancels."""
        self.goes_on = False
        """Whether a `SystemExit` is left to whoever awaits it, and does not end the loop: while a graph runs."""
        super().__init__(_SkippingSelector(self))

    def run_forever(self) -> None:
        """Run until the loop is stopped."""
        while True:
            try:
                return super().run_forever()
            except SystemExit:
                if not self.goes_on:
                    raise

    def time(self) -> float:
        """Return the time of the loop."""
        return super().time() + self._skipped

    async def wait_for_cancellation(self, call: str) -> None:
        """Wait until the caller is cancelled."""
        future = self.create_future()
        self.waiting[future] = call
        try:
            await future
        finally:
            self.waiting.pop(future, None)
            self._idle = 0

    def skip(self, seconds: float | None) -> None:
        """Go on to the next timer, if there is one."""
        self._idle = self._idle + 1 if seconds is None else 0
        if seconds is not None:
            self._skipped += seconds
        elif self._idle == _MAX_IDLE:
            self.on_idle(list(self.waiting.values()))


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, loop: ReplayLoop) -> None:
        super().__init__()
        self._replay_loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if not self._replay_loop.waiting or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        found = super().select(_GRACE if timeout is None else min(timeout, _GRACE))
        if not found:
            self._replay_loop.skip(timeout)
        return found
