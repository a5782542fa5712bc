"""Reading, finding and changing items, with the rights of a store or of an identity's view of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast._named_tuple import NamedTuple
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.model.scopes import Scope
from holdfast.errors import DeniedError
from holdfast.security.handle import HasHandle
from holdfast.state.item_index import FoundItem, Vector, VectorIndex, find_items, pack_vector, read_item
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, StoredValue, read_scope
from holdfast.state.scopes import delete_expired
from holdfast.state.writer import KeyWrite, write

_REFRESH_AFTER = 16
"""A read gives an item its time to live again if this part of it has passed."""


class ItemChange(NamedTuple):
    """A new value of an item, or None to delete it; how long it lives, in nanoseconds; and its vectors."""

    key: str
    value: Mapping[str, Any] | None
    ttl: int = 0
    vectors: Mapping[str, Vector] = {}


class ScopedItem(NamedTuple):
    """An item that was found, and how similar it is to the query; None without one."""

    scope: Scope
    item: FoundItem
    score: float | None = None


class ItemTable:
    """The items in the scopes of a store. `distance` says how vectors are compared."""

    def __init__(self, store: HasHandle, distance: str = "cosine") -> None:
        self._handle = store._handle
        self._vectors = VectorIndex(self._handle, distance)

    # Reading --------------------------------------------------------------------------------------------------

    async def scopes(self, starts: Iterable[str]) -> list[Scope]:
        """Return the scopes that may be read whose lines' names have one of these starts."""
        engine, tenant = self._handle.engine, self._handle.tenant
        found = [Scope.of_line(line.name) for start in starts for line in await engine.lines.names(tenant, start)]
        return await self._handle.guard.visible([scope for scope in found if scope is not None])

    async def is_empty(self, scope: Scope) -> bool:
        """Return whether a scope has no items."""
        return not await read_scope(self._handle, scope, lambda view: view.keys(limit=1))

    async def get(self, scope: Scope, key: str) -> FoundItem | None:
        """Return an item; None if there is none."""
        await self._handle.guard.allow("read", scope, (key,))
        item = await read_scope(self._handle, scope, lambda view: read_item(view, self._handle.codec, key))
        await self._handle.guard.saw(scope, (key,))
        return item

    async def search(
        self, scopes: Iterable[Scope], filters: Mapping[str, Any], limit: int, offset: int, query: Vector | None
    ) -> list[ScopedItem]:
        """Return items that pass filters: the most similar to a query first, then those without vectors; without a
        query, the latest first."""
        found: list[ScopedItem] = []
        for scope in scopes:
            await self._handle.guard.allow("read", scope, ())
            look = partial(self._find, scope, filters, offset + limit, query)
            found += await read_scope(self._handle, scope, look)
        found.sort(key=lambda each: (each.score is None, -(each.score or 0.0), -each.item.times.updated))
        page = found[offset : offset + limit]
        for each in page:
            await self._handle.guard.saw(each.scope, (each.item.key,))
        return page

    async def _find(
        self, scope: Scope, filters: Mapping[str, Any], limit: int, query: Vector | None, view: ScopeView
    ) -> list[ScopedItem]:
        codec = self._handle.codec
        if query is None:
            return [ScopedItem(scope, item) for item in await find_items(view, codec, filters, limit)]
        scores = await self._vectors.scores(view, scope, query)
        if filters:
            items = await find_items(view, codec, filters)
            return [ScopedItem(scope, item, scores.get(item.key)) for item in items]
        ranked: list[ScopedItem] = []
        for key in sorted(scores, key=lambda each: -scores[each]):
            item = await read_item(view, codec, key)
            if item is not None:
                ranked.append(ScopedItem(scope, item, scores[key]))
            if len(ranked) == limit:
                return ranked
        others = await find_items(view, codec, filters, limit + len(scores))
        return ranked + [ScopedItem(scope, item) for item in others if item.key not in scores]

    # Changing -------------------------------------------------------------------------------------------------

    async def write(self, changes: Mapping[Scope, Sequence[ItemChange]]) -> None:
        """Change items, all or none."""
        if changes:
            writes = {scope: [self._write_of(each) for each in several] for scope, several in changes.items()}
            await write(self._handle, writes)

    def _write_of(self, change: ItemChange) -> KeyWrite:
        if change.value is None:
            return KeyWrite(change.key, "delete")
        return KeyWrite(
            change.key,
            packed=pack_value(self._handle, change.key, dict(change.value)),
            expires=self._handle.now() + change.ttl if change.ttl else 0,
            ttl=change.ttl,
            vectors={path: pack_vector(vector) for path, vector in change.vectors.items()},
        )

    async def refresh(self, read: Iterable[tuple[Scope, FoundItem]]) -> None:
        """Give items that were read their time to live again, unless they have nearly all of it. Whoever may only read
        prolongs no life."""
        now, writes = self._handle.now(), dict[Scope, list[KeyWrite]]()
        for scope, item in read:
            ttl = item.times.ttl
            if ttl and 0 < item.expires < now + ttl - ttl // _REFRESH_AFTER:
                change = KeyWrite(item.key, "expire", compute=_keep, expires=now + ttl)
                writes.setdefault(scope, []).append(change)
        if writes:
            with suppress(DeniedError):
                await write(self._handle, writes)

    async def delete_expired(self) -> int:
        """Delete items, and other keys of the store, that have expired. Returns their number."""
        return (await delete_expired(self._handle)).keys


async def _keep(live: StoredValue | None) -> Packed | None:
    """Return the value of an item as it is."""
    return None if live is None else live.entry.value
