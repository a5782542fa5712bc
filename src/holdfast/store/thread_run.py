"""The claim of a process that works on a thread: `with thread.running(): graph.invoke(…)`."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from holdfast.backends.runtime.drivers import arun, run
from holdfast.backends.runtime.heartbeat import Heartbeat
from holdfast.engine.row_format import Line
from holdfast.engine.thread_status import run_claim
from holdfast.errors import ConflictError
from holdfast.security.handle import StoreHandle
from holdfast.store.thread_access import thread_access


class ThreadRun:
    """Holds the claim of a thread in `with` or `async with`: its status is *running* meanwhile.

    If the process dies, the thread is *unfinished* as soon as that is known: at once on this machine, otherwise 30
    seconds after its last sign of life. `ConflictError` if another process has it.
    """

    def __init__(self, handle: StoreHandle, line: Line) -> None:
        self._handle = handle
        self._line = line
        self._context = handle.engine.context

    async def _acquire(self) -> None:
        async with thread_access(self._handle, self._line, ["write"], creates=True):
            self._claim = claim = run_claim(self._context, self._line)
            try:
                await claim.acquire()
            except (ConflictError, GeneratorExit):
                raise
            except BaseException:
                with suppress(Exception):  # it expires anyway, and the error matters more
                    await claim.release()
                raise
        self._heartbeat = Heartbeat(self._context.heartbeats, claim.life, claim.beat)

    def __enter__(self) -> Self:
        run(self._acquire())
        self._heartbeat.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._heartbeat.__exit__(*error)
        run(self._claim.release())

    async def __aenter__(self) -> Self:
        await arun(self._acquire())
        await self._heartbeat.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._heartbeat.__aexit__(*error)
        finally:
            await arun(self._claim.release())
