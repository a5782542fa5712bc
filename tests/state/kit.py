"""Stores for tests of scoped state: with a clock that goes as told, on places of every kind."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from holdfast.backends.interface import Backend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.state.sharing import work_queue
from holdfast.store.store import AsyncStore, Store
from tests.agents.autosaved import until

SECOND = 10**9

_numbers = count()


class Clock:
    """Stands still until it is set."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


class Beats:
    """Counts the signs of life that a worker of a pipeline or of requests gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, extend = 0, work_queue.extend_claim

        async def counted(*given: Any) -> None:
            await extend(*given)
            self.count += 1

        monkeypatch.setattr(work_queue, "extend_claim", counted)

    def wait(self) -> None:
        """Wait for a sign that was not yet under way."""
        enough = self.count + 2
        until(lambda: self.count >= enough, 60)


def store_on(backend: Backend, clock: Callable[[], int], tenant: str = "", *, cache_bytes: int = 1 << 20) -> Store:
    """A store that goes by a clock, and remembers nothing yet."""
    return Store(Engine(EngineContext(backend, MemoryCache(cache_bytes), clock=clock)), tenant)


def awaited(store: Store) -> AsyncStore:
    """The same store for asyncio."""
    return AsyncStore(store._engine, store.tenant)


class Place:
    """Where stores are opened, closed and opened again; each of them for a tenant that no other place has."""

    def __init__(self, url: str) -> None:
        self.clock = Clock()
        self.tenant = f"tenant {next(_numbers)}"
        self._url = url
        self._memory = MemoryBackend() if url == "memory://" else None
        self._opened: list[Backend] = []

    def open(self) -> Store:
        """A store that remembers nothing yet."""
        if self._memory is not None:
            return store_on(self._memory, self.clock, self.tenant)
        kind = backend_for(self._url)
        options: dict[str, Any] = {"tenant": self.tenant} if kind.takes_tenant else {}
        self._opened.append(run(kind.open(self._url, **options)))
        return store_on(self._opened[-1], self.clock, self.tenant)

    def close(self) -> None:
        """Close what was opened; to be opened again."""
        while self._opened:
            run(self._opened.pop().close())
