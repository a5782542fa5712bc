"""Heartbeats: leases are extended while their holders work, from a thread for sync callers, from the event loop for
asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self, TypeAlias

from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.fork_safety import reinit_after_fork
from holdfast.backends.runtime.threads import WorkerThread
from holdfast.errors import ConflictError, HoldfastError

_log = logging.getLogger("holdfast.leases")

Extend: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Extends a lease. `ConflictError` if another has it."""

_BEATS = 3
"""How often a lease is extended in the time that it lasts."""

_IDLE = 5.0
"""For how many seconds without a lease the thread stays."""


class Heartbeat:
    """Extends a lease in `with` or `async with`. It is not being extended any more after that."""

    def __init__(self, beats: BeatThread, seconds: float, extend: Extend) -> None:
        self.pause: float = seconds / _BEATS
        self._beats = beats
        self._extend = extend
        self.due: float = 0.0
        """When the lease is extended next, by the monotonic clock."""
        self._lock = threading.Lock()
        self._has_ended = False

    def __enter__(self) -> Self:
        self._beats.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._beats.remove(self)
        with self._lock:  # waits for an extension in progress
            self._has_ended = True

    def beat(self) -> bool:
        """Extend the lease, in the thread. Returns False if another has it."""
        with self._lock:
            return not self._has_ended and run(self._try())

    async def __aenter__(self) -> Self:
        loop, self._ended, self._tasks = asyncio.get_running_loop(), asyncio.Event(), list[asyncio.Task[None]]()
        # Most work ends before the first beat is due, and needs no task for it.
        self._timer = loop.call_later(self.pause, lambda: self._tasks.append(loop.create_task(self._beat())))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        self._ended.set()
        for task in self._tasks:
            await task

    async def _beat(self) -> None:
        while not self._ended.is_set() and await arun(self._try()):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), self.pause)

    async def _try(self) -> bool:
        try:
            await self._extend()
        except ConflictError:
            return False  # what is written under it will be refused
        except HoldfastError:
            pass  # there is time for another attempt, and the outcome of the work is another matter
        except Exception:  # noqa: BLE001 - logged; the other leases of the thread are extended all the same
            _log.exception("a lease could not be extended")
        return True


class BeatThread:
    """The thread that extends the leases of a store's sync callers. It ends when there were none for a while. Each
    store has its own, since one that does not answer would keep those of the others waiting."""

    def __init__(self) -> None:
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """Reinitialize in a forked child, which has none of the leases."""
        self._changed = threading.Condition()  # it has an RLock: a signal handler may interrupt whoever has it
        self._held: set[Heartbeat] = set()
        self._wakes = 0.0
        """When the thread wakes up; 0 if there is none."""

    def add(self, heartbeat: Heartbeat) -> None:
        """Extend a lease from now on."""
        heartbeat.due = time.monotonic() + heartbeat.pause
        with self._changed:
            if not self._wakes:
                WorkerThread("holdfast-heartbeat", self._run)
                self._wakes = heartbeat.due
            elif heartbeat.due < self._wakes:
                self._changed.notify()
            self._held.add(heartbeat)

    def remove(self, heartbeat: Heartbeat) -> None:
        """Extend it no longer."""
        with self._changed:
            self._held.discard(heartbeat)

    def _run(self) -> None:
        idle = False
        while True:
            with self._changed:
                now = time.monotonic()
                due = [each for each in self._held if each.due <= now]
                if not due:
                    if not self._held and idle:
                        self._wakes = 0.0
                        return
                    idle = not self._held
                    self._wakes = min((each.due for each in self._held), default=now + _IDLE)
                    self._changed.wait(self._wakes - now)
                    continue
            for heartbeat in due:
                if heartbeat.beat():
                    heartbeat.due = time.monotonic() + heartbeat.pause
                else:
                    self.remove(heartbeat)
            del due, heartbeat
