"""Calling the handlers of work, and extending the lease of the work meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeAlias

from holdfast.backends.interface import Suspension
from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.threads import Ticker
from holdfast.errors import ConflictError, HoldfastError
from holdfast.time_parser import Duration, parse_seconds

Extend: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Extends a lease."""

_BEATS = 3
"""How often a lease is extended in the time that it lasts."""


class HandlerCall(Suspension[Any]):
    """Calls a handler in the thread of a sync caller; awaits it for asyncio."""

    def __init__(self, handler: Callable[[Any], Any], value: Any) -> None:
        self._handler = handler
        self._value = value

    def wait(self) -> Any:
        return self._handler(self._value)

    def watch(self) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self._await())

    async def _await(self) -> Any:
        return await self._handler(self._value)


class Heartbeat:
    """Extends leases while handlers run: from a thread for a sync caller, from a task for asyncio."""

    def __init__(self, lease: Duration) -> None:
        self.pause = parse_seconds(lease, "lease") / _BEATS
        self._lock = threading.Lock()
        self._extend: Extend | None = None
        self._ticker: Ticker | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticker is not None:
            self._ticker.stop()

    def call(self, handler: Callable[[Any], Any], value: Any, extend: Extend) -> HandlerCall:
        """Call a handler, and extend its lease until it returns. None is being extended after that."""
        return _LeasedCall(handler, value, self, extend)

    def set(self, extend: Extend | None) -> None:
        """Extend this lease from now on, in the thread."""
        with self._lock:
            self._extend = extend
        if self._ticker is None:
            self._ticker = Ticker("holdfast-heartbeat", self.pause, self._beat)

    def _beat(self) -> bool:
        with self._lock:
            if self._extend is not None:
                try:
                    run(self._extend())
                except ConflictError:
                    self._extend = None  # the result will be refused
                except HoldfastError:
                    pass  # there is time for another attempt, and the handler's outcome is another matter
        return True


class _LeasedCall(HandlerCall):
    def __init__(self, handler: Callable[[Any], Any], value: Any, heartbeat: Heartbeat, extend: Extend) -> None:
        super().__init__(handler, value)
        self._heartbeat = heartbeat
        self._extend = extend

    def wait(self) -> Any:
        self._heartbeat.set(self._extend)
        try:
            return super().wait()
        finally:
            self._heartbeat.set(None)

    async def _await(self) -> Any:
        ended = asyncio.Event()
        task = asyncio.create_task(self._beat(ended))
        try:
            return await super()._await()
        finally:
            ended.set()
            await task

    async def _beat(self, ended: asyncio.Event) -> None:
        while True:
            try:
                await asyncio.wait_for(ended.wait(), self._heartbeat.pause)
            except TimeoutError:
                try:
                    await arun(self._extend())
                except ConflictError:
                    return  # the result will be refused
                except HoldfastError:
                    continue  # there is time for another attempt, and the handler's outcome is another matter
            else:
                return
