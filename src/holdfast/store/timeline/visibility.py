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


async def select_visible(handle: StoreHandle, rows: Sequence[TimedRow]) -> list[TimedRow]:
    """Return the rows that the guard of a handle lets be read."""
    guard = handle.guard
    if not guard.actor:
        return list(rows)
    fields = [EventFields.of(row) for row in rows]
    places = [readable_scope(each) for each in fields]
    lines = {_thread(handle, place) for place in places if place is not None and place.thread}
    threads = {*await guard.visible_threads(list(lines))}
    keys = [
        (place, each.key) for place, each in zip(places, fields, strict=True) if place is not None and not place.thread
    ]
    allowed = {*await guard.readable(list(dict.fromkeys(keys)))}
    found: list[TimedRow] = []
    for row, place, each in zip(rows, places, fields, strict=True):
        if place is None or (each.kind in _OWN and each.actor != guard.actor):
            continue
        if _thread(handle, place) in threads if place.thread else (place, each.key) in allowed:
            found.append(row)
    return found


async def record_seen(handle: StoreHandle, rows: Sequence[TimedRow]) -> None:
    """Record that an identity read these rows. Raises if a right was revoked meanwhile."""
    guard = handle.guard
    if not guard.actor:
        return
    threads, keys = set[Line](), dict[Scope, set[str]]()
    for fields in map(EventFields.of, rows):
        place = readable_scope(fields)
        if place is not None and place.thread:
            threads.add(_thread(handle, place))
        elif place is not None:
            keys.setdefault(place, set()).add(fields.key)
    for thread in sorted(threads):
        await guard.saw_thread(thread)
    for scope, names in keys.items():
        await guard.saw(scope, sorted(names - {""}))


def _thread(handle: StoreHandle, place: Scope) -> Line:
    return root_of(Line(handle.tenant, place.thread))
