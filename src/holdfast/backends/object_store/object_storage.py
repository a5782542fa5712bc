"""The interface of a storage of objects: create an object if its name is free, read, list and delete."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple, TypeVar

from holdfast.backends.async_backend import ServerInterrupted, ServerUnreachable
from holdfast.backends.connection_errors import attempt_seconds
from holdfast.errors import HoldfastError, UnavailableError

T = TypeVar("T")

_ID_BYTES = 64
"""The first bytes of an object, which identify it: they have a digest of its content, which is partly random."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_MAX_REQUESTS = 64

PAGE = 1000
"""The most objects of a page of a listing: a page with fewer is the last."""

_deadline: ContextVar[float] = ContextVar("deadline")


class ObjectInfo(NamedTuple):
    """An object in a listing. `modified` is the time of its creation, in seconds since 1970."""

    name: str
    size: int
    modified: float
    problem: str = ""
    """Why it cannot be read, where a directory has something else of this name."""


class ObjectStorage(ABC):
    """A storage of objects. Temporary errors are raised as `ServerInterrupted`."""

    remote: ClassVar[bool] = False
    """Whether it is a service, which may not be reachable."""

    @abstractmethod
    async def create(self, name: str, data: bytes) -> bool:
        """Store an object, durably and atomically, if its name is free; False if it is taken."""

    async def refuses_existing(self, name: str, data: bytes) -> bool:
        """Return whether `create` is refused for an object that exists, with this content."""
        return not await self.create(name, data)

    @abstractmethod
    async def put(self, name: str, data: bytes) -> None:
        """Replace an object."""

    @abstractmethod
    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Read an object, or a range of it; None if it does not exist."""

    @abstractmethod
    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        """List all objects in a folder and its subfolders."""

    async def list_page(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """List the first `PAGE` objects in a folder and its subfolders, in the order of their names, after a name."""
        found = sorted(info for info in await self.list_objects(prefix) if info.name > after)
        return found[:PAGE]

    async def exists(self, name: str) -> bool:
        """Return whether there is an object of this name."""
        return await self.get(name, 0, 1) is not None

    async def list_folders(self, prefix: str) -> list[str]:
        """List the names of the subfolders of a folder that are not empty."""
        start = len(prefix) + 1 if prefix else 0
        paths = [each.name[start:].partition("/") for each in await self.list_objects(prefix)]
        return sorted({name for name, slash, _ in paths if slash})

    @abstractmethod
    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Missing ones are no error."""

    async def delete_once(self, name: str) -> None:
        """Delete an object whose name may be used again: it is tried once, and failures are ignored."""
        await self.delete([name])

    async def delete_temporary(self, before: float) -> None:  # noqa: B027 - most storages have none
        """Delete temporary files that are older than this, left by processes that died."""

    async def close(self) -> None:  # noqa: B027 - most have none
        """Release all resources."""


@contextmanager
def deadline_in(seconds: float) -> Iterator[None]:
    """Set the deadline for retries inside the block, and in tasks that it starts."""
    token = _deadline.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline() -> None:
    """Raise if the deadline is over: for loops that fail because others are always faster."""
    if asyncio.get_running_loop().time() >= _deadline.get():
        raise ServerInterrupted("others keep writing there")


class RetryingStorage(ObjectStorage):
    """Retries requests that were interrupted, until the deadline, and counts them."""

    def __init__(self, storage: ObjectStorage) -> None:
        self._storage = storage
        self.request_counts: dict[str, int] = {}
        self.retry_unreachable = True

    async def create(self, name: str, data: bytes) -> bool:
        """Create an object. After a lost answer, it reads whose object has the name."""
        sent = False

        async def attempt() -> bool:
            nonlocal sent
            try:
                created = await self._storage.create(name, data)
            except ServerInterrupted as interrupted:
                sent = sent or interrupted.sent
                raise
            except asyncio.CancelledError:
                sent = True
                raise
            if created:
                return True
            # Also the first time: the driver, or a proxy, may have tried twice.
            before, sent = sent, True
            is_own = await self.get(name, 0, _ID_BYTES) == data[:_ID_BYTES]
            sent = before
            return is_own

        try:
            return await self._retry("create", attempt)
        except ServerInterrupted as interrupted:
            raise ServerInterrupted(str(interrupted), sent=sent) from interrupted
        except HoldfastError as error:
            if sent and not isinstance(error, UnavailableError):
                raise ServerInterrupted(str(error), sent=True) from error
            raise

    async def refuses_existing(self, name: str, data: bytes) -> bool:
        return await self._retry("create", lambda: self._storage.refuses_existing(name, data))

    async def put(self, name: str, data: bytes) -> None:
        await self._retry("put", lambda: self._storage.put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await self._retry("get", lambda: self._storage.get(name, start, length))

    async def list_objects(self, prefix: str) -> list[ObjectInfo]:
        return await self._retry("list", lambda: self._storage.list_objects(prefix))

    async def list_page(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        return await self._retry("list", lambda: self._storage.list_page(prefix, after))

    async def list_folders(self, prefix: str) -> list[str]:
        return await self._retry("list", lambda: self._storage.list_folders(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        if names:
            await self._retry("delete", lambda: self._storage.delete(names))

    async def delete_once(self, name: str) -> None:
        self.request_counts["delete"] = self.request_counts.get("delete", 0) + 1
        try:
            async with asyncio.timeout_at(_deadline.get()):
                await self._storage.delete([name])
        except (ServerInterrupted, TimeoutError):
            return  # a retry might delete the next object of that name; `tidy` deletes it later

    async def delete_temporary(self, before: float) -> None:
        await self._retry("list", lambda: self._storage.delete_temporary(before))

    async def close(self) -> None:
        await self._storage.close()

    async def _retry(self, kind: str, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = _deadline.get()
        pause = _FIRST_PAUSE
        while True:
            self.request_counts[kind] = self.request_counts.get(kind, 0) + 1
            why = "no answer was received"
            seconds = deadline - loop.time()
            opening = self._storage.remote and not self.retry_unreachable
            try:
                async with asyncio.timeout(attempt_seconds(seconds) if opening else seconds):
                    return await request()
            except ServerInterrupted as interrupted:
                if isinstance(interrupted, ServerUnreachable) and not self.retry_unreachable:
                    raise
                why = str(interrupted)
            except TimeoutError:
                if opening:
                    raise ServerUnreachable(why) from None
            if loop.time() + pause >= deadline:
                raise ServerInterrupted(why)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that clients do not retry in step
            if loop.time() >= deadline:  # on a busy machine: another attempt would only be cancelled
                raise ServerInterrupted(why)
            pause = min(2 * pause, _LONGEST_PAUSE)


async def gather_limited(coroutines: Sequence[Coroutine[Any, Any, T]], at_once: int = _MAX_REQUESTS) -> list[T]:
    """Run coroutines, some at a time, and return their results. One that fails cancels the others."""
    if not coroutines:
        return []
    if len(coroutines) == 1:
        return [await coroutines[0]]
    slots = asyncio.Semaphore(at_once)

    async def one(coroutine: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await coroutine

    tasks = [asyncio.ensure_future(one(coroutine)) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for coroutine in coroutines:
            coroutine.close()
        raise


def clock() -> float:
    """A clock in seconds that includes the time when the machine is suspended, where the system has one."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
