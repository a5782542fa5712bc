"""Where a read cache keeps its bytes: what it asks of such a room, and the one in this process's memory."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.backends.runtime.fork_safety import reinit_after_fork


class CacheStorage(Protocol):
    """Keeps values for a while. May forget anything at any time; never brings back what was dropped.

    The methods are coroutines as those of a backend are: they wait only for a `Suspension`. A room that cannot be
    reached raises `TransientError`.
    """

    @property
    def url(self) -> str:
        """Names the room to people; without passwords."""
        ...

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """What is kept under each key, or None."""
        ...

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        """Keep values, for so many seconds at most."""
        ...

    async def drop(self, keys: Sequence[bytes]) -> None:
        """Forget what is under these keys. When it returns, nobody finds it any more."""
        ...

    async def close(self) -> None:
        """Let go of everything; again is no failure."""
        ...


class MemoryCacheStorage:
    """Some bytes of this process's memory; what was used longest ago goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self.reinit_locks()
        reinit_after_fork(self)

    def reinit_locks(self) -> None:
        """For a forked child."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return "memory:"

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return [self._get(key) for key in keys]

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._lock:
            for key, value in values.items():
                self._forget(key)
                self._kept[key] = (value, until)
                self._bytes += _cost(key, value)
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._kept)))

    async def drop(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._forget(key)

    async def close(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _get(self, key: bytes) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            return None
        value, until = found
        if time.monotonic() >= until:
            self._forget(key)
            return None
        self._kept.move_to_end(key)
        return value

    def _forget(self, key: bytes) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self._bytes -= _cost(key, found[0])


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + 200  # what Python takes to hold them
