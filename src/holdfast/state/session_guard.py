"""Sessions that have ended refuse writes, whoever writes and through whatever handle.

A session that ends leaves a mark in the line of its scope. Every change of that scope, and of scopes inside it, has the
condition that there is no mark. That costs one more condition in the batch and no read; in stores with separate lines
(files, S3), a scope inside a session reads two lines for it. The first change of a scope inside also changes a row, by
which whoever ends an idle session learns that it is not idle.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.backends.interface import Change, Expect, Get, Put, Row
from holdfast.backends.tables import LINKS, Key
from holdfast.engine.guard import Guard, Preconditions
from holdfast.engine.model.scopes import Scope
from holdfast.engine.rng import rng
from holdfast.errors import DeniedError
from holdfast.security.handle import StoreHandle

_KIND, _MARK, _INSIDE = "session", "ended", "inside"
"""The kind and the names of the links that are the mark, and the row that new scopes change."""

EXPIRY = "lapse"
"""The kind of the steps that remove expired keys. They are no activity of the session."""


class MaintenanceGuard(Guard):
    """The guard of maintenance on behalf of an identity that another guard has checked."""

    def __init__(self, actor: str = "") -> None:
        self.actor = actor


def maintenance_handle(handle: StoreHandle) -> StoreHandle:
    """Return a handle for changes of system lines on behalf of the same identity."""
    return StoreHandle(handle.engine, handle.tenant, MaintenanceGuard(handle.guard.actor))


def session_of(scope: Scope) -> Scope | None:
    """Return the scope of the session that a scope is or lies in; None if it is in none."""
    for place, part in enumerate(scope.parts):
        if part.kind == "session":
            return Scope(scope.parts[: place + 1])
    return None


def ended_key(handle: StoreHandle, session: Scope) -> Key:
    """Return the key of the mark of a session that has ended."""
    return (*handle.line(session), _KIND, _MARK, "")


def inside_key(handle: StoreHandle, session: Scope) -> Key:
    """Return the key of the row that changes whenever a scope is created inside a session's."""
    return (*handle.line(session), _KIND, _INSIDE, "")


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
                found.append(Put(LINKS, Row(inside_key(handle, session), (rng.getrandbits(62), ""))))
        return found

    return guards


def session_active(handle: StoreHandle, session: Scope) -> Preconditions:
    """Return the condition that a session has not ended. `DeniedError` if it has."""
    condition = Expect(LINKS, ended_key(handle, session), None)

    async def guards(again: bool) -> list[Expect]:
        if again:
            (found,) = await handle.engine.context.backend.read([Get(LINKS, [condition.key])])
            if found:
                raise ended_error(session)
        return [condition]

    return guards


def ended_error(session: Scope) -> DeniedError:
    """Build the error for a write to a session that has ended."""
    return DeniedError(
        "the session has ended, and takes no more writes",
        where=str(session),
        hint="Resume it with sessions.resume(id), or start another",
        code="session-ended",
    )
