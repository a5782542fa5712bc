"""The state of a scope: a mapping of keys to values. Every change is a step."""

from __future__ import annotations

from collections.abc import AsyncIterator, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from copy import deepcopy
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.backends.runtime.drivers import FUNCTION, AsyncApi, SyncApi, operation, sync_or_async
from holdfast.engine import validation
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.operators import AddToSet, Append, Increment, Max, UpdateOperator
from holdfast.engine.model.packed_state import Packed, as_items, unpack
from holdfast.engine.model.scopes import Scope, normal
from holdfast.engine.pages import Page, paged
from holdfast.errors import ConflictError, InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state import history, scopes
from holdfast.state.key_changes import (
    OnConflict,
    ValueFunction,
    compute_change,
    expiry_time,
    patch_change,
    set_change,
)
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeReader, StateItem
from holdfast.state.watcher import AsyncWatch, Watch
from holdfast.state.writer import KeyWrite, WrittenKey, write
from holdfast.time_parser import Duration

if TYPE_CHECKING:
    from holdfast.history.diff_result import Diff

T = TypeVar("T")

_PAGE = 1000
"""How many keys an iteration reads at a time."""

_GONE = object()
"""Marks a key that another writer deleted."""


class StateOperations:
    """Operations on the state of a scope. `State` and `AsyncState` have these as methods."""

    def __init__(self, handle: StoreHandle, scope: Scope) -> None:
        self._handle = handle
        self._reader = ScopeReader(handle, scope)
        self.scope = scope

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scope}>"

    # Reading ----------------------------------------------------------------------------------------------------

    @operation
    async def item(self, key: str, *, migrate: bool = True) -> StateItem:
        """Return a key with its value, its version, and when it expires. Raises `NotFoundError`. With `migrate=False`,
        the value is as it was stored, whatever schema is attached."""
        found = await self._reader.item(key, migrate=migrate)
        if found is None:
            raise NotFoundError("there is no such key", where=f"key {key!r} of {self.scope}", hint="See keys()")
        return found

    @operation
    @paged
    async def list_keys(
        self, prefix: str = "", *, pattern: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[str]:
        """List keys in order, a page of them: those that start with a prefix, those that match a pattern
        (`plan/*/done`). In a pattern `*` matches any text without a slash, `**` any text, `?` one character."""
        count = validation.require_count(limit, "limit")
        return Page.cut(await self._reader.keys(*_listed(prefix, pattern, cursor), count + 1), count, str)

    @operation
    @paged
    async def list_items(
        self,
        prefix: str = "",
        *,
        pattern: str = "",
        limit: int = 100,
        cursor: str | None = None,
        migrate: bool = True,
    ) -> Page[StateItem]:
        """List keys with values and versions, a page of them, which is of one moment. See `list_keys` and `item`."""
        count = validation.require_count(limit, "limit")
        found = await self._reader.items(*_listed(prefix, pattern, cursor), count, migrate=migrate)
        return Page.cut(found, count, lambda item: item.key)

    # Changing ---------------------------------------------------------------------------------------------------

    @operation(changes=True)
    async def set(
        self,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        expected: int | None = None,
        on_conflict: OnConflict = "raise",
    ) -> int:
        """Set a key, perhaps only for some time (`ttl`, in seconds). Returns its new version.

        `expected` is the version that the key must have (0: it must not exist). If it has another, `on_conflict` says
        what happens: `"raise"` raises `ConflictError`; `"overwrite"` writes all the same; `"merge"` merges the value
        with the current one and the one at that version; a function is called with the current value and this one, and
        returns what to write.

        A merge compares values: if two writers both set a counter from 1 to 2, it is 2. Use `increment`, `append`,
        `add_to_set` and `max` for changes that must add up; a merge retains them.
        """
        (done,) = await self._write([set_change(self._handle, self.scope, key, value, ttl, expected, on_conflict)])
        return done.version

    @operation(changes=True)
    async def patch(
        self, key: str, changes: Mapping[Any, Any], *, remove: Iterable[Any] = (), expected: int | None = None
    ) -> int:
        """Change parts of a value, and write only those. Returns the new version.

        `changes` maps a key of the current dict, or a tuple of nested keys, to its new value, or to an operator that
        changes it: `Increment`, `Append`, `AddToSet`, `Max`. `remove` lists such paths. A key that does not exist
        starts as an empty dict.
        """
        change = patch_change(self._key(key), changes, remove, f"key {key!r} of {self.scope}")
        change.expected = validation.optional_count(expected, "version")
        (done,) = await self._write([change])
        return done.version

    @operation(changes=True, rights=("read", "write"), not_remote=FUNCTION)
    async def change(self, key: str, function: ValueFunction, default: Any = MISSING) -> Any:
        """Set a key to what a function returns for its current value. No concurrent change is lost: if there is one,
        the function is called again. Returns the new value.

        The function gets the default, if there is no such key; if it returns `MISSING`, the key is deleted. It may be
        called several times and must have no other effect.
        """
        made: list[Any] = []
        change = compute_change(
            self._handle,
            self._key(key),
            # It may change what it is given, and must find the default as it was when it is called again.
            lambda value: function(deepcopy(default) if value is MISSING else value),
            made.append,
        )
        await self._write([change])
        return made[-1]

    @operation(changes=True, rights=("read", "write"))
    async def increment(self, key: str, by: float = 1) -> Any:
        """Add a number to a value, which starts at 0. Returns the new value. No concurrent change is lost, nor in a
        merge."""
        return unpack(self._handle.codec, await self._operate(key, Increment(by)))

    @operation(changes=True, rights=("read", "write"))
    async def append(self, key: str, *items: Any) -> int:
        """Add items at the end of a list, which starts empty. Returns its new length. No concurrent change is lost, nor
        in a merge."""
        return len(as_items(await self._operate(key, Append(*items))) or ())

    @operation(changes=True, rights=("read", "write"))
    async def add_to_set(self, key: str, *items: Any) -> int:
        """Add items to a set, which starts empty. Returns how many items it has then. No concurrent change is lost, nor
        in a merge."""
        return len(unpack(self._handle.codec, await self._operate(key, AddToSet(*items))))

    @operation(changes=True, rights=("read", "write"))
    async def max(self, key: str, value: Any) -> Any:
        """Set a key to a number, a text or a time, unless its value is greater. Returns the greater one. No concurrent
        change is lost, nor in a merge."""
        return unpack(self._handle.codec, await self._operate(key, Max(value)))

    @operation(changes=True)
    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """Delete a key. Returns False if there was none."""
        change = KeyWrite(self._key(key), "delete", expected=validation.optional_count(expected, "version"))
        (done,) = await self._write([change])
        return done.before > 0

    @operation(changes=True)
    async def batch(
        self, values: Mapping[str, Any], *, delete: Iterable[str] = (), ttl: Duration | None = None
    ) -> dict[str, int]:
        """Set several keys and delete others, all or none, as one step. Returns the new versions."""
        expires = expiry_time(self._handle, ttl)
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

    @operation(changes=True)
    async def expire(self, key: str, ttl: Duration | None) -> int:
        """Let a key expire after so many seconds, or never. The value stays. Raises `NotFoundError`."""
        change = compute_change(self._handle, self._key(key), lambda value: value)
        change.action, change.keep_expiry, change.must_exist = "expire", False, True
        change.expires = expiry_time(self._handle, ttl)
        (done,) = await self._write([change])
        return done.version

    @operation(changes=True)
    async def clear(self) -> None:
        """Delete all keys, as one step."""
        await scopes.clear(self._handle, self.scope)

    @operation(changes=True, rights=("read", "write"))
    async def copy_to(self, other: StateOperations, *, on_conflict: OnConflict = "raise", nested: bool = False) -> int:
        """Copy all keys into another scope, as one step there. Returns how many keys were copied.

        With `nested`, the scopes inside this one are copied, too, to the same places inside the other: all or none.
        If the other scope has one of the keys already, `on_conflict` says what happens: `"raise"` raises
        `ConflictError` and copies nothing; `"overwrite"` replaces its value; `"merge"` merges both values, and raises
        where they differ in the same part; a function is called with its value and this one, and returns what to write.
        """
        return await scopes.copy(self._handle, self.scope, self._scope_of(other), on_conflict, nested=nested)

    @operation(changes=True, rights=("read", "write"))
    async def move_to(self, other: StateOperations, *, on_conflict: OnConflict = "raise", nested: bool = False) -> int:
        """Copy all keys into another scope and delete them here, atomically. See `copy_to`."""
        return await scopes.move(self._handle, self.scope, self._scope_of(other), on_conflict, nested=nested)

    def _scope_of(self, other: object) -> Scope:
        """Return the scope of another state, of the same store."""
        if not isinstance(other, StateOperations):
            raise InvalidError(
                "state is copied to the state of another scope", where=repr(other)[:80], hint="Give store.state(…)"
            )
        here, there = self._handle, other._handle
        if there.engine.context.backend is not here.engine.context.backend or there.tenant != here.tenant:
            raise InvalidError(
                "state is copied to a scope of the same store and tenant, and this is another one's",
                where=f"scope {other.scope}",
                hint="Copy the store with store.maintenance.copy_to(…), or set the keys: other.update(state.items())",
            )
        return other.scope

    # History ----------------------------------------------------------------------------------------------------

    @operation
    @paged
    async def history(
        self, key: str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page[history.HistoryEntry]:
        """List changes of one key or of all, the latest first, a page of them: when, by whom and why, with the versions
        before and after. A version as text is a cursor, too: of what is older."""
        return await history.list_changes(
            self._handle, self.scope, key, validation.require_count(limit, "limit"), cursor
        )

    @operation
    async def at(self, when: datetime | int | str, *, migrate: bool = True) -> dict[str, Any]:
        """Return the state as it was: at a time, at a version (the number of a step), or at an age such as `"2h"`. With
        `migrate=False`, in the form in which it was stored."""
        return await history.state_at(self._handle, self.scope, when, migrate=migrate)

    @operation
    async def get_at(self, key: str, when: datetime | int | str, default: Any = None, *, migrate: bool = True) -> Any:
        """Return the value that a key had at a time; with `migrate=False`, in the form in which it was stored."""
        return await history.value_at(self._handle, self.scope, key, when, default, migrate=migrate)

    @operation
    async def diff(self, a: datetime | int | str, b: datetime | int | str | None = None) -> Diff:
        """Compare the scope at two moments, each a time, a version or an age; the second is now by default."""
        from holdfast.state.diff import diff

        return await diff(self._handle, self.scope, a, b)

    @operation(changes=True, rights=("read", "write"))
    async def rollback(self, when: datetime | int | str, key: str | None = None) -> int:
        """Restore the scope, or one key, to what it was at a time, by a new step. The history stays. Returns the
        number of keys that changed."""
        return await history.rollback(self._handle, self.scope, when, key)

    def _watch(self, pattern: str = "**", *, cursor: str | None = None, nested: bool = False) -> Watch:
        """Watch the changes of keys that match a pattern, as any process makes them, each once and in order.

        It begins now, or after the `cursor` of a change or a watch, also in another process; with `cursor=""`, at the
        start of the history. With `nested`, the scopes inside this one are watched too, also future ones, each in its
        own order. A change is seen within a second, and so is a key that expires (`expired`).

        Iterate over it, which waits for changes until `close()`; or call `poll(timeout)`.
        """
        watch = Watch(self._handle, self.scope, pattern, cursor, nested)
        watch.start()
        return watch

    @sync_or_async(_watch)
    def watch(self, pattern: str = "**", *, cursor: str | None = None, nested: bool = False) -> AsyncWatch:
        return AsyncWatch(self._handle, self.scope, pattern, cursor, nested)

    # Inside -----------------------------------------------------------------------------------------------------

    def _key(self, key: object) -> str:
        return self._handle.guard.key(self.scope, key)

    async def _operate(self, key: str, operator: UpdateOperator) -> Packed:
        made: list[Packed] = []
        await self._write([KeyWrite(self._key(key), "patch", operator=operator, made=made.append, keep_expiry=True)])
        return made[-1]

    async def _write(self, changes: list[KeyWrite]) -> list[WrittenKey]:
        return await write(self._handle, {self.scope: changes}) if changes else []


class State(SyncApi, StateOperations, MutableMapping[str, Any]):
    """The state of a scope, as a mapping: `state["plan"] = {...}`. Keys are in order."""

    __hash__ = None  # type: ignore[assignment]

    def _repr_html_(self) -> str:
        from holdfast._views import MAX_ROWS, html_table

        return html_table(("key", "value"), islice(self.items(), MAX_ROWS), total=len(self), caption=repr(self))

    @operation
    async def _find(self, key: str) -> StateItem | None:
        return await self._reader.item(key)

    @operation
    async def _count(self) -> int:
        return await self._reader.count()

    def __getitem__(self, key: str) -> Any:
        found = self._find(key)
        if found is None:
            raise KeyError(key)
        return found.value

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, as new objects; the default, if there is no such key."""
        found = self._find(key)
        return default if found is None else found.value

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
        return iter(self.list_keys(limit=_PAGE).all())

    def items(self) -> ItemsView[str, Any]:
        """Return all keys and values, in order."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Return all values, in the order of their keys."""
        return _Values(self)

    # What a mapping does in two steps is done here so that nobody's change in between is lost or overwritten.

    def pop(self, key: str, default: Any = MISSING) -> Any:
        """Delete a key, and return its value. Of several concurrent callers, one gets it."""
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
        """Delete the first key, and return it with its value."""
        for key in self:
            value = self.pop(key, _GONE)
            if value is not _GONE:
                return key, value
        raise KeyError("there are no keys")

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, after setting it if there is none. All concurrent callers get the first one's."""
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
    """Keys and values, read together: a key that is deleted meanwhile is no error."""

    _mapping: State

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((item.key, item.value) for item in self._mapping.list_items(limit=_PAGE).all())


class _Values(ValuesView[Any]):
    """Values in the order of their keys."""

    _mapping: State

    def __iter__(self) -> Iterator[Any]:
        return (item.value for item in self._mapping.list_items(limit=_PAGE).all())


class AsyncState(AsyncApi, StateOperations):
    """The state of a scope, for asyncio: operations are awaited."""

    @operation
    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, as new objects; the default, if there is no such key."""
        found = await self._reader.item(key)
        return default if found is None else found.value

    @operation
    async def has(self, key: str) -> bool:
        """Whether a key exists."""
        return await self._reader.item(key) is not None

    @operation
    async def count(self) -> int:
        """Return the number of keys."""
        return await self._reader.count()

    async def keys(self) -> AsyncIterator[str]:
        """Iterate over all keys, in order: `async for key in state.keys()`."""
        async for key in (await self.list_keys(limit=_PAGE)).all():
            yield key

    async def items(self) -> AsyncIterator[tuple[str, Any]]:
        """Iterate over all keys and values, in order."""
        async for item in (await self.list_items(limit=_PAGE)).all():
            yield item.key, item.value


def _listed(prefix: str, pattern: str, cursor: str | None) -> tuple[str, str, str]:
    return normal(prefix, "start of keys"), normal(pattern, "pattern"), normal(validation.cursor_text(cursor), "cursor")


def _check_stale(conflict: ConflictError) -> None:
    if conflict.code != "version-mismatch":
        raise conflict
