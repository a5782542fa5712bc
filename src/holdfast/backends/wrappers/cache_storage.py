"""Storage for a read cache: its interface, and the one in memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.backends.runtime.fork_safety import ForkSafeLock


class CacheStorage(Protocol):
    """Stores values for a while. May forget anything at any time; never returns what was dropped.

    The methods are coroutines like those of a backend: they await only a `Suspension`. A storage that cannot be reached
    raises `TransientError`.
    """

    @property
    def url(self) -> str:
        """The storage for people to read; without passwords."""
        ...

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, or None."""
        ...

    async def put_many(self, values: Mapping[bytes, bytes], seconds: float) -> None:
        """Store values, for so many seconds at most."""
        ...

    async def drop(self, keys: Sequence[bytes]) -> None:
        """Remove keys. When it returns, nobody finds them any more."""
        ...

    async def close(self) -> None:
        """Release everything. May be called again."""
        ...


class MemoryCacheStorage:
    """A cache in memory; the least recently used values are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._values: OrderedDict[bytes, tuple[bytes, float]] = OrderedDict()
        self._lock = ForkSafeLock()

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
                self._values[key] = (value, until)
                self._bytes += _cost(key, value)
            while self._bytes > self._max_bytes:
                self._forget(next(iter(self._values)))

    async def drop(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._forget(key)

    async def close(self) -> None:
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def _get(self, key: bytes) -> bytes | None:
        value, until = self._values.get(key, (None, 0.0))
        if value is None:
            return None
        if time.monotonic() >= until:
            self._forget(key)
            return None
        self._values.move_to_end(key)
        return value

    def _forget(self, key: bytes) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self._bytes -= _cost(key, found[0])


def _cost(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + 200  # the overhead of Python's objects
