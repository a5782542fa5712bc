"""The lease of a process that works on a thread: `with thread.running(): graph.invoke(…)`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.threads import Ticker
from holdfast.engine.row_format import Line
from holdfast.engine.thread_status import RUN_SECONDS, run_lease
from holdfast.errors import ConflictError, HoldfastError
from holdfast.security.handle import StoreHandle
from holdfast.store.thread_access import thread_access

_BEATS = 3
"""How often a lease is renewed while it is valid."""


class ThreadRun:
    """Holds the lease of a thread in `with` or `async with`: its status is *running* meanwhile.

    If the process dies, the thread is *unfinished* as soon as that is known: at once on this machine, otherwise 30
    seconds after its last sign of life. `ConflictError` if another process has the lease.
    """

    def __init__(self, handle: StoreHandle, line: Line) -> None:
        self._handle = handle
        self._line = line
        self._lease = run_lease(handle.engine.context, line)
        self._ticker: Ticker | None = None
        self._task: asyncio.Task[None] | None = None

    async def _acquire(self) -> None:
        async with thread_access(self._handle, self._line, ["write"], creates=True):
            self._lease = run_lease(self._handle.engine.context, self._line)
            await self._lease.acquire()

    def __enter__(self) -> Self:
        run(self._acquire())
        self._ticker = Ticker("holdfast-run", RUN_SECONDS / _BEATS, self._renew)
        return self

    def __exit__(self, *_: object) -> None:
        if self._ticker is not None:
            self._ticker.stop()
        run(self._lease.release())

    def _renew(self) -> bool:
        try:
            run(self._lease.renew())
        except ConflictError:
            return False  # another process presumed this one dead
        except HoldfastError:
            pass  # there is time for another attempt
        return True

    async def __aenter__(self) -> Self:
        await arun(self._acquire())
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await arun(self._lease.release())

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RUN_SECONDS / _BEATS)
            try:
                await arun(self._lease.renew())
            except ConflictError:
                return
            except HoldfastError:
                pass
