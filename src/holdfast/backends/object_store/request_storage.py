"""A storage of objects outside of a backend, for sync callers and for asyncio: that of backups and of snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.interface import Suspension
from holdfast.backends.object_store.object_storage import ObjectInfo, ObjectStorage, RetryingStorage, deadline_in
from holdfast.backends.runtime.loop_thread import LoopThread, notice_error
from holdfast.errors import OutcomeUnknownError, TransientError

T = TypeVar("T")


class RequestStorage(ObjectStorage):
    """A storage of objects for sync callers and asyncio. Requests are retried until they succeed or the time is over:
    then `TransientError`; `OutcomeUnknownError` if a change may have been made."""

    def __init__(
        self, storage: ObjectStorage, service: str, url: str, timeout: float, thread: LoopThread | None = None
    ) -> None:
        """`service` is for messages, with its `url`. All requests run in the loop of `thread`, which stops when the
        storage is closed; or each in the loop of its caller, or in one of its own."""
        self._storage = RetryingStorage(storage)
        self._service = service
        self._url = url
        self._timeout = timeout
        self._thread = thread

    async def create(self, name: str, data: bytes) -> bool:
        return await self._send(lambda: self._storage.create(name, data))

    async def put(self, name: str, data: bytes) -> None:
        await self._send(lambda: self._storage.put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await self._send(lambda: self._storage.get(name, start, length))

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._send(lambda: self._storage.list_objects(prefix))

    async def list_page(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        return await self._send(lambda: self._storage.list_page(prefix, after))

    async def delete(self, names: Sequence[str]) -> None:
        await self._send(lambda: self._storage.delete(names))

    async def delete_temporary(self, before: float) -> None:
        await self._send(lambda: self._storage.delete_temporary(before))

    async def close(self) -> None:
        try:
            await self._send(self._storage.close)
        finally:
            if self._thread is not None:
                self._thread.stop()

    async def _send(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def start() -> T:
            with deadline_in(self._timeout):
                try:
                    return await request()
                except ServerInterrupted as error:
                    kind = OutcomeUnknownError if error.sent else TransientError
                    what, hint = f"{self._service} does not answer: {error}", "Check the network, and try again"
                    raise kind(what, where=self._url, hint=hint) from error

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
