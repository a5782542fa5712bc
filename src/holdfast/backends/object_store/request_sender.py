"""Sending requests to an object storage, for sync callers and for asyncio, with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.interface import Suspension
from holdfast.backends.object_store.object_storage import deadline_in
from holdfast.backends.runtime.loop_thread import LoopThread, notice_error
from holdfast.errors import OutcomeUnknownError, TransientError

T = TypeVar("T")


class RequestSender:
    """Sends requests. `TransientError` if the service does not answer in time; `OutcomeUnknownError` if a change may
    have been made."""

    def __init__(self, what: str, where: str, timeout: float, thread: LoopThread | None = None) -> None:
        """`what` is the service, for messages. All requests run in the loop of `thread`; or each in the loop of its
        caller, or in one of its own."""
        self._what = what
        self._where = where
        self._timeout = timeout
        self._thread = thread

    async def send(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Send a request, and return its result."""

        async def start() -> T:
            with deadline_in(self._timeout):
                try:
                    return await request()
                except ServerInterrupted as error:
                    kind = OutcomeUnknownError if error.sent else TransientError
                    what, hint = f"{self._what} does not answer: {error}", "Check the network, and try again"
                    raise kind(what, where=self._where, hint=hint) from error

        call: _LoopCall[T] = _LoopCall(self._thread, start)
        return await call


class _LoopCall(Suspension[T]):
    """A coroutine that runs in the loop of a thread; without one, in that of the caller, or in one of its own."""

    def __init__(self, thread: LoopThread | None, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._thread = thread
        self._start = start

    def wait(self) -> T:
        # In another thread: also a sync caller may be inside an event loop, as in a notebook.
        thread = self._thread or LoopThread("holdfast-requests")
        try:
            return asyncio.run_coroutine_threadsafe(self._run(), thread.loop).result()
        finally:
            if self._thread is None:
                thread.stop()

    def watch(self) -> asyncio.Future[T]:
        if self._thread is None:
            return asyncio.ensure_future(self._run())
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run(), self._thread.loop))

    async def _run(self) -> T:
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        task.add_done_callback(notice_error)
        return await self._start()
