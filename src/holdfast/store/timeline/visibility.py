"""Which events an identity may see: those about what it may read."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.engine.model.scopes import Scope
from holdfast.engine.namespaces import root_of
from holdfast.engine.row_format import Line
from holdfast.security.handle import StoreHandle
from holdfast.store.timeline.event import EventFields, readable_scope
from holdfast.store.timeline.position import TimedRow

_OWN = frozenset({"read", "denied", "access"})
"""Kinds of events that only those see who caused them, of what they may read."""


class VisibleEvents:
    """Selects events that the guard of a handle lets be read, and records that they were."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._threads: set[str] = set()
        self._keys: dict[Scope, set[str]] = {}

    async def select(self, rows: Sequence[TimedRow]) -> list[TimedRow]:
        """Return the rows that may be seen."""
        guard = self._handle.guard
        if not guard.actor:
            return list(rows)
        fields = [EventFields.of(row) for row in rows]
        places = [readable_scope(each) for each in fields]
        threads = {place.thread for place in places if place is not None and place.thread}
        lines = {root_of(Line(self._handle.tenant, name)) for name in threads}
        readable = {line.name for line in await guard.visible_threads(list(lines))}
        asked = [
            (place, each.key)
            for place, each in zip(places, fields, strict=True)
            if place is not None and not place.thread
        ]
        allowed = set(await guard.readable(list(dict.fromkeys(asked))))
        found: list[TimedRow] = []
        for row, place, each in zip(rows, places, fields, strict=True):
            if place is None or (each.kind in _OWN and each.actor != guard.actor):
                continue
            if place.thread:
                thread = root_of(Line(self._handle.tenant, place.thread)).name
                if thread in readable:
                    self._threads.add(thread)
                    found.append(row)
            elif (place, each.key) in allowed:
                self._keys.setdefault(place, set()).add(each.key)
                found.append(row)
        return found

    async def record(self) -> None:
        """Record what was seen. Raises if a right was revoked meanwhile."""
        guard = self._handle.guard
        for thread in sorted(self._threads):
            await guard.saw_thread(Line(self._handle.tenant, thread))
        for scope, keys in self._keys.items():
            await guard.saw(scope, sorted(keys - {""}))
