"""Stores that can be watched and interfered with."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.backends.memory import Memory
from holdfast.backends.port import Backend, Batch
from holdfast.backends.wrap import Wrapper
from holdfast.engine.cache import Cache
from holdfast.engine.core import Engine
from holdfast.engine.ground import Ground
from holdfast.store import AsyncStore, Store


def over(backend: Backend, *, fold_every: int = 32, cache_bytes: int = 1 << 24) -> Store:
    """A store over a backend, which remembers nothing yet."""
    return Store(Engine(Ground(backend, Cache(cache_bytes), fold_every=fold_every)), "")


def aover(backend: Backend) -> AsyncStore:
    """The same for asyncio."""
    return AsyncStore(Engine(Ground(backend)), "")


class Interrupted(Wrapper):
    """A store in memory, to which others write at the worst moment: just before a batch that was prepared."""

    def __init__(self) -> None:
        super().__init__(Memory())
        self.meanwhile: Callable[[], object] | None = None
        """Called once, before the next batch."""
        self.patience = 10_000
        """How many batches are made before it is taken for an endless loop."""

    async def apply(self, batch: Batch) -> int | None:
        self.patience -= 1
        if self.patience < 0:
            raise AssertionError("the same batch is tried again and again")
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return await super().apply(batch)
