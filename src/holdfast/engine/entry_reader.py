"""Single entries of a state: finding a key, or a page of keys, at a cost that does not grow with the state."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from holdfast.engine.append import touch
from holdfast.engine.cache import MemoryCache
from holdfast.engine.model import draft_reader, node_lookup
from holdfast.engine.model.drafts import Draft, draft
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import Slot, WrittenBy, sort_key
from holdfast.engine.model.operations import EditMap, LoadLarge, Operation, Set
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.model.workspace import Workspace
from holdfast.engine.row_format import Line
from holdfast.engine.state_loader import LoadedState, StateLoader

_WEIGHT = 400
"""About how many bytes of memory a remembered entry takes besides its value."""


_MAX_INDEXES = 256
"""How many decoded indexes are kept: of about 15 KB each."""


class FoundEntry(NamedTuple):
    """A key, what it holds, and the step that wrote it last."""

    key: bytes
    value: Packed
    origin: WrittenBy


class _Nothing:
    """Remembered where there is no entry."""


_NOTHING = _Nothing()


class _Indexes(dict[bytes, node_lookup.Children]):
    """Decoded indexes by their ids: few, and on the way to many entries. When there are too many, all are forgotten."""

    def __setitem__(self, id: bytes, children: node_lookup.Children) -> None:
        if len(self) >= _MAX_INDEXES:
            self.clear()
        super().__setitem__(id, children)


class EntryReader:
    """Finds entries of states."""

    def __init__(self, states: StateLoader, cache: MemoryCache) -> None:
        self._states = states
        self._cache = cache
        self._indexes = _Indexes()

    async def origin(self, line: Line, loaded: LoadedState, key: bytes) -> WrittenBy | None:
        """The step that wrote a packed key last; None if the state has no such key. The value is not read."""
        change = touched(loaded).get(key)
        if change is not None:
            return None if change[1] is None else change[0]
        found = await self._stored(line, loaded, key)
        return None if found is None else found.origin

    async def find(self, line: Line, loaded: LoadedState, key: bytes) -> FoundEntry | None:
        """What a packed key holds in a state; None if it has no such key."""
        change = touched(loaded).get(key)
        if change is None:
            found = await self._stored(line, loaded, key)
            return None if found is None else await self._whole(line, loaded, *found)
        origin, operation = change
        if operation is None:
            return None
        if isinstance(operation, Set):
            return await self._whole(line, loaded, key, operation.value, origin)
        return await self._drafted(line, loaded, key)

    async def find_rare(self, line: Line, loaded: LoadedState, key: bytes, end: bytes) -> FoundEntry | None:
        """The same, for a key that sorts before a place where most states have none at all: those are not searched."""
        root = loaded.root.child
        if root is not None and key not in touched(loaded):
            name = ("before", line, root.id, end)
            count: int | None = self._cache.get(name)
            if count is None:
                count = root.size - await self._states.nodes(line, loaded, node_lookup.count(loaded.root, end))
                self._cache.put(name, count, _WEIGHT)
            if not count:
                return None
        return await self.find(line, loaded, key)

    async def count(self, line: Line, loaded: LoadedState, start: bytes) -> int:
        """How many keys a state has from a place in their order on."""
        total = await self._states.nodes(line, loaded, node_lookup.count(loaded.root, start))
        for key, (_, operation) in touched(loaded).items():
            if sort_key(key) >= start:
                total += (operation is not None) - (await self._stored(line, loaded, key) is not None)
        return total

    async def page(
        self, line: Line, loaded: LoadedState, start: bytes, stop: bytes | None, limit: int | None
    ) -> list[FoundEntry]:
        """Entries in order of their keys, from one place in that order to before another, at most so many."""
        keys = await self.keys(line, loaded, start, stop, limit)
        found = []
        for key, slot in keys.items():
            if slot is None:
                entry = await self.find(line, loaded, key)
            else:
                entry = await self._whole(line, loaded, key, slot.slot, slot.origin)
            if entry is not None:
                found.append(entry)
        return found

    async def keys(
        self, line: Line, loaded: LoadedState, start: bytes, stop: bytes | None, limit: int | None
    ) -> dict[bytes, node_lookup.StoredEntry | None]:
        """The same, without values but those that are at hand."""
        changed = {
            key: operation is not None
            for key, (_, operation) in touched(loaded).items()
            if sort_key(key) >= start and (stop is None or sort_key(key) < stop)
        }
        gone = sum(not there for there in changed.values())

        def enough(found: list[node_lookup.StoredEntry]) -> bool:
            if stop is not None and found and sort_key(found[-1].key) >= stop:
                return True
            return limit is not None and len(found) >= limit + gone

        stored = await self._states.nodes(line, loaded, node_lookup.entries(loaded.root, start, enough))
        found: dict[bytes, node_lookup.StoredEntry | None] = {
            each.key: each for each in stored if each.key not in changed and (stop is None or sort_key(each.key) < stop)
        }
        complete = not enough(stored) or (stop is not None and bool(stored) and sort_key(stored[-1].key) >= stop)
        last = b"" if complete else sort_key(stored[-1].key)
        for key, there in changed.items():
            if there and (complete or sort_key(key) <= last):
                found[key] = None
        return {key: found[key] for key in islice(sorted(found, key=sort_key), limit)}

    async def _stored(self, line: Line, loaded: LoadedState, key: bytes) -> node_lookup.StoredEntry | None:
        """What a key holds in the folded state."""
        if loaded.root.child is None:
            return None
        recent = loaded.recent.get(key)
        if recent is not None:
            origin, operation = recent
            if operation is None:
                return None
            if isinstance(operation, Set):
                return node_lookup.StoredEntry(key, operation.value, origin)
        name = ("entry", line, loaded.root.child.id, key)
        known: node_lookup.StoredEntry | _Nothing | None = self._cache.get(name)
        if known is None:
            known = (
                await self._states.nodes(line, loaded, node_lookup.find(loaded.root, key, self._indexes)) or _NOTHING
            )
            weight = (
                len(known.slot) if isinstance(known, node_lookup.StoredEntry) and isinstance(known.slot, bytes) else 0
            )
            self._cache.put(name, known, weight + _WEIGHT)
        return known if isinstance(known, node_lookup.StoredEntry) else None

    async def _drafted(self, line: Line, loaded: LoadedState, key: bytes) -> FoundEntry | None:
        """An entry that steps since the folded state changed in part."""
        ws = Workspace()
        steps = [(origin, only) for origin, edit in loaded.tail if (only := _only(edit, key)) is not None]

        async def drafted(load: LoadLarge) -> tuple[Draft, WrittenBy] | None:
            state = await self._states.nodes(line, loaded, draft(ws, loaded.root, steps, load))
            return await self._states.nodes(line, loaded, draft_reader.one(ws, state, key))

        found = await self._states.with_large(line, loaded, drafted)
        if found is None:
            return None
        packed = await self._states.nodes(line, loaded, draft_reader.whole(ws, found[0]))
        return FoundEntry(key, await self._resolved(line, packed), found[1])

    async def _whole(self, line: Line, loaded: LoadedState, key: bytes, slot: Slot, origin: WrittenBy) -> FoundEntry:
        if isinstance(slot, bytes):
            return FoundEntry(key, await self._resolved(line, slot) if is_pointer(slot) else slot, origin)
        packed = await self._states.nodes(line, loaded, draft_reader.whole(Workspace(), slot))
        return FoundEntry(key, await self._resolved(line, packed), origin)

    async def _resolved(self, line: Line, packed: Packed) -> Packed:
        return (await self._states.resolved(line, {b"": packed}))[b""]


def touched(loaded: LoadedState) -> dict[bytes, tuple[WrittenBy, Operation | None]]:
    """The keys that were put or removed since the folded state."""
    found = loaded.changed_keys
    if found is None:
        found = {}
        for origin, edit in loaded.tail:
            touch(found, origin, edit)
        loaded.changed_keys = found  # once it is whole: other threads have the same state in hand
    return found


def _only(edit: EditMap, key: bytes) -> EditMap | None:
    """The part of an edit that has to do with a key."""
    put = tuple(pair for pair in edit.put if pair[0] == key)
    removed = (key,) if key in edit.removed else ()
    return EditMap(removed, put) if put or removed else None
