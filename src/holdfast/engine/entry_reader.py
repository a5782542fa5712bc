"""Single entries of a state: finding a key, or a page of keys, at a cost that does not grow with the state."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from holdfast._named_tuple import NamedTuple
from holdfast.backends.runtime.memory_cache import MemoryCache
from holdfast.engine.loaded_states import touch
from holdfast.engine.model import draft_reader, node_lookup
from holdfast.engine.model.drafts import Draft, draft
from holdfast.engine.model.large_pointers import is_pointer
from holdfast.engine.model.nodes import Slot, WrittenBy, sort_key
from holdfast.engine.model.operations import Combine, EditMap, LoadLarge, Operation, Set, apply
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.model.workspace import Workspace
from holdfast.engine.row_format import Line
from holdfast.engine.state_loader import LoadedState, StateLoader

_WEIGHT = 400
"""About how many bytes of memory a cached entry takes besides its value."""


_MAX_INDEXES = 256
"""How many decoded indexes are cached, of about 15 KB each."""


class FoundEntry(NamedTuple):
    """A key, its value, and the step that wrote it last."""

    key: bytes
    value: Packed
    origin: WrittenBy


class _Absent:
    """Cached where there is no entry."""


_ABSENT = _Absent()


class _Indexes(dict[bytes, node_lookup.Children]):
    """Decoded indexes by id: few, and on the path to many entries. When there are too many, all are dropped."""

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
        """Return the step that wrote a packed key last; None if the state has no such key. The value is not read."""
        change = changed_keys(loaded).get(key)
        if change is not None:
            return None if change[1] is None else change[0]
        result = await self._folded(line, loaded, key)
        return None if result is None else result.origin

    async def find(self, line: Line, loaded: LoadedState, key: bytes) -> FoundEntry | None:
        """Return the entry of a packed key; None if the state has no such key."""
        change = changed_keys(loaded).get(key)
        if change is None:
            result = await self._folded(line, loaded, key)
            return None if result is None else await self._entry(line, loaded, *result)
        origin, operation = change
        if operation is None:
            return None
        if isinstance(operation, Set):
            return await self._entry(line, loaded, key, operation.value, origin)
        if isinstance(operation, Combine):
            folded = await self._folded(line, loaded, key)
            before = None if folded is None else (await self._entry(line, loaded, *folded)).value
            return FoundEntry(key, apply(operation, before), origin)
        return await self._replay(line, loaded, key)

    async def may_have(self, line: Line, loaded: LoadedState, keys: Sequence[bytes], end: bytes) -> bool:
        """Return whether a state may have one of some keys, which sort before `end`. Most have no keys there: then
        nothing is searched for them."""
        changed, root = changed_keys(loaded), loaded.root.child
        for key in keys:
            if key in changed:
                return True
        if root is None:
            return False
        name = ("before", line, root.id, end)
        count: int | None = self._cache.get(name)
        if count is None:
            count = root.size - await self._states.nodes(line, loaded, node_lookup.count(loaded.root, end))
            self._cache.put(name, count, _WEIGHT)
        return bool(count)

    async def find_rare(self, line: Line, loaded: LoadedState, key: bytes, end: bytes) -> FoundEntry | None:
        """Return the entry of a key that sorts before `end`: see `may_have`."""
        return await self.find(line, loaded, key) if await self.may_have(line, loaded, (key,), end) else None

    async def count(self, line: Line, loaded: LoadedState, start: bytes, stop: bytes | None) -> int:
        """Return how many keys a state has from `start` to before `stop`, in their order."""
        total = await self._states.nodes(line, loaded, node_lookup.count(loaded.root, start))
        if stop is not None:
            total -= await self._states.nodes(line, loaded, node_lookup.count(loaded.root, stop))
        changed = changed_keys(loaded)
        for key in changed_between(loaded, start, stop):
            total += (changed[key][1] is not None) - (await self._folded(line, loaded, key) is not None)
        return total

    async def page(
        self, line: Line, loaded: LoadedState, start: bytes, stop: bytes | None, limit: int | None
    ) -> list[FoundEntry]:
        """Return entries in the order of their keys, from `start` to before `stop`, at most `limit`."""
        keys = await self.keys(line, loaded, start, stop, limit)
        result = []
        for key, slot in keys.items():
            if slot is None:
                entry = await self.find(line, loaded, key)
            else:
                entry = await self._entry(line, loaded, key, slot.slot, slot.origin)
            if entry is not None:
                result.append(entry)
        return result

    async def keys(
        self, line: Line, loaded: LoadedState, start: bytes, stop: bytes | None, limit: int | None
    ) -> dict[bytes, node_lookup.StoredEntry | None]:
        """Return the keys of a page, with their stored entries where no later step changed them."""
        every = changed_keys(loaded)
        changed = {key: every[key][1] is not None for key in changed_between(loaded, start, stop)}
        removals = sum(not exists for exists in changed.values())

        def enough(result: list[node_lookup.StoredEntry]) -> bool:
            if stop is not None and result and sort_key(result[-1].key) >= stop:
                return True
            return limit is not None and len(result) >= limit + removals

        stored = await self._states.nodes(line, loaded, node_lookup.entries(loaded.root, start, enough))
        result: dict[bytes, node_lookup.StoredEntry | None] = {
            each.key: each for each in stored if each.key not in changed and (stop is None or sort_key(each.key) < stop)
        }
        complete = not enough(stored) or (stop is not None and bool(stored) and sort_key(stored[-1].key) >= stop)
        last = b"" if complete else sort_key(stored[-1].key)
        for key, exists in changed.items():
            if exists and (complete or sort_key(key) <= last):
                result[key] = None
        return {key: result[key] for key in islice(sorted(result, key=sort_key), limit)}

    async def _folded(self, line: Line, loaded: LoadedState, key: bytes) -> node_lookup.StoredEntry | None:
        """Return the value of a key in the folded state."""
        if loaded.root.child is None:
            return None
        last_fold = loaded.recent.get(key)
        if last_fold is not None:
            origin, operation = last_fold
            if operation is None:
                return None
            if isinstance(operation, Set):
                return node_lookup.StoredEntry(key, operation.value, origin)
        name = ("entry", line, loaded.root.child.id, key)
        cached: node_lookup.StoredEntry | _Absent | None = self._cache.get(name)
        if cached is None:
            cached = (
                await self._states.nodes(line, loaded, node_lookup.find(loaded.root, key, self._indexes)) or _ABSENT
            )
            weight = (
                len(cached.slot)
                if isinstance(cached, node_lookup.StoredEntry) and isinstance(cached.slot, bytes)
                else 0
            )
            self._cache.put(name, cached, weight + _WEIGHT)
        return cached if isinstance(cached, node_lookup.StoredEntry) else None

    async def _replay(self, line: Line, loaded: LoadedState, key: bytes) -> FoundEntry | None:
        """Return an entry that steps since the folded state changed in part."""
        ws = Workspace()
        steps = [(origin, own_part) for origin, edit in loaded.tail if (own_part := _only(edit, key)) is not None]

        async def draft_entry(load: LoadLarge) -> tuple[Draft, WrittenBy] | None:
            state = await self._states.nodes(line, loaded, draft(ws, loaded.root, steps, load))
            return await self._states.nodes(line, loaded, draft_reader.one(ws, state, key))

        result = await self._states.with_large(line, loaded, draft_entry)
        if result is None:
            return None
        packed = await self._states.nodes(line, loaded, draft_reader.whole(ws, result[0]))
        return FoundEntry(key, await self._resolve(line, packed), result[1])

    async def _entry(self, line: Line, loaded: LoadedState, key: bytes, slot: Slot, origin: WrittenBy) -> FoundEntry:
        if isinstance(slot, bytes):
            return FoundEntry(key, await self._resolve(line, slot) if is_pointer(slot) else slot, origin)
        packed = await self._states.nodes(line, loaded, draft_reader.whole(Workspace(), slot))
        return FoundEntry(key, await self._resolve(line, packed), origin)

    async def _resolve(self, line: Line, packed: Packed) -> Packed:
        return (await self._states.resolve_pointers(line, {b"": packed}))[b""]


def changed_keys(loaded: LoadedState) -> dict[bytes, tuple[WrittenBy, Operation | None]]:
    """Return the keys that were put or removed since the folded state."""
    result = loaded.changed_keys
    if result is None:
        result = {}
        for origin, edit in loaded.tail:
            touch(result, origin, edit)
        loaded.changed_keys = result  # when complete: other threads use the same state
    return result


def changed_between(loaded: LoadedState, start: bytes, stop: bytes | None) -> list[bytes]:
    """Return the keys that were put or removed since the folded state, from `start` to before `stop`, in order."""
    order = loaded.changed_order
    if order is None:
        loaded.changed_order = order = sorted((sort_key(key), key) for key in changed_keys(loaded))
    last = None if stop is None else bisect_left(order, (stop,))
    return [key for _, key in order[bisect_left(order, (start,)) : last]]


def _only(edit: EditMap, key: bytes) -> EditMap | None:
    """Return the part of an edit that concerns a key."""
    put = tuple(pair for pair in edit.put if pair[0] == key)
    removed = (key,) if key in edit.removed else ()
    return EditMap(removed, put) if put or removed else None
