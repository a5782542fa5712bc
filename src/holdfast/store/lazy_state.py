"""Lazy states: each part is loaded when it is accessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.state_reader import AbsentPath, StateReader


class _Parts:
    """Reads parts of a state. Each read returns new objects."""

    def __init__(self, partial: StateReader) -> None:
        self._partial = partial

    @sync_and_async
    async def names(self) -> list[str]:
        """Return the names of the channels, in order."""
        return await self._partial.names()

    @sync_and_async
    async def value(self, name: str, *keys: Any) -> Any:
        """Return the value of a channel, or of a path below it. Raises `NotFoundError`."""
        return await self._partial.value((name, *keys))

    @sync_and_async
    async def has(self, name: str, *keys: Any) -> bool:
        """Return whether there is a channel, or a value at a path below it."""
        return await self._partial.has((name, *keys))

    @sync_and_async
    async def length(self, name: str, *keys: Any) -> int:
        """Return the length of a list, without loading it."""
        return await self._partial.length((name, *keys))

    @sync_and_async
    async def slice(self, name: str, *keys: Any, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return items of a list, as `list[start:stop]` does. Loads only the nodes that contain them."""
        return await self._partial.slice((name, *keys), start, stop)


class LazyState(SyncApi, _Parts, Mapping[str, Any]):
    """A state as a mapping of channels, each loaded when it is accessed."""

    def __getitem__(self, name: str) -> Any:
        try:
            return self.value(name)
        except AbsentPath:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.has(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())


class AsyncLazyState(AsyncApi, _Parts):
    """A lazy state for asyncio. Its methods are awaited; it is not a mapping."""
