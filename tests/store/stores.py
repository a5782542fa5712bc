"""Stores over given backends."""

from __future__ import annotations

from holdfast.backends.interface import Backend
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.context import EngineContext
from holdfast.engine.engine import Engine
from holdfast.store.store import AsyncStore, Store


def over(backend: Backend, *, fold_every: int = 32, cache_bytes: int = 1 << 24) -> Store:
    """Open a store over a backend, with an empty cache."""
    return Store(Engine(EngineContext(backend, MemoryCache(cache_bytes), fold_every=fold_every)), "")


def aover(backend: Backend) -> AsyncStore:
    """Open a store for asyncio over a backend."""
    return AsyncStore(Engine(EngineContext(backend)), "")
