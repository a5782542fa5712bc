"""The lifecycle of sessions: start, touch, end, resume, delete.

A session ends in one batch: its record says so, its scope gets the mark that refuses writes, and its state stays, is
deleted, or is archived by a step that removes the keys and leaves the history. An expired session is ended on condition
that none of its lines has a new step and the record is unchanged: one that became active again is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from holdfast.backends.interface import Change, Create, Delete, Get, Put, Row, Scan
from holdfast.backends.tables import LINES, LINKS, REFS, TABLES
from holdfast.engine import trace_context, validation
from holdfast.engine.append import AppendRequest
from holdfast.engine.branch_graph import Position
from holdfast.engine.guard import Preconditions, both_preconditions
from holdfast.engine.hold_check import require_no_hold
from holdfast.engine.model.missing import MISSING
from holdfast.engine.model.packed_state import Packed
from holdfast.engine.optimistic import Attempts, ConcurrentChange
from holdfast.engine.row_format import PIN, Line, info_row
from holdfast.engine.step_info import StepInfo
from holdfast.engine.system_line import EditEntries, LineChange, SystemLineEntries
from holdfast.errors import ConflictError, DeniedError, NotFoundError
from holdfast.hooks.feature_hooks import FeatureHooks, call_hooks
from holdfast.security.access.policy import BELOW_ALL, check_rights
from holdfast.security.access.registry import AccessRegistry, GrantRequest
from holdfast.security.audit.retain import removal_request
from holdfast.state.reader import ScopeView, StoredValue, read_line_at
from holdfast.state.session_guard import SessionLimit, ended_key, limit_row, session_active
from holdfast.state.sessions.records import SessionLine, SessionRecord, SessionRecords, time_key
from holdfast.state.writer import edit_request

ARCHIVE_REASON = "archived session"
"""The reason of the pin on the last step before an archive."""

EXPIRED = "expired"
"""The reason of sessions that expired."""

_RETRY_AFTER = 3600 * 10**9
"""When a session that could not be ended is checked again."""

_TOUCHED = "\0touched"


class SessionReport(msgspec.Struct, frozen=True):
    """The result of a collection of sessions."""

    ended: int = 0
    """Sessions that had expired, and were ended."""
    forgotten: int = 0
    """Sessions whose retention was over, and whose records and archives were deleted."""
    spared: int = 0
    """Sessions that became active again."""
    held: int = 0
    """Sessions that could not be ended: their state is held, or a hook refused it."""


class _CalledHooks(NamedTuple):
    """The hooks of a point, called for a version of a session's record."""

    point: str
    version: int
    call: FeatureHooks


class SessionLifecycle:
    """Starts, ends, resumes and collects sessions."""

    def __init__(self, found: SessionRecords) -> None:
        self._records = found
        self._handle = found.handle
        self._line = found.system_line
        self._engine = found.handle.engine
        self._access = AccessRegistry(self._engine, found.handle.tenant, found.handle.guard.actor)
        self._deleted: set[Line] = set()

    # Ending -----------------------------------------------------------------------------------------------------

    async def end(self, id: str, reason: str = "") -> SessionRecord:
        """End a session; its `on_end` says what happens to its state. One that has ended is left as it is."""
        await self._end(id, reason, only_expired=False)
        self._drop_cache()
        return await self._records.get(id, migrate=True)

    async def expire(self, id: str) -> bool:
        """End a session if it has expired. Returns whether it did."""
        return await self._end(id, EXPIRED, only_expired=True)

    async def _end(self, id: str, reason: str, *, only_expired: bool) -> bool:
        called: _CalledHooks | None = None
        point = "session.expire" if only_expired else "session.end"
        with _correlation(id):
            attempts = Attempts("ending a session", f"session {id!r}", self._engine.context.metrics)
            while True:
                await attempts.begin()
                record = await self._records.get(id)  # any release can end a session
                if record.ended:
                    return False
                ((expires, lines),) = await self._records.expiries([record])
                now = self._handle.now()
                if only_expired and not 0 < expires <= now:
                    return False
                # One that has lasted for as long as it may ends, whoever is at work in it.
                strict = only_expired and not 0 < record.ttl <= now - record.started
                called = await self._call_once(called, point, id, record)
                try:
                    await self._save_end(id, record, lines, reason, called.call, strict=strict)
                except ConcurrentChange:
                    if strict:
                        return False
                    continue
                return True

    async def _call_once(self, called: _CalledHooks | None, point: str, id: str, record: SessionRecord) -> _CalledHooks:
        """Call the hooks of a point, unless they were called for the same version. Raises `VetoError`."""
        if called is not None and (called.point, called.version) == (point, record.version):
            return called
        return _CalledHooks(point, record.version, await self._call(point, id, record))

    async def _call(self, point: str, id: str, record: SessionRecord) -> FeatureHooks:
        """Call the hooks of a point with a session's metadata, or before a deletion without. Raises `VetoError`."""
        return await call_hooks(
            self._engine,
            point,
            scope=record.state,
            key=id,
            value=MISSING if point == "session.delete" else record.metadata,
            actor=self._handle.guard.actor,
            trace=trace_context.current(),
            metadata={"on_end": record.on_end, "by": record.by},
        )

    async def _save_end(
        self,
        id: str,
        record: SessionRecord,
        lines: Sequence[SessionLine],
        reason: str,
        call: FeatureHooks,
        *,
        strict: bool,
    ) -> None:
        now = self._handle.now()
        archives, takes = record.on_end == "archive", record.on_end != "keep"
        due = now + record.retention if record.on_end != "keep" else 0
        done = replace(record, ended=now, archived=archives, reason=reason, due=due, lines={}, metadata=_metadata(call))
        action = "expire" if reason == EXPIRED else "end"

        async def guards(again: bool) -> list[Change]:
            trace = lines[0].inside_condition
            if again and (strict or (takes and [trace] != await self._records.inside_conditions([record.root]))):
                raise ConcurrentChange
            changes: list[Change] = []
            if trace is not None and (strict or takes):
                changes.append(trace)
            if strict and not archives:
                changes += (condition for each in lines for condition in each.unchanged())
            return changes

        async def marking(_: bool) -> list[Change]:
            ground = [] if archives else await self._line_row(lines[0].line, gone=record.on_end == "delete")
            return [*ground, Put(LINKS, Row(ended_key(self._handle, record.root), (now, "")))]

        savings, first = self._removal(lines, guards) if record.on_end == "delete" else ([], guards)
        for each in lines if archives else ():
            await self._engine.lines.revalidate_tip(
                each.line
            )  # what is remembered of it may be older than what was seen
            savings.append(self._archive_request(each, done, strict))
        recording = self._record_edit(id, record, done, action, call)
        saving = self._line.request(action, recording, both_preconditions(first, marking))
        _call_after_hooks(call, (await self._engine.writer.save(*savings, saving))[-1])
        if record.on_end == "delete":
            self._deleted.update(each.line for each in lines)

    def _removal(
        self, lines: Sequence[SessionLine], guards: Preconditions
    ) -> tuple[list[AppendRequest], Preconditions | None]:
        """Return the requests and conditions that remove lines: a step of the audit, which retains their rows;
        without any rows, changes that are part of the record's own step. `DeniedError` if a line is held."""
        every = [each.line for each in lines]
        if any(each.point is not None for each in lines):
            return [removal_request(self._engine, every, self._handle.guard.actor, guards)], None

        async def changes(again: bool) -> list[Change]:
            if again:
                raise ConcurrentChange
            unchanged = [condition for each in lines for condition in each.unchanged()]
            held = await require_no_hold(self._engine.context.backend, every)
            gone = (Delete(space, tuple(line)) for line in every for space in TABLES)
            return [*await guards(again), *unchanged, *held, *gone]

        return [], changes

    async def _line_row(self, line: Line, *, gone: bool) -> list[Change]:
        """Return the row of the line that has the mark: the mark of no line would be an orphan."""
        (rows,) = await self._engine.context.backend.read([Get(LINES, [tuple(line)])])
        return [Put(LINES, info_row(line, self._engine.lines.new_info()))] if gone or not rows else []

    def _archive_request(self, each: SessionLine, done: SessionRecord, strict: bool) -> AppendRequest:
        """Return the request for the step that removes all keys of a line, and pins the step before it."""

        async def edit(view: ScopeView) -> LineChange:
            if strict and view.point != each.point:
                raise ConcurrentChange
            if view.point is None:
                return LineChange()
            done.lines[each.line.name] = view.point.seq + 1
            gone = [*await _all_keys(view), *await view.internal()]
            pin = Row((*each.line, PIN, ARCHIVE_REASON, view.point.id), (view.point.id, self._handle.now()))
            return LineChange(removed=gone, rows=[Put(REFS, pin)])

        return edit_request(self._handle, each.line, "archive", edit)

    def _record_edit(
        self,
        id: str,
        old: SessionRecord | None,
        new: SessionRecord | None,
        action: str,
        call: FeatureHooks | None = None,
    ) -> EditEntries:
        """Return the edit that replaces a record, if it is unchanged."""

        async def edit(entries: SystemLineEntries) -> LineChange:
            there = await self._records.find(id, entries)
            if (0 if there is None else there.version) != (0 if old is None else old.version):
                raise ConcurrentChange
            if new is not None and (there is None or there.metadata != new.metadata):
                await self._records.fit(id, new, there)
            return self._records.replace(id, old, new) + LineChange(events=self._records.events(id, action, call))

        return edit

    def _drop_cache(self) -> None:
        """Drop deleted lines from the cache: many at once, since the whole cache is searched."""
        self._engine.context.cache.drop_all(*self._deleted)
        self._deleted.clear()

    # Starting, changing, coming back ----------------------------------------------------------------------------

    async def start(self, id: str, record: SessionRecord) -> None:
        """Start a session, and grant its owner, if it has one, its scope. `ConflictError` if the id exists."""
        record.due = record.expires(record.started)
        others: list[AppendRequest] = []
        if record.owner:
            grant, request = self._access.grant_request(
                GrantRequest(record.owner, check_rights(("read", "write")), record.root, "", BELOW_ALL, 0)
            )
            record.grant, others = grant.id, [request]
        try:
            with _correlation(id):
                call = await self._call("session.start", id, record)
                record.metadata = _metadata(call)
                edit = self._record_edit(id, None, record, "start", call)
                saving = self._line.request("start", edit, self._conditions(self._limit(record)))
                _call_after_hooks(call, (await self._engine.writer.save(saving, *others))[0])
        except ConcurrentChange:
            raise ConflictError(
                "there is a session of this id",
                where=f"session {id!r}",
                hint="Resume it, or start one of another id",
            ) from None

    def _conditions(self, more: Preconditions | None = None) -> Preconditions | None:
        """Return conditions, with those on which metadata of its version may be stored."""
        if self._engine.value_schemas is None:
            return more
        return both_preconditions(more, self._records.conditions)

    def _limit(self, record: SessionRecord) -> Preconditions | None:
        """Return the changes that store when a session is over, by which readers and writers of its scopes know."""
        if not record.ttl:
            return None
        line = self._handle.line(record.root)
        limit = SessionLimit(record.started + record.ttl, record.on_end)

        async def changes(_: bool) -> list[Change]:
            (rows,) = await self._engine.context.backend.read([Get(LINES, [tuple(line)])])
            # The row of no line would be an orphan.
            new = [] if rows else [Create(LINES, info_row(line, self._engine.lines.new_info()))]
            return [*new, Put(LINKS, limit_row(self._handle, record.root, limit))]

        return changes

    async def change(self, id: str, action: str, change: Callable[[SessionRecord], SessionRecord]) -> SessionRecord:
        """Change a record."""
        attempts = Attempts("changing a session", f"session {id!r}", self._engine.context.metrics)
        while True:
            await attempts.begin()
            old = await self._records.get(id, migrate=True)
            new = change(old)
            try:
                with _correlation(id):
                    await self._line.change(action, self._record_edit(id, old, new, action), self._conditions())
            except ConcurrentChange:
                continue
            return new

    async def touch(self, id: str, record: SessionRecord, call: FeatureHooks | None = None) -> None:
        """Mark a session as active. `DeniedError` if it has ended."""
        handle, action = self._handle, "touch" if call is None else "resume"

        async def edit(view: ScopeView) -> LineChange:
            put: dict[str, Packed] = {_TOUCHED: handle.codec.pack(view.now)}
            return LineChange(put, events=self._records.events(id, action, call))

        guards = both_preconditions(self._line.preconditions, session_active(handle, record.root))
        with _correlation(id):
            request = edit_request(handle, handle.line(record.root), action, edit, guards)
        (head,) = await self._engine.writer.save(request)
        if call is not None:
            _call_after_hooks(call, head)

    async def resume(self, id: str) -> SessionRecord:
        """Resume a session: touch it, or restore the state that it had when it ended."""
        called: _CalledHooks | None = None
        with _correlation(id):
            attempts = Attempts("resuming a session", f"session {id!r}", self._engine.context.metrics)
            while True:
                await attempts.begin()
                record = await self._records.get(id, migrate=True)
                if not record.ended and record.ttl and record.started + record.ttl <= self._handle.now():
                    await self.expire(id)
                    self._drop_cache()
                    continue
                if record.ended and record.on_end == "delete":
                    raise NotFoundError(
                        "the session's state was deleted when it ended",
                        where=f"session {id!r}",
                        hint='Start sessions with on_end="archive" to be able to resume them after their end',
                    )
                point = "session.restore" if record.ended else "session.resume"
                called = await self._call_once(called, point, id, record)
                try:
                    if record.ended:
                        return await self._restore(id, record, called.call)
                    await self.touch(id, record, called.call)
                except ConcurrentChange:
                    continue
                except DeniedError as error:
                    if error.code != "session-ended":
                        raise
                    continue
                return record

    async def _restore(self, id: str, record: SessionRecord, call: FeatureHooks) -> SessionRecord:
        now, metadata = self._handle.now(), _metadata(call)
        new = replace(record, ended=0, archived=False, reason="", lines={}, started=now, metadata=metadata, held=False)
        new.due = new.expires(new.started)

        async def guards(_: bool) -> list[Change]:
            return [Delete(LINKS, ended_key(self._handle, record.root))]

        conditions = both_preconditions(guards, self._limit(new))
        savings = [
            self._restore_request(Line(self._handle.tenant, name), count) for name, count in record.lines.items()
        ]
        edit = self._record_edit(id, record, new, "restore", call)
        saving = self._line.request("restore", edit, self._conditions(conditions))
        _call_after_hooks(call, (await self._engine.writer.save(*savings, saving))[-1])
        return new

    def _restore_request(self, line: Line, count: int) -> AppendRequest:
        """Return the request for the step that restores a line to what it was after so many steps."""

        async def edit(_: ScopeView) -> LineChange:
            point = await self._engine.lines.find(line, Position(0, count - 1))
            put = await read_line_at(self._handle, line, point, _all_channels)
            request.schema = (await self._engine.step_info.head(line, point)).header.schema
            return LineChange(put, rows=[Delete(REFS, (*line, PIN, ARCHIVE_REASON, point.id))])

        request = edit_request(self._handle, line, "restore", edit)
        return request

    async def archived(self, line: Line, record: SessionRecord) -> dict[str, StoredValue]:
        """Return the state that a line of an archived session had when it ended."""
        count = record.lines.get(line.name, 0)
        if not count:
            return {}
        point = await self._engine.lines.find(line, Position(0, count - 1))
        return await read_line_at(self._handle, line, point, _all_keys)

    # Collecting -------------------------------------------------------------------------------------------------

    async def delete(self, id: str) -> None:
        """Delete a session: its record, its state, and its archive."""
        called: _CalledHooks | None = None
        with trace_context.correlation():
            attempts = Attempts("deleting a session", f"session {id!r}", self._engine.context.metrics)
            while True:
                await attempts.begin()
                record = await self._records.get(id)
                called = await self._call_once(called, "session.delete", id, record)
                try:
                    await self._delete(id, record, called.call)
                except ConcurrentChange:
                    continue
                return self._drop_cache()

    async def delete_unchanged(self, id: str, record: SessionRecord, seen: Sequence[SessionLine]) -> None:
        """Delete a session that is as it was seen: `ConcurrentChange` if it is not."""
        with trace_context.correlation():
            await self._delete(id, record, await self._call("session.delete", id, record), seen)
        self._drop_cache()

    async def _delete(
        self, id: str, record: SessionRecord, call: FeatureHooks, seen: Sequence[SessionLine] = ()
    ) -> None:
        lines = seen or (await self._records.lines([record.root]))[0]
        unchanged = [condition for each in seen for condition in each.unchanged()]

        async def guards(again: bool) -> list[Change]:
            if again and seen:
                raise ConcurrentChange
            if again and [lines[0].inside_condition] != await self._records.inside_conditions([record.root]):
                raise ConcurrentChange
            return [*unchanged, *([] if lines[0].inside_condition is None else [lines[0].inside_condition])]

        permit = self._line.preconditions
        with _correlation(id):
            savings, first = self._removal(lines, guards)
            if record.grant:
                # The batch changes the rights: that they are unchanged is checked for this change, not as a condition.
                savings.append(self._access.revoke_request(record.owner, record.grant, permit))
                self._line.preconditions = None
            saving = self._line.request("delete", self._record_edit(id, record, None, "delete", call), first)
            self._line.preconditions = permit
        _call_after_hooks(call, (await self._engine.writer.save(*savings, saving))[-1])
        self._deleted.update(each.line for each in lines)

    async def collect(self, limit: int) -> SessionReport:
        """End expired sessions, and delete those whose retention is over; at most `limit` are checked."""
        stop = (time_key(self._handle.now() + 1),)
        query = Scan(LINKS, (*self._line.line, "due"), stop=stop, limit=limit, bodies=False)
        (rows,) = await self._engine.context.backend.read([query])
        ended = forgotten = 0
        spared: list[str] = []
        held: list[str] = []
        for row in rows:
            id = str(row.key[4])
            try:
                record = await self._records.get(id)
                if not record.ended:
                    if await self.expire(id):
                        ended += 1
                    else:
                        spared.append(id)
                elif 0 < record.due <= self._handle.now():
                    await self._delete(id, record, await self._call("session.delete", id, record))
                    forgotten += 1
            except (NotFoundError, ConcurrentChange):
                continue  # another was first
            except ConflictError:
                spared.append(id)  # others were first too often
            except DeniedError:
                held.append(id)
        self._drop_cache()
        await self._postpone(spared, held)
        return SessionReport(ended, forgotten, len(spared), len(held))

    async def _postpone(self, spared: Sequence[str], held: Sequence[str]) -> None:
        """Check active sessions again when they may have expired, and others after a while."""
        found = await self._records.get_many([*spared, *held])
        now = self._handle.now()
        later = {id: now + _RETRY_AFTER for id in held if id in found}
        alive = {id: found[id] for id in spared if id in found and not found[id].ended}
        for id, (expires, _) in zip(alive, await self._records.expiries(list(alive.values())), strict=True):
            if expires > alive[id].due:
                later[id] = expires
        if not later:
            return

        async def edit(entries: SystemLineEntries) -> LineChange:
            change = LineChange()
            for id, there in (await self._records.get_many(later, entries)).items():
                if there.version == found[id].version:
                    change += self._records.replace(id, there, replace(there, due=later[id], held=id in held))
            return change

        await self._line.change("put off", edit)


def _correlation(id: str) -> AbstractContextManager[str]:
    """Give what happens to a session its id as the correlation id, unless the caller has given another."""
    return trace_context.correlation(trace_context.current().correlation or id)


def _metadata(call: FeatureHooks) -> dict[str, Any]:
    """Return a session's metadata as hooks left it."""
    return dict(validation.require_mapping(call.value, "metadata"))


def _call_after_hooks(call: FeatureHooks, head: StepInfo) -> None:
    call.call_after(head.point.seq + 1, head.point.id)


async def _all_keys(view: ScopeView) -> dict[str, StoredValue]:
    """Return all keys of a scope, also those that have expired and are not deleted yet."""
    keys = [*await view.keys(), *await view.expired()]
    found = {key: await view.find(key) for key in keys}
    return {key: stored for key, stored in found.items() if stored is not None}


async def _all_channels(view: ScopeView) -> dict[str, Packed]:
    """Return all that is stored of a scope: the values of its keys, and what belongs to them."""
    keys = [*await view.keys(), *await view.expired()]
    found = {key: await view.find_stored(key) for key in keys}
    return {key: stored.entry.value for key, stored in found.items() if stored is not None} | await view.internal()
