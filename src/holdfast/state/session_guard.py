"""Sessions that have ended take no more writes, whoever writes and through whatever handle.

A session that ended leaves a mark in the line of its scope. Every change of that scope, and of those inside it, is made
on condition that there is no mark. That costs one more condition in the batch and no read; in stores that keep each
line by itself (files, S3) a scope inside a session's has to look into two lines for it. The first change of a scope
inside leaves a trace there, too: whoever ends the session because it is idle learns by it that it is not.
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
"""The kind and the names of the links that are the mark, and the trace of new scopes."""

EXPIRY = "lapse"
"""The kind of the steps that remove expired keys. They are no activity of the session."""


class MaintenanceGuard(Guard):
    """The guard of what is done to keep the store in order, for somebody whom the guard was asked about before."""

    def __init__(self, actor: str = "") -> None:
        self.actor = actor


def maintenance_handle(handle: StoreHandle) -> StoreHandle:
    """The same handle, for what is done in its name to the lines of ours."""
    return StoreHandle(handle.engine, handle.tenant, MaintenanceGuard(handle.guard.actor))


def session_of(scope: Scope) -> Scope | None:
    """The scope of the session that a scope is, or lies in; None if it is in none."""
    for place, part in enumerate(scope.parts):
        if part.kind == "session":
            return Scope(scope.parts[: place + 1])
    return None


def ended_key(handle: StoreHandle, session: Scope) -> Key:
    """The key of the mark that a session leaves when it ends."""
    return (*handle.line(session), _KIND, _MARK, "")


def inside_key(handle: StoreHandle, session: Scope) -> Key:
    """The key of the row that is another one after each time that a scope was made inside a session's."""
    return (*handle.line(session), _KIND, _INSIDE, "")


def sessions_active(handle: StoreHandle, scopes: Iterable[Scope]) -> Preconditions | None:
    """The conditions that the sessions of scopes that are to be changed have not ended; None if they are in none."""
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
    """The condition that a session has not ended. `DeniedError` if it has."""
    condition = Expect(LINKS, ended_key(handle, session), None)

    async def guards(again: bool) -> list[Expect]:
        if again:
            (found,) = await handle.engine.context.backend.read([Get(LINKS, [condition.key])])
            if found:
                raise ended_error(session)
        return [condition]

    return guards


def ended_error(session: Scope) -> DeniedError:
    """The error for a write to a session that has ended."""
    return DeniedError(
        "the session has ended, and takes no more writes",
        where=str(session),
        hint="Resume it with sessions.resume(id), or start another",
        code="session-ended",
    )
