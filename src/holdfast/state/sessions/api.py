"""Sessions: state that lives as long as one conversation, one visit, one run, and then goes, or is put away.

A session has an id and a scope of its own, `session:…`, inside that of its user if it has one. All that is kept in that
scope, and in those inside it, ends with the session. Its time is up when it has lasted for `ttl`, or when nothing was
written in it and nobody touched it for `idle`; it ends when it is told to, or when `collect` finds that its time is up.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar

from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, sync_and_async
from holdfast.engine import validation
from holdfast.engine.guard import Action
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.handle import StoreHandle
from holdfast.state.scope_state import AsyncState, State
from holdfast.state.sessions.lifecycle import EXPIRED, SessionLifecycle, SessionReport
from holdfast.state.sessions.records import OnEnd, SessionRecord, SessionRecords, Status
from holdfast.time_parsing import Duration, parse_nanoseconds

S = TypeVar("S", bound="SessionOperations")

RETENTION = timedelta(days=30)
"""How long the record of a session that ended is kept, and its archive."""

_PAGE = 256
_POLICIES = ("delete", "archive", "keep")
_STATUSES = ("active", "expired", "ended", "archived")


class SessionOperations:
    """A session as it was when it was asked for. `Session` and `AsyncSession` have these as methods."""

    def __init__(self, handle: StoreHandle, id: str, record: SessionRecord, status: Status) -> None:
        self._handle = handle
        self._record = record
        self.id = id
        self.status = status
        """`active`; `expired`, if its time is up and it is yet to be collected; `archived`; or `ended`."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.status}>"

    @property
    def scope(self) -> Scope:
        """The scope whose state the session works with."""
        return Scope.parse(self._record.state)

    @property
    def user(self) -> str | None:
        """Whose it is."""
        return self._record.user or None

    @property
    def metadata(self) -> dict[str, Any]:
        """What was said about it."""
        return dict(self._record.metadata)

    @property
    def started(self) -> datetime:
        """When it was started, or resumed after an end."""
        return to_datetime(self._record.started)

    @property
    def ended(self) -> datetime | None:
        """When it ended."""
        return to_datetime(self._record.ended) if self._record.ended else None

    @property
    def reason(self) -> str:
        """Why it ended: `expired`, or what was said."""
        return self._record.reason

    @property
    def on_end(self) -> OnEnd:
        """What becomes of its state at the end."""
        return self._record.on_end

    @property
    def by(self) -> str:
        """Who started it; empty for the store's owner."""
        return self._record.by

    @sync_and_async
    async def touch(self) -> None:
        """Show a sign of life, so that it does not expire for being idle. Raises `DeniedError` if it has ended."""
        managing = _Managing(self._handle)
        await managing.ends.touch(self.id, await managing.get(self.id, "write", inside=True))

    @sync_and_async
    async def end(self, reason: str = "") -> None:
        """End it, and have its state deleted, archived or kept as was agreed. Again is no failure."""
        await self._end(reason)

    async def _end(self, reason: str = "") -> None:
        done = await _Managing(self._handle).end(self.id, reason)
        self._record, self.status = done, "archived" if done.archived else "ended"


class Session(SyncApi, SessionOperations):
    """A session: `with store.sessions.start(user="alice") as session: session.state["seen"] = 1`."""

    @property
    def state(self) -> State:
        """The state of its scope. Once it has ended, that takes no more writes."""
        return State(self._handle, self.scope)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


class AsyncSession(AsyncApi, SessionOperations):
    """The same, for asyncio: `async with await store.sessions.start() as session: …`."""

    @property
    def state(self) -> AsyncState:
        """The state of its scope. Once it has ended, that takes no more writes."""
        return AsyncState(self._handle, self.scope)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()


class _Managing:
    """Sessions in the name of somebody, who may or may not.

    An identity manages the sessions below its own path: `user:alice` those of Alice. One that lives in a session, as
    `user:alice/session:s1/agent:writer` does, sees and touches that session. All else takes a grant of the session's
    scope as a whole.
    """

    def __init__(self, handle: StoreHandle) -> None:
        self.handle = handle
        self.records = SessionRecords(handle)
        self.ends = SessionLifecycle(self.records)
        self.own = Scope.parse(handle.guard.actor) if handle.guard.actor else Scope()

    def knows(self, root: Scope) -> bool:
        """Whether a session is below its own path, or it lives in that session."""
        return self.own.contains(root) or root.contains(self.own)

    async def allow(self, action: Action, root: Scope, id: str, *, inside: bool = False) -> None:
        """`DeniedError` if it may not do this with a session; `inside`, if those who live in one may. What is then done
        is done on condition that it still may."""
        guard = self.handle.guard
        if guard.actor:
            mine = self.own.contains(root) or (inside and root.contains(self.own))
            at = self.own if mine else root
            permit = await guard.allow_named(action, at, (), f"session {id!r}")
            self.records.book.guards = permit.guards
            if action == "read":
                await guard.saw(at, ())

    async def allow_all(self) -> None:
        """`DeniedError` if it may not do something with all sessions: who may write the global scope may."""
        await self.handle.guard.allow("write", Scope(), ())

    async def get(self, id: str, action: Action, *, inside: bool = False) -> SessionRecord:
        """A session that it may do this with. One that is not there and one that it may not know of look the same."""
        id = self.handle.guard.key("sessions", id, "id of a session")
        found = (await self.records.several([id])).get(id)
        await self.allow(action, Scope.of(session=id) if found is None else found.root, id, inside=inside)
        return await self.records.get(id) if found is None else found

    async def end(self, id: str, reason: str) -> SessionRecord:
        """End one."""
        await self.get(id, "write")
        if reason == EXPIRED:
            raise InvalidError("whether a session has expired is not for its user to say", hint="Give another reason")
        return await self.ends.end(id, check_key(reason, "reason") if reason else "")


class SessionsOperations(Generic[S]):
    """What can be done with sessions. `Sessions` and `AsyncSessions` have these as methods."""

    _made: type[S]

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    @sync_and_async
    async def start(
        self,
        id: str | None = None,
        *,
        user: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        idle: Duration | None = None,
        on_end: OnEnd = "delete",
        retention: Duration = RETENTION,
    ) -> S:
        """Start a session, with an id of its own unless one is given. Raises `ConflictError` if there is one of that
        id.

        Its state is that of the scope `session:id`, inside that of the user and around that of the agent, if they are
        given: `state(user=…, session=…, agent=…)`. `ttl` and `idle` are how long it lasts at most, and how long without
        a sign of life, in seconds or as a timedelta. `on_end` says what becomes of all state in the session's scope:
        `"delete"` removes it with its history; `"archive"` puts it away for `resume` and `archived`; `"keep"` leaves it
        to be read. `retention` is how long after the end an archive is kept, and the record that there was a session.
        """
        if on_end not in _POLICIES:
            raise InvalidError(f"on_end is 'delete', 'archive' or 'keep', not {on_end!r}")
        managing = _Managing(self._handle)
        name = secrets.token_hex(16) if id is None else self._handle.guard.key("sessions", id, "id of a session")
        root = self._handle.guard.scope({"user": user, "session": name})
        state = self._handle.guard.scope({"user": user, "session": name, "agent": agent})
        record = SessionRecord(
            str(root),
            str(state),
            self._handle.now(),
            0 if ttl is None else parse_nanoseconds(ttl, "time to live", positive=True),
            0 if idle is None else parse_nanoseconds(idle, "idle time", positive=True),
            on_end,
            parse_nanoseconds(retention, "retention", positive=True),
            self._handle.guard.actor,
            dict(validation.require_mapping(metadata or {}, "metadata")),
        )
        await managing.allow("write", root, name)
        await managing.ends.start(name, record)
        return self._session(name, record, "active")

    @sync_and_async
    async def get(self, id: str) -> S:
        """A session. Raises `NotFoundError`."""
        managing = _Managing(self._handle)
        record = await managing.get(id, "read", inside=True)
        (status,) = await managing.records.status([record])
        return self._session(id, record, status)

    @sync_and_async
    async def resume(self, id: str) -> S:
        """Have a session go on. One that is alive is touched. One that was archived, or ended and was kept, is active
        again from now on, with all the state that it had; raises `NotFoundError` if that was deleted."""
        managing = _Managing(self._handle)
        await managing.get(id, "write")
        return self._session(id, await managing.ends.resume(id), "active")

    @sync_and_async
    async def touch(self, id: str) -> None:
        """Show a sign of life. Raises `DeniedError` if the session has ended."""
        managing = _Managing(self._handle)
        await managing.ends.touch(id, await managing.get(id, "write", inside=True))

    @sync_and_async
    async def update(self, id: str, metadata: Mapping[str, Any]) -> S:
        """Give a session further entries of metadata, or others in place of those it has."""
        managing = _Managing(self._handle)
        await managing.get(id, "write")
        more = dict(validation.require_mapping(metadata, "metadata"))
        record = await managing.ends.change(id, "update", lambda old: replace(old, metadata={**old.metadata, **more}))
        (status,) = await managing.records.status([record])
        return self._session(id, record, status)

    @sync_and_async
    async def end(self, id: str, reason: str = "") -> S:
        """End a session, and have its state deleted, archived or kept as was agreed. Again is no failure."""
        done = await _Managing(self._handle).end(id, reason)
        return self._session(id, done, "archived" if done.archived else "ended")

    @sync_and_async
    async def archived(self, id: str, scope: Scope | str | None = None) -> dict[str, Any]:
        """The state that an archived session had when it ended; of its own scope, or of another inside it."""
        managing = _Managing(self._handle)
        record = await managing.get(id, "read")
        if not record.archived:
            raise NotFoundError("the session is not archived", where=f"session {id!r}", hint="See its status")
        wanted = self._handle.guard.scope(record.state if scope is None else scope)
        if not record.root.contains(wanted):
            raise InvalidError("the scope is none of the session's", where=f"{wanted} and {record.root}")
        await self._handle.guard.allow("read", wanted, ())
        found = await managing.ends.archived(self._handle.line(wanted), record)
        await self._handle.guard.saw(wanted, list(found))
        now, codec = record.ended, self._handle.codec
        return {
            key: unpack(codec, stored.entry.value)
            for key, stored in sorted(found.items())
            if not 0 < stored.expires <= now
        }

    @sync_and_async
    async def list(
        self,
        *,
        user: str | None = None,
        status: Status | None = None,
        metadata: Mapping[str, Any] | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[S]:
        """A page of sessions in order of their ids: those of a user, of a status, with these entries in their metadata,
        those after another. An identity is shown those that it knows of."""
        if status is not None and status not in _STATUSES:
            raise InvalidError(f"the status is one of {', '.join(_STATUSES)}, not {status!r}")
        managing, count = _Managing(self._handle), validation.require_count(limit, "limit")
        wanted = dict(validation.require_mapping(metadata or {}, "metadata"))
        if self._handle.guard.actor:
            await self._handle.guard.allow("read", managing.own, ())
        waiting = await managing.records.waiting() if status == "expired" else None
        link = ("user", user) if user is not None else ("status", status or "")
        found: list[S] = []
        while len(found) < count:
            ids = await _page(managing.records, link, after) if waiting is None else _after(waiting, after)
            records = await managing.records.several(ids)
            shown = {
                id: record
                for id, record in records.items()
                if managing.knows(record.root)
                and (user is None or record.user == user)
                and all(key in record.metadata and record.metadata[key] == value for key, value in wanted.items())
            }
            statuses = await managing.records.status(list(shown.values()))
            for (id, record), each in zip(shown.items(), statuses, strict=True):
                if status in (None, each):
                    found.append(self._session(id, record, each))
            if len(ids) < _PAGE:
                break
            after = ids[-1]
        await self._handle.guard.saw(managing.own, ())
        return found[:count]

    @sync_and_async
    async def collect(self, limit: int = 1000) -> SessionReport:
        """End the sessions whose time is up, each as was agreed, and forget those that ended longer ago than they are
        kept for; at most so many are looked at. Safe while they are used: one that has come back to life is left alone.
        """
        managing = _Managing(self._handle)
        await managing.allow_all()
        return await managing.ends.collect(validation.require_count(limit, "limit"))

    @sync_and_async
    async def delete(self, id: str) -> None:
        """Remove a session for good: its state, its archive, and the record that there was one."""
        managing = _Managing(self._handle)
        await managing.get(id, "write")
        await managing.ends.delete(id)

    def _session(self, id: str, record: SessionRecord, status: Status) -> S:
        return self._made(self._handle, id, record, status)


def _after(ids: list[str], after: str) -> list[str]:
    """The next of some ids in order, at most as many as a page has."""
    start = bisect_right(ids, after.encode(), key=str.encode) if after else 0
    return ids[start : start + _PAGE]


async def _page(records: SessionRecords, link: tuple[str, str], after: str) -> list[str]:
    """The next ids in order, at most as many as a page has."""
    kind, name = link
    if name:
        return [str(row.key[4]) for row in await records.book.linked(kind, name, after, _PAGE)]
    every: set[str] = set()
    for each in ("active", "ended", "archived"):
        every |= {str(row.key[4]) for row in await records.book.linked("status", each, after, _PAGE)}
    return sorted(every, key=str.encode)[:_PAGE]


class Sessions(SyncApi, SessionsOperations[Session]):
    """The sessions of a store: `store.sessions`."""

    _made = Session


class AsyncSessions(AsyncApi, SessionsOperations[AsyncSession]):
    """The same, for asyncio."""

    _made = AsyncSession
