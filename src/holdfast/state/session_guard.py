"""Sessions that have ended, or lasted as long as they may, refuse writes, whoever writes and through whatever handle.

A session that ends leaves a mark in the line of its scope. One with a time to live has a row there that says when it is
over. Every change of that scope, and of scopes inside it, has the condition that there is no mark, and that the row is
as it was last read. That costs two more conditions in the batch and no read; in stores with separate lines (files, S3),
a scope inside a session reads two lines for it. The first change of a scope inside also changes a row, by which whoever
ends an idle session learns that it is not idle.

A session whose time is over has ended for its readers, too, before anyone collects it: they find what they will find
then. Whoever reads a scope in a session reads the row first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from holdfast._named_tuple import NamedTuple
from holdfast.backends.interface import Change, Expect, Get, Put, Row
from holdfast.backends.tables import LINKS, Key
from holdfast.engine.guard import Guard, Preconditions
from holdfast.engine.model.scopes import Scope
from holdfast.engine.rng import rng
from holdfast.errors import DeniedError
from holdfast.security.handle import StoreHandle

_KIND, _MARK, _INSIDE, _LIMIT = "session", "ended", "inside", "limit"
"""The kind and the names of the links that are the mark, the row that new scopes change, and the time that it is over.
"""

_WEIGHT = 200
"""About how many bytes of memory a cached limit takes."""

EXPIRY = "lapse"
"""The kind of the steps that remove expired keys. They are no activity of the session."""


class MaintenanceGuard(Guard):
    """The guard of maintenance on behalf of an identity that another guard has checked."""

    def __init__(self, actor: str = "") -> None:
        self.actor = actor


def maintenance_handle(handle: StoreHandle) -> StoreHandle:
    """Return a handle for changes of system lines on behalf of the same identity."""
    return StoreHandle(handle.engine, handle.tenant, MaintenanceGuard(handle.guard.actor))


@lru_cache(4096)
def session_of(scope: Scope) -> Scope | None:
    """Return the scope of the session that a scope is or lies in; None if it is in none."""
    for place, part in enumerate(scope.parts):
        if part.kind == "session":
            return Scope(scope.parts[: place + 1])
    return None


def session_id(scopes: Iterable[Scope]) -> str:
    """Return the id of the session that all of some scopes are in; empty if there is none. It is the correlation id of
    their changes, unless the caller has given another."""
    sessions = {session_of(scope) for scope in scopes}
    session = sessions.pop() if len(sessions) == 1 else None
    return "" if session is None else session.parts[-1].name


def ended_key(handle: StoreHandle, session: Scope) -> Key:
    """Return the key of the mark of a session that has ended."""
    return (*handle.line(session), _KIND, _MARK, "")


def inside_key(handle: StoreHandle, session: Scope) -> Key:
    """Return the key of the row that changes whenever a scope is created inside a session's."""
    return (*handle.line(session), _KIND, _INSIDE, "")


class SessionLimit(NamedTuple):
    """When a session's time to live is over, in nanoseconds since 1970, and what happens to its state then."""

    ends: int
    on_end: str

    def is_over(self, now: int, *, for_good: bool = False) -> bool:
        """Whether the state has ended by a time; with `for_good`, whether its history has, too."""
        return self.ends <= now and self.on_end in (("delete",) if for_good else ("delete", "archive"))


def limit_row(handle: StoreHandle, session: Scope, limit: SessionLimit) -> Row:
    """Return the row with the limit of a session."""
    return Row(_limit_key(handle, session), tuple(limit))


def _limit_key(handle: StoreHandle, session: Scope) -> Key:
    return (*handle.line(session), _KIND, _LIMIT, "")


def limit_query(handle: StoreHandle, scope: Scope) -> Get:
    """Return the query for the limit of the session that a scope is in."""
    session = session_of(scope)
    return Get(LINKS, [] if session is None else [_limit_key(handle, session)])


def parse_limit(rows: Sequence[Row]) -> SessionLimit | None:
    """Return the limit that the query found; None if the session has none."""
    return SessionLimit(int(rows[0].columns[0]), str(rows[0].columns[1])) if rows else None


async def read_limit(handle: StoreHandle, scope: Scope) -> SessionLimit | None:
    """Read the limit of the session that a scope is in; None if there is none."""
    query = limit_query(handle, scope)
    if not query.keys:
        return None
    (rows,) = await handle.engine.context.backend.read([query])
    limit = parse_limit(rows)
    handle.engine.context.cache.put(("session", query.keys[0]), (limit,), _WEIGHT)
    return limit


def limit_unchanged(handle: StoreHandle, session: Scope, limit: SessionLimit | None) -> Expect:
    """Return the condition that the limit of a session is as it was read."""
    return Expect(LINKS, _limit_key(handle, session), None if limit is None else tuple(limit))


async def is_over(handle: StoreHandle, scope: Scope, *, for_good: bool = False) -> bool:
    """Whether the state of a scope has ended with its session's time to live, although nobody has collected it yet;
    with `for_good`, whether its history has, too."""
    limit = await read_limit(handle, scope)
    return limit is not None and limit.is_over(handle.now(), for_good=for_good)


def sessions_active(handle: StoreHandle, scopes: Iterable[Scope]) -> Preconditions | None:
    """Return the conditions that the sessions of some scopes have not ended; None if they are in none."""
    sessions: dict[Scope, list[Scope]] = {}
    for scope in scopes:
        if (session := session_of(scope)) is not None:
            sessions.setdefault(session, []).append(scope)
    if not sessions:
        return None
    conditions = {session: session_active(handle, session) for session in sessions}

    async def guards(again: bool) -> list[Change]:
        found: list[Change] = []
        for session, condition in conditions.items():
            found += await condition(again)
            lines = [handle.line(scope) for scope in sessions[session] if scope != session]
            if any(handle.engine.lines.cached_tip(line) is None for line in lines):
                await handle.engine.lines.ensure_row(handle.line(session))
                found.append(Put(LINKS, Row(inside_key(handle, session), (rng.getrandbits(62), ""))))
        return found

    return guards


def session_active(handle: StoreHandle, session: Scope) -> Preconditions:
    """Return the conditions that a session has not ended. `DeniedError` if it has, or its time to live is over."""
    condition, key = Expect(LINKS, ended_key(handle, session), None), _limit_key(handle, session)

    async def guards(again: bool) -> list[Expect]:
        cached: tuple[SessionLimit | None] | None = handle.engine.context.cache.get(("session", key))
        if again:
            (found,) = await handle.engine.context.backend.read([Get(LINKS, [condition.key])])
            if found:
                raise ended_error(session)
        if again or cached is None or (cached[0] is not None and cached[0].ends <= handle.now()):
            limit = await read_limit(handle, session)
        else:
            limit = cached[0]
        if limit is not None and limit.ends <= handle.now():
            raise ended_error(session)
        return [condition, limit_unchanged(handle, session, limit)]

    return guards


def ended_error(session: Scope) -> DeniedError:
    """Build the error for a write to a session that has ended."""
    return DeniedError(
        "the session has ended, and takes no more writes",
        where=str(session),
        hint="Resume it with sessions.resume(id), or start another",
        code="session-ended",
    )
