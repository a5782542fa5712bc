"""The timeline of a store: `store.timeline.query()`, `.causes(…)`, `.effects(…)`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.backends.interface import ColumnHint
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, as_change, operation
from holdfast.backends.tables import Key
from holdfast.engine import validation
from holdfast.engine.engine import Engine
from holdfast.engine.events import lines_of
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.namespaces import RECORD_LINES, root_of
from holdfast.engine.pages import Page, ReadPage
from holdfast.engine.paths import Path, require_range
from holdfast.engine.row_format import Line, check_name
from holdfast.engine.types import SCAN_LIMIT, Revision, to_datetime, to_time
from holdfast.errors import InvalidError, NotFoundError
from holdfast.history.blame import blame
from holdfast.history.query import Field, Query, every, parse
from holdfast.history.revisions import find_step
from holdfast.security.handle import StoreHandle
from holdfast.state.history import list_changes
from holdfast.store.timeline.causality import CausalNode, find_causes, find_effects
from holdfast.store.timeline.content import (
    FIELDS,
    ContentReader,
    EventSubject,
    TimelineContent,
    has_text,
    hints_of,
    matches,
    named_scope,
    narrow,
    tables_of,
)
from holdfast.store.timeline.event import SUCCESSES, EventFields, TimelineEvent, readable_scope
from holdfast.store.timeline.rows import (
    MAX_TIME,
    IndexedRows,
    ScannedRows,
    TimedRow,
    TimeInterval,
    TimelinePosition,
    TimelineReader,
)
from holdfast.time_parser import Time, parse_time

_MANY = 64
"""For more lines than these, all rows are read in the order of time."""


async def lines_about(engine: Engine, tenant: str, scope: Scope | None) -> list[Line] | None:
    """Return the lines with events about a scope and those inside, or about a thread; None if these may be any."""
    if scope is None or not scope.parts:
        return None
    others = [Line(tenant, name) for name in RECORD_LINES]
    if scope.thread:
        lines = await engine.lines.family(Line(tenant, scope.thread))
    else:
        names = lines_of(str(scope))
        lines = [Line(tenant, name) for name in names]
        lines += [line for line in await engine.lines.names(tenant, f"{MARK}{scope}/") if line not in lines]
    return [*lines, *others] if len(lines) <= _MANY else None


def hints_about(scope: Scope) -> tuple[ColumnHint, ...]:
    """Return what the rows of system lines about a scope or a thread have, and those about an agent's own line."""
    return (ColumnHint("target", (str(scope)[str(scope).index(":") :],), contains=True),)


async def writer_of_path(handle: StoreHandle, thread: str, path: Path, at: Revision) -> str:
    """Return the id of the checkpoint that wrote the value at a path of a thread; of a list or dict, the latest that
    wrote an item. `NotFoundError` if there is no such value, or the checkpoint was pruned."""
    line = handle.thread_line(thread)
    await handle.guard.allow_thread("read", line)
    entries = await blame(handle.engine, line, require_range(path), await find_step(handle.engine, line, at))
    await handle.guard.saw_thread(line)
    writers = [entry.writer for entry in entries if not entry.writer.pruned]
    if not writers:
        raise NotFoundError("the checkpoint that wrote the value was pruned", where=f"{path} of thread {line}")
    return max(writers, key=lambda writer: (writer.step, writer.id)).id


async def writer_of_key(handle: StoreHandle, scope: Scope, key: str) -> str:
    """Return the id of the step that wrote a key of a scope last. `NotFoundError` if there is none."""
    found = await list_changes(handle, scope, key, 1, None)
    if not found:
        raise NotFoundError("the key has no history", where=f"key {key!r} of {scope}")
    return found[0].id


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


_MAX_READ = 256
"""How many rows are read at a time, at most, of which only some turn out to be in the answer."""

_PAGE = 1000
"""How many events are read at a time where causes and effects are looked for."""

EXAMINED = 10 * SCAN_LIMIT
"""How many rows a page reads at most, by default."""


class TimelinePage(Page[TimelineEvent]):
    """A page of events. `examined` counts the rows that were read. A page that reached the limit of that is `stopped`:
    it may have fewer events than were asked for, and its `next` resumes there."""

    def __init__(
        self,
        events: Iterable[TimelineEvent] = (),
        next: str | None = None,  # noqa: A002 - the name of the attribute
        read: ReadPage[TimelineEvent] | None = None,
        examined: int = 0,
        *,
        stopped: bool = False,
    ) -> None:
        super().__init__(events, next, read)
        self.examined = examined
        self.stopped = stopped

    def to_otlp(self) -> dict[str, Any]:
        """Return the events as spans of OpenTelemetry: a request that a collector takes as JSON."""
        return to_otlp(self)

    def to_html(self, title: str = "Timeline") -> str:
        """Return the events as an HTML document that needs nothing else."""
        from holdfast.store.timeline.document import to_html

        return to_html(self, title)


class TimelineQuestion(NamedTuple):
    """A query of the timeline."""

    query: Query
    interval: TimeInterval
    scope: Scope | None
    """A scope, or the place of a thread."""
    errors: bool
    forward: bool
    text: str = ""
    """The question as it was put, to which cursors belong: what `2h` means moves on from page to page."""

    def test(self, row: TimedRow) -> bool:
        """Return whether a row may be in the answer, by its columns."""
        fields = EventFields.of(row)
        if self.errors and fields.outcome in SUCCESSES:
            return False
        if self.scope is not None and not _is_about(self.scope, fields):
            return False
        return matches(self.query, EventSubject(fields)) is not False


def _is_about(scope: Scope, fields: EventFields) -> bool:
    """Return whether an event is about a scope, one inside of it, or a thread and its namespaces."""
    place = str(scope)
    if fields.scope == place:
        return True
    if not fields.scope.startswith(place):
        return False
    return fields.scope[len(place)] in ("/", "␟")


class TimelineOperations:
    """Operations on the timeline. `Timeline` and `AsyncTimeline` have these as methods."""

    def __init__(self, handle: StoreHandle, flush_audit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._handle = handle
        self._flush_audit = flush_audit

    @operation(may_lag=True)
    async def query(
        self,
        query: str = "",
        *,
        thread: str | None = None,
        scope: Scope | str | None = None,
        errors: bool = False,
        since: Time | None = None,
        until: Time | None = None,
        oldest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        scan_limit: int | None = EXAMINED,
    ) -> TimelinePage:
        """List what happened, the newest first: checkpoints, changes of keys, hooks, transitions, transfers, sessions,
        artifacts, durable steps, and the audit: a page of it.

        `query` is text such as `refund kind:checkpoint time>2h`; the guide "Timeline" has the fields. `thread` includes
        the namespaces of the thread, `scope` all scopes inside. With `errors`, only what failed or was refused.

        A page ends early after `scan_limit` rows, and is then `stopped`; None reads as many as it takes. An identity
        gets what it may read.
        """
        question = self._question(query, thread, scope, since, until, errors=errors, forward=oldest_first)
        count = validation.require_count(limit, "limit")
        most = None if scan_limit is None else max(1, validation.require_count(scan_limit, "scan_limit"))
        await as_change(self._flush_audit())
        return await self._page(question, count, most, cursor)

    @operation(may_lag=True)
    async def causes(
        self,
        id: str | None = None,
        *,
        thread: str | None = None,
        path: Path | None = None,
        at: Revision = "HEAD",
        scope: Scope | str | None = None,
        key: str | None = None,
        limit: int = 1000,
    ) -> CausalNode:
        """Return what led to an event, back to its first cause, as a tree: `causes(event.id)`.

        Or what led to a value: that at a `path` of a thread, as `causes(thread="chat-1", path="plan.goal")`, or of a
        `key` of a scope. `NotFoundError` if there is no such event or value, or it may not be read. Of more than
        `limit` steps, the rest is left out.
        """
        found = _check_id(id) if id is not None else await self._writer(thread, path, at, scope, key)
        return _require(await find_causes(self._find, found, validation.require_count(limit, "limit")))

    @operation(may_lag=True)
    async def effects(self, id: str, *, limit: int = 1000) -> CausalNode:
        """Return what an event led to, directly and further on, as a tree: `effects(event.id)`. Of more than `limit`
        steps, the rest is left out."""
        return _require(await find_effects(self._find, _check_id(id), validation.require_count(limit, "limit")))

    # Inside -----------------------------------------------------------------------------------------------------

    async def _find(self, query: Query, interval: TimeInterval) -> AsyncIterator[TimelinePage]:
        """Yield the events that match, the oldest first, a page at a time."""
        question, cursor = TimelineQuestion(query, interval, None, errors=False, forward=True), None
        while True:
            page = await self._page(question, _PAGE, None, cursor)
            yield page
            cursor = page.next
            if cursor is None:
                return

    async def _writer(
        self, thread: str | None, path: Path | None, at: Revision, scope: Scope | str | None, key: str | None
    ) -> str:
        """Return the id of the step that wrote a value."""
        if thread is not None and path is not None and scope is None and key is None:
            return await writer_of_path(self._handle, thread, path, at)
        if scope is not None and key is not None and thread is None and path is None:
            return await writer_of_key(self._handle, self._handle.guard.scope(scope), key)
        raise InvalidError(
            "causes are those of an event, or of a value",
            hint="Give an id, or a thread and a path, or a scope and a key",
        )

    def _question(
        self,
        query: str,
        thread: str | None,
        scope: Scope | str | None,
        since: Time | None,
        until: Time | None,
        *,
        errors: bool,
        forward: bool,
    ) -> TimelineQuestion:
        now = to_datetime(self._handle.now()).astimezone()
        parsed = parse(query, now, FIELDS)
        where: Scope | None = None
        if thread is not None:
            where = Scope.of_thread(self._handle.thread_line(thread).name)
            if scope is not None:
                parsed = every([parsed, Field("scope", "=", str(self._handle.guard.scope(scope)))])
        elif scope is not None:
            where = self._handle.guard.scope(scope)
        else:
            where = named_scope(parsed)
        interval = TimeInterval(
            0 if since is None else min(max(to_time(parse_time(since, now)) - 999, 0), MAX_TIME),
            MAX_TIME if until is None else min(to_time(parse_time(until, now)) + 1, MAX_TIME),
        )
        text = "\0".join(map(str, (parsed, where, since, until, errors, forward)))
        return TimelineQuestion(parsed, narrow(parsed, interval), where, errors, forward, text)

    async def _page(self, question: TimelineQuestion, limit: int, most: int | None, cursor: str | None) -> TimelinePage:
        position = TimelinePosition.parse(cursor, question.text)

        async def read(cursor: str) -> TimelinePage:
            return await self._page(question, limit, most, cursor)

        if not limit:
            return TimelinePage([], None, read, 0, stopped=False)
        rows = await self._rows(question)
        found, examined, stopped, size = list[tuple[TimedRow, TimelineEvent]](), 0, False, 0
        content = ContentReader(self._handle.engine, texts=has_text(question.query))
        while len(found) <= limit:
            left = 2**62 if most is None else most - examined
            if left <= 0:
                stopped = True
                break
            # The more rows turned out not to be in the answer, the more are read at a time.
            size = max(limit + 1 - len(found), min(4 * size, _MAX_READ))
            chunk = await rows.read(position, size, question.test, left)
            examined += chunk.examined
            found += [(row, each.event) for row, each in await self._contents(chunk.rows, question, content)]
            position = chunk.end
            if position is None:
                break
        shown = found[:limit]
        await record_seen(self._handle, [row for row, _ in shown])
        events = [event for _, event in shown]
        if len(found) > limit:
            return TimelinePage(events, shown[-1][0].position.cursor(question.text), read, examined, stopped=False)
        after = position.cursor(question.text) if stopped and position is not None else None
        return TimelinePage(events, after, read, examined, stopped=stopped)

    async def _contents(
        self, rows: Sequence[TimedRow], question: TimelineQuestion, content: ContentReader
    ) -> list[tuple[TimedRow, TimelineContent]]:
        """Return the rows that may be seen and match, with their content."""
        seen = await select_visible(self._handle, rows)
        found = [(row, each) for row, each in zip(seen, await content.read(seen), strict=True) if each is not None]
        return [(row, each) for row, each in found if matches(question.query, each.subject)]

    async def _rows(self, question: TimelineQuestion) -> TimelineReader:
        """Return what reads the rows: by the index of times, if the store has one, or else from the lines."""
        engine, tenant = self._handle.engine, self._handle.tenant
        backend, errors = engine.context.backend, question.errors
        tables = tables_of(question.query, errors=errors)
        row_codec = engine.context.rows
        lines = await lines_about(engine, tenant, question.scope)
        if lines is not None and question.scope is not None:
            about = () if row_codec.hides_columns else hints_about(question.scope)
            prefixes: dict[Key, tuple[ColumnHint, ...]]
            prefixes = {tuple(line): about if line.name in RECORD_LINES else () for line in lines}
            return ScannedRows(backend, prefixes, question.interval, tables, forward=question.forward)
        if backend.capabilities.times and not row_codec.hides_names:
            hints = {
                table: () if row_codec.hides_columns else hints_of(question.query, table, errors=errors)
                for table in tables
            }
            return IndexedRows(backend, tenant, question.interval, hints, forward=question.forward)
        return ScannedRows(backend, {(tenant,): ()}, question.interval, tables, forward=question.forward)


def _check_id(id: object) -> str:
    checked = check_name(id, "id of an event")
    if not checked:
        raise InvalidError("the id of an event must not be empty", hint="It is that of the step that recorded it")
    return checked


def _require(tree: CausalNode) -> CausalNode:
    """Require that the event of a tree was found."""
    if not tree.events:
        raise NotFoundError(
            "there is no such event", where=tree.id[:80], hint="Its id is that of the step that recorded it"
        )
    return tree


class Timeline(SyncApi, TimelineOperations):
    """The timeline of a `Store`."""

    def _repr_html_(self) -> str:
        from holdfast._views import html_listing

        return html_listing(self.query(), "timeline")


class AsyncTimeline(AsyncApi, TimelineOperations):
    """The timeline of an `AsyncStore`: operations are awaited."""


# Events as spans of OpenTelemetry, in the JSON of its protocol (OTLP) ------------------------------------------------


_TRACE = re.compile("[0-9a-f]{32}")
_INTERNAL = 1
_ERROR = 2
"""The kind of a span inside of a program, and the status of one that failed, by their numbers in the protocol."""

_NAMES = ("kind", "action", "scope", "key", "actor", "outcome", "correlation", "cause", "id", "summary")


def to_otlp(events: Iterable[TimelineEvent]) -> dict[str, Any]:
    """Return events as a request to export spans, which a collector takes as JSON.

    Events that happened in a span are children of it. Others of one correlation are a trace, and are children of their
    causes, or are linked to them if these are in another trace. Ids are derived from those of the events: to export
    them twice makes no other spans.
    """
    found = list(events)
    traces = {event.id: _trace_id(event) for event in reversed(found)}
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [_attribute("service.name", "holdfast")]},
                "scopeSpans": [
                    {
                        "scope": {"name": "holdfast.timeline"},
                        "spans": [_span(event, traces) for event in found],
                    }
                ],
            }
        ]
    }


def _span(event: TimelineEvent, traces: Mapping[str, str]) -> dict[str, Any]:
    end, trace, links = to_time(event.time), _trace_id(event), list[dict[str, str]]()
    parent = event.span_id
    if not parent and event.cause:
        parent, other = _span_id(event.cause, 0), traces.get(event.cause, trace)
        if other != trace:
            parent, links = "", [{"traceId": other, "spanId": parent}]
    elif not parent and event.number:
        parent = _span_id(event.id, 0)  # further events of a step are parts of the first
    return {
        "traceId": trace,
        "spanId": _span_id(event.id, event.number),
        "parentSpanId": parent,
        "name": f"{event.kind} {event.action}",
        "kind": _INTERNAL,
        "startTimeUnixNano": str(end - round(event.duration * 1e9)),
        "endTimeUnixNano": str(end),
        "attributes": [
            _attribute(f"holdfast.{name}", value) for name in _NAMES if (value := str(getattr(event, name)))
        ],
        "links": links,
        "status": {"code": _ERROR, "message": event.summary or event.outcome} if event.failed else {},
    }


def _attribute(name: str, value: str) -> dict[str, Any]:
    return {"key": name, "value": {"stringValue": value}}


def _trace_id(event: TimelineEvent) -> str:
    correlation = event.correlation or event.id
    if event.trace_id or _TRACE.fullmatch(correlation):
        return event.trace_id or correlation
    return hashlib.sha256(f"holdfast trace\0{correlation}".encode()).hexdigest()[:32]


def _span_id(id: str, number: int) -> str:
    return hashlib.sha256(f"holdfast span\0{id}\0{number}".encode()).hexdigest()[:16]
