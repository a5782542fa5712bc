"""Snapshots as objects in a bucket: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from holdfast.agents.snapshots.locations import EXISTS_HINT, SUFFIX, Folder, FolderEntry, Location
from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.interface import Suspension
from holdfast.backends.object_store.cloud import Bucket
from holdfast.backends.object_store.object_storage import RetryingStorage, deadline_in
from holdfast.backends.urls import without_password
from holdfast.errors import (
    OutcomeUnknownError,
    SnapshotExistsError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    TransientError,
)

T = TypeVar("T")


class RangeReader(Bucket):
    """A bucket that returns nothing for a range of an empty object, for which services raise an error."""

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        try:
            return await super().get(name, start, length)
        except ServerInterrupted:
            if await self.length(name) > start:
                raise
            return b""


class _BucketClient:
    """Sends requests to a bucket, and retries each until it succeeds or the time is over."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        bucket, self.where, self._timeout = RangeReader.at(url, options)
        self._storage = RetryingStorage(bucket)

    async def send(self, request: Callable[[RetryingStorage], Coroutine[Any, Any, T]]) -> T:
        """Return the result of a request, such as `lambda bucket: bucket.get("agent.hfsnap")`."""
        call: _LoopCall[T] = _LoopCall(functools.partial(self._run, request))
        return await call

    async def _run(self, request: Callable[[RetryingStorage], Coroutine[Any, Any, T]]) -> T:
        with deadline_in(self._timeout):
            try:
                return await request(self._storage)
            except ServerInterrupted as error:
                kind = OutcomeUnknownError if error.sent else TransientError
                raise kind(
                    f"the service does not answer: {error}", where=self.where, hint="Check the network, and try again"
                ) from error


class _LoopCall(Suspension[T]):
    """A coroutine of asyncio: awaited if the caller is async, or run in an event loop of its own."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make

    def wait(self) -> T:
        # In another thread: also a sync caller may be inside an event loop, as in a notebook.
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshots") as thread:
            return thread.submit(lambda: asyncio.run(self._make())).result()

    def watch(self) -> asyncio.Future[T]:
        return asyncio.ensure_future(self._make())


class ObjectLocation(Location):
    """An object in a bucket."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        folder, self._name = _split(url)
        self._bucket = _BucketClient(folder, options)
        self.where = f"{self._bucket.where.rstrip('/')}/{self._name}"

    async def read(self, most: int) -> bytes:
        data = await self._bucket.send(lambda bucket: bucket.get(self._name, 0, most))
        if data is None:
            raise self._missing_error()
        return data

    async def write(self, data: bytes, *, overwrite: bool) -> None:
        if overwrite:
            await self._bucket.send(lambda bucket: bucket.put(self._name, data))
        elif not await self._bucket.send(lambda bucket: bucket.create(self._name, data)):
            raise SnapshotExistsError("there is an object of this name", where=self.where, hint=EXISTS_HINT)

    async def exists(self) -> bool:
        return await self._bucket.send(lambda bucket: bucket.get(self._name, 0, 1)) is not None

    async def delete(self) -> None:
        if not await self.exists():
            raise self._missing_error()
        await self._bucket.send(lambda bucket: bucket.delete([self._name]))

    def _missing_error(self) -> SnapshotNotFoundError:
        return SnapshotNotFoundError(
            "there is no snapshot", where=self.where, hint="List the snapshots to see which exist"
        )


class ObjectFolder(Folder):
    """The objects with a prefix in a bucket, up to the next slash."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        _check_name(url)
        self._url = url
        self._options = options
        self._bucket = _BucketClient(url, options)

    async def entries(self) -> list[FolderEntry]:
        objects = await self._bucket.send(lambda bucket: bucket.list_objects(""))
        return sorted(
            FolderEntry(each.name, each.size, each.modified)
            for each in objects
            if each.name.endswith(SUFFIX) and each.name != SUFFIX and "/" not in each.name
        )

    def location(self, name: str) -> Location:
        address, mark, query = self._url.partition("?")
        return ObjectLocation(f"{address.rstrip('/')}/{quote(name, safe='')}{mark}{query}", self._options)

    def where(self, name: str) -> str:
        return f"{self._bucket.where.rstrip('/')}/{name}"


def _split(url: str) -> tuple[str, str]:
    """Return the URL of the prefix of an object, and the object's name there."""
    _check_name(url)
    address, mark, query = url.partition("?")
    folder, _, name = address.rpartition("/")
    if not name or folder.endswith(":/"):
        raise SnapshotInvalidError("this names no object", where=without_password(url), hint="s3://bucket/agent.hfsnap")
    return f"{folder}{mark}{query}", unquote(name)


def _check_name(url: str) -> None:
    """Refuse names that others may read differently: `..` of a gateway to files, control characters in a log."""
    path = unquote(url.partition("?")[0].partition("://")[2].rstrip("/"))
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise SnapshotInvalidError(
            "a name in a bucket has no empty parts, no `.` or `..`, and no control characters",
            where=without_password(url) if path.isprintable() else repr(without_password(url)),
        )
