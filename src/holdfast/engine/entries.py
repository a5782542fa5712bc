"""Single entries of a state: finding a key, or a page of keys, at a cost that does not grow with the state."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from holdfast.engine.cache import Cache
from holdfast.engine.records import Line
from holdfast.engine.states import Held, States, weigh
from holdfast.model import lookups, views
from holdfast.model.drafts import Draft, draft
from holdfast.model.nodes import Origin, Slot, sort_key
from holdfast.model.operations import EditMap, LoadLarge, Set
from holdfast.model.packed import Packed
from holdfast.model.trees import Workspace

_WEIGHT = 400
"""About how many bytes of memory a remembered entry takes besides its value."""


class Entry(NamedTuple):
    """A key, what it holds, and the step that wrote it last."""

    key: bytes
    value: Packed
    origin: Origin


class _Nothing:
    """Remembered where there is no entry."""


_NOTHING = _Nothing()


class Entries:
    """Finds entries of states."""

    def __init__(self, states: States, cache: Cache) -> None:
        self._states = states
        self._cache = cache

    async def find(self, line: Line, held: Held, key: bytes) -> Entry | None:
        """What a packed key holds in a state; None if it has no such key."""
        for origin, edit in reversed(held.tail):
            for put, operation in edit.put:
                if put == key:
                    if type(operation) is Set:
                        return await self._whole(line, held, key, operation.value, origin)
                    return await self._drafted(line, held, key)
            if key in edit.removed:
                return None
        return await self._stored(line, held, key)

    async def count(self, line: Line, held: Held, start: bytes) -> int:
        """How many keys a state has from a place in their order on."""
        total = await self._states.nodes(line, held, lookups.count(held.root, start))
        for key, there in _touched(held).items():
            if sort_key(key) < start:
                continue
            before = await self._states.nodes(line, held, lookups.find(held.root, key))
            total += there - (before is not None)
        return total

    async def page(self, line: Line, held: Held, start: bytes, stop: bytes | None, limit: int | None) -> list[Entry]:
        """Entries in order of their keys, from one place in that order to before another, at most so many."""
        keys = await self.keys(line, held, start, stop, limit)
        found = []
        for key, slot in keys.items():
            if slot is None:
                entry = await self.find(line, held, key)
            else:
                entry = await self._whole(line, held, key, slot.slot, slot.origin)
            if entry is not None:
                found.append(entry)
        return found

    async def keys(
        self, line: Line, held: Held, start: bytes, stop: bytes | None, limit: int | None
    ) -> dict[bytes, lookups.Found | None]:
        """The same, without values but those that are at hand."""
        touched = {
            key: there
            for key, there in _touched(held).items()
            if sort_key(key) >= start and (stop is None or sort_key(key) < stop)
        }
        gone = sum(not there for there in touched.values())

        def enough(found: list[lookups.Found]) -> bool:
            if stop is not None and found and sort_key(found[-1].key) >= stop:
                return True
            return limit is not None and len(found) >= limit + gone

        stored = await self._states.nodes(line, held, lookups.entries(held.root, start, enough))
        found: dict[bytes, lookups.Found | None] = {
            each.key: each for each in stored if each.key not in touched and (stop is None or sort_key(each.key) < stop)
        }
        complete = not enough(stored) or (stop is not None and bool(stored) and sort_key(stored[-1].key) >= stop)
        last = b"" if complete else sort_key(stored[-1].key)
        for key, there in touched.items():
            if there and (complete or sort_key(key) <= last):
                found[key] = None
        return {key: found[key] for key in islice(sorted(found, key=sort_key), limit)}

    async def _stored(self, line: Line, held: Held, key: bytes) -> Entry | None:
        if held.root.child is None:
            return None
        name = ("entry", line, held.root.child.id, key)
        known: Entry | _Nothing | None = self._cache.get(name)
        if known is not None:
            return known if isinstance(known, Entry) else None
        found = await self._states.nodes(line, held, lookups.find(held.root, key))
        if found is None:
            self._cache.put(name, _NOTHING, _WEIGHT)
            return None
        entry = await self._whole(line, held, key, found.slot, found.origin)
        self._cache.put(name, entry, weigh(entry.value) + _WEIGHT)
        return entry

    async def _drafted(self, line: Line, held: Held, key: bytes) -> Entry | None:
        """An entry that steps since the folded state changed in part."""
        ws = Workspace()
        steps = [(origin, only) for origin, edit in held.tail if (only := _only(edit, key)) is not None]

        async def drafted(load: LoadLarge) -> tuple[Draft, Origin] | None:
            state = await self._states.nodes(line, held, draft(ws, held.root, steps, load))
            return await self._states.nodes(line, held, views.one(ws, state, key))

        found = await self._states.with_large(line, held, drafted)
        if found is None:
            return None
        packed = await self._states.nodes(line, held, views.whole(ws, found[0]))
        return Entry(key, await self._resolved(line, packed), found[1])

    async def _whole(self, line: Line, held: Held, key: bytes, slot: Slot, origin: Origin) -> Entry:
        if not isinstance(slot, bytes):
            slot_or_packed: Packed = await self._states.nodes(line, held, views.whole(Workspace(), slot))
        else:
            slot_or_packed = slot
        return Entry(key, await self._resolved(line, slot_or_packed), origin)

    async def _resolved(self, line: Line, packed: Packed) -> Packed:
        return (await self._states.resolved(line, {b"": packed}))[b""]


def _touched(held: Held) -> dict[bytes, bool]:
    """The keys that were put or removed since the folded state, and whether they are there now."""
    touched: dict[bytes, bool] = {}
    for _, edit in held.tail:
        touched.update(dict.fromkeys(edit.removed, False))
        touched.update((key, True) for key, _ in edit.put)
    return touched


def _only(edit: EditMap, key: bytes) -> EditMap | None:
    """The part of an edit that has to do with a key."""
    put = tuple(pair for pair in edit.put if pair[0] == key)
    removed = (key,) if key in edit.removed else ()
    return EditMap(removed, put) if put or removed else None
