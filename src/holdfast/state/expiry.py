"""Taking away keys that have expired.

Nobody sees a key any more once its time is up; but it takes room until it is written again or taken away. That is done
by a step of its scope, so that whoever watches the scope is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from holdfast.engine import trace_context
from holdfast.engine.events import Event
from holdfast.engine.model.scopes import MARK, Scope
from holdfast.engine.system_line import LineChange
from holdfast.security.handle import StoreHandle
from holdfast.state import keys as names
from holdfast.state.reader import ScopeView, read_scope
from holdfast.state.session_guard import maintenance_handle
from holdfast.state.sessions.records import EXPIRY
from holdfast.state.writer import edit_request

Progress: TypeAlias = Callable[[int, int | None, str], None]
"""Is told how many scopes were looked at, of how many, and which was the last."""


class ExpiryReport(NamedTuple):
    """What was taken away, and from how many scopes."""

    keys: int = 0
    scopes: int = 0


async def delete_expired(handle: StoreHandle, progress: Progress | None = None) -> ExpiryReport:
    """Take the expired keys of all scopes away."""
    keeper, keys, scopes = maintenance_handle(handle), 0, 0
    lines = await handle.engine.lines.names(handle.tenant, MARK)
    with trace_context.correlation(cause="expired"):
        for done, line in enumerate(lines, 1):
            scope = Scope.of_line(line.name)
            if scope is not None and await read_scope(keeper, scope, _has_expired):
                count = await _delete_expired(keeper, scope)
                keys, scopes = keys + count, scopes + bool(count)
            if progress is not None:
                progress(done, len(lines), line.name)
    return ExpiryReport(keys, scopes)


async def _has_expired(view: ScopeView) -> bool:
    return bool(await view.expired())


async def _delete_expired(keeper: StoreHandle, scope: Scope) -> int:
    count = 0

    async def edit(view: ScopeView) -> LineChange:
        nonlocal count
        dead = await view.expired()
        count = len(dead)
        gone = [name for key in dead for name in (key, names.ttl_name(key))]
        return LineChange(removed=gone, events=[Event("change", keeper.guard.actor, "delete", key) for key in dead])

    saving = edit_request(keeper, keeper.line(scope), EXPIRY, edit)
    saving.if_changed = True
    await keeper.engine.writer.save(saving)
    return count
