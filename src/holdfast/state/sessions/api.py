"""Sessions: state that lasts as long as a conversation, a visit or a run, and is then deleted or archived.

A session has an id and a scope of its own, `session:…`, inside that of its user if it has one. All state in that scope,
and in those inside it, ends with the session. A session expires after `ttl`, or when nothing was written and nobody
touched it for `idle`; it ends by `end`, or when `collect` finds that it has expired.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any, Generic, Self, TypeVar

from holdfast._fields import Hidden, Label, computed
from holdfast.backends.runtime.drivers import AsyncApi, SyncApi, declare, operation
from holdfast.engine import trace_context, validation
from holdfast.engine.guard import Action
from holdfast.engine.model.packed_state import unpack
from holdfast.engine.model.scopes import Scope, check_key
from holdfast.engine.pages import Page, paged
from holdfast.engine.types import to_datetime
from holdfast.errors import InvalidError, NotFoundError
from holdfast.security.access.identity import Identity, parse_identity
from holdfast.security.handle import StoreHandle
from holdfast.state.scope_state import AsyncState, State
from holdfast.state.sessions.lifecycle import EXPIRED, SessionLifecycle, SessionReport
from holdfast.state.sessions.records import OnEnd, SessionRecord, SessionRecords, Status
from holdfast.time_parser import Duration, parse_nanoseconds

S = TypeVar("S", bound="SessionOperations")

RETENTION = timedelta(days=30)
"""How long the record of a session that has ended is retained, and its archive."""

_PAGE = 256
_POLICIES = ("delete", "archive", "keep")
_STATUSES = ("active", "expired", "ended", "archived")


@declare(not_remote="`sessions` has the same for a session by its id.")
class SessionOperations:
    """A session as of when it was read. `Session` and `AsyncSession` have these as methods."""

    def __init__(self, handle: StoreHandle, id: str, record: SessionRecord, status: Status) -> None:
        self._handle = handle
        self._record = record
        self._id = id
        self._status = status

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r} {self.status}>"

    @property
    @computed
    def id(self) -> Annotated[str, Label("session")]:
        """The name of the session."""
        return self._id

    @property
    @computed
    def status(self) -> Status:
        """`active`; `expired`, if it is to be collected; `archived`; or `ended`."""
        return self._status

    @property
    @computed
    def scope(self) -> Hidden[Scope]:
        """The scope whose state the session uses."""
        return Scope.parse(self._record.state)

    @property
    @computed
    def user(self) -> str | None:
        """The user, if there is one."""
        return self._record.user or None

    @property
    @computed
    def metadata(self) -> dict[str, Any]:
        """The metadata."""
        return dict(self._record.metadata)

    @property
    @computed
    def started(self) -> datetime:
        """When it was started, or resumed after an end."""
        return to_datetime(self._record.started)

    @property
    @computed
    def ended(self) -> Hidden[datetime | None]:
        """When it ended."""
        return to_datetime(self._record.ended) if self._record.ended else None

    @property
    @computed
    def reason(self) -> Hidden[str]:
        """Why it ended: `expired`, or the reason that was given."""
        return self._record.reason

    @property
    @computed
    def on_end(self) -> Hidden[OnEnd]:
        """The treatment of its state at the end."""
        return self._record.on_end

    @property
    @computed
    def owner(self) -> Hidden[str | None]:
        """The identity that owns it, if there is one."""
        return self._record.owner or None

    @property
    @computed
    def by(self) -> Hidden[str]:
        """Who started it; empty for the store's owner."""
        return self._record.by

    @operation(changes=True)
    async def touch(self) -> None:
        """Mark the session as active, so that it does not become idle. Raises `DeniedError` if it has ended."""
        manager = _SessionManager(self._handle)
        await manager.lifecycle.touch(self.id, await manager.get(self.id, "write", inside=True))

    @operation(changes=True)
    async def end(self, reason: str = "") -> None:
        """End the session; its `on_end` says what happens to its state. Ending it again is no error."""
        done = await _SessionManager(self._handle).end(self.id, reason)
        self._record, self._status = done, "archived" if done.archived else "ended"


class Session(SyncApi, SessionOperations):
    """A session: `with store.sessions.start(user="alice") as session: session.state["seen"] = 1`. It ends with the
    block. All changes in the block have its id as their correlation id."""

    @property
    def state(self) -> State:
        """The state of its scope. It is read-only once the session has ended."""
        return State(self._handle, self.scope)

    def __enter__(self) -> Self:
        self._block = trace_context.correlation(self.id)
        self._block.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
        finally:
            self._block.__exit__(None, None, None)


class AsyncSession(AsyncApi, SessionOperations):
    """A session for asyncio: `async with await store.sessions.start() as session: …`."""

    @property
    def state(self) -> AsyncState:
        """The state of its scope. It is read-only once the session has ended."""
        return AsyncState(self._handle, self.scope)

    async def __aenter__(self) -> Self:
        self._block = trace_context.correlation(self.id)
        self._block.__enter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.end()
        finally:
            self._block.__exit__(None, None, None)


class _SessionManager:
    """Sessions on behalf of an identity.

    An identity manages the sessions below its own path: `user:alice` those of Alice. One inside a session, as
    `user:alice/session:s1/agent:writer`, reads and touches that session. Everything else needs a grant of the session's
    whole scope. The owner of a session has one.
    """

    def __init__(self, handle: StoreHandle) -> None:
        self.handle = handle
        self.records = SessionRecords(handle)
        self.lifecycle = SessionLifecycle(self.records)
        self.own = Scope.parse(handle.guard.actor) if handle.guard.actor else Scope()

    async def known(self, records: Mapping[str, SessionRecord]) -> dict[str, SessionRecord]:
        """Return those of some sessions that are below the identity's path, or that the identity is inside of, or that
        it owns, as long as it may read them."""
        roots = {id: record.root for id, record in records.items()}
        near = {id for id, root in roots.items() if self.own.contains(root) or root.contains(self.own)}
        mine = {id for id, record in records.items() if record.owner == self.handle.guard.actor} - near
        readable = set(await self.handle.guard.visible([roots[id] for id in mine]) if mine else ())
        return {id: record for id, record in records.items() if id in near or (id in mine and roots[id] in readable)}

    async def allow_start(self, root: Scope, id: str | None, owner: str) -> str:
        """Raise `DeniedError` unless a session may be started. Returns its owner; empty for none.

        An identity owns the sessions that it starts outside of its own path and of every user's. Their ids are random:
        who could choose the id could wait in the scope of a session that others will start.
        """
        guard = self.handle.guard
        if not guard.actor:
            return owner
        if id is None and len(root.parts) == 1 and owner in ("", guard.actor):
            permit = await guard.allow("write", self.own, ())
            self.records.system_line.preconditions = permit.guards
            return guard.actor
        if owner:
            raise InvalidError(
                "an identity owns sessions that it starts with a random id and without a user",
                where=f"session {id!r} of {owner}",
                hint="Leave out the id and the user, or let the owner of the store start the session",
            )
        await self.allow("write", root, root.parts[-1].name)
        return ""

    async def allow(self, action: Action, root: Scope, id: str, *, inside: bool = False) -> None:
        """Raise `DeniedError` unless this is allowed with a session; `inside` allows it to identities inside.
        Changes that follow have the condition that it still is."""
        guard = self.handle.guard
        if guard.actor:
            mine = self.own.contains(root) or (inside and root.contains(self.own))
            at = self.own if mine else root
            permit = await guard.allow_named(action, at, (), f"session {id!r}")
            self.records.system_line.preconditions = permit.guards
            if action == "read":
                await guard.saw(at, ())

    async def allow_all(self) -> None:
        """Raise `DeniedError` unless this is allowed with all sessions: to whoever may write the global scope."""
        await self.handle.guard.allow("write", Scope(), ())

    async def get(self, id: str, action: Action, *, inside: bool = False, migrate: bool = True) -> SessionRecord:
        """Return a session that this is allowed with. One that does not exist and one that is hidden look the same."""
        id = self.handle.guard.key("sessions", id, "id of a session")
        found = (await self.records.get_many([id], migrate=migrate)).get(id)
        await self.allow(action, Scope.of(session=id) if found is None else found.root, id, inside=inside)
        return await self.records.get(id, migrate=migrate) if found is None else found

    async def end(self, id: str, reason: str) -> SessionRecord:
        """End a session."""
        await self.get(id, "write")
        if reason == EXPIRED:
            raise InvalidError("the user of a session cannot end it as expired", hint="Give another reason")
        return await self.lifecycle.end(id, check_key(reason, "reason") if reason else "")


class SessionsOperations(Generic[S]):
    """Operations of `store.sessions`. `Sessions` and `AsyncSessions` have these as methods."""

    _session_class: type[S]

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    @operation(changes=True)
    async def start(
        self,
        id: str | None = None,
        *,
        user: str | None = None,
        agent: str | None = None,
        owner: Identity | Scope | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        ttl: Duration | None = None,
        idle: Duration | None = None,
        on_end: OnEnd = "delete",
        retention: Duration = RETENTION,
    ) -> S:
        """Start a session, with a generated id by default. Raises `ConflictError` if the id exists.

        Its state is that of the scope `session:id`, inside that of the user and around that of the agent, if they are
        given: `state(user=…, session=…, agent=…)`. `ttl` and `idle` are how long it lasts at most, and how long without
        activity, in seconds or as a timedelta. `on_end` says what happens to all state in the session's scope:
        `"delete"` removes it with its history; `"archive"` stores it for `resume` and `archived`; `"keep"` leaves it to
        be read. `retention` is how long after the end the archive and the record of the session are retained.

        The owner is an identity, such as `"agent:researcher"`, that may manage the session and use its state; of a
        session with a random id that an identity starts, it is that identity.
        """
        if on_end not in _POLICIES:
            raise InvalidError(f"on_end must be 'delete', 'archive' or 'keep', not {on_end!r}")
        manager = _SessionManager(self._handle)
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
            await manager.allow_start(root, id, "" if owner is None else str(parse_identity(owner))),
            metadata=dict(validation.require_mapping(metadata or {}, "metadata")),
        )
        await manager.lifecycle.start(name, record)
        return self._session(name, record, "active")

    @operation
    async def get(self, id: str, *, migrate: bool = True) -> S:
        """Return a session. Raises `NotFoundError`. With `migrate=False`, its metadata is as it was stored, whatever
        schema is attached."""
        manager = _SessionManager(self._handle)
        record = await manager.get(id, "read", inside=True, migrate=migrate)
        (status,) = await manager.records.status([record])
        return self._session(id, record, status)

    @operation(changes=True)
    async def resume(self, id: str) -> S:
        """Resume a session. An active one is touched. One that was archived, or ended with `"keep"`, is active again
        with all its state. Raises `NotFoundError` if the state was deleted."""
        manager = _SessionManager(self._handle)
        await manager.get(id, "write")
        return self._session(id, await manager.lifecycle.resume(id), "active")

    @operation(changes=True)
    async def touch(self, id: str) -> None:
        """Mark a session as active. Raises `DeniedError` if it has ended."""
        manager = _SessionManager(self._handle)
        await manager.lifecycle.touch(id, await manager.get(id, "write", inside=True))

    @operation(changes=True)
    async def update(self, id: str, metadata: Mapping[str, Any]) -> S:
        """Add or replace entries of a session's metadata."""
        manager = _SessionManager(self._handle)
        await manager.get(id, "write")
        more = dict(validation.require_mapping(metadata, "metadata"))
        record = await manager.lifecycle.change(
            id, "update", lambda old: replace(old, metadata={**old.metadata, **more})
        )
        (status,) = await manager.records.status([record])
        return self._session(id, record, status)

    @operation(changes=True)
    async def end(self, id: str, reason: str = "") -> S:
        """End a session; its `on_end` says what happens to its state. Ending it again is no error."""
        done = await _SessionManager(self._handle).end(id, reason)
        return self._session(id, done, "archived" if done.archived else "ended")

    @operation
    async def archived(self, id: str, scope: Scope | str | None = None) -> dict[str, Any]:
        """Return the state that an archived session had when it ended: of its own scope, or of another inside it."""
        manager = _SessionManager(self._handle)
        record = await manager.get(id, "read")
        if not record.archived:
            raise NotFoundError("the session is not archived", where=f"session {id!r}", hint="See its status")
        wanted = self._handle.guard.scope(record.state if scope is None else scope)
        if not record.root.contains(wanted):
            raise InvalidError("the scope does not belong to the session", where=f"{wanted} and {record.root}")
        await self._handle.guard.allow("read", wanted, ())
        found = await manager.lifecycle.archived(self._handle.line(wanted), record)
        await self._handle.guard.saw(wanted, list(found))
        now, codec = record.ended, self._handle.codec
        return {
            key: unpack(codec, stored.entry.value)
            for key, stored in sorted(found.items())
            if not 0 < stored.expires <= now
        }

    @operation
    @paged
    async def list(
        self,
        *,
        user: str | None = None,
        owner: Identity | Scope | str | None = None,
        status: Status | None = None,
        metadata: Mapping[str, Any] | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[S]:
        """List sessions in the order of their ids, a page of them: those of a user or an owner, of a status, with these
        entries in their metadata. An identity gets those that it may know of."""
        if status is not None and status not in _STATUSES:
            raise InvalidError(f"the status must be one of {', '.join(_STATUSES)}, not {status!r}")
        manager, count = _SessionManager(self._handle), validation.require_count(limit, "limit")
        wanted = dict(validation.require_mapping(metadata or {}, "metadata"))
        if self._handle.guard.actor:
            await self._handle.guard.allow("read", manager.own, ())
        waiting = await manager.records.list_due() if status == "expired" else None
        owned_by = None if owner is None else str(parse_identity(owner))
        link: tuple[str, str] = ("status", status or "")
        if user is not None or owned_by is not None:
            link = ("user", user) if user is not None else ("owner", owned_by or "")
        found: list[S] = []
        after = validation.cursor_text(cursor)
        while len(found) <= count:
            ids = await _page(manager.records, link, after) if waiting is None else _after(waiting, after)
            records = await manager.records.get_many(ids, migrate=True)
            shown = {
                id: record
                for id, record in (await manager.known(records)).items()
                if (user is None or record.user == user)
                and (owned_by is None or record.owner == owned_by)
                and all(key in record.metadata and record.metadata[key] == value for key, value in wanted.items())
            }
            statuses = await manager.records.status(list(shown.values()))
            for (id, record), each in zip(shown.items(), statuses, strict=True):
                if status in (None, each):
                    found.append(self._session(id, record, each))
            if len(ids) < _PAGE:
                break
            after = ids[-1]
        await self._handle.guard.saw(manager.own, ())
        return Page.cut(found, count, lambda session: session.id)

    @operation(changes=True)
    async def collect(self, limit: int = 1000) -> SessionReport:
        """End the sessions that have expired, and delete the records of those that ended before their retention; at
        most `limit`. It is safe while sessions are in use: one that became active again is left alone."""
        manager = _SessionManager(self._handle)
        await manager.allow_all()
        return await manager.lifecycle.collect(validation.require_count(limit, "limit"))

    @operation(changes=True)
    async def delete(self, id: str) -> None:
        """Delete a session: its state, its archive, and its record."""
        manager = _SessionManager(self._handle)
        await manager.get(id, "write")
        await manager.lifecycle.delete(id)

    def _session(self, id: str, record: SessionRecord, status: Status) -> S:
        return self._session_class(self._handle, id, record, status)


def _after(ids: list[str], after: str) -> list[str]:
    """Return the next page of some ids in order."""
    start = bisect_right(ids, after.encode(), key=str.encode) if after else 0
    return ids[start : start + _PAGE]


async def _page(records: SessionRecords, link: tuple[str, str], after: str) -> list[str]:
    """Return the next page of ids in order."""
    kind, name = link
    if name:
        return [str(row.key[4]) for row in await records.system_line.linked(kind, name, after, _PAGE)]
    every: set[str] = set()
    for each in ("active", "ended", "archived"):
        every |= {str(row.key[4]) for row in await records.system_line.linked("status", each, after, _PAGE)}
    return sorted(every, key=str.encode)[:_PAGE]


class Sessions(SyncApi, SessionsOperations[Session]):
    """`store.sessions` of a `Store`."""

    _session_class = Session


class AsyncSessions(AsyncApi, SessionsOperations[AsyncSession]):
    """`store.sessions` of an `AsyncStore`: operations are awaited."""

    _session_class = AsyncSession
