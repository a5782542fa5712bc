"""Queries of the audit, the newest records first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast._fields import Hidden, Local
from holdfast.backends.interface import Get, Row, Scan
from holdfast.backends.tables import EVENTS, LINKS, STEPS
from holdfast.engine.events import BETWEEN, correlation_of, lines_of, place_of
from holdfast.engine.ids import time_of
from holdfast.engine.line_walk import lines_of_kinds, pages_of
from holdfast.engine.model.scopes import MARK, THREAD, parse_place, place_of_line
from holdfast.engine.model.steps import NO_ORIGIN
from holdfast.engine.namespaces import ACCESS, AUDIT, is_thread, root_of
from holdfast.engine.row_format import ORIGIN, Line, StepRef, origin_mark
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.audit.retain import STEP
from holdfast.security.audit.verify import unpack_detail
from holdfast.security.handle import StoreHandle

T = TypeVar("T")

_THREAD = f"{THREAD}:"
"""The start of the places of threads, as text."""

_PAGE = 256
_FEW = 4
"""How many rows of each line are read at first, if there are many lines."""

_AT_ONCE = 200
"""How many lines are read at a time."""

_MAX_DELAY = 2 * 3600 * 10**9
"""How much earlier than its step a read or an attempt was at most, in nanoseconds."""


class AuditRecord(msgspec.Struct, frozen=True):
    """An action or an attempt.

    `kind` is `change`, `thread`, `hook`, `access` (of rights), `read` or `denied`; `action` what was done, `outcome`
    how it ended. `actor` is empty for the store's owner. `scope` is a scope, or another place in the store, such as
    `sessions`, `agent:writer/topic:news` or `thread:chat-1`. `id` is that of the step that has the row; `cursor` is the
    position for the next page.
    """

    time: datetime
    kind: str
    actor: str
    action: str
    scope: str
    key: str
    outcome: str
    correlation: Hidden[str]
    cause: Hidden[str]
    duration: Hidden[float]
    """In seconds."""
    detail: Hidden[Mapping[str, Any]]
    id: Hidden[str]
    cursor: Local[Hidden[str]]

    @property
    def thread(self) -> str:
        """The name of the thread that it is about; empty if it is about something else."""
        return parse_place(self.scope).thread if self.scope.startswith(_THREAD) else ""


class AuditQuery(NamedTuple):
    """The filter of a query. None and empty texts match everything."""

    actor: str | None = None
    scope: str = ""
    """A scope, or the place of a thread, whose namespaces are included."""
    key: str = ""
    kind: str = ""
    action: str = ""
    outcome: str = ""
    correlation: str = ""
    since: int = 0
    until: int = 0

    def matches(self, row: EventColumns) -> bool:
        """Whether a row matches."""
        return (
            (self.actor is None or self.actor == row.actor)
            and (self.scope in ("", row.scope) or self._is_namespace(row.scope))
            and self.key in ("", row.key)
            and self.kind in ("", row.kind)
            and self.action in ("", row.action)
            and self.outcome in ("", row.outcome)
            and self.correlation in ("", row.correlation)
            and row.time >= self.since
            and (not self.until or row.time <= self.until)
        )

    def _is_namespace(self, place: str) -> bool:
        """Whether a place is that of a namespace of the thread."""
        if not (self.scope.startswith(_THREAD) and place.startswith(_THREAD)):
            return False
        thread, other = parse_place(self.scope).thread, parse_place(place).thread
        return root_of(Line("", other)).name == thread

    @property
    def is_about_steps(self) -> bool:
        """Whether steps of threads may match, which say themselves who saved them."""
        return not self.key and self.kind in ("", THREAD) and self.outcome in ("", "ok")


class EventColumns(NamedTuple):
    """The columns of a row."""

    time: int
    kind: str
    actor: str
    action: str
    scope: str
    key: str
    outcome: str
    correlation: str
    cause: str
    duration: int

    @classmethod
    def of(cls, row: Row) -> EventColumns:
        time, kind, actor, action, target, outcome, correlation, cause, duration = row.columns
        # A key has no such character; the name of a thread, which has no keys, may.
        scope, between, key = str(target).rpartition(BETWEEN)
        if not between:
            scope, key = str(row.key[1]), str(target)
        return cls(
            int(time),
            str(kind),
            str(actor),
            str(action),
            scope if scope.startswith(_THREAD) else place_of(scope),
            key,
            str(outcome),
            correlation_of(str(kind), str(correlation), str(row.key[2])),
            str(cause),
            int(duration),
        )


class _RowPosition(NamedTuple):
    """The position of a row in the order of the whole audit."""

    id: str
    line: str
    number: int

    def __str__(self) -> str:
        return f"{self.id} {self.number} {self.line}"

    @classmethod
    def parse(cls, text: object) -> _RowPosition:
        parts = text.split(" ", 2) if isinstance(text, str) else []
        if len(parts) != 3 or not parts[1].isdecimal():
            raise InvalidError(
                "this is not a cursor of the audit", where=ascii(text)[:80], hint="Give the cursor of a row"
            )
        return cls(parts[0], parts[2], int(parts[1]))


class _Stream:
    """The rows of a line, the newest first. Streams sort by their next row, the newest first."""

    _table, _index = EVENTS, ""

    def __init__(self, handle: StoreHandle, line: Line, after: _RowPosition | None, size: int) -> None:
        self._handle = handle
        self._backend = handle.engine.context.backend
        self.line = line
        self.position = _RowPosition("", line.name, 0)
        """The position of the next row."""
        self._rows: list[Row] = []
        self._size = size
        self._has_more = True
        self._stop: tuple[Any, ...] = ()
        if after is not None:
            # All before a place in the order of id, line and number.
            same = (after.id, after.number) if line.name == after.line else (after.id,)
            self._stop = (after.id + "\0",) if line.name < after.line else same

    def __lt__(self, other: _Stream) -> bool:
        return self.position > other.position

    def first_query(self) -> Scan:
        """Return the query for the position of the first row."""
        return Scan(self._table, tuple(self.line), (), self._stop, True, 1, self._index, bodies=False)

    def start_at(self, row: Row) -> None:
        """Start at a row. Rows that are written later are ignored."""
        self.position = self._position(row)
        self._stop = (self.position.id, self.position.number + 1)

    def query(self) -> Scan:
        """Return the query for the next rows."""
        bodies = self._table is EVENTS
        return Scan(self._table, tuple(self.line), (), self._stop, True, self._size, self._index, bodies)

    def feed(self, rows: list[Row]) -> None:
        """Take the result of a query."""
        self._rows, self._has_more = rows[::-1], len(rows) == self._size
        if rows:
            last = self._position(rows[-1])
            self._stop = (last.id, last.number)
        self._size = min(self._size * _FEW, _PAGE)

    async def next(self) -> Row | None:
        """Return the next row; None if there are no more."""
        await self._fill()
        return self._rows.pop() if self._rows else None

    async def advance(self) -> bool:
        """Move to the next row. Returns whether there is one."""
        await self._fill()
        if self._rows:
            self.position = self._position(self._rows[-1])
        return bool(self._rows)

    async def _fill(self) -> None:
        if not self._rows and self._has_more:
            (found,) = await self._backend.read([self.query()])
            self.feed(found)

    def _position(self, row: Row) -> _RowPosition:
        return _RowPosition(str(row.key[2]), self.line.name, int(row.key[3]))

    async def read(self, row: Row, query: AuditQuery) -> tuple[EventColumns, Mapping[str, Any] | None]:
        """Return what a row says, and its details if it matches."""
        event = EventColumns.of(row)
        if not query.matches(event):
            return event, None
        return event, unpack_detail(self._handle.codec, row, self._handle.engine.context.max_bytes)


class _StepStream(_Stream):
    """The steps of a thread's line that say who saved them and why, as rows."""

    _table, _index = STEPS, "id"

    def _position(self, row: Row) -> _RowPosition:
        point = StepRef.of(row)
        return _RowPosition(point.id, self.line.name, point.revision)

    async def read(self, row: Row, query: AuditQuery) -> tuple[EventColumns, Mapping[str, Any] | None]:
        point, origin = StepRef.of(row), NO_ORIGIN
        if ORIGIN in point.metadata:
            with suppress(NotFoundError):  # it may be pruned meanwhile
                origin = (await self._handle.engine.step_info.head(self.line, point)).header.origin
        place = place_of_line(self.line.name)
        event = EventColumns(point.time, THREAD, origin.actor, point.kind, place, "", "ok", *origin[1:], 0)
        return event, {} if origin != NO_ORIGIN and query.matches(event) else None


async def query_audit(handle: StoreHandle, query: AuditQuery, limit: int, after: str | None) -> list[AuditRecord]:
    """Return a page of the audit, the newest first, by the time of writing."""
    heap = await _streams(handle, query, limit, None if after is None else _RowPosition.parse(after))
    page: list[AuditRecord] = []
    while heap and len(page) < limit:
        stream = heapq.heappop(heap)
        place, row = stream.position, await stream.next()
        if row is None:
            continue  # the line is gone meanwhile; what it said is in that of the audit
        event, detail = await stream.read(row, query)
        written = max(event.time, time_of(place.id))  # what was carried over is much older than its step
        if written < query.since - (_MAX_DELAY if stream.line.name == AUDIT else 0):
            continue  # and all before it in its line
        if detail is not None:
            page.append(_to_record(event, detail, place))
        if await stream.advance():
            heapq.heappush(heap, stream)
    return page


async def _streams(handle: StoreHandle, query: AuditQuery, limit: int, after: _RowPosition | None) -> list[_Stream]:
    """Return the lines that may have matching rows, as a heap."""
    backend, tenant = handle.engine.context.backend, handle.tenant
    threads: list[Line] = []
    if query.scope.startswith(_THREAD):
        threads = await handle.engine.lines.family(Line(tenant, parse_place(query.scope).thread))
        lines = [Line(tenant, AUDIT)]
    elif query.scope:
        names: Iterable[str] = sorted({*lines_of(query.scope), ACCESS, AUDIT})
        lines = [Line(tenant, name) for name in names]
    else:
        lines = await handle.engine.lines.names(tenant, MARK)
        if query.is_about_steps:
            threads = await _threads_with_origins(handle)
    if not query.is_about_steps:
        threads = []
    size = _PAGE if len(lines) <= _FEW else _FEW
    heap: list[_Stream] = []
    for some in _batches([*lines, *threads]):
        streams = [(_StepStream if is_thread(line.name) else _Stream)(handle, line, after, size) for line in some]
        for stream, rows in zip(streams, await backend.read([each.first_query() for each in streams]), strict=True):
            if rows:
                stream.start_at(rows[0])
                heap.append(stream)
        if query == AuditQuery() and not threads:
            # All of it is asked for: the page is filled by as many lines as it has rows, at most.
            heap = heapq.nsmallest(limit, heap)
    heapq.heapify(heap)
    for streams in _batches(heapq.nsmallest(min(limit, _PAGE), heap)):  # together: to ask for one by one takes longer
        for stream, rows in zip(streams, await backend.read([each.query() for each in streams]), strict=True):
            stream.feed(rows)
    return heap


async def _threads_with_origins(handle: StoreHandle) -> list[Line]:
    """Return the lines of threads with steps that say who saved them."""
    backend, found = handle.engine.context.backend, list[Line]()
    async for some in pages_of(lines_of_kinds(backend, handle.tenant, frozenset({"thread"})), _AT_ONCE):
        (marks,) = await backend.read([Get(LINKS, list(map(origin_mark, some)))])
        found += (Line(str(row.key[0]), str(row.key[1])) for row in marks)
    return found


def _batches(items: list[T]) -> Iterator[list[T]]:
    """Split a list into parts that are read at a time."""
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def _to_record(event: EventColumns, detail: Mapping[str, Any], place: _RowPosition) -> AuditRecord:
    id = str(detail.get(STEP, place.id))
    rest = {name: value for name, value in detail.items() if name != STEP}
    return AuditRecord(to_datetime(event.time), *event[1:-1], event.duration / 1e9, rest, id, str(place))
