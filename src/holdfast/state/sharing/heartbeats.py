"""Signs of life of a worker, given while its handler is at work."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeAlias

from holdfast.backends.runtime.drivers import arun, run
from holdfast.errors import ConflictError, TransientError
from holdfast.time_parsing import Duration, parse_seconds

Beat: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""Gives a sign of life."""

_SHARE = 3
"""How many signs there are in the time that a lease lasts."""


class Heartbeat:
    """Gives signs of life from a thread of its own, inside `with`, while there is something to be alive for."""

    def __init__(self, lease: Duration) -> None:
        self._pause = parse_seconds(lease, "lease") / _SHARE
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._beat: Beat | None = None
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def beating(self, beat: Beat) -> Iterator[None]:
        """Give these signs until the block ends; none is under way then."""
        with self._lock:
            self._beat = beat
        try:
            yield
        finally:
            with self._lock:
                self._beat = None

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            with self._lock:
                if self._beat is None:
                    continue
                try:
                    run(self._beat())
                except TransientError:
                    continue  # there is time for another one
                except ConflictError:
                    self._beat = None  # whoever answers will be told


@asynccontextmanager
async def beating(beat: Beat, lease: Duration) -> AsyncIterator[None]:
    """Give signs of life from a task, until the block ends."""
    import asyncio

    ended, pause = asyncio.Event(), parse_seconds(lease, "lease") / _SHARE

    async def beats() -> None:
        while True:
            try:
                await asyncio.wait_for(ended.wait(), pause)
            except TimeoutError:
                try:
                    await arun(beat())
                except TransientError:
                    continue  # there is time for another one
                except ConflictError:
                    return  # whoever answers will be told
            else:
                return

    task = asyncio.create_task(beats())
    try:
        yield
    finally:
        ended.set()
        await task
