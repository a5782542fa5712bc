"""What tests of hooks share."""

from __future__ import annotations

from typing import Any

from holdfast.backends.interface import Row, Scan
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.runtime.drivers import run
from holdfast.backends.tables import EVENTS
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.store.store import AsyncStore, Store

SECOND = 10**9


class Clock:
    """A clock that is set by hand, and moves a little with every look."""

    def __init__(self) -> None:
        self.now = 1_800_000_000 * SECOND

    def __call__(self) -> int:
        self.now += 1000
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Have time go by."""
        self.now += int(seconds * SECOND)


def store(clock: Clock | None = None) -> Store:
    """A store in memory."""
    return Store(Engine(EngineContext(MemoryBackend(), clock=clock or Clock())), "")


def beside(held: Store) -> Store:
    """Another store on the same rows, as another process has one."""
    return Store(Engine(EngineContext(held._engine.context.backend, clock=held._engine.context.clock)), "")


def async_store(clock: Clock | None = None) -> AsyncStore:
    """The same for asyncio."""
    return AsyncStore(Engine(EngineContext(MemoryBackend(), clock=clock or Clock())), "")


def events(of: Any, line: str = "") -> list[Row]:
    """All rows of events, or those of one line."""
    prefix = (of.tenant, line) if line else (of.tenant,)
    (rows,) = run(of._engine.context.backend.read([Scan(EVENTS, prefix)]))
    return list(rows)
