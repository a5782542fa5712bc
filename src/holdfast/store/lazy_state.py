"""Lazy states: each part is loaded when it is accessed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine.engine import Engine
from holdfast.engine.model.diff import diff_maps
from holdfast.engine.model.drafts import EMPTY
from holdfast.engine.model.nodes import WrittenBy
from holdfast.engine.model.packed_state import PackedMap
from holdfast.engine.paths import Path, path_text, require_path
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.schema_bindings import ASIDE
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.state_reader import AbsentPath, StateReader, ValueOutline
from holdfast.errors import InvalidError


@declare(not_in_scripts="A script reads a state as a whole.")
class _Parts:
    """Reads parts of a state. Each read returns new objects."""

    def __init__(self, partial: StateReader, *, hides_aside: bool = False) -> None:
        """`hides_aside`: without what migrations kept aside, as a reader with a schema sees the state."""
        self._partial = partial
        self._hidden = frozenset({ASIDE}) if hides_aside else frozenset()

    @operation
    async def names(self) -> list[str]:
        """Return the names of the channels, in order."""
        return [name for name in await self._partial.names() if name not in self._hidden]

    @operation
    async def value(self, path: Path) -> Any:
        """Return the value at a path: `"messages[-1]"`, `("memory", "user")`. Raises `NotFoundError`."""
        keys = require_path(path)
        if keys[:1] and keys[0] in self._hidden:
            raise AbsentPath("there is nothing at this path", where=path_text(keys))
        return await self._partial.value(keys)

    @operation
    async def has(self, path: Path) -> bool:
        """Return whether there is a value at a path."""
        keys = require_path(path)
        return not (keys[:1] and keys[0] in self._hidden) and await self._partial.has(keys)

    @operation
    async def outline(self, path: Path) -> ValueOutline:
        """Return what kind of value is at a path, and how large it is, without loading it. Raises `NotFoundError`."""
        return await self._partial.outline(require_path(path))

    @operation
    async def keys_at(self, path: Path) -> list[Any]:
        """Return the keys of the dict at a path, in order, without loading the values."""
        return await self._partial.keys(require_path(path))

    @operation
    async def length(self, path: Path) -> int:
        """Return the length of the list at a path, without loading it."""
        return await self._partial.length(require_path(path))

    @operation
    async def slice(self, path: Path, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return items of the list at a path, as `list[start:stop]` does. Loads only the nodes that contain them."""
        return await self._partial.slice(require_path(path), _index(start, "start"), _index(stop, "stop"))


class UpgradedReader(StateReader):
    """Reads a state of an older version as its schema has it. It is loaded and upgraded when it is accessed first."""

    def __init__(
        self, engine: Engine, line: Line, point: StepRef, upgrade: Callable[[StepRef], Awaitable[PackedMap]]
    ) -> None:
        super().__init__(engine.states, engine.context.codec, line, point)
        self._read_upgraded = partial(engine.lines.read_step, line, point, upgrade)

    async def _load(self) -> LoadedState:
        return LoadedState(EMPTY, 0, ((WrittenBy(0, 0), diff_maps({}, await self._read_upgraded())),))


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
    raise InvalidError(f"{name} must be a whole number or None, not {type(index).__name__}")
