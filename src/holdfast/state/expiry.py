"""Taking away keys that have expired.

Nobody sees a key any more once its time is up; but it takes room until it is written again or taken away. That is done
by a step of its scope, so that whoever watches the scope is told.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.types import Progress
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.reader import ScopeView, viewed
from holdfast.state.session_guard import kept_by
from holdfast.state.sessions.records import LAPSE
from holdfast.state.system_record import RecordChange, edited


class ExpiryReport(NamedTuple):
    """What was taken away, and from how many scopes."""

    keys: int = 0
    scopes: int = 0


async def lapse(handle: StoreHandle, progress: Progress | None = None) -> ExpiryReport:
    """Take the expired keys of all scopes away."""
    keeper, keys, scopes = kept_by(handle), 0, 0
    lines = await handle.engine.lines.names(handle.tenant, MARK)
    with trace_context.correlation(cause="expired"):
        for done, line in enumerate(lines, 1):
            scope = Scope.of_line(line.name)
            if scope is not None and await viewed(keeper, scope, _has_expired):
                count = await _lapse(keeper, scope)
                keys, scopes = keys + count, scopes + bool(count)
            if progress is not None:
                progress(done, len(lines), line.name)
    return ExpiryReport(keys, scopes)


async def _has_expired(view: ScopeView) -> bool:
    return bool(await view.expired())


async def _lapse(keeper: StoreHandle, scope: Scope) -> int:
    count = 0

    async def edit(view: ScopeView) -> RecordChange:
        nonlocal count
        dead = await view.expired()
        count = len(dead)
        gone = [name for key in dead for name in (names.pack_key(key), names.pack_ttl(key))]
        return RecordChange(removed=gone, events=[Event("change", keeper.guard.actor, "delete", key) for key in dead])

    saving = edited(keeper, keeper.line(scope), LAPSE, edit)
    saving.if_changed = True
    await keeper.engine.writer.save(saving)
    return count
