"""Snapshots as objects in a bucket: Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from holdfast.agents.snapshots.locations import SUFFIX, TAKEN, Folder, FolderEntry, Location
from holdfast.backends.async_backend import ServerInterrupted
from holdfast.backends.interface import Suspension
from holdfast.backends.object_store.object_storage import RetryingStorage, within
from holdfast.backends.registry import backend_for
from holdfast.backends.urls import without_password
from holdfast.errors import (
    OutcomeUnknownError,
    SnapshotExistsError,
    SnapshotInvalidError,
    SnapshotNotFoundError,
    TransientError,
)

T = TypeVar("T")


class _Bucket:
    """What is asked of a bucket, each time until it answers or the time is over."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        backend_for(url)  # says what to install, where the driver is missing
        from holdfast.agents.snapshots.ranges import RangeReader

        bucket, self.where, self._timeout = RangeReader.at(url, options)
        self._patient = RetryingStorage(bucket)

    async def ask(self, question: Callable[[RetryingStorage], Coroutine[Any, Any, T]]) -> T:
        """The answer to a question, such as `lambda bucket: bucket.get("agent.hfsnap")`."""
        asked: _Asked[T] = _Asked(functools.partial(self._answer, question))
        return await asked

    async def _answer(self, question: Callable[[RetryingStorage], Coroutine[Any, Any, T]]) -> T:
        with within(self._timeout):
            try:
                return await question(self._patient)
            except ServerInterrupted as error:
                kind = OutcomeUnknownError if error.sent else TransientError
                raise kind(
                    f"the service does not answer: {error}", where=self.where, hint="Look at the network, and try again"
                ) from error


class _Asked(Suspension[T]):
    """A coroutine of asyncio: awaited where the caller has a loop, or run in one that is made for it."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make

    def wait(self) -> T:
        # A sync caller may be inside of a loop all the same, as in a notebook: so not in his thread.
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-snapshots") as thread:
            return thread.submit(lambda: asyncio.run(self._make())).result()

    def watch(self) -> asyncio.Future[T]:
        return asyncio.ensure_future(self._make())


class ObjectLocation(Location):
    """An object."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        folder, self._name = _split(url)
        self._bucket = _Bucket(folder, options)
        self.where = f"{self._bucket.where.rstrip('/')}/{self._name}"

    async def read(self, most: int) -> bytes:
        found = await self._bucket.ask(lambda bucket: bucket.get(self._name, 0, most))
        if found is None:
            raise self._missing()
        return found

    async def write(self, data: bytes, *, overwrite: bool) -> None:
        if overwrite:
            await self._bucket.ask(lambda bucket: bucket.put(self._name, data))
        elif not await self._bucket.ask(lambda bucket: bucket.create(self._name, data)):
            raise SnapshotExistsError("there is an object of this name", where=self.where, hint=TAKEN)

    async def exists(self) -> bool:
        return await self._bucket.ask(lambda bucket: bucket.get(self._name, 0, 1)) is not None

    async def delete(self) -> None:
        if not await self.exists():
            raise self._missing()
        await self._bucket.ask(lambda bucket: bucket.delete([self._name]))

    def _missing(self) -> SnapshotNotFoundError:
        return SnapshotNotFoundError("there is no snapshot", where=self.where, hint="See what there is: list")


class ObjectFolder(Folder):
    """What has a prefix in a bucket, up to the next slash."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        _check(url)
        self._url = url
        self._options = options
        self._bucket = _Bucket(url, options)

    async def entries(self) -> list[FolderEntry]:
        found = await self._bucket.ask(lambda bucket: bucket.listed(""))
        return sorted(
            FolderEntry(each.name, each.size, each.modified)
            for each in found
            if each.name.endswith(SUFFIX) and each.name != SUFFIX and "/" not in each.name
        )

    def place(self, name: str) -> Location:
        address, mark, query = self._url.partition("?")
        return ObjectLocation(f"{address.rstrip('/')}/{quote(name, safe='')}{mark}{query}", self._options)

    def where(self, name: str) -> str:
        return f"{self._bucket.where.rstrip('/')}/{name}"


def _split(url: str) -> tuple[str, str]:
    """The URL of what an object lies in, and the object's name there."""
    _check(url)
    address, mark, query = url.partition("?")
    folder, _, name = address.rpartition("/")
    if not name or folder.endswith(":/"):
        raise SnapshotInvalidError("this names no object", where=without_password(url), hint="s3://bucket/agent.hfsnap")
    return f"{folder}{mark}{query}", unquote(name)


def _check(url: str) -> None:
    """No name that means another one to somebody: `..` to a gateway that keeps files, a control character to a log."""
    path = unquote(url.partition("?")[0].partition("://")[2].rstrip("/"))
    if any(part in ("", ".", "..") for part in path.split("/")) or not path.isprintable():
        raise SnapshotInvalidError(
            "a name in a bucket has no empty parts, no `.` or `..`, and no control characters",
            where=without_password(url) if path.isprintable() else repr(without_password(url)),
        )
