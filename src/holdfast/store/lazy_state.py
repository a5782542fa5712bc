"""Lazy states: each part is loaded when it is accessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine.paths import Path, require_path
from holdfast.engine.state_reader import AbsentPath, StateReader, ValueOutline
from holdfast.errors import InvalidError


class _Parts:
    """Reads parts of a state. Each read returns new objects."""

    def __init__(self, partial: StateReader) -> None:
        self._partial = partial

    @sync_and_async
    async def names(self) -> list[str]:
        """Return the names of the channels, in order."""
        return await self._partial.names()

    @sync_and_async
    async def value(self, path: Path) -> Any:
        """Return the value at a path: `"messages[-1]"`, `("memory", "user")`. Raises `NotFoundError`."""
        return await self._partial.value(require_path(path))

    @sync_and_async
    async def has(self, path: Path) -> bool:
        """Return whether there is a value at a path."""
        return await self._partial.has(require_path(path))

    @sync_and_async
    async def outline(self, path: Path) -> ValueOutline:
        """Return what kind of value is at a path, and how large it is, without loading it. Raises `NotFoundError`."""
        return await self._partial.outline(require_path(path))

    @sync_and_async
    async def keys_at(self, path: Path) -> list[Any]:
        """Return the keys of the dict at a path, in order, without loading the values."""
        return await self._partial.keys(require_path(path))

    @sync_and_async
    async def length(self, path: Path) -> int:
        """Return the length of the list at a path, without loading it."""
        return await self._partial.length(require_path(path))

    @sync_and_async
    async def slice(self, path: Path, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return items of the list at a path, as `list[start:stop]` does. Loads only the nodes that contain them."""
        return await self._partial.slice(require_path(path), _index(start, "start"), _index(stop, "stop"))


class LazyState(SyncApi, _Parts, Mapping[str, Any]):
    """A state as a mapping of channels, each loaded when it is accessed."""

    def __getitem__(self, name: str) -> Any:
        try:
            return self.value((name,))
        except AbsentPath:
            raise KeyError(name) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.has((name,))

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())


class AsyncLazyState(AsyncApi, _Parts):
    """A lazy state for asyncio. Its methods are awaited; it is not a mapping."""


def _index(index: object, name: str) -> int | None:
    if index is None or (isinstance(index, int) and not isinstance(index, bool)):
        return index
    raise InvalidError(f"{name} is a whole number or None, not {type(index).__name__}")
