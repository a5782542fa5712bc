"""What shards need of a storage: to create an object under a name that is free, and to read, list and delete."""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from holdfast.backends.async_backend import ServerInterrupted
from holdfast.errors import HoldfastError, UnavailableError

T = TypeVar("T")

_HEAD = 64
"""How many bytes of an object tell it from all others: they hold a digest of what is random in it."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
_AT_ONCE = 64

_deadline: ContextVar[float] = ContextVar("deadline")


class ObjectInfo(NamedTuple):
    """An object in a listing. `modified` is when it was made, in seconds since 1970."""

    name: str
    size: int
    modified: float
    problem: str = ""
    """Why it cannot be read, where a directory has something else of this name."""


class ObjectStorage(ABC):
    """A storage of objects. What may pass is raised as `ServerInterrupted`; everything else as it is."""

    @abstractmethod
    async def create(self, name: str, data: bytes) -> bool:
        """Store an object, durably, if its name is free. False where it is taken. Nobody ever sees a part of it."""

    @abstractmethod
    async def put(self, name: str, data: bytes) -> None:
        """Store an object in place of another."""

    @abstractmethod
    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """What an object holds, or the part of it from `start` on; None where there is none."""

    @abstractmethod
    async def listed(self, prefix: str) -> list[ObjectInfo]:
        """All objects whose names start with a folder's name and a slash."""

    async def exists(self, name: str) -> bool:
        """Return whether there is an object of this name."""
        return await self.get(name, 0, 1) is not None

    async def folders(self, prefix: str) -> list[str]:
        """The names right under a folder that have something under them, without the folder's own name."""
        start = len(prefix) + 1 if prefix else 0
        paths = [each.name[start:].partition("/") for each in await self.listed(prefix)]
        return sorted({name for name, slash, _ in paths if slash})

    @abstractmethod
    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects. Those that are not there are no failure."""

    async def delete_once(self, name: str) -> None:
        """Remove an object whose name is then free for another. Whether it was removed is not told."""
        await self.delete([name])

    async def sweep(self, before: float) -> None:  # noqa: B027 - most leave nothing
        """Remove what writers that died have left, if it is older than this."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Let go of everything."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Inside, and in tasks begun inside, an impatient storage is asked again for this long."""
    token = _deadline.set(asyncio.get_running_loop().time() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline() -> None:
    """For what goes on and on though the storage answers: others are always a little quicker."""
    if asyncio.get_running_loop().time() >= _deadline.get():
        raise ServerInterrupted("others write there all the time")


class RetryingStorage(ObjectStorage):
    """A storage that is asked again when it was interrupted, until the deadline. Counts what is asked."""

    def __init__(self, blobs: ObjectStorage) -> None:
        self._blobs = blobs
        self.asked: dict[str, int] = {}

    async def create(self, name: str, data: bytes) -> bool:
        """As in `ObjectStorage`. An answer that was lost is found by looking whose object has the name."""
        sent = False

        async def attempt() -> bool:
            nonlocal sent
            try:
                made = await self._blobs.create(name, data)
            except ServerInterrupted as interrupted:
                sent = sent or interrupted.sent
                raise
            except asyncio.CancelledError:
                sent = True
                raise
            if made:
                return True
            # Also the first time: the driver may have tried twice, or something between it and the storage.
            before, sent = sent, True
            ours = await self.get(name, 0, _HEAD) == data[:_HEAD]
            sent = before
            return ours

        try:
            return await self._insist("create", attempt)
        except ServerInterrupted as interrupted:
            raise ServerInterrupted(str(interrupted), sent=sent) from interrupted
        except HoldfastError as error:
            if sent and not isinstance(error, UnavailableError):
                raise ServerInterrupted(str(error), sent=True) from error
            raise

    async def put(self, name: str, data: bytes) -> None:
        await self._insist("put", lambda: self._blobs.put(name, data))

    async def get(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await self._insist("get", lambda: self._blobs.get(name, start, length))

    async def listed(self, prefix: str) -> list[ObjectInfo]:
        return await self._insist("list", lambda: self._blobs.listed(prefix))

    async def folders(self, prefix: str) -> list[str]:
        return await self._insist("list", lambda: self._blobs.folders(prefix))

    async def delete(self, names: Sequence[str]) -> None:
        if names:
            await self._insist("delete", lambda: self._blobs.delete(names))

    async def delete_once(self, name: str) -> None:
        self.asked["delete"] = self.asked.get("delete", 0) + 1
        try:
            async with asyncio.timeout_at(_deadline.get()):
                await self._blobs.delete([name])
        except (ServerInterrupted, TimeoutError):
            return  # not again: if it was removed, it would be the next of that name. Who tidies later sees to it

    async def sweep(self, before: float) -> None:
        await self._insist("list", lambda: self._blobs.sweep(before))

    async def close(self) -> None:
        await self._blobs.close()

    async def _insist(self, kind: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = _deadline.get()
        pause = _FIRST_PAUSE
        while True:
            self.asked[kind] = self.asked.get(kind, 0) + 1
            why = "no answer came"
            try:
                async with asyncio.timeout_at(deadline):
                    return await ask()
            except ServerInterrupted as interrupted:
                why = str(interrupted)
            except TimeoutError:
                pass
            if loop.time() + pause >= deadline:
                raise ServerInterrupted(why)
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - so that not all come back at once
            if loop.time() >= deadline:  # the machine is busy; a try would only be broken off in the middle
                raise ServerInterrupted(why)
            pause = min(2 * pause, _LONGEST_PAUSE)


async def together(coroutines: Sequence[Coroutine[Any, Any, T]], at_once: int = _AT_ONCE) -> list[T]:
    """What coroutines return, some run at a time. One that fails ends the others, and is waited for no longer."""
    if not coroutines:
        return []
    if len(coroutines) == 1:
        return [await coroutines[0]]
    room = asyncio.Semaphore(at_once)

    async def one(coroutine: Coroutine[Any, Any, T]) -> T:
        async with room:
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
    """Seconds that also pass while the machine is suspended, where the system can tell."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
