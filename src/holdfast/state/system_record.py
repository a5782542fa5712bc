"""Books: lines of ours that hold records by name, such as those of sessions and of artifacts.

A book is a line of map operations like that of a scope: each change of it is a step that tells when, by whom and why.
Rows by which records are found otherwise (`LINKS`), and the events that tell of the change, ride in the same batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from holdfast.backends.interface import Change, Delete, Put, Row, Scan
from holdfast.backends.tables import LINKS
from holdfast.engine import trace_context
from holdfast.engine.append import AppendRequest, OnConflict
from holdfast.engine.events import DIGEST, Event, EventContent, digest, event_contents, rows
from holdfast.engine.guard import Preconditions, both_preconditions
from holdfast.engine.model.operations import EditMap, Set
from holdfast.engine.model.packed_state import Packed, flatten, unpack
from holdfast.engine.model.scopes import MARK
from holdfast.engine.row_format import Line, StepRef, readable
from holdfast.engine.state_loader import LoadedState
from holdfast.engine.step_info import StepInfo
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.keys import pack_value
from holdfast.state.reader import ScopeView, latest
from holdfast.state.writer import FOLD_EVERY


@dataclass(slots=True)
class RecordChange:
    """What an edit of a line of ours comes to."""

    put: Mapping[bytes, Packed] = field(default_factory=dict)
    removed: Sequence[bytes] = ()
    """What is put and taken away, by packed names."""
    events: Sequence[Event] = ()
    rows: Sequence[Change] = ()
    """Further rows, made together with the step."""


EditBook: TypeAlias = Callable[[ScopeView], Awaitable[RecordChange]]
"""Works out what to change, given the line as it is at each attempt."""

Link: TypeAlias = tuple[str, str, str]
"""A kind of link, a name, and what it is linked with."""


class StoredRecord(NamedTuple):
    """A record, and the number of the step that made it."""

    value: Any
    version: int


class SystemRecordLine:
    """A line of ours. What it does is nobody's to forbid: whoever calls has asked the guard."""

    def __init__(self, handle: StoreHandle, name: str) -> None:
        self._handle = handle
        self.line = Line(handle.tenant, MARK + name)
        self.guards: Preconditions | None = None
        """Conditions of everything that is changed: those on which the guard let it pass."""

    async def get(self, keys: Sequence[str]) -> dict[str, StoredRecord]:
        """Those of some records that are there."""

        async def look(view: ScopeView) -> dict[str, StoredRecord]:
            return await records(self._handle, view, keys)

        return await latest(self._handle, self.line, look)

    def saving(self, kind: str, edit: EditBook, guards: Preconditions | None = None) -> AppendRequest:
        """A step of the book, to be saved alone or together with others."""
        return edited(self._handle, self.line, kind, edit, both_preconditions(self.guards, guards))

    async def change(self, kind: str, edit: EditBook, guards: Preconditions | None = None) -> StepInfo:
        """Change records, as one step."""
        (head,) = await self._handle.engine.writer.save(self.saving(kind, edit, guards))
        return head

    async def linked(self, kind: str, name: str, after: str, limit: int | None, stop: str = "") -> list[Row]:
        """What a name is linked with, in order: rows whose last part of the key comes after another."""
        query = Scan(
            LINKS,
            (*self.line, kind, name),
            start=(after + "\0",) if after else (),
            stop=(stop,) if stop else (),
            limit=limit,
        )
        (found,) = await self._handle.engine.context.backend.read([query])
        return found

    def filed(self, old: Sequence[Link], new: Sequence[Link], time: int, target: str = "") -> list[Change]:
        """The changes that have a record be found by new links, and no longer by old ones."""
        gone: list[Change] = [Delete(LINKS, (*self.line, *link)) for link in old if link not in new]
        return gone + [Put(LINKS, Row((*self.line, *link), (time, target))) for link in new if link not in old]


def packed(handle: StoreHandle, values: Mapping[str, Any]) -> dict[bytes, Packed]:
    """Records as they are put."""
    return {names.pack_key(key): pack_value(handle, key, value) for key, value in values.items()}


async def records(handle: StoreHandle, view: ScopeView, keys: Sequence[str]) -> dict[str, StoredRecord]:
    """Those of some records of a line that are there."""
    found = {key: await view.stored(key) for key in keys}
    return {
        key: StoredRecord(unpack(handle.codec, stored.entry.value), stored.entry.origin.seq + 1)
        for key, stored in found.items()
        if stored is not None
    }


def edited(
    handle: StoreHandle, line: Line, kind: str, edit: EditBook, guards: Preconditions | None = None
) -> AppendRequest:
    """A step of a line, worked out anew against whatever is the latest at each attempt. It says who made it and why."""
    trace, actor = trace_context.current_or_new(), handle.guard.actor
    made, happened = RecordChange(), list[EventContent]()
    about: dict[str, object] = {"actor": actor} if actor else {}
    about |= {"correlation": trace.correlation} | ({"cause": trace.cause} if trace.cause else {})

    async def edit_map(parent: StepRef | None, held: LoadedState | None) -> EditMap:
        nonlocal made, happened
        time = handle.now()
        made = await edit(ScopeView(handle, line, parent, held, time))
        put = tuple((name, Set(flatten(value))) for name, value in made.put.items())
        happened = event_contents(time, trace, made.events)
        said = {**about, DIGEST: digest(happened)} if happened else about
        saving.metadata, saving.readable = handle.codec.pack(said), readable(handle.codec, said)
        return EditMap(tuple(made.removed), put)

    def riders(id: str) -> list[Change]:
        return [*made.rows, *rows(line, id, happened)]

    saving = AppendRequest(
        line,
        edit_map,
        on_conflict=OnConflict.RETRY,
        kind=kind,
        attached_changes=riders,
        preconditions=guards,
        fold_every=FOLD_EVERY,
    )
    return saving
