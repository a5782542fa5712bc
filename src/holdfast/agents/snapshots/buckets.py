"""Snapshots as objects in a bucket: Amazon S3 and compatible services, Google Cloud Storage, Azure."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote

from holdfast.agents.snapshots.locations import SnapshotStorage
from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.interface import Suspension
from holdfast.backends.object_store.cloud import Bucket
from holdfast.backends.object_store.object_storage import ObjectInfo, RetryingStorage, deadline_in
from holdfast.backends.runtime.loop_thread import LoopThread
from holdfast.backends.urls import redacted_url
from holdfast.errors import OutcomeUnknownError, SnapshotInvalidError, TransientError

T = TypeVar("T")


class SnapshotBucket(SnapshotStorage):
    """A prefix in a bucket. Requests are retried until they succeed or the time is over."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        _check_url(url)
        bucket, where, self._timeout = Bucket.at(url, options)
        self._where = where.rstrip("/")
        self._storage = RetryingStorage(bucket)

    def where(self, name: str) -> str:
        return f"{self._where}/{name}"

    async def create(self, name: str, data: bytes) -> bool:
        return await self._send(lambda: self._storage.create(name, data))

    async def put(self, name: str, data: bytes) -> None:
        await self._send(lambda: self._storage.put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        _check_name(name, self.where(name))
        return await self._send(lambda: self._storage.get(name, start, length))

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._send(lambda: self._storage.list_objects(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        await self._send(lambda: self._storage.delete(names))

    async def _send(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def send() -> T:
            with deadline_in(self._timeout):
                try:
                    return await request()
                except ServerInterrupted as error:
                    kind = OutcomeUnknownError if error.sent else TransientError
                    what, hint = f"the service does not answer: {error}", "Check the network, and try again"
                    raise kind(what, where=self._where, hint=hint) from error

        call: _LoopCall[T] = _LoopCall(send)
        return await call


class _LoopCall(Suspension[T]):
    """A coroutine of asyncio: awaited if the caller is async, or run in an event loop of its own."""

    def __init__(self, start: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._start = start

    def wait(self) -> T:
        # In another thread: also a sync caller may be inside an event loop, as in a notebook.
        thread = LoopThread("holdfast-snapshots")
        try:
            return asyncio.run_coroutine_threadsafe(self._start(), thread.loop).result()
        finally:
            thread.stop()

    def watch(self) -> asyncio.Future[T]:
        return asyncio.ensure_future(self._start())


def split(url: str) -> tuple[str, str]:
    """Return the URL of the prefix of an object, and the object's name there."""
    address, mark, query = url.partition("?")
    _check_url(url)
    folder, _, name = address.rpartition("/")
    if not name or folder.endswith(":/"):
        raise SnapshotInvalidError("this names no object", where=redacted_url(url), hint="s3://bucket/agent.hfsnap")
    return f"{folder}{mark}{query}", unquote(name)


def _check_url(url: str) -> None:
    _check_name(unquote(url.partition("?")[0].partition("://")[2].rstrip("/")), redacted_url(url))


def _check_name(path: str, where: str) -> None:
    """Refuse names that others may read differently: `..` of a gateway to files, control characters in a log."""
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise SnapshotInvalidError(
            "a name in a bucket has no empty parts, no `.` or `..`, and no control characters",
            where=where if path.isprintable() else repr(where),
        )
