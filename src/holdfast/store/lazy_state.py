"""States of which only what is touched is fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.state_reader import AbsentPath, StateReader


class _Parts:
    """What can be read of a state. Values are fresh objects each time."""

    def __init__(self, partial: StateReader) -> None:
        self._partial = partial

    @sync_and_async
    async def names(self) -> list[str]:
        """The channels, in order."""
        return await self._partial.names()

    @sync_and_async
    async def value(self, name: str, *keys: Any) -> Any:
        """A channel, or what lies below it under keys of dicts. Raises `NotFoundError`."""
        return await self._partial.value((name, *keys))

    @sync_and_async
    async def has(self, name: str, *keys: Any) -> bool:
        """Whether there is such a channel, or anything below it under these keys."""
        return await self._partial.has((name, *keys))

    @sync_and_async
    async def length(self, name: str, *keys: Any) -> int:
        """How many items a list has, without fetching them."""
        return await self._partial.length((name, *keys))

    @sync_and_async
    async def slice(self, name: str, *keys: Any, start: int | None = None, stop: int | None = None) -> list[Any]:
        """A run of a list's items, as `list[start:stop]` would give it. Fetches only what they lie in."""
        return await self._partial.slice((name, *keys), start, stop)


class LazyState(SyncApi, _Parts, Mapping[str, Any]):
    """A state as a mapping of channels, each fetched when it is asked for."""

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
    """The same for asyncio: everything is awaited, and so it is no mapping."""
