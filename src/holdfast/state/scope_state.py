"""The state of a scope: a mapping of keys to values, every change of which is a step of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from copy import deepcopy
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async, sync_or_async
from holdfast.engine import validation
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.scopes import Scope, normal
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state import history, scope_copy
from holdfast.state.key_changes import Change, OnConflict, computing, expiry, setting
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeReader, StateItem
from holdfast.state.watcher import AsyncWatch, Watch
from holdfast.state.writer import KeyWrite, WrittenKey, write
from holdfast.time_parsing import Duration

if TYPE_CHECKING:
    from holdfast.history.diff_result import Diff

T = TypeVar("T")

_PAGE = 1000
"""How many keys are read at a time by those who go through all of them."""

_GONE = object()
"""Stands for a key that somebody else took away."""


class StateOperations:
    """What can be done with the state of a scope. `State` and `AsyncState` have these as methods."""

    def __init__(self, handle: StoreHandle, scope: Scope) -> None:
        self._handle = handle
        self._look = ScopeReader(handle, scope)
        self.scope = scope

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scope}>"

    # Reading ----------------------------------------------------------------------------------------------------

    @sync_and_async
    async def item(self, key: str) -> StateItem:
        """A key with its value, its version, and when it expires. Raises `NotFoundError`."""
        found = await self._item(key)
        if found is None:
            raise NotFoundError("there is no such key", where=f"key {key!r} of {self.scope}", hint="See keys()")
        return found

    @sync_and_async
    async def list_keys(self, prefix: str = "", *, pattern: str = "", after: str = "", limit: int = 100) -> list[str]:
        """A page of keys, in order: those that start with a prefix, those that match a pattern (`plan/*/done`), those
        after another key. In a pattern `*` stands for any text without a slash, `**` for any text, `?` for a letter."""
        wanted = _listed(prefix, pattern, after)
        return await self._look.keys(*wanted, validation.require_count(limit, "limit"))

    @sync_and_async
    async def list_items(
        self, prefix: str = "", *, pattern: str = "", after: str = "", limit: int = 100
    ) -> list[StateItem]:
        """The same, with values and versions."""
        wanted = _listed(prefix, pattern, after)
        return await self._look.items(*wanted, validation.require_count(limit, "limit"))

    # Changing ---------------------------------------------------------------------------------------------------

    @sync_and_async
    async def set(
        self,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        expected: int | None = None,
        on_conflict: OnConflict = "raise",
    ) -> int:
        """Give a key a value, perhaps for some time only (`ttl`, in seconds). Returns its new version.

        With `expected`, the version that the key must have (0: it must not be there), `on_conflict` says what happens
        if it has another one: `"raise"` raises `ConflictError`; `"overwrite"` writes all the same; `"merge"` merges
        the value three ways with what is there and what was there at that version; a function is called with the
        current value and this one, and returns what to write.
        """
        (done,) = await self._write([setting(self._handle, self.scope, key, value, ttl, expected, on_conflict)])
        return done.version

    @sync_and_async
    async def patch(
        self, key: str, changes: Mapping[Any, Any], *, remove: Iterable[Any] = (), expected: int | None = None
    ) -> int:
        """Change parts of a value, and write only those. Returns the new version.

        `changes` maps a key of the dict that is there, or a tuple of keys below each other, to its new value; `remove`
        lists such places. A key that is not there starts as an empty dict.
        """
        key = self._key(key)
        parts = {
            (key, *_path(path)): value for path, value in validation.require_mapping(changes, "set of changes").items()
        }
        gone = [(key, *_path(path)) for path in validation.require_several(remove, "place to remove")]
        if not parts and not gone:
            raise InvalidError("a patch changes something", where=f"key {key!r} of {self.scope}")
        wanted = validation.optional_count(expected, "version")
        change = KeyWrite(key, "patch", parts=parts, removed=gone, expected=wanted, keep_expiry=True)
        (done,) = await self._write([change])
        return done.version

    @sync_and_async
    async def change(self, key: str, function: Change, default: Any = MISSING) -> Any:
        """Give a key what a function makes of its current value. Nobody's change in between is lost: if there is one,
        the function is called again. Returns the new value.

        The function is given the default, where there is no such key; where it returns `MISSING`, the key is deleted.
        It may be called several times and does nothing else.
        """
        made: list[Any] = []
        change = computing(
            self._handle,
            self._key(key),
            # It may change what it is given, and must find the default as it was when it is called again.
            lambda value: function(deepcopy(default) if value is MISSING else value),
            made.append,
        )
        await self._write([change])
        return made[-1]

    @sync_and_async
    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Take a key away. False if there was none."""
        change = KeyWrite(self._key(key), "delete", expected=validation.optional_count(expected, "version"))
        (done,) = await self._write([change])
        return done.before > 0

    @sync_and_async
    async def batch(
        self, values: Mapping[str, Any], *, delete: Iterable[str] = (), ttl: Duration | None = None
    ) -> dict[str, int]:
        """Set several keys, and delete others, all or none, as one step. Returns the new versions."""
        expires = expiry(self._handle, ttl)
        changes = {}
        for key, value in validation.require_mapping(values, "set of values").items():
            if (name := self._key(key)) in changes:
                raise InvalidError(
                    "a key is given twice, in two forms of its letters", where=f"key {name!r} of {self.scope}"
                )
            changes[name] = KeyWrite(name, packed=pack_value(self._handle, name, value), expires=expires)
        for key in validation.require_several(delete, "key to delete"):
            if (name := self._key(key)) in changes:
                raise InvalidError("a key is set and deleted at once", where=f"key {name!r} of {self.scope}")
            changes[name] = KeyWrite(name, "delete")
        done = await self._write(list(changes.values()))
        return {each.key: each.version for each in done if each.action != "delete"}

    @sync_and_async
    async def expire(self, key: str, ttl: Duration | None) -> int:
        """Have a key expire so many seconds from now, or never. The value stays. Raises `NotFoundError`."""
        change = computing(self._handle, self._key(key), lambda value: value)
        change.action, change.keep_expiry, change.must_exist = "expire", False, True
        change.expires = expiry(self._handle, ttl)
        (done,) = await self._write([change])
        return done.version

    @sync_and_async
    async def clear(self) -> None:
        """Take all keys away, as one step."""
        await scope_copy.clear(self._handle, self.scope)

    @sync_and_async
    async def copy_to(self, other: StateOperations, *, overwrite: bool = False) -> int:
        """Copy all keys into another scope, as one step there. Raises `ConflictError`, and copies nothing, if that has
        one of them already, unless they may be overwritten. Returns how many keys were copied."""
        return await scope_copy.copy(self._handle, self.scope, _scope(other), overwrite=overwrite)

    @sync_and_async
    async def move_to(self, other: StateOperations, *, overwrite: bool = False) -> int:
        """The same, and take them away here, at once."""
        return await scope_copy.move(self._handle, self.scope, _scope(other), overwrite=overwrite)

    # History ----------------------------------------------------------------------------------------------------

    @sync_and_async
    async def history(
        self, key: str | None = None, *, limit: int = 100, before: int | history.HistoryEntry | None = None
    ) -> list[history.HistoryEntry]:
        """What was changed, of one key or of all, the latest first: when, by whom and why, with the versions before and
        after. `before` the last change of a page goes on with a longer history; so does `before` a version, with what
        is older than that."""
        return await history.of(self._handle, self.scope, key, validation.require_count(limit, "limit"), before)

    @sync_and_async
    async def at(self, when: datetime | int | str) -> dict[str, Any]:
        """The state as it was: at a time, at a version (the number of a step), or at an age such as `"2h"`."""
        return await history.state_at(self._handle, self.scope, when)

    @sync_and_async
    async def get_at(self, key: str, when: datetime | int | str, default: Any = None) -> Any:
        """The value that a key had then."""
        return await history.value_at(self._handle, self.scope, key, when, default)

    @sync_and_async
    async def diff(self, a: datetime | int | str, b: datetime | int | str | None = None) -> Diff:
        """What differs between the scope at two moments, each a time, a version or an age; without the second, between
        then and now."""
        from holdfast.state.diff import diff

        return await diff(self._handle, self.scope, a, b)

    @sync_and_async
    async def rollback(self, when: datetime | int | str, key: str | None = None) -> int:
        """Have the scope, or one key, be again as it was then, by a new step. Nothing of the history is undone. Returns
        how many keys changed."""
        return await history.rollback(self._handle, self.scope, when, key)

    def _watch(self, pattern: str = "**", *, cursor: str | None = None, nested: bool = False) -> Watch:
        """The changes of keys that match a pattern, as any process makes them, each once and in order.

        It begins now, or after a `cursor` that a change or a watch had, also in another process; with `cursor=""`, at
        the start of the history. With `nested`, the scopes inside this one are watched too, also those to come: each in
        its own order. A change is seen within a second. A key that expires is told of when it is swept.

        Iterate over it, which waits for changes until `close()`; or ask with `poll(timeout)`.
        """
        watch = Watch(self._handle, self.scope, pattern, cursor, nested)
        watch.start()
        return watch

    def _async_watch(self, pattern: str = "**", *, cursor: str | None = None, nested: bool = False) -> AsyncWatch:
        return AsyncWatch(self._handle, self.scope, pattern, cursor, nested)

    watch = sync_or_async(_watch, _async_watch)

    # Inside -----------------------------------------------------------------------------------------------------

    def _key(self, key: object) -> str:
        return self._handle.guard.key(self.scope, key)

    async def _item(self, key: str) -> StateItem | None:
        return await self._look.item(key)

    async def _write(self, changes: list[KeyWrite]) -> list[WrittenKey]:
        return await write(self._handle, {self.scope: changes}) if changes else []


class State(SyncApi, StateOperations, MutableMapping[str, Any]):
    """The state of a scope, as a mapping: `state["plan"] = {...}`. Keys come in order."""

    __hash__ = None  # type: ignore[assignment]

    @sync_and_async
    async def _find(self, key: str) -> StateItem | None:
        return await self._item(key)

    @sync_and_async
    async def _count(self) -> int:
        return await self._look.count()

    def __getitem__(self, key: str) -> Any:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found.value

    def __setitem__(self, key: str, value: Any) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def __len__(self) -> int:
        return self._count()

    def __iter__(self) -> Iterator[str]:
        after = ""
        while page := self.list_keys(after=after, limit=_PAGE):
            yield from page
            after = page[-1]

    def items(self) -> ItemsView[str, Any]:
        """All keys and their values, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """All values, in the order of their keys."""
        return _Values(self)

    def _pages(self) -> Iterator[list[StateItem]]:
        """All keys with their values and versions, by the thousand: each page is of one moment."""
        after = ""
        while page := self.list_items(after=after, limit=_PAGE):
            yield page
            after = page[-1].key

    # What a mapping does in two steps is done here so that nobody's change in between is lost or overwritten.

    def pop(self, key: str, default: Any = MISSING) -> Any:
        """Take a key away, and return what it held. Of several who do so, one gets it."""
        while (found := self._find(key)) is not None:
            try:
                self.delete(key, expected=found.version)
            except ConflictError as conflict:
                _check_stale(conflict)
            else:
                return found.value
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[str, Any]:
        """Take the first key away, and return it with what it held."""
        for key in self:
            value = self.pop(key, _GONE)
            if value is not _GONE:
                return key, value
        raise KeyError("there are no keys")

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key; if there is none, it gets this one. Of several who do so, all get the first one's."""
        while (found := self._find(key)) is None:
            try:
                self.set(key, default, expected=0)
            except ConflictError as conflict:
                _check_stale(conflict)
            else:
                return default
        return found.value

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set several keys, all or none, as one step."""
        self.batch(dict(other, **more))


class _Items(ItemsView[str, Any]):
    """Keys and values, read together: one that goes meanwhile is no error."""

    _mapping: State

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for page in self._mapping._pages():
            yield from ((item.key, item.value) for item in page)


class _Values(ValuesView[Any]):
    """The same, of values."""

    _mapping: State

    def __iter__(self) -> Iterator[Any]:
        for page in self._mapping._pages():
            yield from (item.value for item in page)


class AsyncState(AsyncApi, StateOperations):
    """The state of a scope, for asyncio: operations are awaited."""

    @sync_and_async
    async def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, as fresh objects; the default, if there is no such key."""
        found = await self._item(key)
        return default if found is None else found.value

    @sync_and_async
    async def has(self, key: str) -> bool:
        """Whether there is such a key."""
        return await self._item(key) is not None

    @sync_and_async
    async def count(self) -> int:
        """How many keys there are."""
        return await self._look.count()

    async def keys(self) -> AsyncIterator[str]:
        """All keys, in order: `async for key in state.keys()`."""
        after = ""
        while page := await self.list_keys(after=after, limit=_PAGE):
            for key in page:
                yield key
            after = page[-1]

    async def items(self) -> AsyncIterator[tuple[str, Any]]:
        """All keys and their values, in order."""
        after = ""
        while page := await self.list_items(after=after, limit=_PAGE):
            for item in page:
                yield item.key, item.value
            after = page[-1].key


def _listed(prefix: str, pattern: str, after: str) -> tuple[str, str, str]:
    return normal(prefix, "start of keys"), normal(pattern, "pattern"), normal(after, "key to go on after")


def _check_stale(conflict: ConflictError) -> None:
    if conflict.code != "version-mismatch":
        raise conflict


def _path(path: Any) -> tuple[Any, ...]:
    return tuple(path) if isinstance(path, tuple | list) else (path,)


def _scope(other: object) -> Scope:
    if isinstance(other, StateOperations):
        return other.scope
    raise InvalidError(
        "state is copied to the state of another scope", where=repr(other)[:80], hint="Give store.state(…)"
    )
