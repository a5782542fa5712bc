"""An event loop in a thread of its own, which serves sync callers and every other event loop."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

from holdfast.backends.runtime.threads import WorkerThread

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
