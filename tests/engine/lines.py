"""Stores to test with, and a clock that goes as told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.backends.interface import Backend
from holdfast.backends.registry import backend_for
from holdfast.backends.runtime.drivers import run
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.append import AppendRequest
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.engine.model.packed_state import pack_state
from holdfast.engine.model.steps import PendingWriteRow
from holdfast.engine.row_format import Line
from holdfast.store.store import Store

KINDS = ("memory", "sqlite")


def backend(kind: str, folder: Path) -> Backend:
    """A new store of a kind, or the one that is there."""
    url = "memory://" if kind == "memory" else f"sqlite:///{folder}/store.db"
    return run(backend_for(url).open(url))


class Backends:
    """Opens backends of one kind, each empty."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder
        self._opened: list[Backend] = []

    def __call__(self) -> Backend:
        folder = self._folder / f"backend {len(self._opened)}"
        folder.mkdir()
        self._opened.append(backend(self._kind, folder))
        return self._opened[-1]

    def close(self) -> None:
        for each in self._opened:
            run(each.close())


class Clock:
    """Tells the time it was told, a microsecond later each time."""

    def __init__(self, now: int = 1_700_000_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def store_on(backend: Backend, *, fold_every: int = 32, cache_bytes: int = 1 << 20, clock: Any = None) -> Store:
    """A store with settings that a user has no need of."""
    ground = EngineContext(backend, MemoryCache(cache_bytes), clock=clock or Clock(), fold_every=fold_every)
    return Store(Engine(ground), "")


def saving(engine: Engine, line: Line, state: Mapping[str, Any], **more: Any) -> AppendRequest:
    """What the engine is given to save a state."""
    return AppendRequest(line, pack_state(engine.context.codec, state), **more)


def writes_of(store: Store, line: Line, id: str) -> list[PendingWriteRow]:
    """The writes that follow a step."""
    engine = store._engine
    return run(engine.writes.of_many(line, [run(engine.lines.find(line, id))]))[0]
