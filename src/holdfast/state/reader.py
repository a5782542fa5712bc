"""Reading keys, as they are or as they were."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from holdfast._named_tuple import NamedTuple
from holdfast.engine.entry_reader import FoundEntry
from holdfast.engine.lines import LineTip
from holdfast.engine.model.nodes import sort_key
from holdfast.engine.model.packed_state import Packed, pack_name, unpack, unpack_name
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.patterns import keys_of_listing, matcher, narrowed
from holdfast.engine.row_format import Line, StepRef
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.system_line import Look, read_at, read_latest
from holdfast.engine.types import to_datetime
from holdfast.engine.value_schemas import NO_MARK, SchemaMark, ValuePlace, ValueSchema
from holdfast.errors import CorruptError
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.session_guard import is_over, session_of

T = TypeVar("T")


class StateItem(msgspec.Struct, frozen=True):
    """A key and its value. `version` is the number of the scope's step that wrote it."""

    key: str
    value: Any
    version: int
    expires: datetime | None = None


class StoredValue(NamedTuple):
    """The stored value of a key, when it expires, 0 for never, and which version of its schema it has."""

    entry: FoundEntry
    expires: int
    mark: SchemaMark = NO_MARK

    @property
    def version(self) -> int:
        """The number of the step that wrote it."""
        return self.entry.origin.seq + 1


class KeyVersion(NamedTuple):
    """The version of a key, and when it expires; 0 for never."""

    version: int
    expires: int


class ScopeView:
    """A scope's state at one of its steps; empty without a step.

    Values of keys are in the versions of the schemas that the program attached to them, unless `migrate` is False."""

    def __init__(
        self,
        handle: StoreHandle,
        line: Line,
        point: StepRef | None,
        loaded: LoadedState | None,
        now: int,
        *,
        migrate: bool = True,
    ) -> None:
        self.point = point
        self.now = now
        self._loaded = loaded
        self._handle = handle
        self._line = line
        self._schemas = handle.engine.value_schemas if migrate else None

    async def is_plain(self, key: str) -> bool:
        """Return whether a key, if there is one, neither expires nor has the version of a schema, as most."""
        loaded, beside = self._loaded, (names.pack_ttl(key), names.pack_mark(key))
        entries = self._handle.engine.entries
        return loaded is None or not await entries.may_have(self._line, loaded, beside, names.ITEM_FIRST)

    async def find_version(self, key: str, *, expires: bool = True) -> KeyVersion | None:
        """Return the version of a key, also if it has expired; None if there is no such key. The value is not read.
        Without `expires`, the key is known to have no time at which it does."""
        if self._loaded is None:
            return None
        origin = await self._handle.engine.entries.origin(self._line, self._loaded, pack_name(key))
        if origin is None:
            return None
        return KeyVersion(origin.seq + 1, await self._expires(self._loaded, key) if expires else 0)

    async def find(self, key: str) -> StoredValue | None:
        """Return the value of a key, also if it has expired; None if there is no such key."""
        if self._loaded is None:
            return None
        entry = await self._handle.engine.entries.find(self._line, self._loaded, pack_name(key))
        if entry is None:
            return None
        found = StoredValue(entry, await self._expires(self._loaded, key))
        if self._schemas is None or self.schema(key) is None:
            return found
        return await self.upgraded(key, await self._marked(key, found))

    async def find_stored(self, key: str) -> StoredValue | None:
        """Return the value of a key as it is stored, also if it has expired, with the version of its schema; None if
        there is no such key."""
        if self._loaded is None:
            return None
        entry = await self._handle.engine.entries.find(self._line, self._loaded, pack_name(key))
        if entry is None:
            return None
        return await self._marked(key, StoredValue(entry, await self._expires(self._loaded, key)))

    async def _marked(self, key: str, found: StoredValue) -> StoredValue:
        mark = await self.find_mark(key)
        return found if mark is NO_MARK else found._replace(mark=mark)

    def schema(self, key: str) -> ValueSchema | None:
        """Return the schema that the program attached to a key."""
        if self._schemas is None:
            return None
        return self._schemas.find(ValuePlace(self._line.tenant, "key", self._line.name.removeprefix(MARK), key))

    async def upgraded(self, key: str, found: StoredValue) -> StoredValue:
        """Return a stored value in the version of its schema."""
        schema = self.schema(key)
        if schema is None or schema.reference == found.mark.reference:
            return found
        value = await schema.read(found.entry.value, found.mark, self.where(key))
        if value is found.entry.value:
            return found
        return found._replace(entry=found.entry._replace(value=value), mark=SchemaMark(schema.reference))

    def where(self, key: str) -> str:
        """The key for errors."""
        return f"key {key!r} of {self._line.name.removeprefix(MARK)}"

    async def scope_schema(self) -> str:
        """Return the version that the scope as a whole has, as it is stored; empty if it has none."""
        if self._loaded is None or self.point is None:
            return ""
        return await self._handle.engine.appender.inherited.reference_at(self._line, self.point, self._loaded)

    async def find_mark(self, key: str) -> SchemaMark:
        """Return which version of its schema a key has, as it is stored."""
        if self._loaded is None:
            return NO_MARK
        entries = self._handle.engine.entries
        found = await entries.find_rare(self._line, self._loaded, names.pack_mark(key), names.ITEM_FIRST)
        return NO_MARK if found is None else SchemaMark.unpack(self._handle.codec, found.value)

    async def internal(self) -> dict[str, Packed]:
        """Return the channels that are no keys: when keys expire, which versions they have, what is kept aside."""
        if self._loaded is None:
            return {}
        entries = self._handle.engine.entries
        found = await entries.page(self._line, self._loaded, names.INTERNAL_FIRST, names.FIRST, None)
        return {unpack_name(each.key): each.value for each in found}

    async def _expires(self, loaded: LoadedState, key: str) -> int:
        entries, name = self._handle.engine.entries, names.pack_ttl(key)
        if not await entries.may_have(self._line, loaded, (name,), names.ITEM_FIRST):
            return 0
        found = await entries.find(self._line, loaded, name)
        return 0 if found is None else int(unpack(self._handle.codec, found.value))

    async def find_live(self, key: str) -> StoredValue | None:
        """Return the stored value of a key; None if there is no such key, or it has expired."""
        found = await self.find(key)
        return None if found is None or 0 < found.expires <= self.now else found

    async def find_to_copy(self, key: str) -> StoredValue | None:
        """Return the value of a key with the version of its schema; None if there is no such key, or it has expired."""
        found = await self.find_live(key)
        return found if found is None or self.schema(key) is not None else await self._marked(key, found)

    async def version(self, key: str) -> int:
        """Return the version of a key; 0 if there is no such key, or it has expired. The value is not read."""
        found = await self.find_version(key)
        return 0 if found is None or 0 < found.expires <= self.now else found.version

    async def item(self, key: str) -> StateItem | None:
        """Return a key with its value as new objects; None if there is no such key, or it has expired."""
        if self._loaded is None:
            return None
        if self._schemas is not None:
            found = await self.find_live(key)
            return None if found is None else self.to_item(key, found.entry, found.expires)
        entry = await self._handle.engine.entries.find(self._line, self._loaded, pack_name(key))
        expires = 0 if entry is None else await self._expires(self._loaded, key)
        return None if entry is None or 0 < expires <= self.now else self.to_item(key, entry, expires)

    def to_item(self, key: str, entry: FoundEntry, expires: int) -> StateItem:
        """Build the public form of an entry."""
        value = unpack(self._handle.codec, entry.value)
        return StateItem(key, value, entry.origin.seq + 1, to_datetime(expires) if expires else None)

    async def keys(self, prefix: str = "", pattern: str = "", after: str = "", limit: int | None = None) -> list[str]:
        """Return keys in order, without those that have expired."""
        matches, common = matcher(pattern) if pattern else None, narrowed(prefix, pattern)
        if self._loaded is None or limit == 0 or common is None:
            return []
        start, stop = names.prefix_start(common), names.prefix_end(common)
        if after:
            start = max(start, names.prefix_start(after) + b"\0")
        found: list[str] = []
        while limit is None or len(found) < limit:
            packed = await self._handle.engine.entries.keys(self._line, self._loaded, start, stop, limit)
            page = list(map(names.unpack_key, packed))
            if page:
                dead = await self._expired(self._loaded, names.pack_ttl(page[0]), names.pack_ttl(page[-1] + "\0"))
                found += [key for key in page if key not in dead and (matches is None or matches(key))]
            if limit is None or len(page) < limit:
                break
            start = names.prefix_start(page[-1]) + b"\0"
        return found[:limit]

    async def all_keys(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return the first keys with a prefix, also those that have expired."""
        if self._loaded is None:
            return []
        start, stop = names.prefix_start(prefix), names.prefix_end(prefix)
        packed = await self._handle.engine.entries.keys(self._line, self._loaded, start, stop, limit)
        return list(map(names.unpack_key, packed))

    async def items(
        self, prefix: str = "", pattern: str = "", after: str = "", limit: int | None = None
    ) -> list[StateItem]:
        """Return keys in order, with their values."""
        items = [await self.item(key) for key in await self.keys(prefix, pattern, after, limit)]
        return [item for item in items if item is not None]

    async def expired(self, prefix: str = "") -> dict[str, int]:
        """Return the keys that have expired and are not deleted yet, and when they expired."""
        if self._loaded is None:
            return {}
        found = await self._expired(self._loaded, names.pack_ttl(prefix), None)
        return {key: time for key, time in found.items() if key.startswith(prefix)}

    async def internal_names(self, start: str, stop: str, limit: int | None) -> list[str]:
        """Return the names of channels that are no keys, in order, from one text to before another."""
        if self._loaded is None:
            return []
        first, last = sort_key(pack_name(start)), sort_key(pack_name(stop))
        packed = await self._handle.engine.entries.keys(self._line, self._loaded, first, last, limit)
        return list(map(unpack_name, packed))

    async def count_internal(self, start: str, stop: str) -> int:
        """Return how many channels that are no keys there are from one text to before another."""
        if self._loaded is None:
            return 0
        first, last = sort_key(pack_name(start)), sort_key(pack_name(stop))
        return await self._handle.engine.entries.count(self._line, self._loaded, first, last)

    async def find_internal(self, packed: bytes) -> FoundEntry | None:
        """Return a channel that is no key, by its packed name."""
        if self._loaded is None:
            return None
        return await self._handle.engine.entries.find(self._line, self._loaded, packed)

    async def _expired(self, loaded: LoadedState, start: bytes, stop: bytes | None) -> dict[str, int]:
        """Return expired keys whose expiry channel is between two positions."""
        last = names.TTL_LAST if stop is None else sort_key(stop)
        found = await self._handle.engine.entries.page(self._line, loaded, sort_key(start), last, None)
        times = {names.expiring_key(each.key): int(unpack(self._handle.codec, each.value)) for each in found}
        return {key: time for key, time in times.items() if time <= self.now}

    async def expiries(self) -> list[tuple[int, str]]:
        """Return the keys that expire or have expired, each with the time."""
        if self._loaded is None:
            return []
        found = await self._handle.engine.entries.page(self._line, self._loaded, names.TTL_FIRST, names.TTL_LAST, None)
        return [(int(unpack(self._handle.codec, each.value)), names.expiring_key(each.key)) for each in found]

    async def count(self, prefix: str = "") -> int:
        """Return the number of keys, or of those with a prefix."""
        if self._loaded is None:
            return 0
        first, last = names.prefix_start(prefix), names.prefix_end(prefix)
        found = await self._handle.engine.entries.count(self._line, self._loaded, first, last)
        return found - len(await self.expired(prefix))


class ScopeReader:
    """Reads the current state of a scope, with the rights of the handle."""

    def __init__(self, handle: StoreHandle, scope: Scope) -> None:
        self._handle = handle
        self._scope = scope
        self._line = handle.line(scope)
        self._in_session = session_of(scope) is not None

    async def item(self, key: str, *, migrate: bool = True) -> StateItem | None:
        """Return a key; None if there is no such key."""
        handle, line = self._handle, self._line
        key = handle.guard.key(self._scope, key)
        await handle.guard.allow("read", self._scope, (key,))
        if self._in_session and await is_over(handle, self._scope):
            tip = None
        else:
            tip = await handle.engine.lines.revalidate_tip(line)
        if tip is None or tip.point is None:
            found = None
        else:
            point = tip.point
            try:
                loaded = await handle.engine.states.get(line, point)
                if handle.engine.schemas is not None and migrate:
                    loaded = await _upgraded(handle, line, point, loaded)
                found = await ScopeView(handle, line, point, loaded, handle.now(), migrate=migrate).item(key)
            except CorruptError:  # unless the line was rewritten meanwhile
                found = await read_scope(handle, self._scope, lambda view: view.item(key), migrate=migrate)
        await handle.guard.saw(self._scope, (key,))
        return found

    async def keys(self, prefix: str, pattern: str, after: str, limit: int) -> list[str]:
        """Return keys in order."""
        asked = keys_of_listing(prefix, pattern)
        await self._handle.guard.allow("read", self._scope, asked)
        found = await read_scope(self._handle, self._scope, lambda view: view.keys(prefix, pattern, after, limit))
        await self._handle.guard.saw(self._scope, asked)
        return found

    async def items(
        self, prefix: str, pattern: str, after: str, limit: int, *, migrate: bool = True
    ) -> list[StateItem]:
        """Return keys in order, with their values; one more than the limit, if there are more."""
        asked = keys_of_listing(prefix, pattern)
        await self._handle.guard.allow("read", self._scope, asked)
        found = await read_scope(
            self._handle, self._scope, lambda view: view.items(prefix, pattern, after, limit + 1), migrate=migrate
        )
        await self._handle.guard.saw(self._scope, [item.key for item in found[:limit]] or asked)
        return found

    async def count(self) -> int:
        """Return the number of keys."""
        await self._handle.guard.allow("read", self._scope, ())
        found = await read_scope(self._handle, self._scope, ScopeView.count)
        await self._handle.guard.saw(self._scope, ())
        return found


async def read_scope(
    handle: StoreHandle, scope: Scope, look: Callable[[ScopeView], Awaitable[T]], *, migrate: bool = True
) -> T:
    """Read the current state of a scope. It is empty if it ended with its session."""
    line = handle.line(scope)
    if await is_over(handle, scope):
        return await look(ScopeView(handle, line, None, None, handle.now()))
    return await read_latest(handle.engine, line, _view(handle, line, look, handle.now(), migrate))


async def live_tip(handle: StoreHandle, scope: Scope) -> LineTip | None:
    """Return the tip of a scope's line; None if there is none, or it ended with its session."""
    if session_of(scope) is not None and await is_over(handle, scope):
        return None
    return await handle.engine.lines.revalidate_tip(handle.line(scope))


async def read_line_at(
    handle: StoreHandle,
    line: Line,
    point: StepRef | None,
    look: Callable[[ScopeView], Awaitable[T]],
    now: int | None = None,
    *,
    migrate: bool = True,
) -> T:
    """Read the state of a line at a step, as of a time: it has no keys that had expired by then. With `migrate`, it is
    upgraded to the schema that the program attached."""
    time = handle.now() if now is None else now
    return await read_at(handle.engine, line, point, _view(handle, line, look, time, migrate))


def _view(
    handle: StoreHandle, line: Line, look: Callable[[ScopeView], Awaitable[T]], now: int, migrate: bool
) -> Look[T]:
    if handle.engine.schemas is None or not migrate:
        return lambda point, loaded: look(ScopeView(handle, line, point, loaded, now, migrate=migrate))

    async def upgraded(point: StepRef | None, loaded: LoadedState | None) -> T:
        if point is not None and loaded is not None:
            loaded = await _upgraded(handle, line, point, loaded)
        return await look(ScopeView(handle, line, point, loaded, now))

    return upgraded


async def _upgraded(handle: StoreHandle, line: Line, point: StepRef, loaded: LoadedState) -> LoadedState:
    """Return the state of a scope in the version of the schema that the program attached to it, if it did."""
    schemas = handle.engine.schemas
    schema = None if schemas is None else schemas.find(line)
    if schema is None or loaded.schema == schema.reference:
        return loaded
    return await schema.upgrade_state(line, point, loaded)
